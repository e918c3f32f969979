"""Several processes as one: what torchrun started, and which of them writes."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from prelax.errors import PrelaxError

MEETING = 1800.0  # seconds all processes of a start may take to come together: nodes do not boot at once
_joinings = itertools.count(1)  # of this process
Item = TypeVar("Item")


class Unread(PrelaxError):
    """Images that one process could not read: raised by all of them, before the same step."""


@dataclass(frozen=True)
class Process:
    """This process among those that train together."""

    rank: int = 0
    world: int = 1
    local: int = 0
    again: bool = False  # torchrun has started these processes again after one died (``--max-restarts``)

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


def ask_first(process: Process, question: Callable[[], object]) -> bool:
    """Whether the first process, which alone is asked, answers True; all of them hear it, and that the question failed.

    >>> [ask_first(Process(), lambda answer=answer: answer) for answer in (True, torch.tensor(True), 1, None)]
    [True, True, False, False]
    """
    problem: Exception | SystemExit | None = None
    answer: object = None
    try:
        answer = question() if process.writes else None
    except (Exception, SystemExit) as error:
        problem = error
    if any_of(process, problem is not None):
        raise problem or PrelaxError("the first process has stopped with an error: see what it says")
    return any_of(process, is_true(answer))


def is_true(answer: object) -> bool:
    """Whether it is Python's, NumPy's or PyTorch's True: a function may give anything else that is no answer."""
    if isinstance(answer, torch.Tensor):
        return answer.dtype == torch.bool and answer.numel() == 1 and bool(answer)
    return isinstance(answer, bool | np.bool_) and bool(answer)


def next_of_all(process: Process, feed: Iterator[Item]) -> Item:
    """The next of this process's own feed; where that of one process fails, all of them stop here, and none waits."""
    problem: PrelaxError | None = None
    try:
        found = next(feed)
    except PrelaxError as error:
        problem = error
    if any_of(process, problem is not None):
        raise Unread(str(problem or "another process cannot read its images")) from problem
    return found


def meet(store: dist.Store, rank: int, world: int, patience: float = MEETING) -> tuple[int, dist.Store]:
    """How many times processes have met at a store, and a part of it that only those of this start write to.

    torchrun keeps one store for all restarts, with the addresses of the dead in it: a process that reads one before the
    living write theirs waits for ever. Nor is the restart count a name for a start: each node counts its own. So the
    first process opens a room, and answers whoever calls until everybody has come in; the calls of the dead it
    may answer too, nobody hears that.
    """
    deadline = time.monotonic() + patience
    if rank > 0:
        call = uuid.uuid4().hex
        store.set(f"prelax/call/{rank}", call)
        while not store.check([f"prelax/answer/{call}"]):
            _wait(deadline, "the first process has not come", patience)
        start = int(store.get(f"prelax/answer/{call}"))
        store.set(f"prelax/start/{start}/here/{rank}", "yes")
        return start, dist.PrefixStore(f"prelax/start/{start}", store)
    start = store.add("prelax/starts", 1)
    missing = set(range(1, world))
    while missing:
        for other in sorted(missing):
            if store.check([f"prelax/start/{start}/here/{other}"]):
                missing.remove(other)
            elif store.check([f"prelax/call/{other}"]):
                store.set(f"prelax/answer/{store.get(f'prelax/call/{other}').decode()}", str(start))
        if missing:
            _wait(deadline, f"{len(missing)} of {world} processes have not come", patience)
    return start, dist.PrefixStore(f"prelax/start/{start}", store)


def _wait(deadline: float, problem: str, patience: float) -> None:
    if time.monotonic() > deadline:
        raise PrelaxError(f"{problem} within {patience:g} s; see what torchrun says of them, and start it again")
    time.sleep(0.02)


def _number(name: str, otherwise: int) -> int:
    """A number torchrun puts into the environment."""
    text = os.environ.get(name, str(otherwise))
    if not text.isdecimal():
        raise PrelaxError(f"{name}={text} is not a number; start several processes with torchrun, or unset it")
    return int(text)


@contextlib.contextmanager
def joined(device: str = "auto") -> Iterator[Process]:
    """This process, joined to the others torchrun started (``torchrun --nproc-per-node N -m prelax pretrain ...``).

    A group that is there already (``torch.multiprocessing.spawn``, Ray, a script of one's own) is the one that counts.
    """
    cuda, again = device != "cpu" and torch.cuda.is_available(), _number("TORCHELASTIC_RESTART_COUNT", 0) > 0
    if dist.is_initialized():  # whoever did it need not have said in the environment which card is whose
        local = _number("LOCAL_RANK", torch.cuda.current_device() if cuda else 0)
        yield Process(dist.get_rank(), dist.get_world_size(), local, again)
        return
    world = _number("WORLD_SIZE", 1)
    if world == 1:
        yield Process(again=again)
        return
    local = _number("LOCAL_RANK", 0)
    if cuda:
        devices = torch.cuda.device_count()
        if local >= devices:
            here = _number("LOCAL_WORLD_SIZE", local + 1)
            raise PrelaxError(
                f"{here} processes on this machine and {devices} CUDA device(s): start as many as there are "
                f"(torchrun --nproc-per-node {devices}), or use train.device=cpu"
            )
        torch.cuda.set_device(local)
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise PrelaxError(
            f"WORLD_SIZE={world} without {missing[0]}: start several processes with "
            "`torchrun --nproc-per-node N -m prelax ...`, or unset WORLD_SIZE"
        )
    shared, rank, world = next(dist.rendezvous("env://"))
    start, store = meet(shared, rank, world)
    dist.init_process_group("nccl" if cuda else "gloo", store=store, rank=rank, world_size=world)
    try:
        yield Process(rank, world, local, start > next(_joinings))
    except RuntimeError as error:
        said = " ".join(str(error).split())
        if isinstance(error, dist.DistError) or "gloo/transport" in said:
            raise PrelaxError(
                f"another process of this job ended or cannot be reached ({said[:160]}); torchrun --max-restarts N "
                "starts them again, and --resume goes on from the last checkpoint"
            ) from None
        raise
    finally:
        dist.destroy_process_group()


def wrapped(module: nn.Module, device: torch.device, buffers: bool) -> DistributedDataParallel:
    """A module whose gradients are the mean over all processes; with ``buffers``, theirs are those of the first."""
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of an argument's new name
        ids = [device.index] if device.type == "cuda" else None
        return DistributedDataParallel(module, device_ids=ids, broadcast_buffers=buffers)
