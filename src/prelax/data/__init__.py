"""Pixels in: a source is read once into uint8 and stays where it fits."""

from __future__ import annotations

import contextlib
import math

import torch

from prelax.config import DataSettings, nearest
from prelax.data.cifar import load_cifar
from prelax.data.digits import load_digits
from prelax.data.folder import NothingHeldOut, Progress, choose_image_size, load_folder
from prelax.data.images import ImageSet, disjoint, labels_of, order, picked, subset
from prelax.data.known import load_known
from prelax.data.progress import bar
from prelax.data.shards import ShardSet, ShardStore, shards_of
from prelax.data.store import Store
from prelax.errors import PrelaxError

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
    "order",
    "picked",
    "store_of",
    "subset",
]

SOURCES: dict[str, str] = {
    "digits": "scikit-learn's handwritten digits: 1,297 + 500 grey images, 10 classes; nothing to download",
    "cifar10": "50,000 + 10,000 colour images of 32 px, 10 classes; data.download=true fetches them",
    "cifar100": "50,000 + 10,000 colour images of 32 px, 100 classes; data.download=true fetches them",
    "tiny-imagenet": "100,000 + 10,000 images, 200 classes, brought to 32 px; data.root is tiny-imagenet-200",
    "imagenette": "9,469 + 3,925 photos, 10 classes of ImageNet; data.root holds train/ and val/",
    "imagenet": "1.28 million + 50,000 photos, 1,000 classes, at 256 px; data.root holds train/ and val/",
    "folder": "any tree of images under data.root: class sub-folders, a CSV (data.labels), or no labels; or shards",
}


def load(settings: DataSettings, split: str = "train", progress: Progress | None = None) -> ImageSet:
    """The images of one split, decoded to uint8.

    >>> train = load(DataSettings(source="digits"), "train")
    >>> train.images.shape, train.classes[3]
    (torch.Size([1297, 1, 16, 16]), '3')

    Args:
        split: "train" or "test".
        progress: called with (files done, files in all) while files are decoded; `bar` gives one that draws.
    """
    if settings.source not in SOURCES:
        raise PrelaxError(f"no data source {settings.source!r}{nearest(settings.source, SOURCES)}")
    if split not in ("train", "test"):
        raise PrelaxError(f"no split {split!r}; valid: train, test")
    if settings.shards is not None and settings.source == "folder" and settings.root is None:
        raise PrelaxError("the images are in shards (data.shards), which are only trained on; name others with --on")
    if settings.source == "folder":
        return load_folder(settings, split, progress)
    if settings.source in ("tiny-imagenet", "imagenette", "imagenet"):
        return load_known(settings, split, progress)
    whole = load_digits(settings, split) if settings.source == "digits" else load_cifar(settings, split)
    if split == "train" and settings.limit and settings.limit < len(whole):
        return subset(whole, order(0, 0, len(whole))[: settings.limit].sort().values)
    return whole


def load_splits(settings: DataSettings, split: str = "all") -> dict[str, ImageSet]:
    """Images by split: train, test, or all, which is train alone of a folder of which nothing is held out."""
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
    return shards_of(settings, progress) if settings.shards is not None else load(settings, "train", progress)


def store_of(
    images: ImageSet | ShardSet, device: torch.device, settings: DataSettings, batch: int = 1, processes: int = 1
) -> Store | ShardStore:
    """Where a set's pixels stay, and batches of them on the device.

    Args:
        batch, processes: of shards: images a step over all processes, and how many share them.
    """
    if isinstance(images, ShardSet):
        return ShardStore(images, device, settings.workers, lanes=math.ceil(images.lanes(batch) / processes))
    return Store(images, device, settings.store)
