"""Operations on colours: jitter with its per-image random order, greyscale, solarise, invert, normalise.

Brightness, saturation, contrast and identity are one operation, ``clamp(gain * x + share * grey(x) + rest)``. So every
image can have its own order of the jitter's four steps in one static programme of slots around the single reduction
that contrast needs (the mean grey level): no sorting, no waiting, and one or two fused passes when compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from prelax.augment.operation import Params, Shape, moments, ordered, per_image, probability, vector
from prelax.draws import Draws
from prelax.errors import PrelaxError
from prelax.record import Target

Planes = tuple[Tensor, Tensor, Tensor]  # red, green, blue, each B x H x W
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)  # torchvision's numbering of the steps


def grey_of(planes: Planes) -> Tensor:
    """The luma torchvision uses."""
    red, green, blue = planes
    return 0.2989 * red + 0.587 * green + 0.114 * blue


def _blend(planes: Planes, gain: Tensor, share: Tensor) -> Planes:
    grey = share * grey_of(planes)
    red, green, blue = ((gain * plane + grey).clamp(0.0, 1.0) for plane in planes)
    return red, green, blue


def _contrast(planes: Planes, factor: Tensor) -> Planes:
    rest = (1.0 - factor) * grey_of(planes).mean((-2, -1), keepdim=True)
    red, green, blue = ((factor * plane + rest).clamp(0.0, 1.0) for plane in planes)
    return red, green, blue


def _turn_hue(planes: Planes, shift: Tensor) -> Planes:
    """Hue turned by ``shift`` (a share of the circle), without branches; saturation and value as they were."""
    red, green, blue = planes
    low = torch.minimum(torch.minimum(red, green), blue)
    span = torch.maximum(torch.maximum(red, green), blue) - low
    hue = torch.copysign(1.0 + (green + blue - red - low) / span.clamp(min=1e-12), green - blue) + 6.0 * shift

    def channel(offset: float) -> Tensor:
        turn = hue + offset
        turn = turn - 6.0 * torch.round(turn * (1.0 / 6.0))
        return low + span * (turn.abs() - 1.0).clamp(0.0, 1.0)

    return channel(3.0), channel(1.0), channel(-1.0)


def jitter(images: Tensor, params: Params) -> Tensor:
    """Images with their four factors applied, each image in its own order; those not ``applied`` to as they were.

    Around contrast C and hue H, brightness and saturation can stand in four regions, ``[0] H [1] C [2] H [3]``, where
    hue is used on one side only. A region has two slots; a slot nobody stands in is the identity.
    """
    place = params["order"].argsort(1)  # place[b, step]: when the step is made  # B x 4
    b, c, s, h = place.unbind(1)
    column = {name: params[name][:, None, None] for name in ("brightness", "contrast", "saturation", "hue")}
    hue_first = h < c

    def region(step: Tensor) -> Tensor:
        after_hue = ((step < c) == hue_first) & (step > h)
        return 2 * (step > c).to(torch.int64) + after_hue.to(torch.int64)

    region_b, region_s = region(b), region(s)
    one, zero = torch.ones_like(column["hue"]), torch.zeros_like(column["hue"])

    def slots(planes: Planes, which: int) -> Planes:
        has_b, has_s, b_first = region_b == which, region_s == which, b < s
        both = has_b & has_s
        for is_b, is_s in ((has_b & ~(both & ~b_first), has_s & ~(both & b_first)), (both & ~b_first, both & b_first)):
            is_b, is_s = is_b[:, None, None], is_s[:, None, None]
            gain = torch.where(is_b, column["brightness"], torch.where(is_s, column["saturation"], one))
            planes = _blend(planes, gain, torch.where(is_s, 1.0 - column["saturation"], zero))
        return planes

    red, green, blue = images.unbind(1)
    planes: Planes = (red, green, blue)
    planes = slots(planes, 0)
    planes = _turn_hue(planes, torch.where(hue_first[:, None, None], column["hue"], zero))
    planes = slots(planes, 1)
    planes = _contrast(planes, column["contrast"])
    planes = slots(planes, 2)
    planes = _turn_hue(planes, torch.where(hue_first[:, None, None], zero, column["hue"]))
    planes = slots(planes, 3)
    applied = params["applied"][:, None, None]
    return torch.stack([torch.where(applied, new, old) for new, old in zip(planes, images.unbind(1), strict=True)], 1)


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
        return jitter(images, params)


@dataclass(frozen=True)
class Grey:
    """Greyscale in three equal channels, with probability p."""

    p: float = 0.2
    name: str = "grey"
    needs_rgb: ClassVar[bool] = True

    def __post_init__(self) -> None:
        probability(self.p, "grey")

    @property
    def targets(self) -> tuple[Target, ...]:
        return (Target(f"{self.name}.applied", "binary"),)

    def make_params(self, shape: Shape, draws: Draws) -> Params:
        return {"applied": draws.bernoulli("applied", self.p)}

    def transform(self, images: Tensor, params: Params) -> Tensor:
        red, green, blue = images.unbind(1)
        return torch.where(per_image(params["applied"]), grey_of((red, green, blue))[:, None], images)


@dataclass(frozen=True)
class Solarise:
    """Levels from ``threshold`` up are inverted, with probability p."""

    threshold: float = 0.5
    p: float = 0.2
    name: str = "solarise"

    def __post_init__(self) -> None:
        probability(self.p, "solarise")

    @property
    def targets(self) -> tuple[Target, ...]:
        return (Target(f"{self.name}.applied", "binary"),)

    def make_params(self, shape: Shape, draws: Draws) -> Params:
        return {"applied": draws.bernoulli("applied", self.p)}

    def transform(self, images: Tensor, params: Params) -> Tensor:
        return torch.where(per_image(params["applied"]) & (images >= self.threshold), 1.0 - images, images)


@dataclass(frozen=True)
class Invert:
    """The negative, with probability p."""

    p: float = 0.5
    name: str = "invert"

    def __post_init__(self) -> None:
        probability(self.p, "invert")

    @property
    def targets(self) -> tuple[Target, ...]:
        return (Target(f"{self.name}.applied", "binary"),)

    def make_params(self, shape: Shape, draws: Draws) -> Params:
        return {"applied": draws.bernoulli("applied", self.p)}

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
