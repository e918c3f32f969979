"""Steps of a network that is thrown away: what batch fits a device, and how long a run will take."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator

import torch

from prelax.collectives import alone
from prelax.config import Settings, with_values
from prelax.data import ImageSet, ShardSet
from prelax.data.store import choose_store
from prelax.train.engine import Engine
from prelax.train.processes import Process

TINY = 20  # steps of a run that is over before an estimate would be
ROOM = 0.85  # of a device's memory that a tried batch may take: compiling and capturing take some more
PATIENCE = 4.0  # seconds a timed step may take, about


# -- what fits ---------------------------------------------------------------------------------------------------------


def too_little_memory(settings: Settings, images: ImageSet | ShardSet, device: torch.device, processes: int = 1) -> str:
    """A line about a batch that was too large, with one that is not: halved until a real step over it fits."""
    batch = min(settings.train.batch_size, len(images))
    said = f"{device} has too little memory for train.batch_size={batch}"
    smaller = batch // 2 // processes * processes
    while smaller >= 2 * processes:
        try:
            if fits(settings, images, device, smaller // processes):
                return f"{said}; a step over {smaller} images was tried and fits: try train.batch_size={smaller}"
        except RuntimeError:  # a device that is past trying
            return f"{said}; try train.batch_size={smaller}"
        smaller = smaller // 2 // processes * processes
    return f"{said}, and even for {2 * processes}: use a smaller model.backbone, augment.size or model.projector_dim"


def fits(settings: Settings, images: ImageSet | ShardSet, device: torch.device, rows: int) -> bool:
    """Whether a training step over so many images fits the device, beside the pixels that stay there."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    try:
        with alone(), pixels_of(images, device):
            step_time(settings, images, device, rows)
    except torch.OutOfMemoryError:
        return False
    if device.type != "cuda":
        return True
    return torch.cuda.max_memory_allocated(device) <= ROOM * torch.cuda.mem_get_info(device)[1]


@contextlib.contextmanager
def pixels_of(images: ImageSet | ShardSet, device: torch.device) -> Iterator[torch.Tensor | None]:
    """As much of the device's memory as a set's pixels would take there, if that is where they would stay."""
    need = images.images.numel() if isinstance(images, ImageSet) else 0
    there = need > 0 and choose_store(need, device, isinstance(images, ImageSet) and images.file is not None)
    yield torch.empty(need, dtype=torch.uint8, device=device) if there == "device" else None


# -- how long it will take ---------------------------------------------------------------------------------------------


def estimate(settings: Settings, images: ImageSet | ShardSet, device: torch.device) -> str | None:
    """How long the run will take, in words, from real steps of a network that is thrown away; None for a tiny run.

    On CUDA this is before compilation, and the run is quicker.
    """
    batch = min(settings.train.batch_size, len(images))
    steps = settings.train.epochs * (len(images) // batch)
    if steps < TINY:
        return None
    try:
        seconds = batch_time(lambda rows: step_time(settings, images, device, rows), batch)
    except torch.OutOfMemoryError:
        return None  # compiled it may still fit; if not, the run itself says so
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)  # the run's own is among its metrics
    if device.type == "cpu":
        where = f"this CPU ({os.cpu_count()} cores)"
    else:
        where = f"{torch.cuda.get_device_name(device)}, or less: timed before compilation"
    return f"about {words(steps * seconds)} on {where}"


def batch_time(timed: Callable[[int], float], batch: int) -> float:
    """Seconds of a step over a batch, from steps over fewer images where one over all of them would take long.

    Two images are tried first, then four times as many, and so on until a step takes seconds. What is left goes by the
    last two: a step costs something whatever its images (with Muon and a large network, most of what it costs on a
    CPU), and something for each.

    >>> [batch_time(lambda rows: fixed + each * rows, 64) for fixed, each in ((1.5, 0.5), (0.0, 0.5), (9.0, 0.125))]
    [33.5, 32.0, 17.0]
    """
    rows = min(2, batch)
    seconds = timed(rows)
    each, enough = (
        seconds / rows,
        10 * PATIENCE,
    )  # what an image costs is not told by one step: a second is worth a wait
    while rows < batch and seconds + 3 * rows * each < enough:
        more = min(4 * rows, batch)
        then = timed(more)
        each, enough = min(max(then - seconds, 0.0) / (more - rows), then / more), PATIENCE
        rows, seconds = more, then
    return seconds + (batch - rows) * each


def step_time(settings: Settings, images: ImageSet | ShardSet, device: torch.device, rows: int) -> float:
    """Seconds of one training step over ``rows`` images: the quicker of two after a first one."""
    values = {"train.batch_size": rows, "train.compile": "never", "augment.compile": "never", "data.store": "auto"}
    values |= {"train.epochs": 3, "train.warmup_epochs": 0.0}
    some = images.first(rows)
    times: list[float] = []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        engine = Engine(with_values(settings, values), some, device, Process())
        for epoch in range(1, 4):  # of one step each
            began = time.perf_counter()
            engine.run_epoch(epoch, 0, lambda done: False)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - began)
            if min(times) > 10 * PATIENCE or (len(times) == 2 and times[1] > PATIENCE):
                break
        engine.release()
    return min(times[1:] or times)  # the first is slower; other work on the machine only ever makes them longer


def words(seconds: float) -> str:
    """A length of time as one would say it.

    >>> [words(s) for s in (0.4, 42, 700, 5400, 20_000, 400_000)]
    ['1 second', '42 seconds', '12 minutes', '90 minutes', '6 hours', '5 days']
    """
    for unit, length, most in (("second", 1, 90), ("minute", 60, 90 * 60 + 1), ("hour", 3600, 48 * 3600)):
        if seconds < most:
            number = max(1, round(seconds / length))
            return f"{number} {unit}{'s' if number > 1 else ''}"
    return f"{round(seconds / 86400)} days"
