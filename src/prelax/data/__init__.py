"""Pixels in: a source is read once into uint8 and stays where it fits.

Parts are imported when they are first used: the processes that decode import this package too, and need no torch.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from typing import TYPE_CHECKING, Any

from prelax.errors import PrelaxError
from prelax.names import SOURCES

if TYPE_CHECKING:
    import torch

    from prelax.config import DataSettings
    from prelax.data.folder import Progress, choose_image_size
    from prelax.data.images import ImageSet, disjoint, labels_of, order, picked, subset
    from prelax.data.progress import bar
    from prelax.data.shards import ShardSet, ShardStore
    from prelax.data.store import Store

__all__ = [
    "SOURCES",
    "ImageSet",
    "ShardSet",
    "ShardStore",
    "Store",
    "bar",
    "choose_image_size",
    "disjoint",
    "labels_of",
    "load",
    "load_splits",
    "load_training",
    "only_shards",
    "order",
    "picked",
    "store_of",
    "subset",
]

PARTS = {
    **dict.fromkeys(("ImageSet", "disjoint", "labels_of", "order", "picked", "subset"), "images"),
    **dict.fromkeys(("ShardSet", "ShardStore"), "shards"),
    "Store": "store",
    "bar": "progress",
    "choose_image_size": "folder",
}


def __getattr__(name: str) -> Any:
    if name in PARTS:
        return getattr(importlib.import_module(f"prelax.data.{PARTS[name]}"), name)
    raise AttributeError(f"module 'prelax.data' has no attribute {name!r}")


def load(settings: DataSettings, split: str = "train", progress: Progress | None = None) -> ImageSet:
    """The images of one split, decoded to uint8.

    >>> from prelax.config import DataSettings
    >>> train = load(DataSettings(source="digits"), "train")
    >>> train.images.shape, train.classes[3]
    (torch.Size([1297, 1, 16, 16]), '3')

    Args:
        split: "train" or "test".
        progress: called with (files done, files in all) while files are decoded; `bar` gives one that draws.
    """
    from prelax.config import nearest
    from prelax.data.arrays import is_arrays, load_arrays
    from prelax.data.cifar import load_cifar
    from prelax.data.digits import load_digits
    from prelax.data.folder import load_folder
    from prelax.data.images import order, subset
    from prelax.data.known import load_known

    if settings.source not in SOURCES:
        raise PrelaxError(f"no data source {settings.source!r}{nearest(settings.source, SOURCES)}")
    if split not in ("train", "test"):
        raise PrelaxError(f"no split {split!r}; valid: train, test")
    if only_shards(settings):
        raise PrelaxError("the images are in shards (data.shards), which are only trained on; name others with --on")
    if settings.source == "folder":
        arrays = settings.root is not None and is_arrays(settings.root.expanduser())
        return (load_arrays if arrays else load_folder)(settings, split, progress)
    if settings.source in ("tiny-imagenet", "imagenette", "imagenet"):
        return load_known(settings, split, progress)
    whole = load_digits(settings, split) if settings.source == "digits" else load_cifar(settings, split)
    if split == "train" and settings.limit and settings.limit < len(whole):
        return subset(whole, order(0, 0, len(whole))[: settings.limit].sort().values)
    return whole


def only_shards(settings: DataSettings) -> bool:
    """Whether there is nothing but shards, which can be trained on and not looked at."""
    return settings.shards is not None and settings.source == "folder" and settings.root is None


def load_splits(settings: DataSettings, split: str = "all") -> dict[str, ImageSet]:
    """Images by split: train, test, or all, which is train alone of a folder of which nothing is held out."""
    from prelax.data.folder import NothingHeldOut

    if split not in ("train", "test", "all"):
        raise PrelaxError(f"no split {split!r}; valid: train, test, all")
    if split != "all":
        return {split: load(settings, split)}
    found = {"train": load(settings, "train")}
    with contextlib.suppress(NothingHeldOut):
        found["test"] = load(settings, "test")
    return found


def load_training(settings: DataSettings, progress: Progress | None = None) -> ImageSet | ShardSet:
    """What a run is trained on: the shards the settings name, else the training split of their source."""
    from prelax.data.shards import shards_of

    return shards_of(settings, progress) if settings.shards is not None else load(settings, "train", progress)


def store_of(
    images: ImageSet | ShardSet, device: torch.device, settings: DataSettings, batch: int = 1, processes: int = 1
) -> Store | ShardStore:
    """Where a set's pixels stay, and batches of them on the device.

    Args:
        batch, processes: of shards: images a step over all processes, and how many share them.
    """
    from prelax.data.shards import ShardSet, ShardStore
    from prelax.data.store import Store

    if isinstance(images, ShardSet):
        return ShardStore(images, device, settings.workers, lanes=math.ceil(images.lanes(batch) / processes))
    return Store(images, device, settings.store)
