"""Resizing boxes of images as a linear map, antialiased exactly as torchvision's: ``wy @ x @ wx^T`` for every image.

Eager, the map is two batched matrix products. Compiled, only the few weights of a row that are not zero are used
(its taps) and the sums fuse with what surrounds them; the weights are the same.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from prelax.augment.exact import separable

Interpolation = Literal["bilinear", "bicubic"]
Axis = tuple[Tensor, Tensor, Tensor | None]  # start and length of the box on this axis, flipped or not; each B
SUPPORT = {"bilinear": 1.0, "bicubic": 2.0}
MOST_TAPS = 12  # strong reductions have long rows: there the products are faster


def resample(images: Tensor, rows: Axis, columns: Axis, size: tuple[int, int], interpolation: Interpolation) -> Tensor:
    """Boxes of the images at ``size``, float32; uint8 images come out in [0, 1].  B x C x H x W -> B x C x h x w"""
    height, width = images.shape[2:]
    unit = 255.0 if images.dtype == torch.uint8 else 1.0
    taps = max(count_taps(size[0], height, interpolation), count_taps(size[1], width, interpolation))
    if torch.compiler.is_compiling() and taps <= MOST_TAPS:
        return _by_taps(images, rows, columns, size, interpolation, unit)
    wy = axis_weights(rows, size[0], height, interpolation) / unit
    wx = axis_weights(columns, size[1], width, interpolation)
    return separable(images.to(torch.float32), wy, wx)


def kernel(d: Tensor, interpolation: Interpolation) -> Tensor:
    """The weight of a pixel at distance d >= 0 (in units of the stretched kernel)."""
    if interpolation == "bilinear":
        return (1.0 - d).clamp(min=0.0)
    near = (1.5 * d - 2.5) * d * d + 1.0  # Keys' cubic, a = -0.5
    far = ((-0.5 * d + 2.5) * d - 4.0) * d + 2.0
    return torch.where(d < 1.0, near, torch.where(d < 2.0, far, 0.0))


def _outputs(out: int, flip: Tensor | None, device: torch.device) -> Tensor:
    """Numbers of the output pixels, reversed where flipped.  1 or B x out"""
    index = torch.arange(out, device=device)[None]
    return index if flip is None else torch.where(flip[:, None], out - 1 - index, index)


def axis_weights(axis: Axis, out: int, size: int, interpolation: Interpolation) -> Tensor:
    """The rows that resize a box of an axis of ``size`` pixels to ``out``.  B -> B x out x size"""
    start, length = (column.to(torch.float32)[:, None, None] for column in axis[:2])
    index = _outputs(out, axis[2], start.device)[:, :, None]
    scale = length / out
    position = torch.arange(size, device=start.device) - start  # B x 1 x size
    d = (position - scale * (index + 0.5) + 0.5).abs() / scale.clamp(min=1.0)  # B x out x size
    weights = torch.where((position >= 0) & (position < length), kernel(d, interpolation), 0.0)
    return weights / weights.sum(-1, keepdim=True)


def count_taps(out: int, size: int, interpolation: Interpolation) -> int:
    """The most pixels that an output pixel can depend on, for boxes up to the whole axis."""
    return min(size, math.ceil(2 * SUPPORT[interpolation] * max(1.0, size / out) - 1e-9))


def axis_taps(axis: Axis, out: int, size: int, interpolation: Interpolation) -> tuple[Tensor, Tensor]:
    """Of every row of ``axis_weights`` the positions and weights that count.  B -> K x B x out, K x B x out"""
    start, length = (column.to(torch.float32)[:, None] for column in axis[:2])
    scale = length / out
    stretch = scale.clamp(min=1.0)
    centre = scale * (_outputs(out, axis[2], start.device) + 0.5) - 0.5  # B x out
    first = ((centre - SUPPORT[interpolation] * stretch).floor() + 1.0).clamp(min=0.0)
    position = first + torch.arange(count_taps(out, size, interpolation), device=start.device)[:, None, None]
    weights = kernel((position - centre).abs() / stretch, interpolation)  # K x B x out
    weights = torch.where(position < length, weights, 0.0)
    return (position + start).to(torch.int64).clamp(0, size - 1), weights / weights.sum(0)


@torch.library.custom_op("prelax::axis_taps", mutates_args=())
def _stored_taps(
    start: Tensor, length: Tensor, flip: Tensor | None, out: int, size: int, interpolation: str
) -> tuple[Tensor, Tensor]:
    """The same, kept out of the compiler's sight: on the CPU it would work them out anew for every pixel."""
    position, weights = axis_taps((start, length, flip), out, size, interpolation)  # type: ignore[arg-type]
    return position.contiguous(), weights.contiguous()


@_stored_taps.register_fake
def _(
    start: Tensor, length: Tensor, flip: Tensor | None, out: int, size: int, interpolation: str
) -> tuple[Tensor, Tensor]:
    shape = (count_taps(out, size, interpolation), start.shape[0], out)  # type: ignore[arg-type]
    return start.new_empty(shape, dtype=torch.int64), start.new_empty(shape, dtype=torch.float32)


def _by_taps(
    images: Tensor, rows: Axis, columns: Axis, size: tuple[int, int], interpolation: Interpolation, unit: float
) -> Tensor:
    batch, channels, height, width = images.shape

    def taps(axis: Axis, out: int, length: int) -> tuple[Tensor, Tensor]:
        if images.device.type == "cpu":
            return _stored_taps(*axis, out, length, interpolation)
        return axis_taps(axis, out, length, interpolation)

    y, wy = taps(rows, size[0], height)
    x, wx = taps(columns, size[1], width)
    wy = wy / unit
    b = torch.arange(batch, device=images.device)[:, None, None]
    c = torch.arange(channels, device=images.device)[:, None]
    low = sum(wy[k][:, None, :, None] * images[b, c, y[k][:, None]].to(torch.float32) for k in range(len(wy)))
    b, c, o = b[..., None], c[..., None], torch.arange(size[0], device=images.device)[:, None]
    assert isinstance(low, Tensor)  # B x C x h x W
    out = sum(wx[k][:, None, None] * low[b, c, o, x[k][:, None, None]] for k in range(len(wx)))
    assert isinstance(out, Tensor)
    return out  # B x C x h x w
