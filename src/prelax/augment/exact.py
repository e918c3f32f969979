"""Batched matrix products in full float32, whatever autocast and TF32 settings surround them.

TF32 or bfloat16 products would cost up to two of 255 grey levels. The guard is inside a custom operator, so it holds
in eager mode, under ``torch.compile`` and in a CUDA graph alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    backend = torch.backends.cuda.matmul if device.type == "cuda" else torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = backend.fp32_precision
    if before == "ieee":
        yield
        return
    backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        backend.fp32_precision = before


@torch.library.custom_op("prelax::separable", mutates_args=())
def separable(images: Tensor, wy: Tensor, wx: Tensor) -> Tensor:
    """``wy @ images @ wx^T`` for every image and channel.  B x C x H x W, B x h x H, B x w x W -> B x C x h x w"""
    batch, channels, height, width = images.shape
    with torch.autocast(images.device.type, enabled=False), _full_precision(images.device):
        rows = torch.bmm(images.reshape(batch, channels * height, width), wx.transpose(1, 2))  # B x CH x w
        rows = rows.view(batch, channels, height, wx.shape[1])
        if channels > 4:
            return torch.matmul(wy[:, None], rows)  # B x C x h x w
        # For few channels a product each is faster than copying the weights to all of them.
        return torch.stack([torch.bmm(wy, rows[:, channel]) for channel in range(channels)], 1)


@separable.register_fake
def _(images: Tensor, wy: Tensor, wx: Tensor) -> Tensor:
    return images.new_empty(images.shape[0], images.shape[1], wy.shape[1], wx.shape[1])
