"""Linear probes: the paper's two protocols to the letter, and the same on cached features in seconds.

Several probes (seeds, learning rates) are trained at once on the same features: their weights are one tensor with a
leading axis S, a step is two batched matrix products, and nothing waits for the device.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from prelax.draws import Draws
from prelax.errors import PrelaxError
from prelax.evaluate.knn import CHUNK


@dataclass(frozen=True)
class Protocol:
    """How a linear classifier is trained on frozen features (SGD, no weight decay, weights start at N(0, 0.01))."""

    lr: float
    epochs: int
    batch_size: int = 256
    momentum: float = 0.9
    nesterov: bool = False
    milestones: tuple[int, ...] | None = None  # epochs after which lr falls tenfold; None: cosine to zero

    def rate(self, epoch: int) -> float:
        """The share of lr used in an epoch counted from 0.

        >>> [SIMSIAM.rate(epoch) for epoch in (0, 59, 60, 80)]
        [1.0, 1.0, 0.1, 0.01]
        """
        if self.milestones is None:
            return 0.5 * (1.0 + math.cos(math.pi * epoch / self.epochs))
        return float(round(0.1 ** sum(epoch >= milestone for milestone in self.milestones), 12))


SIMSIAM = Protocol(lr=30.0, epochs=100, milestones=(60, 80))
# The paper gives no schedule for its BYOL rows; BYOL's own code decays by cosine.
BYOL = Protocol(lr=0.5, epochs=80, nesterov=True)
LINEAR = {"simsiam": SIMSIAM, "byol": BYOL}


@dataclass
class Probes:
    """S linear classifiers side by side."""

    weight: Tensor  # S x classes x D
    bias: Tensor  # S x classes

    @torch.no_grad()
    def predict(self, features: Tensor) -> Tensor:
        """The class each probe gives each image.  N x D -> S x N"""
        rows = max(1, CHUNK // (self.bias.numel() + features.shape[1]))
        return torch.cat(
            [self.logits(chunk.expand(len(self.bias), *chunk.shape)).argmax(2) for chunk in features.split(rows)], 1
        )

    def logits(self, features: Tensor) -> Tensor:
        """S x B x D -> S x B x classes"""
        return torch.baddbmm(self.bias[:, None], features, self.weight.mT)


Epoch = Callable[[int], Tensor]  # the features of all training images in an epoch, N x D, image i in row i


@torch.no_grad()
def train_probes(
    features: Epoch,
    labels: Tensor,
    classes: int,
    protocol: Protocol,
    seeds: Sequence[int] = (0,),
    lrs: Sequence[float] | None = None,
) -> Probes:
    """Linear classifiers after the last epoch of a protocol, one per seed; test images cannot be seen from here.

    A seed decides a probe's first weights and its order of images. ``features(epoch)`` may give new augmentations
    every epoch; they are shared by the probes. With ``lrs`` there is a probe per learning rate per seed, seeds fastest.
    """
    seeds, rates = [*seeds] * len(lrs or (0,)), [lr for lr in lrs or (protocol.lr,) for _ in seeds]
    first = features(0)
    device, count, size = first.device, len(first), first.shape[1]
    if len(labels) != count:
        raise PrelaxError(f"{count} feature rows but {len(labels)} labels")
    labels = labels.to(device)
    draws = [Draws(seed, rows=classes, device=device).at("probe") for seed in seeds]
    probes = Probes(
        torch.stack([0.01 * d.normal("weight", size) for d in draws]), torch.zeros(len(seeds), classes, device=device)
    )
    speed = torch.zeros_like(probes.weight), torch.zeros_like(probes.bias)
    lr = torch.tensor(rates, device=device)[:, None, None]  # S x 1 x 1
    orders = [Draws(seed, rows=count, device=device).at("probe", "order") for seed in seeds]
    for epoch in range(protocol.epochs):
        bank = first if epoch == 0 else features(epoch)  # N x D
        order = torch.stack([d.at(epoch).bits("rank")[:, 0].argsort() for d in orders])  # S x N
        step = lr * protocol.rate(epoch)
        for index in order.split(protocol.batch_size, dim=1):
            x = bank[index]  # S x B x D
            slope = F.softmax(probes.logits(x), dim=2) - F.one_hot(labels[index], classes)  # of cross entropy
            slope /= index.shape[1]
            gradient = slope.mT @ x, slope.sum(1)
            for value, moving, change, rate in zip(
                (probes.weight, probes.bias), speed, gradient, (step, step[:, :, 0]), strict=True
            ):
                moving.mul_(protocol.momentum).add_(change)
                value -= rate * (change + protocol.momentum * moving if protocol.nesterov else moving)
    if not bool(torch.isfinite(probes.weight).all()):
        raise PrelaxError(f"the linear probe diverged at lr {protocol.lr:g}; use a smaller one for these features")
    return probes


@dataclass(frozen=True)
class Score:
    """What a protocol gives over its seeds, in percent."""

    accuracies: list[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def std(self) -> float:
        """Sample standard deviation over seeds; 0 for one."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0


def score(predicted: Tensor, labels: Tensor) -> Score:
    """Percent right of each row of predictions, every image counting the same.  S x N, N"""
    right = (predicted == labels.to(predicted.device)).sum(dim=1).tolist()
    return Score([100.0 * r / len(labels) for r in right])
