"""Several processes as one: what torchrun started, and which of them writes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Process:
    """This process among those that train together."""

    rank: int = 0
    world: int = 1
    local: int = 0

    @property
    def writes(self) -> bool:
        """Whether this process writes the run folder; exactly one does."""
        return self.rank == 0


def wait_for_all(process: Process) -> None:
    """Returns when every process has come here."""
    if process.world > 1:
        dist.barrier()


def any_of(process: Process, flag: bool) -> bool:
    """Whether the flag is up in any process; all of them hear the same."""
    if process.world == 1:
        return flag
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    raised = torch.tensor(float(flag), device=device)
    dist.all_reduce(raised, dist.ReduceOp.MAX)
    return bool(raised)


def restarted() -> bool:
    """Whether torchrun has started this process again after a worker died (``--max-restarts``)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextlib.contextmanager
def joined(device: str = "auto") -> Iterator[Process]:
    """This process, joined to the others torchrun started (``torchrun --nproc-per-node N -m prelax pretrain ...``)."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Process()
        return
    started = not dist.is_initialized()
    if started:
        cuda = device != "cpu" and torch.cuda.is_available()
        if cuda:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if cuda else "gloo")
    try:
        yield Process(dist.get_rank(), world, int(os.environ.get("LOCAL_RANK", "0")))
    finally:
        if started:
            dist.destroy_process_group()
