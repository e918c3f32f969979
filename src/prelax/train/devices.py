"""Where a run computes, and in which precision."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from prelax.config import Settings
from prelax.errors import PrelaxError
from prelax.train.processes import Process


def in_bfloat16(settings: Settings, device: torch.device) -> bool:
    """Whether to compute in bfloat16. Refused on a CPU: some advertise it and die of an illegal instruction."""
    if settings.train.precision == "bfloat16" and device.type == "cpu":
        raise PrelaxError("train.precision=bfloat16 is for CUDA devices; on the CPU use float32")
    return device.type == "cuda" and settings.train.precision in ("auto", "bfloat16")


def choose_device(name: str, process: Process | None = None, asked: str = "train.device=") -> torch.device:
    """The device a setting names, from then on CUDA's current one: ``auto`` is CUDA where there is one.

    ``asked``: how the user said it.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise PrelaxError(f"{asked}{name}: use auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise PrelaxError(f"{asked}{name}: use auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise PrelaxError(f"{asked}{name}: this machine has no CUDA device; use {asked}cpu")
        index = process.local if process and process.world > 1 else device.index or 0
        if index >= torch.cuda.device_count():
            raise PrelaxError(f"{asked}{name}: this machine has {torch.cuda.device_count()} CUDA device(s)")
        torch.cuda.set_device(index)  # streams, graphs and random numbers are the current device's
        return torch.device("cuda", index)
    return device


@contextlib.contextmanager
def tf32() -> Iterator[None]:
    """Lets a card multiply float32 matrices by TF32 while it lasts."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def start_compilers(settings: Settings, device: torch.device) -> None:
    """Starts the processes that compile kernels, if the run will ask for them: they take seconds to be ready.

    The compiler starts them itself when it is first used, and until they are ready compiles one kernel after another.
    """
    if device.type != "cuda" or settings.train.compile == settings.augment.compile == "never":
        return
    with contextlib.suppress(ImportError):  # not torch's public interface
        from torch._inductor.async_compile import maybe_warm_pool

        maybe_warm_pool()
