"""Operations that rearrange an image: free-angle rotation and jigsaw."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from prelax.augment.operation import Params, Shape
from prelax.draws import Draws
from prelax.errors import PrelaxError
from prelax.record import Target


@dataclass(frozen=True)
class FreeRotation:
    """A rotation about the centre by an angle uniform in [-degrees, degrees], counter-clockwise as in torchvision.

    What turns in from outside is 0 (black).
    """

    degrees: float = 15.0
    interpolation: Literal["nearest", "bilinear"] = "bilinear"
    name: str = "free-rotation"
    identity: ClassVar[dict[str, float]] = {"degrees": 0.0}

    def __post_init__(self) -> None:
        if not 0 < self.degrees <= 180:
            raise PrelaxError(f"free-rotation degrees must be above 0 and at most 180, got {self.degrees}")
        if self.interpolation not in ("nearest", "bilinear"):
            raise PrelaxError(f"free-rotation interpolation is nearest or bilinear, got {self.interpolation!r}")

    @property
    def targets(self) -> tuple[Target, ...]:
        return (Target(f"{self.name}.degrees", "continuous", std=self.degrees / 3**0.5),)

    def make_params(self, shape: Shape, draws: Draws) -> Params:
        return {"degrees": draws.uniform("degrees", -self.degrees, self.degrees)}

    def transform(self, images: Tensor, params: Params) -> Tensor:
        height, width = images.shape[2:]
        angle = torch.deg2rad(params["degrees"])[:, None, None]
        cos, sin = torch.cos(angle), torch.sin(angle)
        y = (torch.arange(height, device=images.device) + (0.5 - 0.5 * height))[:, None]
        x = torch.arange(width, device=images.device) + (0.5 - 0.5 * width)
        from_x = (cos * x - sin * y) / (0.5 * width)  # B x H x W
        from_y = (sin * x + cos * y) / (0.5 * height)
        grid = torch.stack((from_x, from_y), -1)  # B x H x W x 2
        with torch.autocast(images.device.type, enabled=False):
            turned = grid_sample(images.to(torch.float32), grid, self.interpolation, "zeros", align_corners=False)
        return turned.to(images.dtype)


@lru_cache(maxsize=32)
def _salt(tiles: int, classes: int) -> int:
    """The first salt whose permutations are all different, the identity (class 0) among them."""
    for salt in range(1000):
        table = _shuffles(torch.arange(classes), tiles, salt)
        if len({tuple(row) for row in table.tolist()}) == classes:
            return salt
    raise PrelaxError(f"jigsaw: no {classes} different permutations of {tiles} tiles found; ask for fewer classes")


def _shuffles(index: Tensor, tiles: int, salt: int) -> Tensor:
    """A pseudo-random permutation for every class, the identity for class 0.  B -> B x tiles"""
    order = Draws(salt, index).permutation("jigsaw", tiles)
    return torch.where(index[:, None] == 0, torch.arange(tiles, device=index.device), order)


def _lexicographic(index: Tensor, tiles: int) -> Tensor:
    """The permutation of that rank in lexicographic order (0 is the identity).  B -> B x tiles"""
    left = torch.arange(tiles, device=index.device).expand(len(index), tiles)  # tiles not yet placed, in order
    placed = []
    for remaining in range(tiles, 0, -1):
        pick = (index // math.factorial(remaining - 1)) % remaining
        placed.append(left.gather(1, pick[:, None]))
        keep = torch.arange(remaining - 1, device=index.device)
        left = left.gather(1, keep + (keep >= pick[:, None]).to(torch.int64))
    return torch.cat(placed, 1)


@dataclass(frozen=True)
class Jigsaw:
    """The image cut into grid x grid tiles that change places; which permutation is a k-way target.

    A 2 x 2 jigsaw uses all 24 permutations. A finer one uses ``classes`` of them, fixed and all different; class 0
    leaves the image as it is. ``order`` lists, place by place, the tile that came there.
    """

    grid: int = 2
    classes: int | None = None
    name: str = "jigsaw"
    salt: int = field(init=False, repr=False, compare=False)
    moves_pixels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.grid < 2:
            raise PrelaxError(f"jigsaw grid must be 2 or more, got {self.grid}")
        if self.classes is None:
            object.__setattr__(self, "classes", 24 if self.grid == 2 else 100)
        if not 2 <= self._classes <= math.factorial(self._tiles):
            raise PrelaxError(
                f"jigsaw: {self._tiles} tiles cannot give {self.classes} permutations; at least 2 are needed"
            )
        # Searched for here: a compiler cannot follow it.
        object.__setattr__(self, "salt", _salt(self._tiles, self._classes) if self.grid > 2 else 0)

    @property
    def _tiles(self) -> int:
        return self.grid**2

    @property
    def identity(self) -> dict[str, int | tuple[int, ...]]:
        return {"permutation": 0, "order": tuple(range(self._tiles))}

    @property
    def _classes(self) -> int:
        return self.classes or 0

    @property
    def targets(self) -> tuple[Target, ...]:
        return (Target(f"{self.name}.permutation", "categorical", classes=self._classes),)

    def make_params(self, shape: Shape, draws: Draws) -> Params:
        return self.completed({"permutation": draws.integers("permutation", self._classes)})

    def completed(self, params: Params) -> Params:
        index = params["permutation"]
        if self.grid == 2:
            return {**params, "order": _lexicographic(index, self._tiles)}
        return {**params, "order": _shuffles(index, self._tiles, self.salt)}

    def transform(self, images: Tensor, params: Params) -> Tensor:
        batch, channels, height, width = images.shape
        if height % self.grid or width % self.grid:
            raise PrelaxError(
                f"{self.name}: {height} x {width} pixels cannot be cut into {self.grid} x {self.grid} equal tiles"
            )
        h, w = height // self.grid, width // self.grid
        tiles = images.reshape(batch, channels, self.grid, h, self.grid, w).transpose(3, 4)  # B C g g h w
        tiles = tiles.reshape(batch, channels, self._tiles, h * w)
        index = params["order"][:, None, :, None].expand(batch, channels, self._tiles, h * w)
        tiles = tiles.gather(2, index).reshape(batch, channels, self.grid, self.grid, h, w)
        return tiles.transpose(3, 4).reshape(batch, channels, height, width)
