"""Data sets that are folders with a layout of their own: Tiny ImageNet, Imagenette, ImageNet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

from prelax.config import DataSettings
from prelax.data.folder import Layout, load_folder
from prelax.data.images import ImageSet
from prelax.data.listing import scan
from prelax.errors import PrelaxError

IMAGENETTE = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}
HOW = {
    "tiny-imagenet": ("tiny-imagenet-200", "unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip"),
    "imagenette": ("imagenette2-160", "unpack https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-160.tgz"),
    "imagenet": ("ILSVRC2012", "unpack the ILSVRC2012 archives into one folder a class"),
}


def load_known(settings: DataSettings, split: str, progress: Callable[[int, int], None] | None = None) -> ImageSet:
    """Tiny ImageNet, Imagenette or ImageNet (by ``settings.source``) from their folders; the test set is their val."""
    name, root = settings.source, located(settings)
    # Without this, an unlabelled test/ beside val/ could be taken for the test set.
    test_root = settings.test_root or root / "val"
    settings = settings.model_copy(update={"root": root, "test_root": test_root})
    layouts = {"tiny-imagenet": _tiny_imagenet, "imagenette": _imagenette, "imagenet": _imagenet}
    return load_folder(settings, split, progress, layouts[name](root))


def training_names(settings: DataSettings) -> set[str]:
    """The names of the training files of such a set, without folder and ending."""
    return {PurePosixPath(name).stem for name in scan(located(settings) / "train").names}


def located(settings: DataSettings) -> Path:
    """The folder that holds train and val."""
    name = settings.source
    usual, how = HOW[name]
    if settings.root is None:
        raise PrelaxError(f"data.root is not set; {how} and set data.root to the folder that holds train and val")
    given = settings.root.expanduser()
    root = next((tree for tree in (given, given / usual, given / name) if (tree / "train").is_dir()), None)
    if root is None:
        raise PrelaxError(f"no {name} files: looked for train/ in {given} and {given / usual}; {how} there")
    return root


def _imagenette(root: Path) -> Layout:
    return Layout(titles=IMAGENETTE)


def _imagenet(root: Path) -> Layout:
    return Layout(image_size=256)


def _tiny_imagenet(root: Path) -> Layout:
    """32 px, as the paper has it; labels of val are in a table, class names in another."""
    labels, titles = {}, {}
    table, words = root / "val" / "val_annotations.txt", root / "words.txt"
    if table.is_file():
        for line in table.read_text(encoding="utf-8").splitlines():
            if "\t" in line:
                file, wnid, *_ = line.split("\t")
                labels[f"images/{file}"] = wnid
    if words.is_file():
        for line in words.read_text(encoding="utf-8").splitlines():
            wnid, _, said = line.partition("\t")
            titles[wnid] = said.split(",")[0].strip()
    return Layout(image_size=32, titles=titles, test_labels=labels)
