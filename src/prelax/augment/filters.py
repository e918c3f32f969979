"""Operations that blur, cover or disturb: Gaussian blur, cutout (random erasing), Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from prelax.augment.exact import separable
from prelax.augment.geometry import FINE, TRIES, box_grid, box_moments, box_targets, first_accepted, offset
from prelax.augment.operation import Params, Shape, mixed, moments, ordered, per_image, probability
from prelax.draws import Draws
from prelax.errors import PrelaxError
from prelax.record import Target


def blur_weights(sigma: Tensor, kernel: int, size: int) -> Tensor:
    """The rows that blur an axis with a Gaussian of ``kernel`` taps and reflected borders; sigma 0 is the identity.

    B -> B x size x size
    """
    radius = kernel // 2
    index = torch.arange(size, device=sigma.device)
    reach = torch.arange(-radius, radius + 1, device=sigma.device)
    taps = torch.exp(-0.5 * (reach / sigma.clamp(min=1e-3)[:, None]) ** 2)  # B x kernel
    padded = F.pad(taps, (1, 1))  # a nothing at either end, for all that is out of reach

    def tap(distance: Tensor) -> Tensor:
        return padded[:, distance.clamp(-radius - 1, radius + 1) + radius + 1]

    here, there = index[:, None], index[None, :]  # output, input
    weights = tap(there - here)
    if radius:  # what lies beyond a border is the image reflected there, the border itself not repeated
        weights = weights + torch.where(there > 0, tap(-there - here), 0.0)
        weights = weights + torch.where(there < size - 1, tap(2 * (size - 1) - there - here), 0.0)
    return weights / taps.sum(-1)[:, None, None]


@dataclass(frozen=True)
class Blur:
    """torchvision's GaussianBlur with probability p, a sigma of its own for every image (0 where not applied).

    Args:
        kernel: odd number of taps; None takes a tenth of the image's side, as SimCLR and BYOL do.
        sigma: range of the standard deviation in pixels.
    """

    kernel: int | None = None
    sigma: tuple[float, float] = (0.1, 2.0)
    p: float = 0.5
    name: str = "blur"
    identity: ClassVar[dict[str, float]] = {"sigma": 0.0}

    def __post_init__(self) -> None:
        probability(self.p, "blur")
        ordered(self.sigma, "blur sigma", 1e-6)
        if self.kernel is not None and (self.kernel < 1 or self.kernel % 2 == 0):
            raise PrelaxError(f"blur kernel is an odd number of taps, got {self.kernel}")

    @property
    def targets(self) -> tuple[Target, ...]:
        return (Target(f"{self.name}.applied", "binary"),)

    def make_params(self, shape: Shape, draws: Draws) -> Params:
        applied = draws.bernoulli("applied", self.p)
        return {"applied": applied, "sigma": torch.where(applied, draws.uniform("sigma", *self.sigma), 0.0)}

    def transform(self, images: Tensor, params: Params) -> Tensor:
        height, width = images.shape[2:]
        kernel = self.kernel or max(3, 2 * (max(height, width) // 20) + 1)
        if kernel // 2 >= min(height, width):
            raise PrelaxError(
                f"blur: a kernel of {kernel} does not fit into {height} x {width} pixels; set a smaller one"
            )
        images, sigma = images.to(torch.float32), params["sigma"]
        if images.device.type != "cpu" or torch.compiler.is_compiling():
            return separable(images, *(blur_weights(sigma, kernel, size) for size in (height, width)))
        rows = sigma.nonzero()[:, 0]  # where it costs most only those that change; a device would be waited for
        if not len(rows):
            return images
        wy, wx = (blur_weights(sigma[rows], kernel, size) for size in (height, width))
        return images.index_copy(0, rows, separable(images[rows], wy, wx))


@lru_cache(maxsize=64)
def _erase_moments(
    scale: tuple[float, float], ratio: tuple[float, float], height: int, width: int
) -> tuple[dict[str, tuple[float, float]], float]:
    h, w = box_grid(scale, ratio, height, width)  # RandomErasing's ratio is height / width
    accepted = (h < height) & (w < width)
    boxes = accepted & (h > 0) & (w > 0)
    fits = (1 - (1 - accepted.mean()) ** TRIES) * boxes.sum() / max(accepted.sum(), 1)
    return box_moments(h, w, boxes / max(boxes.sum(), 1), height, width), float(fits)


@torch.compiler.assume_constant_result  # a compiler is not to follow it
def erase_moments(
    scale: tuple[float, float], ratio: tuple[float, float], height: int, width: int
) -> tuple[dict[str, tuple[float, float]], float]:
    """Mean and std of what is told of a box that is erased in images of a size, and how likely one fits."""
    return _erase_moments(scale, ratio, height, width)


@dataclass(frozen=True)
class Erase:
    """torchvision's RandomErasing (cutout): a box of ``value`` in each image, with probability p.

    Columns as for a crop: the box in pixels, its centre, area ratio and aspect ratio relative to the image. Where
    nothing was erased the box is empty, in the middle.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: float = 0.0
    name: str = "erase"
    identity: ClassVar[dict[str, float]] = {"height": 0, "width": 0, "y": 0.5, "x": 0.5, "area": 0.0, "aspect": 1.0}

    def __post_init__(self) -> None:
        probability(self.p, "erase")
        ordered(self.scale, "erase scale")
        ordered(self.ratio, "erase ratio", 1e-3)

    @property
    def targets(self) -> tuple[Target, ...]:
        return self._targets(FINE, FINE)

    def targets_at(self, shape: Shape) -> tuple[Target, ...]:
        return self._targets(*shape[2:])

    def _targets(self, height: int, width: int) -> tuple[Target, ...]:
        known, fits = erase_moments((self.scale[0], self.scale[1]), (self.ratio[0], self.ratio[1]), height, width)
        found = []
        for name, rest in (("y", 0.5), ("x", 0.5), ("area", 0.0)):
            mean, std = known[name]
            mean, std = mixed(mean, std, self.p * fits, rest)
            found.append(Target(f"{self.name}.{name}", "continuous", mean=mean, std=std))
        return (*found, Target(f"{self.name}.applied", "binary"))

    def make_params(self, shape: Shape, draws: Draws) -> Params:
        height, width = shape[2:]
        area = draws.uniform("area", *self.scale, n=TRIES) * (height * width)
        aspect = draws.uniform("aspect", math.log(self.ratio[0]), math.log(self.ratio[1]), n=TRIES).exp()
        h, w = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()  # torchvision: aspect is h / w here
        accepted = (h < height) & (w < width)
        h, w = first_accepted((h, w), accepted)
        # A box that rounds to none is no erasing, though torchvision calls it one: the record would not be true.
        applied = draws.bernoulli("applied", self.p) & accepted.any(1) & (h > 0) & (w > 0)
        box = {
            "top": torch.where(applied, offset(draws.uniform("top"), height - h), float(height // 2)),
            "left": torch.where(applied, offset(draws.uniform("left"), width - w), float(width // 2)),
            "height": torch.where(applied, h, 0.0),
            "width": torch.where(applied, w, 0.0),
        }
        told = box_targets(box, shape)
        told["aspect"] = torch.where(applied, told["aspect"], 1.0)
        told["y"], told["x"] = (torch.where(applied, told[axis], 0.5) for axis in ("y", "x"))
        return {"applied": applied, **{name: column.to(torch.int64) for name, column in box.items()}, **told}

    def transform(self, images: Tensor, params: Params) -> Tensor:
        def inside(start: Tensor, length: Tensor, size: int) -> Tensor:
            position = torch.arange(size, device=images.device)
            return (position >= start[:, None]) & (position < (start + length)[:, None])  # B x size

        rows = inside(params["top"], params["height"], images.shape[2])
        columns = inside(params["left"], params["width"], images.shape[3])
        return torch.where((rows[:, :, None] & columns[:, None, :])[:, None], self.value, images)


@dataclass(frozen=True)
class Noise:
    """Gaussian noise with probability p and a strength of its own for every image.

    The record keeps a ``seed`` per image, from which the noise is made again, and ``sigma`` (0 where not applied).

    Args:
        sigma: range of the noise's standard deviation; images are in [0, 1].
        clip: keep the result in [0, 1], as torchvision does.
    """

    sigma: tuple[float, float] = (0.0, 0.1)
    p: float = 1.0
    clip: bool = True
    name: str = "noise"
    identity: ClassVar[dict[str, float]] = {"sigma": 0.0}

    def __post_init__(self) -> None:
        probability(self.p, "noise")
        ordered(self.sigma, "noise sigma")

    @property
    def targets(self) -> tuple[Target, ...]:
        mean, std = moments(*self.sigma, self.p, 0.0)
        moving = (
            (Target(f"{self.name}.sigma", "continuous", mean=mean, std=std),) if self.sigma[0] < self.sigma[1] else ()
        )
        return (*moving, Target(f"{self.name}.applied", "binary"))

    def make_params(self, shape: Shape, draws: Draws) -> Params:
        applied = draws.bernoulli("applied", self.p)
        sigma = torch.where(applied, draws.uniform("sigma", *self.sigma), 0.0)
        return {"applied": applied, "sigma": sigma, "seed": draws.bits("seed")[:, 0]}

    def transform(self, images: Tensor, params: Params) -> Tensor:
        noise = Draws(0, params["seed"]).normal("noise", n=images[0].numel()).view(images.shape)
        noisy = images + per_image(params["sigma"]) * noise
        return torch.where(per_image(params["applied"]), noisy.clamp(0.0, 1.0) if self.clip else noisy, images)
