"""Operations that move pixels on their grid: random resized crop, flips, quarter turns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from prelax.augment.operation import Params, Shape, ordered, per_image, probability
from prelax.augment.resample import Interpolation, resample
from prelax.draws import Draws
from prelax.errors import PrelaxError
from prelax.record import Target

TRIES = 10  # torchvision's rejection loop


@lru_cache(maxsize=64)
def crop_moments(scale: tuple[float, float], ratio: tuple[float, float]) -> dict[str, tuple[float, float]]:
    """Mean and std of the crop targets on a square image, by quadrature over torchvision's sampler."""
    n = 400
    middle = (np.arange(n) + 0.5) / n
    area = scale[0] + (scale[1] - scale[0]) * middle[:, None]
    aspect = np.exp(math.log(ratio[0]) + math.log(ratio[1] / ratio[0]) * middle[None, :])
    w, h = np.sqrt(area * aspect), np.sqrt(area / aspect)
    accepted = (w <= 1) & (h <= 1)
    refused = (1 - accepted.mean()) ** TRIES  # the fall-back: the largest centred box
    weight = accepted / max(accepted.sum(), 1) * (1 - refused)
    fall_w, fall_h = min(1.0, ratio[1]), min(1.0, 1 / ratio[0])

    def moments(value: np.ndarray, fall: float, extra: np.ndarray | float = 0.0) -> tuple[float, float]:
        mean = float((weight * value).sum() + refused * fall)
        second = float((weight * (value**2 + extra)).sum() + refused * fall**2)
        return mean, max(second - mean**2, 1e-12) ** 0.5

    half = np.full_like(w, 0.5)
    return {
        "y": moments(half, 0.5, (1 - h) ** 2 / 12),
        "x": moments(half, 0.5, (1 - w) ** 2 / 12),
        "area": moments(np.broadcast_to(area, w.shape), fall_w * fall_h),
        "aspect": moments(np.broadcast_to(aspect, w.shape), fall_w / fall_h),
    }


def box_targets(params: Params, shape: Shape) -> Params:
    """The paper's description of a box, relative to the raw image: its centre, its share of the area, its aspect."""
    height, width = shape[2:]
    top, left, h, w = (params[name].to(torch.float32) for name in ("top", "left", "height", "width"))
    return {
        "y": (top + 0.5 * h) / height,
        "x": (left + 0.5 * w) / width,
        "area": h * w / (height * width),
        "aspect": (w / width) / (h / height),
    }


def first_accepted(columns: tuple[Tensor, ...], accepted: Tensor) -> tuple[Tensor, ...]:
    """Of each row's tries the first accepted one (the first of all where none was)."""
    first = accepted.to(torch.int64).argmax(1, keepdim=True)  # argmax takes the first of equals
    return tuple(column.gather(1, first)[:, 0] for column in columns)


def offset(unit: Tensor, room: Tensor) -> Tensor:
    """An integer uniform in 0..room."""
    return torch.minimum((unit * (room + 1)).floor(), room)


@dataclass(frozen=True)
class Crop:
    """torchvision's RandomResizedCrop (antialiased), a box of its own for every image.

    Columns: the box in pixels (``top``, ``left``, ``height``, ``width``) and the paper's four targets relative to the
    raw image (centre ``y`` and ``x``, ``area`` ratio, ``aspect`` ratio). Standardised for square images.

    >>> crop = Crop(32, scale=(0.2, 1.0))
    >>> [target.name for target in crop.targets]
    ['crop.y', 'crop.x', 'crop.area', 'crop.aspect']

    Args:
        size: side of the output, or (height, width); None keeps the size of the input.
        scale: range of the area ratio, drawn uniformly.
        ratio: range of width / height, drawn log-uniformly.
    """

    size: int | tuple[int, int] | None = None
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"
    name: str = "crop"
    targets: tuple[Target, ...] = field(init=False, repr=False, compare=False)
    takes_uint8: ClassVar[bool] = True

    def __post_init__(self) -> None:
        ordered(self.scale, "crop scale")
        if self.scale[1] > 1 or self.scale[1] <= 0:
            raise PrelaxError(f"crop scale is a share of the image's area, at most 1, got {self.scale}")
        ordered(self.ratio, "crop ratio", 1e-3)
        if self.interpolation not in ("bilinear", "bicubic"):
            raise PrelaxError(f"crop interpolation is bilinear or bicubic, got {self.interpolation!r}")
        known = crop_moments((self.scale[0], self.scale[1]), (self.ratio[0], self.ratio[1]))
        targets = (Target(f"{self.name}.{key}", "continuous", mean=m, std=s) for key, (m, s) in known.items())
        object.__setattr__(self, "targets", tuple(targets))

    def make_params(self, shape: Shape, draws: Draws) -> Params:
        height, width = shape[2:]
        area = draws.uniform("area", *self.scale, n=TRIES) * (height * width)
        aspect = draws.uniform("aspect", math.log(self.ratio[0]), math.log(self.ratio[1]), n=TRIES).exp()
        w, h = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()  # B x tries
        accepted = (w > 0) & (w <= width) & (h > 0) & (h <= height)
        w, h = first_accepted((w, h), accepted)
        fallen = ~accepted.any(1)
        fall_h, fall_w = self._fall_back(height, width)
        h, w = torch.where(fallen, float(fall_h), h), torch.where(fallen, float(fall_w), w)
        top = offset(draws.uniform("top"), height - h)
        left = offset(draws.uniform("left"), width - w)
        top = torch.where(fallen, float((height - fall_h) // 2), top)
        left = torch.where(fallen, float((width - fall_w) // 2), left)
        box = {"top": top, "left": left, "height": h, "width": w}
        return {**{name: column.to(torch.int64) for name, column in box.items()}, **box_targets(box, shape)}

    def _fall_back(self, height: int, width: int) -> tuple[int, int]:
        """The centred box that torchvision takes when ten tries did not fit."""
        if width / height < min(self.ratio):
            return round(width / min(self.ratio)), width
        if width / height > max(self.ratio):
            return height, round(height * max(self.ratio))
        return height, width

    def output_shape(self, shape: Shape) -> Shape:
        """The shape of a batch after the crop."""
        if self.size is None:
            return shape
        return (*shape[:2], *((self.size, self.size) if isinstance(self.size, int) else self.size))

    def transform(
        self, images: Tensor, params: Params, flip_y: Tensor | None = None, flip_x: Tensor | None = None
    ) -> Tensor:
        """The boxes at the asked size; flips that follow fold into the same linear map at no cost."""
        size = self.output_shape((images.shape[0], images.shape[1], images.shape[2], images.shape[3]))[2:]
        rows = (params["top"], params["height"], flip_y)
        columns = (params["left"], params["width"], flip_x)
        out = resample(images, rows, columns, size, self.interpolation)
        # Cubics overshoot. torchvision saturates uint8 and lets floats be; so do we.
        return out.clamp(0.0, 1.0) if images.dtype == torch.uint8 and self.interpolation == "bicubic" else out


@dataclass(frozen=True)
class Flip:
    """A mirror image, left-right (or upside down with ``vertical``), with probability p."""

    p: float = 0.5
    vertical: bool = False
    name: str = ""
    moves_pixels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        probability(self.p, "flip")
        if not self.name:
            object.__setattr__(self, "name", "vertical-flip" if self.vertical else "flip")

    @property
    def targets(self) -> tuple[Target, ...]:
        return (Target(f"{self.name}.applied", "binary"),)

    def make_params(self, shape: Shape, draws: Draws) -> Params:
        return {"applied": draws.bernoulli("applied", self.p)}

    def transform(self, images: Tensor, params: Params) -> Tensor:
        return torch.where(per_image(params["applied"]), images.flip(-2 if self.vertical else -1), images)


@dataclass(frozen=True)
class QuarterTurn:
    """A clockwise rotation by 0, 90, 180 or 270 degrees, each as likely; exact, no interpolation.

    >>> turned = QuarterTurn().transform(torch.tensor([[[[1, 2], [3, 4]]]]), {"turns": torch.tensor([1])})
    >>> turned.squeeze().tolist()
    [[3, 1], [4, 2]]
    """

    name: str = "rotation"
    moves_pixels: ClassVar[bool] = True
    identity: ClassVar[dict[str, float]] = {"turns": 0}

    @property
    def targets(self) -> tuple[Target, ...]:
        return (Target(f"{self.name}.turns", "categorical", classes=4),)

    def make_params(self, shape: Shape, draws: Draws) -> Params:
        return {"turns": draws.integers("turns", 4)}

    def transform(self, images: Tensor, params: Params) -> Tensor:
        if images.shape[-1] != images.shape[-2]:
            raise PrelaxError(
                f"{self.name}: quarter turns need square images, not {images.shape[-2]} x {images.shape[-1]}"
            )
        turns = per_image(params["turns"])
        across = images.transpose(-1, -2)
        even = torch.where(turns == 0, images, images.flip((-2, -1)))
        odd = torch.where(turns == 1, across.flip(-1), across.flip(-2))
        return torch.where(turns % 2 == 0, even, odd)
