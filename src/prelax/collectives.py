"""Sums and rows over all processes, with the gradient that belongs to them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)  # every process's loss depends on every process's part
        return total


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        ctx.rows = len(x)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        start = dist.get_rank() * ctx.rows
        return total[start : start + ctx.rows]


def sum_over_processes(x: Tensor) -> Tensor:
    """The sum of a tensor over all processes; itself where there is one."""
    return _Sum.apply(x) if world_size() > 1 else x  # type: ignore[no-any-return, no-untyped-call]


def rows_of_processes(x: Tensor) -> Tensor:
    """The rows of every process one after another; as many from each."""
    return _Rows.apply(x) if world_size() > 1 else x  # type: ignore[no-any-return, no-untyped-call]
