"""A set of decoded images, and what is asked of whole sets: an order to walk them in, and no image in two of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from prelax.data.decode import Plan
from prelax.draws import Draws
from prelax.errors import PrelaxError

GREY = (0.299, 0.587, 0.114)  # ITU-R 601, Pillow's weights for "L"


@dataclass
class ImageSet:
    """Decoded images of one split, with labels where there are any.

    Args:
        name: of the source, for titles and result files.
        images: uint8, N x C x H x W; memory-mapped when ``file`` is set.
        labels: int64, N, -1 where unknown; None when no image has one.
        classes: the name of every label.
        paths: where each image was read from.
        skipped: (path, reason) of every file that could not be read.
        notes: lines for the run's log: what was chosen and why.
        file: the ``.npy`` file behind ``images``, when they are memory-mapped.
        plan: how files became these images, when they did.
        range: what became 0 and 255 of files deeper than 8 bits (``data.range``); None where none are.
        unlabelled: why labels that were given are none.
    """

    name: str
    images: Tensor
    labels: Tensor | None
    classes: list[str]
    paths: list[str] | None = None
    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    file: Path | None = None
    plan: Plan | None = None
    range: str | None = None
    unlabelled: str = ""

    def __len__(self) -> int:
        return self.images.shape[0]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an image: C x H x W."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def walk(self, seed: int, epoch: int, batch: int) -> Tensor:
        """The image numbers of an epoch's steps, N // batch x batch."""
        steps = len(self) // batch
        return order(seed, epoch, len(self))[: steps * batch].view(steps, batch)

    def first(self, rows: int) -> ImageSet:
        """The first images of the set."""
        labels = self.labels[:rows] if self.labels is not None else None
        return ImageSet(self.name, self.images[:rows], labels, self.classes)


def subset(whole: ImageSet, rows: Tensor) -> ImageSet:
    """Some rows of a set, in memory."""
    paths = [whole.paths[i] for i in rows.tolist()] if whole.paths is not None else None
    labels = whole.labels[rows] if whole.labels is not None else None
    return ImageSet(whole.name, whole.images[rows], labels, whole.classes, paths, whole.skipped, list(whole.notes))


def numbered(labels: Sequence[str | None], classes: Sequence[str]) -> Tensor | None:
    """The number of each label's class, -1 where there is none; None if there is none at all.

    >>> numbered(["cat", None, "eel"], ["cat", "dog", "eel"]), numbered([None], ["cat"])
    (tensor([ 0, -1,  2]), None)
    """
    number: dict[str | None, int] = {name: i for i, name in enumerate(classes)} | {None: -1}
    known = torch.tensor([number[label] for label in labels])
    return known if bool((known >= 0).any()) else None


def limited(count: int, limit: int | None) -> list[int]:
    """The rows of so many images that are used: all, or ``limit`` of them, ascending, the same ones every time."""
    if not limit or limit >= count:
        return list(range(count))
    rank = Draws(0, count).at("limit").bits("order")[:, 0].argsort()
    return sorted(rank[:limit].tolist())


def labels_of(sets: Sequence[ImageSet]) -> Tensor | None:
    """The labels of several sets one after another, -1 where there is none; None if there is none at all."""
    if all(one.labels is None for one in sets):
        return None
    return torch.cat([torch.full((len(one),), -1) if one.labels is None else one.labels for one in sets])


def picked(sets: Sequence[ImageSet], rows: Tensor) -> ImageSet:
    """Some rows, ascending, of several sets with one list of classes one after another: one set, in memory."""
    parts, before = [], 0
    for one in sets:
        parts.append(subset(one, rows[(rows >= before) & (rows < before + len(one))] - before))
        before += len(one)
    paths = None if any(part.paths is None for part in parts) else [path for part in parts for path in part.paths or []]
    images = torch.cat([part.images for part in parts])
    classes = max((part.classes for part in parts), key=len)  # those that only test images have come last
    return ImageSet(parts[0].name, images, labels_of(parts), classes, paths)


def order(seed: int, epoch: int, n: int, device: torch.device | str = "cpu") -> Tensor:
    """The permutation of range(n) that an epoch walks in; a pure function of (seed, epoch), the same on every device.

    >>> torch.equal(order(0, 3, 10), order(0, 3, 10)), sorted(order(0, 3, 10).tolist()) == list(range(10))
    (True, True)
    """
    bits = Draws(seed, n, device).at("shuffle", epoch).bits("order")[:, 0]  # n
    return bits.argsort(stable=True)


def fingerprints(images: Tensor) -> list[bytes]:
    """A 16-byte digest of the pixels of every image."""
    array = images.cpu().numpy()
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in array]


def disjoint(train: ImageSet, test: ImageSet) -> int:
    """How many test images are, pixel for pixel, also training images; 0 is what an honest evaluation needs."""
    seen = set(fingerprints(train.images))
    return sum(digest in seen for digest in fingerprints(test.images))


def fit(images: Tensor, side: int, channels: int | None, name: str) -> Tensor:
    """uint8 images N x C x H x W of one size at another side and channel count (antialiased bilinear; 601 grey)."""
    if channels not in (None, 1, 3):
        raise PrelaxError(f"data.channels={channels}: {name} has grey or colour images; use 1 or 3")
    if channels == 1 and images.shape[1] == 3:
        weights = torch.tensor(GREY).view(1, 3, 1, 1)
        parts = [(part * weights).sum(1, keepdim=True).round() for part in images.split(4096)]
        images = torch.cat(parts).to(torch.uint8)
    if tuple(images.shape[-2:]) != (side, side):
        parts = [
            F.interpolate(part.float(), (side, side), mode="bilinear", antialias=True).round_().clamp_(0, 255).byte()
            for part in images.split(1024)
        ]
        images = torch.cat(parts)
    if channels == 3 and images.shape[1] == 1:
        images = images.expand(-1, 3, -1, -1)
    return images.contiguous()  # N x C x side x side
