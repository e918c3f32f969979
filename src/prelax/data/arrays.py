"""All images of a set in one file: an array (``.npy``), or arrays with their labels (``.npz``, HDF5)."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

import numpy as np

from prelax.config import DataSettings
from prelax.data.cache import cache_folder, cached, digest
from prelax.data.decode import MAX_CHANNELS, Plan
from prelax.data.folder import NothingHeldOut, Progress, survey
from prelax.data.images import ImageSet, limited, numbered
from prelax.data.listing import class_names, held_out
from prelax.data.memory import gigabytes
from prelax.data.pool import decode_all
from prelax.data.stored import ENDINGS, Stored, damage, headers
from prelax.errors import PrelaxError, printable

IMAGES = ("", "images", "image", "imgs", "x", "data", "arr_0")  # with nothing but the split: train=, test=
LABELS = ("labels", "label", "y", "targets", "target", "classes", "ans")
SPLITS = {"train": "train", "training": "train", "test": "test", "val": "val", "valid": "val", "validation": "val"}


@dataclass(frozen=True)
class Part:
    """The images of a split, and their labels where there are any."""

    images: Stored
    labels: Stored | None


def is_arrays(path: Path) -> bool:
    """Whether a path is a file that may hold images as arrays."""
    return path.suffix.lower() in ENDINGS and path.is_file()


def load_arrays(settings: DataSettings, split: str, progress: Progress | None = None) -> ImageSet:
    """The images of ``settings.root``, their central squares at one size, decoded once and cached as a folder's are.

    Test images are those of ``test_root``, else the file's own (``test``, else ``val``), else a share
    ``test_fraction`` of all.
    """
    assert settings.root is not None
    root = settings.root.expanduser()
    parts = parts_of(root)
    train = parts.get("train")
    if train is None:
        raise PrelaxError(f"{root} has no training images among its arrays ({', '.join(parts)})")
    test, notes = parts.get("test") or parts.get("val"), []
    if settings.test_root is not None:
        other = settings.test_root.expanduser()
        if not is_arrays(other):
            raise PrelaxError(f"data.test_root: {other} is no file of arrays, which it is to be where data.root is one")
        theirs = parts_of(other)
        test = theirs.get("test") or theirs.get("val") or theirs["train"]
    labels, odd = labels_of(train, settings.labels)
    classes = class_names(labels)
    plan, said, levels = plan_of(train.images, settings)

    part, rows = train, np.arange(len(labels))
    if test is None:
        held = np.array(held_out([str(row) for row in rows], settings.test_fraction))
        rows = rows[held == (split == "test")]
        if split == "train" and held.any():
            notes.append(f"{held.sum():,} of {len(labels):,} images are held out to measure on (data.test_fraction)")
        if not len(rows):
            raise NothingHeldOut(
                f"none of the images in {root} is held out to measure on: measure by others (--on FILE), or train "
                "with data.test_root, or data.test_fraction above 0"
            )
    elif split == "test":
        part, (labels, odd) = test, labels_of(test, None)
        rows = np.arange(len(labels))
        classes += [name for name in class_names(labels) if name not in set(classes)]
    else:
        notes.append(f"what is measured on is {printable(str(test.images))}")
    notes += [odd] if odd else []
    if split == "train":
        rows = rows[limited(len(rows), settings.limit)]
    chosen = [labels[row] for row in rows]
    found = decoded(settings, part.images, rows, chosen, classes, plan, said + notes, progress)
    return replace(found, range=levels, unlabelled=odd)


def decoded(
    settings: DataSettings,
    stored: Stored,
    rows: np.ndarray,
    labels: list[str | None],
    classes: list[str],
    plan: Plan,
    notes: list[str],
    progress: Progress | None,
) -> ImageSet:
    status = stored.file.stat()
    names = [f"{stored.file.name}:{stored.member}", *map(str, rows)]
    stats = np.array([[status.st_size, status.st_mtime_ns]])
    paths = [
        f"{printable(str(stored.file.resolve()))}{f':{stored.member}' if stored.member else ''}[{r}]" for r in rows
    ]
    found = cached(
        key=digest(stored.file.parent, names, stats, plan),
        folder=cache_folder(settings.cache) / "images",
        count=len(rows),
        plan=plan,
        paths=paths.__getitem__,
        blocks=lambda: decode_all(Rows(stored.open(), rows, stored), plan, settings.workers),
        progress=progress,
        notes=notes,
    )
    if found.skipped:  # all are of one shape: what holds of one mostly holds of all
        path, why = found.skipped[0]
        if len(found.skipped) < len(rows):
            raise PrelaxError(f"{len(found.skipped)} of the images in {stored} cannot be read, {path}: {why}")
        raise PrelaxError(f"{stored} cannot be read as images: {why}")
    where = f"decoded into {found.file}" if found.file else "in memory"
    notes.append(f"{len(rows):,} images, {gigabytes(found.images.numel())}, {where}")
    return ImageSet(
        name=settings.label,
        images=found.images,
        labels=numbered(labels, classes),
        classes=classes,
        paths=paths,
        notes=notes,
        file=found.file,
        plan=plan,
    )


class Rows(Sequence[bytes]):
    """Some images of an array, each as the contents of a ``.npy`` file."""

    def __init__(self, images: np.ndarray, rows: np.ndarray, name: Stored) -> None:
        self.images, self.rows, self.name = images, rows, name

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        with damage(self.name):  # HDF5 reads now
            found = self.images[self.rows[at]]
        return [contents(image) for image in found] if isinstance(at, slice) else contents(found)


def contents(image: np.ndarray) -> bytes:
    """An array as the contents of a ``.npy`` file."""
    file = io.BytesIO()
    np.save(file, image, allow_pickle=False)
    return file.getvalue()


def plan_of(stored: Stored, settings: DataSettings) -> tuple[Plan, list[str], str | None]:
    """How the images are brought to one shape; of 8 bits no pixel is read for it."""
    if stored.dtype in (np.uint8, np.bool_):
        images = np.zeros((1, *stored.shape[1:]), stored.dtype)
    else:
        images = stored.open()
    rows = Rows(images, np.arange(len(images)), stored)
    return survey(rows.__getitem__, len(rows), settings.image_size, settings.channels, settings.range)


def parts_of(file: Path) -> dict[str, Part]:
    """What a file holds, by split; what is of no split is for training."""
    found = headers(file)
    if file.suffix.lower() == ".npy":
        check_images(found[""])
        return {"train": Part(found[""], None)}
    named: dict[tuple[str, str], Stored] = {}
    for name, stored in found.items():
        split, what = told(name)
        if what and named.setdefault((split, what), stored) is not stored:
            raise PrelaxError(f"{file} has two arrays of {split} {what}: {named[split, what].member} and {name}")
    splits = [split for split, what in named if what == "images"]
    if not splits:
        said = ", ".join(f"{name} {stored.shape}" for name, stored in list(found.items())[:8])
        raise PrelaxError(
            f"{file} has no array of images among {said or 'none'}: call it images (and labels), or train_images, "
            "train_labels, test_images, test_labels"
        )
    for split in splits:
        check_images(named[split, "images"])
    return {split: Part(named[split, "images"], named.get((split, "labels"))) for split in splits}


def told(name: str) -> tuple[str, str]:
    """The split and the kind (images, labels, or nothing known) that an array's name tells.

    >>> told("train_images"), told("x_val"), told("Y"), told("meta")
    (('train', 'images'), ('val', 'images'), ('train', 'labels'), ('train', ''))
    """
    words = [word for word in re.split(r"[^a-z]+", name.lower()) if word] if name != "arr_0" else [name]
    split = next((SPLITS[word] for word in words if word in SPLITS), "train")
    rest = "".join(word for word in words if word not in SPLITS)
    return split, "images" if rest in IMAGES else "labels" if rest in LABELS else ""


def check_images(stored: Stored) -> None:
    """Refuses an array that cannot be images, before any pixel is read."""
    if stored.dtype.kind not in "buif":
        raise PrelaxError(f"{stored} holds no numbers but {stored.dtype}; images are")
    if len(stored.shape) not in (3, 4) or 0 in stored.shape:
        raise PrelaxError(
            f"{stored} has the shape {stored.shape}; images are N x H x W, N x H x W x C or N x C x H x W"
        )
    if len(stored.shape) == 3 and stored.shape[2] <= 4:
        raise PrelaxError(
            f"{stored} has the shape {stored.shape}, that of one image; a set of them is N x H x W, N x H x W x C or "
            "N x C x H x W"
        )
    if len(stored.shape) == 4 and min(stored.shape[1], stored.shape[3]) > MAX_CHANNELS:
        raise PrelaxError(f"{stored} has the shape {stored.shape}; an image has at most {MAX_CHANNELS} channels")


def labels_of(part: Part, named: Path | None) -> tuple[list[str | None], str]:
    """A label an image, None where there is none (-1 and empty words are none); and why no label is taken, if so."""
    images, stored = part.images, part.labels
    if named is not None:
        stored = labels_in(named.expanduser(), images)
    none: list[str | None] = [None] * images.shape[0]
    if stored is None:
        return none, ""
    if stored.dtype.kind == "O":
        raise PrelaxError(f"{stored} holds Python objects: save labels as words, labels.astype(str), or as numbers")
    if stored.shape[:1] != images.shape[:1] or stored.dtype.kind not in "biufUS":
        raise PrelaxError(
            f"{stored} (of shape {stored.shape}, {stored.dtype}) is no label for each of the {images.shape[0]:,} "
            f"images of {images}"
        )
    with damage(stored):
        values = np.asarray(stored.open()).reshape(images.shape[0], -1)
    if values.dtype == object:  # HDF5's words
        values = values.astype("S")
    if values.shape[1] != 1:
        if values.dtype.kind in "US" or not ((values == 0) | (values == 1)).all() or (values.sum(1) != 1).any():
            return none, f"{stored} has several labels an image, where kNN and the probes ask for one: none is taken"
        values = values.argmax(1, keepdims=True)  # one of so many
    if values.dtype.kind == "f":
        if not np.isfinite(values).all() or (values != np.rint(values)).any():
            return none, f"{stored} has measurements, not classes (no label is -1, not NaN): none is taken"
        values = values.astype(np.int64)
    words = [
        word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word) for word in values[:, 0].tolist()
    ]
    return [word if word not in ("", "-1") else None for word in words], ""


def labels_in(file: Path, images: Stored) -> Stored:
    """A file of labels beside an array of images."""
    if images.file.suffix.lower() == ".npz":
        raise PrelaxError(f"data.labels: the labels of {images.file} are an array in it; leave data.labels out")
    if not file.is_file():
        raise PrelaxError(f"data.labels: there is no file {file}")
    if file.suffix.lower() not in ENDINGS:
        raise PrelaxError(f"data.labels: the labels of {images} are a .npy file too, one an image; {file} is none")
    found = headers(file)
    named = [stored for name, stored in found.items() if told(name)[1] == "labels"]
    if len(found) > 1 and len(named) != 1:
        raise PrelaxError(f"data.labels: {file} has {len(found)} arrays ({', '.join(found)}); call one of them labels")
    return named[0] if named else next(iter(found.values()))
