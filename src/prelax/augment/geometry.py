"""Operations that move pixels on their grid: random resized crop, flips, quarter turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from prelax.augment.operation import AllOrNothing, Named, Operation, Params, Shape, bare, mixed, ordered, per_image
from prelax.augment.resample import Interpolation, resample
from prelax.draws import Draws
from prelax.errors import PrelaxError
from prelax.record import Target

TRIES = 10  # torchvision's rejection loop
FINE = 1 << 20  # pixels a side: so many that it does not show that boxes are of whole ones


def box_moments(
    h: np.ndarray, w: np.ndarray, share: np.ndarray, height: int, width: int
) -> dict[str, tuple[float, float]]:
    """Mean and std of what ``box_targets`` tells of boxes of these sizes and shares, anywhere in images of a size."""

    def moments(value: np.ndarray | float, extra: np.ndarray | float = 0.0) -> tuple[float, float]:
        mean = float((share * value).sum())
        second = float((share * (np.square(value) + extra)).sum())
        return mean, max(second - mean**2, 0.0) ** 0.5

    def place(size: int, length: np.ndarray) -> np.ndarray:
        """The variance of an offset that is one of 0..size - length, in sizes."""
        return ((size - length + 1) ** 2 - 1) / (12 * size**2)

    return {
        "y": moments(0.5, place(height, h)),
        "x": moments(0.5, place(width, w)),
        "area": moments(h * w / (height * width)),
        "aspect": moments(w / width / np.maximum(h / height, 1e-12)),
    }


def box_grid(
    scale: tuple[float, float], ratio: tuple[float, float], height: int, width: int, n: int = 400
) -> tuple[np.ndarray, np.ndarray]:
    """Boxes, n x n, that stand for all a sampler may try: the roots of area times and over ratio, in whole pixels."""
    middle = (np.arange(n) + 0.5) / n
    area = (scale[0] + (scale[1] - scale[0]) * middle[:, None]) * (height * width)
    aspect = np.exp(math.log(ratio[0]) + math.log(ratio[1] / ratio[0]) * middle[None, :])
    return np.sqrt(area * aspect).round(), np.sqrt(area / aspect).round()


@lru_cache(maxsize=64)
def _crop_moments(
    scale: tuple[float, float], ratio: tuple[float, float], height: int, width: int
) -> tuple[tuple[str, float, float], ...]:
    w, h = box_grid(scale, ratio, height, width)
    accepted = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    refused = float((1 - accepted.mean()) ** TRIES)
    known = box_moments(h, w, accepted / max(accepted.sum(), 1), height, width)
    fall_h, fall_w = fall_back(ratio, height, width)
    fallen = {
        "y": ((height - fall_h) // 2 + fall_h / 2) / height,
        "x": ((width - fall_w) // 2 + fall_w / 2) / width,
        "area": fall_h * fall_w / (height * width),
        "aspect": (fall_w / width) / (fall_h / height),
    }
    return tuple((name, *mixed(*known[name], 1 - refused, fallen[name])) for name in known)


@torch.compiler.assume_constant_result  # a compiler is not to follow it
def crop_moments(
    scale: tuple[float, float], ratio: tuple[float, float], height: int, width: int
) -> tuple[tuple[str, float, float], ...]:
    """Mean and std of the crop targets on images of a size, by quadrature over torchvision's sampler."""
    return _crop_moments(scale, ratio, height, width)


def fall_back(ratio: tuple[float, float], height: int, width: int) -> tuple[int, int]:
    """The centred box that torchvision takes when ten tries did not fit."""
    if width / height < min(ratio):
        return round(width / min(ratio)), width
    if width / height > max(ratio):
        return height, round(height * max(ratio))
    return height, width


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
    raw image (centre ``y`` and ``x``, ``area`` ratio, ``aspect`` ratio). ``targets`` are standardised for large square
    images, ``targets_at(shape)`` for those of a batch: on small ones it shows that a box has whole pixels.

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
        object.__setattr__(self, "targets", self._targets(FINE, FINE))

    def targets_at(self, shape: Shape) -> tuple[Target, ...]:
        return self._targets(*shape[2:])

    def _targets(self, height: int, width: int) -> tuple[Target, ...]:
        known = crop_moments((self.scale[0], self.scale[1]), (self.ratio[0], self.ratio[1]), height, width)
        return tuple(Target(f"{self.name}.{key}", "continuous", mean=m, std=s) for key, m, s in known)

    def make_params(self, shape: Shape, draws: Draws) -> Params:
        height, width = shape[2:]
        area = draws.uniform("area", *self.scale, n=TRIES) * (height * width)
        aspect = draws.uniform("aspect", math.log(self.ratio[0]), math.log(self.ratio[1]), n=TRIES).exp()
        w, h = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()  # B x tries
        accepted = (w > 0) & (w <= width) & (h > 0) & (h <= height)
        w, h = first_accepted((w, h), accepted)
        fallen = ~accepted.any(1)
        fall_h, fall_w = fall_back(self.ratio, height, width)
        h, w = torch.where(fallen, float(fall_h), h), torch.where(fallen, float(fall_w), w)
        top = offset(draws.uniform("top"), height - h)
        left = offset(draws.uniform("left"), width - w)
        top = torch.where(fallen, float((height - fall_h) // 2), top)
        left = torch.where(fallen, float((width - fall_w) // 2), left)
        box = {"top": top, "left": left, "height": h, "width": w}
        return {**{name: column.to(torch.int64) for name, column in box.items()}, **box_targets(box, shape)}

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
class Flip(AllOrNothing):
    """A mirror image, left-right (or upside down with ``vertical``), with probability p."""

    p: float = 0.5
    vertical: bool = False
    name: str = ""
    moves_pixels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", "vertical-flip" if self.vertical else "flip")
        super().__post_init__()

    @property
    def targets(self) -> tuple[Target, ...]:
        return (Target(f"{self.name}.applied", "binary", mirrors="y" if self.vertical else "x"),)

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
        return (Target(f"{self.name}.turns", "categorical", classes=4, turns=True),)

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


def crops_of(operations: Iterable[Operation]) -> list[Crop]:
    """The crops among operations, under whatever names.

    >>> [crop.size for crop in crops_of([Named(Crop(20), "zoom"), Flip()])]
    [20]
    """
    return [op for op in map(bare, operations) if isinstance(op, Crop)]


def recropped(op: Operation, change: Callable[[Crop], Crop]) -> Operation:
    """An operation that crops as ``change`` has it, under the name it had; any other as it is."""
    if isinstance(op, Named):
        return replace(op, op=recropped(op.op, change))
    return change(op) if isinstance(op, Crop) else op
