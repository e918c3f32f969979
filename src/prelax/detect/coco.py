"""A split of a dataset in COCO's format: read, cleaned of what cannot be used, and counted."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from prelax.errors import PrelaxError, first_line

# (annotations, images) of a split: a small set's own layout, then the official ones.
LAYOUTS = (
    ("instances_{split}.json", "{split}"),
    ("annotations/instances_{split}.json", "{split}"),
    ("annotations/instances_{split}2017.json", "{split}2017"),
    ("annotations/instances_{split}2014.json", "{split}2014"),
)
DECODED_WHOLE = 5000  # sets up to this many images are decoded once to find torn files; of larger ones headers are read
LEAST = 0.01  # pixels, of a box's side; and a share of the image's: less is lost when float32 mirrors and resizes it
LEAST_SHARE = 1e-6


@dataclass
class CocoSet:
    """One split: its images, the objects of each, and what was left out.

    Args:
        name: of the split, for lines that speak of it.
        folder: where the image files are.
        images: COCO's entries (``id``, ``file_name``, ``width``, ``height``).
        objects: for every image its annotations, in COCO's fields.
        categories: name of every category id, in the order of ids; label 1 is the first, 0 the background.
        left_out: (what, why) of every image and annotation that could not be used.
    """

    name: str
    folder: Path
    images: list[dict[str, Any]]
    objects: list[list[dict[str, Any]]]
    categories: dict[int, str]
    left_out: list[tuple[str, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def labels(self) -> dict[int, int]:
        """The label of every category id."""
        return {number: label for label, number in enumerate(self.categories, start=1)}

    @property
    def digest(self) -> str:
        """A short name of the images and annotations, the same wherever they lie."""
        text = json.dumps([self.images, self.objects, list(self.categories.items())], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def counts(self) -> dict[str, int]:
        """How much was left out, by reason."""
        return dict(Counter(why for _, why in self.left_out))

    def with_objects(self) -> CocoSet:
        """The images that have something to learn from: at least one object that is not a crowd."""
        rows, left_out = [], list(self.left_out)
        for row, image in enumerate(self.images):
            if any(not thing["iscrowd"] for thing in self.objects[row]):
                rows.append(row)
            else:
                left_out.append((image["file_name"], "image without objects"))
        if not rows:
            raise PrelaxError(f"{self.name}: no image has an object to learn from")
        images, objects = [self.images[row] for row in rows], [self.objects[row] for row in rows]
        return CocoSet(self.name, self.folder, images, objects, self.categories, left_out)

    def pixels(self, row: int) -> np.ndarray:
        """The image of a row, uint8, H x W x 3."""
        image = self.images[row]
        path = self.folder / image["file_name"]
        try:
            return open_image(path, image["width"], image["height"])
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise PrelaxError(f"{path} cannot be read ({first_line(error)}); remove it and begin anew") from None


def read_coco(root: Path | str, split: str, masks: bool = False) -> CocoSet:
    """The ``train`` or ``val`` split under a root, with unusable images and annotations left out and counted.

    Args:
        root: holds ``instances_train.json`` and ``train/``, or the official ``annotations/instances_train2017.json``
            and ``train2017/``; the same for ``val``.
        masks: whether every object needs an outline.
    """
    file, folder = find(Path(root), split)
    try:
        tree = json.loads(file.read_bytes())
        images, annotations, categories = (list(tree[key]) for key in ("images", "annotations", "categories"))
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise PrelaxError(
            f"{file} is not COCO's instances JSON ({type(error).__name__}: {first_line(error)})"
        ) from None
    left_out: list[tuple[str, str]] = []
    names = read_categories(categories, file)
    kept = usable_images(images, folder, file, left_out)
    objects: dict[int, list[dict[str, Any]]] = {image["id"]: [] for image in kept}
    known = {image.get("id") for image in images if isinstance(image, dict)}
    sizes = {image["id"]: image for image in kept}
    for number, thing in enumerate(annotations):
        what = f"annotation {thing.get('id', number) if isinstance(thing, dict) else number}"
        why = fault(thing, sizes, known, names, masks)
        if why is None:
            objects[thing["image_id"]].append(tidy(thing))
        elif why != "its image was left out":  # counted once, with the image
            left_out.append((what, why))
    if not kept:
        raise PrelaxError(f"{file}: none of its {len(images)} image(s) can be used ({reasons(left_out)})")
    if not any(objects.values()):
        raise PrelaxError(f"{file}: none of its {len(annotations)} annotation(s) can be used ({reasons(left_out)})")
    return CocoSet(
        f"{Path(root).resolve().name}/{split}", folder, kept, [objects[i["id"]] for i in kept], names, left_out
    )


def find(root: Path, split: str) -> tuple[Path, Path]:
    """The annotations and the image folder of a split."""
    if not root.is_dir():
        raise PrelaxError(f"no folder {root}")
    for layout in LAYOUTS:
        file, folder = (root / part.format(split=split) for part in layout)
        if file.is_file():
            if not folder.is_dir():
                raise PrelaxError(f"{file} is there, and the folder of its images {folder} is not")
            return file, folder
    raise PrelaxError(
        f"{root} holds no COCO {split} split: it needs instances_{split}.json and {split}/, "
        f"or annotations/instances_{split}2017.json and {split}2017/"
    )


def check_alike(train: CocoSet, val: CocoSet) -> None:
    """Refuses two splits that number their categories differently."""
    if train.categories == val.categories:
        return
    for number in sorted(set(train.categories) | set(val.categories)):
        here, there = train.categories.get(number), val.categories.get(number)
        if here != there:
            raise PrelaxError(
                f"category {number} is {here or 'missing'} in {train.name} and {there or 'missing'} in {val.name}; "
                "both files must list the same categories"
            )


def read_categories(categories: list[Any], file: Path) -> dict[int, str]:
    try:
        names = {int(entry["id"]): str(entry.get("name", entry["id"])) for entry in categories}
    except (TypeError, KeyError, ValueError, AttributeError):
        raise PrelaxError(f"{file}: a category needs an id and a name") from None
    if not names or len(names) != len(categories):
        raise PrelaxError(f"{file}: the categories are {'empty' if not names else 'not told apart by their ids'}")
    return dict(sorted(names.items()))


def usable_images(images: list[Any], folder: Path, file: Path, left_out: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """The entries whose file is there, can be read and has the size the annotations were drawn on."""
    seen: set[int] = set()
    for image in images:
        try:
            number = int(image["id"])
            image["width"], image["height"] = int(image["width"]), int(image["height"])  # some write "640"
            sound = image["width"] > 0 and image["height"] > 0 and isinstance(image["file_name"], str)
            sound = sound and bool(image["file_name"])
        except (TypeError, KeyError, ValueError, OverflowError):
            sound = False
        if not sound:
            raise PrelaxError(f"{file}: an image needs id, file_name, width and height, and one has {str(image)[:80]}")
        if number in seen:
            raise PrelaxError(f"{file}: two images have the id {number}")
        seen.add(number)
    whole = len(images) <= DECODED_WHOLE

    def check(image: dict[str, Any]) -> str | None:
        path = folder / image["file_name"]
        if not path.is_file():
            return "image file missing"
        try:
            if whole:
                open_image(path, image["width"], image["height"])
            else:
                with Image.open(path) as opened:
                    oriented(opened, image["width"], image["height"])
        except SizeError:
            return "image file of another size than its annotations"
        except Exception:  # Pillow's readers raise many kinds on torn files
            return "image file cannot be read"
        return None

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(check, images))
    left_out.extend((str(image["file_name"]), why) for image, why in zip(images, found, strict=True) if why)
    return [
        {key: image[key] for key in ("id", "file_name", "width", "height")}
        for image, why in zip(images, found, strict=True)
        if why is None
    ]


class SizeError(ValueError):
    """An image file that its annotations were not drawn on."""


def oriented(image: Image.Image, width: int, height: int) -> Image.Image:
    """The image as the annotations see it: its pixels as stored, or turned upright where only that has their size."""
    if image.size == (width, height):
        return image
    if image.size == (height, width):
        turned = ImageOps.exif_transpose(image)
        if turned.size == (width, height):
            return turned
    raise SizeError(f"{image.size[0]} x {image.size[1]} pixels, the annotations say {width} x {height}")


def open_image(path: Path, width: int, height: int) -> np.ndarray:
    """The pixels of a file, uint8, H x W x 3."""
    with Image.open(path) as image:
        return np.array(oriented(image, width, height).convert("RGB"))


def fault(
    thing: Any, images: dict[int, dict[str, Any]], known: set[Any], categories: Iterable[int], masks: bool
) -> str | None:
    """Why an annotation cannot be used, or None."""
    if not isinstance(thing, dict) or not {"image_id", "category_id", "bbox"} <= set(thing):
        return "annotation without image_id, category_id or bbox"
    if not all(isinstance(thing[key], int | float | str) for key in ("image_id", "category_id")):
        return "annotation without image_id, category_id or bbox"
    if thing["image_id"] not in images:
        return "its image was left out" if thing["image_id"] in known else "unknown image"
    if thing["category_id"] not in categories:
        return "unknown category"
    image, box = images[thing["image_id"]], thing["bbox"]
    numbers = isinstance(box, list) and len(box) == 4 and all(isinstance(v, int | float) for v in box)
    if not numbers or not all(math.isfinite(v) for v in box):
        return "box is not four numbers"
    left, top, right, bottom = corners(box, image["width"], image["height"])
    least = max(LEAST, LEAST_SHARE * max(image["width"], image["height"]))
    if right - left < least or bottom - top < least:
        return "box of no size inside its image"
    if masks and not drawable(parts(thing.get("segmentation")), image["width"], image["height"]):
        return "no outline that can be drawn"
    return None


def corners(box: list[float], width: int, height: int) -> tuple[float, float, float, float]:
    """A COCO box (left, top, width, height) as its corners, within the image.

    >>> corners([-2, 3, 10, 10], 20, 8)
    (0.0, 3.0, 8.0, 8.0)
    """
    left, top = max(0.0, float(box[0])), max(0.0, float(box[1]))
    return left, top, min(float(width), float(box[0] + box[2])), min(float(height), float(box[1] + box[3]))


def parts(outline: Any) -> Any:
    """An outline without polygons of one or two points, which some tools leave beside the real ones.

    >>> parts([[0, 0, 9, 0, 9, 9], [3, 3, 4, 4]])
    [[0, 0, 9, 0, 9, 9]]
    """
    if not isinstance(outline, list):
        return outline
    return [polygon for polygon in outline if not isinstance(polygon, list) or len(polygon) >= 6]


def drawable(outline: Any, width: int, height: int) -> bool:
    """Whether pycocotools can make a mask of a segmentation: polygons of three points or more, or run lengths."""
    if isinstance(outline, dict):
        try:
            return int(mask_of(outline, width, height).sum()) > 0
        except Exception:  # malformed run lengths raise many kinds
            return False
    return (
        isinstance(outline, list)
        and bool(outline)
        and all(
            isinstance(polygon, list)
            and len(polygon) >= 6
            and len(polygon) % 2 == 0
            and all(isinstance(v, int | float) and math.isfinite(v) for v in polygon)
            for polygon in outline
        )
    )


def mask_of(outline: Any, width: int, height: int) -> np.ndarray:
    """The pixels inside a segmentation, uint8, H x W."""
    masks = pycocotools().mask
    if isinstance(outline, list):
        runs = masks.merge(masks.frPyObjects(outline, height, width))
    elif isinstance(outline["counts"], list):
        runs = masks.frPyObjects(outline, height, width)
    else:
        runs = outline
    if list(runs["size"]) != [height, width]:
        raise ValueError(f"run lengths of a mask of {runs['size']}")
    return np.asarray(masks.decode(runs))


def tidy(thing: dict[str, Any]) -> dict[str, Any]:
    """An annotation with the fields scoring needs, and no others."""
    box = [float(v) for v in thing["bbox"]]
    area, crowd = thing.get("area"), thing.get("iscrowd")
    return {
        "image_id": thing["image_id"],
        "category_id": thing["category_id"],
        "bbox": box,
        "area": float(area) if isinstance(area, int | float) and math.isfinite(area) else box[2] * box[3],
        "iscrowd": int(bool(crowd) and str(crowd).lower() not in ("0", "0.0", "false")),  # some write "0"
        "segmentation": parts(thing.get("segmentation")) or [],
    }


def reasons(left_out: list[tuple[str, str]]) -> str:
    """``3 x image file missing, 1 x unknown category``."""
    return ", ".join(f"{count} x {why}" for why, count in Counter(why for _, why in left_out).items()) or "it has none"


def pycocotools() -> Any:
    """The package with its ``mask``, ``coco`` and ``cocoeval``."""
    try:
        import pycocotools
        import pycocotools.coco
        import pycocotools.cocoeval
        import pycocotools.mask
    except ImportError:
        raise PrelaxError("detection needs pycocotools: pip install 'prelax[detection]'") from None
    return pycocotools
