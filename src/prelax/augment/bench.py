"""How fast the augmentations are here, beside torchvision's and kornia's, in one run.

All contestants make the same views: crop 0.2-1 to the asked size, flip, jitter (.4, .4, .4, .1) with p .8, grey with
p .2, normalise; the time holds sampling and everything up to the batch of normalised floats.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from prelax.augment.pipeline import Pipeline
from prelax.augment.presets import CIFAR, preset
from prelax.draws import Draws
from prelax.errors import PrelaxError
from prelax.stamp import device_name

PAIRS = ((32, 32, 512), (160, 128, 64))  # size in, size out, images in a batch
Contestant = tuple[str, Callable[[], Any]]


def bench(
    pairs: Sequence[tuple[int, int] | tuple[int, int, int]] = PAIRS,
    batch: int | None = None,
    threads: int = 1,
    seconds: float = 3.0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    rivals: bool = True,
) -> list[dict[str, Any]]:
    """A row per contestant and size: views per second, and how many times the others' speed ours is.

    Contestants take turns, so that a busy machine slows all of them alike, and the median turn counts. On one CPU
    thread the clock is the processor's time, not the wall's: time the machine gave to others is not counted.

    Args:
        pairs: (size in, size out), or with the batch as a third number.
        batch: images in a batch, if not the pair's own.
        threads: of torch on the CPU.
        seconds: measured per contestant and size.
        dtype: of our views; float32 on the CPU and bfloat16 on CUDA by default.
        rivals: measure torchvision and kornia (where installed) as well.
    """
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise PrelaxError("bench augment: no CUDA device is available here; leave the device out to measure the CPU")
    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return [row for pair in pairs for row in _bench_pair(pair, batch, threads, seconds, device, dtype, rivals)]
    finally:
        torch.set_num_threads(before)


def _bench_pair(
    pair: Sequence[int],
    batch: int | None,
    threads: int,
    seconds: float,
    device: torch.device,
    dtype: torch.dtype,
    rivals: bool,
) -> list[dict[str, Any]]:
    size, out = pair[:2]
    count = batch or (pair[2] if len(pair) > 2 else 512 if size <= 64 else 64)
    images = _pictures(count, size)
    there = images.to(device)
    contestants = _ours(there, out, dtype)
    if rivals:
        contestants += _torchvision(images, there, out) + _kornia(there, out)
    clock = time.process_time if device.type == "cpu" and threads == 1 else time.perf_counter
    speed = {name: count / took for name, took in _take_turns(contestants, seconds, clock, device).items()}
    rows = []
    for name, views in speed.items():
        ours = name.startswith("prelax")
        row: dict[str, Any] = {"contestant": name, "in": size, "out": out, "batch": count, "threads": threads}
        row["device"] = device_name(device)
        row["dtype"] = str(dtype if ours else torch.float32).removeprefix("torch.")
        row["clock"] = "cpu" if clock is time.process_time else "wall"
        row["views_per_s"] = round(views, 1)
        if not ours:
            row["prelax_is_times"] = round(speed["prelax compiled"] / views, 2)
            row["prelax_eager_is_times"] = round(speed["prelax eager"] / views, 2)
        rows.append(row)
    return rows


def _pictures(count: int, size: int) -> Tensor:
    """Smooth coloured pictures with some grain; the speed of none of the contestants depends on what they show."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 5, 5, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (size, size), mode="bilinear", align_corners=False)
    grain = torch.rand(count, 3, size, size, generator=generator)
    return ((0.9 * smooth + 0.1 * grain) * 255).to(torch.uint8)


def _views(out: int) -> Pipeline:
    return preset("simsiam-32", size=out)


def _ours(images: Tensor, out: int, dtype: torch.dtype) -> list[Contestant]:
    eager = _views(out)
    compiled = eager.compiled()
    graphed = [("prelax graphed", _graphed(compiled, images, dtype))] if images.device.type == "cuda" else []
    return [
        *graphed,
        ("prelax compiled", lambda: compiled(images, 0, dtype=dtype)),
        ("prelax eager", lambda: eager(images, 0, dtype=dtype)),
    ]


def _graphed(compiled: Pipeline, images: Tensor, dtype: torch.dtype) -> Callable[[], Any]:
    """The compiled pipeline in a CUDA graph, as the trainer runs it: a new key a call, no launches from Python."""
    key = torch.zeros((), dtype=torch.int64, device=images.device)
    stream = torch.cuda.Stream(images.device)
    with torch.cuda.stream(stream):
        for _ in range(3):
            compiled(images, Draws(key, len(images)), dtype=dtype)
    torch.cuda.synchronize(images.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        view = compiled(images, Draws(key, len(images)), dtype=dtype)

    def replay() -> Any:
        key.add_(1)
        graph.replay()
        return view

    return replay


def _torchvision(images: Tensor, there: Tensor, out: int) -> list[Contestant]:
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    pil = v1.Compose(
        [
            v1.RandomResizedCrop(out, (0.2, 1.0)),
            v1.RandomHorizontalFlip(),
            v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
            v1.RandomGrayscale(0.2),
            v1.ToTensor(),
            v1.Normalize(*CIFAR),
        ]
    )
    tensor = v2.Compose(
        [
            v2.RandomResizedCrop(out, (0.2, 1.0), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
            v2.RandomGrayscale(0.2),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(*CIFAR),
        ]
    )
    pictures = [v1.functional.to_pil_image(image) for image in images]
    # A loop over images is timed on a part of the batch: its speed does not depend on how many there are.
    part = min(len(pictures), 64)
    scale = len(pictures) / part

    def looped(transform: Callable[[Any], Tensor], items: Sequence[Any]) -> Callable[[], float]:
        def turn() -> float:
            torch.stack([transform(item) for item in items])
            return scale

        return turn

    return [
        ("torchvision PIL", looped(pil, pictures[:part])),
        ("torchvision tensor", looped(tensor, list(there[:part]))),
    ]


def _kornia(images: Tensor, out: int) -> list[Contestant]:
    if importlib.util.find_spec("kornia") is None:
        return []
    import kornia.augmentation as K

    ops = K.ImageSequential(
        K.RandomResizedCrop((out, out), scale=(0.2, 1.0)),
        K.RandomHorizontalFlip(),
        K.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        K.RandomGrayscale(p=0.2),
        K.Normalize(mean=list(CIFAR[0]), std=list(CIFAR[1])),
    )

    def turn() -> None:
        with torch.no_grad():
            ops(images.float() / 255)

    return [("kornia", turn)]


def _take_turns(
    contestants: list[Contestant], seconds: float, clock: Callable[[], float], device: torch.device
) -> dict[str, float]:
    """Seconds per batch of every contestant: the median of its turns. A turn may say it did only 1/n of a batch."""

    def turn(run: Callable[[], Any], calls: int) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = clock()
        for _ in range(calls):
            part = run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (clock() - start) / calls * (part if isinstance(part, float) else 1.0)

    calls: dict[str, int] = {}
    for name, run in contestants:
        turn(run, 2)  # compile, fill caches
        start = clock()
        turn(run, 1)
        once = max(clock() - start, 1e-6)
        calls[name] = max(1, int(seconds / 10 / once))
    turns: dict[str, list[float]] = {name: [] for name, _ in contestants}
    for _ in range(10):
        for name, run in contestants:
            turns[name].append(turn(run, calls[name]))
    return {name: statistics.median(took) for name, took in turns.items()}
