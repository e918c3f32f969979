"""One augmentation by itself: images under it, and their features, all else as in an evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from prelax import augment
from prelax.augment.operation import trait
from prelax.draws import Draws
from prelax.evaluate.features import at_once, finite, forward, frozen
from prelax.loading import Loaded
from prelax.preprocess import Preprocess

BATCH = 1024


def always(op: augment.Operation) -> augment.Operation:
    """The operation without its probability: done to every image, its parameters drawn as before.

    >>> always(augment.Maybe(augment.Flip(p=0.5), 0.1))
    Flip(p=1.0, vertical=False, name='flip')
    """
    if isinstance(op, augment.Maybe):
        return always(op.op)
    if isinstance(op, augment.Named):
        return replace(op, op=always(op.op))
    if is_dataclass(op) and not isinstance(op, type) and hasattr(op, "p"):
        return replace(op, p=1.0)  # type: ignore[type-var, return-value]
    return op


def under(op: augment.Operation, images: Tensor, preprocess: Preprocess, draws: Draws) -> Tensor:
    """Images as an evaluation sees them, with one operation: uint8 -> floats in [0, 1], B x C x size x size.

    A crop takes its box out of the raw image, anything else acts on the image that an evaluation would look at.
    """
    pixels = images if trait(op, "takes_uint8") else replace(preprocess, mean=(0.0,), std=(1.0,))(images)
    return augment.Pipeline([op])(pixels, draws).images


@torch.no_grad()
def features_under(
    loaded: Loaded, images: Tensor, ops: Sequence[augment.Operation], seeds: Sequence[int]
) -> Iterator[tuple[str, int, Tensor]]:
    """For every operation and seed: its name, the seed, and the features of all images under it alone, N x D.

    An image's draw goes by its place in ``images``, the operation's name and the seed, not by the batch.
    """
    normalise = augment.Normalise(loaded.preprocess.mean, loaded.preprocess.std)
    with frozen(loaded.backbone.to(loaded.device)):
        run = forward(loaded.backbone, loaded.device)
        size = at_once(BATCH, images, loaded.device)
        for op in ops:
            for seed in seeds:
                found = []
                for start in range(0, len(images), size):
                    batch = images[start : start + size].to(loaded.device, non_blocking=True)
                    rows = torch.arange(start, start + len(batch), device=loaded.device)
                    shown = under(op, batch, loaded.preprocess, Draws(seed, rows).at("alone"))
                    found.append(run(normalise.transform(shown, {})))
                yield op.name, seed, finite(torch.cat(found))


def similarity(one: Tensor, two: Tensor) -> float:
    """Mean cosine between the features of images and of the same images after something was done to them."""
    return float(F.cosine_similarity(one.double(), two.double(), dim=1).mean())


def similarity_of_others(features: Tensor) -> float:
    """Mean cosine over all pairs of different images: what total forgetting would look like.

    >>> round(similarity_of_others(torch.eye(3) + 1), 4) == round(5 / 6, 4)
    True
    """
    count = len(features)
    if count < 2:
        return 1.0
    unit = F.normalize(features.double(), dim=1)
    return float((unit.sum(0).square().sum() - count) / (count * (count - 1)))


def some(count: int, wanted: int, seed: int) -> Tensor:
    """So many rows of a set, drawn evenly."""
    return Draws(seed, rows=count).bits("some")[:, 0].argsort()[:wanted].sort().values
