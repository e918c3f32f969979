"""Sums and rows over all processes, with the gradient that belongs to them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_apart = False
_rehearsing = False


def grouped() -> bool:
    """Whether this process computes as one of a group, if only of one."""
    return not _apart and dist.is_available() and dist.is_initialized()


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if grouped() else 1


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Within it this process computes as if there were no others: each trains a network of its own."""
    global _apart
    before, _apart = _apart, True
    try:
        yield
    finally:
        _apart = before


@contextlib.contextmanager
def rehearsal() -> Iterator[None]:
    """Within it nothing is asked of other processes: each is taken to have what this one has.

    What is compiled meanwhile is what runs later: the operators in it are the same.
    """
    global _rehearsing
    before, _rehearsing = _rehearsing, True
    try:
        yield
    finally:
        _rehearsing = before


def rank() -> int:
    """Which of them this process is; the first writes."""
    return dist.get_rank() if world_size() > 1 else 0


# Operators of our own, so that a compiled network calls them as they are, and a captured step records them.


@torch.library.custom_op("prelax::sum_over_processes", mutates_args=())
def _sum(x: Tensor) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    if _rehearsing:
        return total.mul_(dist.get_world_size())
    dist.all_reduce(total)
    return total


@_sum.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _sum_backward(ctx: Any, grad: Tensor) -> Tensor:
    return _sum(grad)  # every process's loss depends on every process's part


_sum.register_autograd(_sum_backward)


@torch.library.custom_op("prelax::rows_of_processes", mutates_args=())
def _rows(x: Tensor) -> Tensor:
    if _rehearsing:
        return torch.cat([x] * dist.get_world_size())
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)


@_rows.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(len(x) * dist.get_world_size(), *x.shape[1:])


def _rows_setup(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.rows = len(inputs[0])


def _rows_backward(ctx: Any, grad: Tensor) -> Tensor:
    start = dist.get_rank() * ctx.rows
    return _sum(grad)[start : start + ctx.rows]


_rows.register_autograd(_rows_backward, setup_context=_rows_setup)


def sum_over_processes(x: Tensor) -> Tensor:
    """The sum of a tensor over all processes; itself where there is one."""
    return _sum(x) if grouped() else x


def rows_of_processes(x: Tensor) -> Tensor:
    """The rows of every process one after another; as many from each."""
    return _rows(x) if grouped() else x


PIECE = 1 << 26  # elements sent at a time


def share(count: int, step: int, of: int | None = None) -> range:
    """The rows of this process (or that one) when ``count`` rows are shared out in whole batches of ``step``.

    The batches are those of a single process, so what is computed of them is the same to the bit.

    >>> share(10, 4)
    range(0, 10)
    """
    of = rank() if of is None else of
    each = -(-count // (step * world_size())) * step  # rows, but for the last
    return range(min(of * each, count), min((of + 1) * each, count))


def gather_shares(mine: Tensor | None, count: int, step: int) -> Tensor:
    """The rows of all processes, each of which has computed its `share` (None: it has no rows), in order."""
    if world_size() == 1:
        assert mine is not None
        return mine
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    width = torch.tensor(mine.shape[1] if mine is not None else 0, device=device)
    dist.broadcast(width, 0)  # the first process has rows if there are any
    columns = int(width)
    keep = mine.device if mine is not None else device
    whole = torch.empty(count, columns, device=keep)
    rows = max(1, PIECE // columns)
    for other in range(world_size()):
        theirs = share(count, step, other)
        for start in range(theirs.start, theirs.stop, rows):
            stop = min(start + rows, theirs.stop)
            piece = torch.empty(stop - start, columns, device=device)
            if other == rank():
                assert mine is not None
                piece.copy_(mine[start - theirs.start : stop - theirs.start])
            dist.broadcast(piece, other)
            whole[start:stop] = piece.to(keep)
    return whole
