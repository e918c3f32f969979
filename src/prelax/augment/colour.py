"""Operations on colours: jitter with its per-image random order, greyscale, solarise, invert, normalise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from prelax.augment.jittering import grey_of, jitter
from prelax.augment.operation import AllOrNothing, Params, Shape, moments, ordered, per_image, probability, vector
from prelax.draws import Draws
from prelax.errors import PrelaxError
from prelax.record import Target


@dataclass(frozen=True)
class Jitter:
    """torchvision's ColorJitter with probability p, factors and a random order of the steps for every image.

    The recorded factors are the ones the image felt: where jitter was not applied they are 1, 1, 1 and 0, and
    ``applied`` tells such an image from one that drew the identity. ``order`` lists the steps as torchvision numbers
    them: 0 brightness, 1 contrast, 2 saturation, 3 hue.

    Args:
        brightness, contrast, saturation: a strength s (factors in [max(0, 1 - s), 1 + s]).
        hue: a strength up to 0.5 (a shift in [-hue, hue] of the circle).
    """

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    p: float = 0.8
    name: str = "jitter"
    needs_rgb: ClassVar[bool] = True
    identity: ClassVar[dict[str, float]] = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.0}

    def __post_init__(self) -> None:
        probability(self.p, "jitter")
        for what in ("brightness", "contrast", "saturation", "hue"):
            ordered((0.0, getattr(self, what)), f"jitter {what}")
        if self.hue > 0.5:
            raise PrelaxError(f"jitter hue is a share of the circle, at most 0.5, got {self.hue}")

    def _ranges(self) -> dict[str, tuple[float, float, float]]:
        """Low, high and the identity of every factor."""
        strengths = {"brightness": self.brightness, "contrast": self.contrast, "saturation": self.saturation}
        ranges = {name: (max(0.0, 1 - s), 1 + s, 1.0) for name, s in strengths.items()}
        return {**ranges, "hue": (-self.hue, self.hue, 0.0)}

    @property
    def targets(self) -> tuple[Target, ...]:
        found = []
        for name, (low, high, identity) in self._ranges().items():
            if low < high:  # a factor that never moves teaches nothing
                mean, std = moments(low, high, self.p, identity)
                found.append(Target(f"{self.name}.{name}", "continuous", mean=mean, std=std))
        return (*found, Target(f"{self.name}.applied", "binary"))

    def make_params(self, shape: Shape, draws: Draws) -> Params:
        applied = draws.bernoulli("applied", self.p)
        params = {"applied": applied}
        for name, (low, high, identity) in self._ranges().items():
            params[name] = torch.where(applied, draws.uniform(name, low, high), identity)
        params["order"] = draws.permutation("order", 4)
        return params

    def transform(self, images: Tensor, params: Params) -> Tensor:
        return jitter(images.to(torch.float32), params)


@dataclass(frozen=True)
class Grey(AllOrNothing):
    """Greyscale in three equal channels, with probability p."""

    p: float = 0.2
    name: str = "grey"
    needs_rgb: ClassVar[bool] = True

    def transform(self, images: Tensor, params: Params) -> Tensor:
        red, green, blue = images.unbind(1)
        return torch.where(per_image(params["applied"]), grey_of((red, green, blue))[:, None], images)


@dataclass(frozen=True)
class Solarise(AllOrNothing):
    """Levels from ``threshold`` up are inverted, with probability p."""

    threshold: float = 0.5
    p: float = 0.2
    name: str = "solarise"

    def transform(self, images: Tensor, params: Params) -> Tensor:
        return torch.where(per_image(params["applied"]) & (images >= self.threshold), 1.0 - images, images)


@dataclass(frozen=True)
class Invert(AllOrNothing):
    """The negative, with probability p."""

    p: float = 0.5
    name: str = "invert"

    def transform(self, images: Tensor, params: Params) -> Tensor:
        return torch.where(per_image(params["applied"]), 1.0 - images, images)


@dataclass(frozen=True)
class Normalise:
    """``(x - mean) / std``, channel by channel; draws nothing.

    Args:
        mean, std: a number per channel, or one number for all.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    name: str = "normalise"
    targets: ClassVar[tuple[Target, ...]] = ()

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise PrelaxError(f"normalise: mean and std need a value per channel, got {self.mean} and {self.std}")
        if min(self.std) <= 0:
            raise PrelaxError(f"normalise: std must be above 0, got {self.std}")

    def make_params(self, shape: Shape, draws: Draws) -> Params:
        return {}

    def transform(self, images: Tensor, params: Params) -> Tensor:
        if len(self.mean) not in (1, images.shape[1]):
            raise PrelaxError(
                f"normalise: {len(self.mean)} means for {images.shape[1]} channels; give one for each, or one for all"
            )
        mean, std = (vector(values, images.device)[:, None, None] for values in (self.mean, self.std))
        return (images - mean) / std
