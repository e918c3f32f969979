"""This machine's training speed: the same step run plainly, with all views together, compiled, and as one graph."""

from __future__ import annotations

import gc
import math
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from prelax.config import Settings, merge, validate, with_values
from prelax.data import ImageSet, load_training
from prelax.data.folder import Progress
from prelax.errors import PrelaxError
from prelax.train.devices import choose_device
from prelax.train.engine import Engine
from prelax.train.peers import bench_peer, transform_of, views_side
from prelax.train.processes import Process
from prelax.train.settled import as_found
from prelax.train.suit import suit

MODES = {
    "plain": "views one after another, eager",
    "together": "views as one batch, eager",
    "compiled": "views as one batch, backbone compiled",
    "graph": "the same, the whole step replayed as one CUDA graph",
}
BATCHES = 8  # that a timed set holds
LONG = 10.0  # seconds, if no more were asked for: a step of so many is not taken twice
PEER_STEPS = 6  # the fewest a peer takes


def bench(
    settings: Settings,
    modes: Sequence[str] = (),
    seconds: float = 5.0,
    images: int | ImageSet = 0,
    peers: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Views a second, share of augmentation, TFLOP/s and peak memory of a training step, a row a mode.

    Pixels are noise in the shape of the settings' images, unless images are given (`job` finds those of a folder):
    speed does not depend on what they show. A step that takes longer than ``seconds`` is timed once.

    Args:
        settings: what to train; ``train.device`` says where.
        modes: names of ``MODES``; by default all that the device has.
        seconds: how long to time each.
        images: a set, or how many images of noise there are; by default eight batches.
        peers: names of ``prelax.train.peers.PEERS`` to time on the same SimSiam job, in the same run; left out where
            a step takes so long that theirs would take far longer than ``seconds``, and where they have not what a
            user's own preset does.
        say: called with a line about what was left out.
    """
    device = choose_device(settings.train.device)
    cuda = device.type == "cuda"
    try:
        for name in peers:
            transform_of(name, settings, views_side(settings))
    except PrelaxError as error:
        say(f"{' and '.join(peers)} left out: {error}")
        peers = ()
    rows: list[dict[str, Any]] = []
    for mode in modes or (MODES if cuda else ["plain", "together"]):
        engine = build(settings, mode, images or BATCHES * settings.train.batch_size)
        views = len(engine.objective.views)
        position = iter(range(10**9))

        def step(engine: Engine = engine, position: Any = position) -> None:
            at = next(position)
            engine.set_rates(at % len(engine.rates))
            engine.ids.copy_((torch.arange(engine.batch, device=device) + at * engine.batch) % engine.images)
            engine.take_step()

        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
        spent = warm_up(step, 15 if cuda else 3, math.inf if cuda else seconds)
        each = spent if not cuda and spent > max(seconds, LONG) else timed(step, device, seconds)
        augment = timed(making(engine), device, seconds / 4)
        rows.append(
            {
                "mode": mode,
                "method": settings.method.name,
                "backbone": settings.model.backbone,
                "image_size": engine.maker.size,
                "batch": engine.batch,
                "views": views,
                "ms_per_step": round(each * 1e3, 3),
                "views_per_s": round(views * engine.batch / each),
                "augment_ms": round(augment * 1e3, 3),
                "augment_share": round(augment / each, 4),
                "backbone_tflops": round(engine.batch * flops_per_image(engine) / each / 1e12, 2),
                "memory_gib": round(torch.cuda.max_memory_allocated(device) / 2**30, 2) if cuda else None,
                "device": torch.cuda.get_device_name(device) if cuda else platform.processor() or platform.machine(),
                "torch": torch.__version__,
            }
        )
        del engine, step
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()
            torch.compiler.reset()
    each = max(row["ms_per_step"] for row in rows) / 1e3
    if peers and PEER_STEPS * each > max(seconds, LONG):
        say(
            f"{' and '.join(peers)} left out: a step takes {each:.1f} s and each would need {PEER_STEPS} at least; "
            f"--seconds {math.ceil(PEER_STEPS * each)} times them too"
        )
        return rows
    same = with_values(settings, {"train.batch_size": rows[0]["batch"]})  # of fewer images a batch is all of them
    return [*rows, *(bench_peer(name, same, seconds) for name in peers)]


def job(
    settings: Settings, say: Callable[[str], None] = lambda line: None, progress: Progress | None = None
) -> tuple[Settings, ImageSet | None]:
    """What ``pretrain`` would train: of a folder (or shards) the settings suited to its images, and some of these.

    None for the images where noise does as well: known datasets, whose size the settings give, and no folder at all.

    Args:
        say: called with a line for each choice.
        progress: called with (files done, files in all).
    """
    data = settings.data
    if data.source != "folder" or (data.root is None and data.shards is None):
        return settings, None
    images = load_training(data, progress)
    settings, lines = suit(as_found(settings, images), images, choose_device(settings.train.device))
    for line in lines:
        say(line)
    return settings, images.first(min(len(images), BATCHES * settings.train.batch_size))


def build(settings: Settings, mode: str, images: int | ImageSet) -> Engine:
    """An engine in one of the modes, over a set of images or so many of noise."""
    compiled = "always" if mode in ("compiled", "graph") else "never"
    changed = merge(settings.model_dump(), {"train": {"compile": compiled}, "data": {"store": "auto"}})
    settings = validate(changed)
    device = choose_device(settings.train.device)
    engine = Engine(settings, images if isinstance(images, ImageSet) else noise(settings, images), device, Process())
    engine.objective.together = mode != "plain"
    engine.capture = mode == "graph" and device.type == "cuda"
    return engine


def noise(settings: Settings, images: int) -> ImageSet:
    """Images of noise in the shape of the settings' images."""
    channels = settings.data.channels or (1 if settings.data.source == "digits" else 3)
    side = settings.data.image_size or (16 if settings.data.source == "digits" else 32)
    pixels = torch.randint(0, 256, (images, channels, side, side), dtype=torch.uint8)
    return ImageSet("noise", pixels, torch.zeros(images, dtype=torch.int64), ["noise"])


def warm_up(step: Callable[[], Any], most: int, seconds: float) -> float:
    """Steps that compile, capture, choose algorithms and fill caches: one at least, no more once the time is spent.

    Gives the seconds of the last.
    """
    began = last = time.perf_counter()
    for _ in range(most):
        last = time.perf_counter()
        step()
        if time.perf_counter() - began > seconds:
            break
    return time.perf_counter() - last


def making(engine: Engine) -> Callable[[], Any]:
    """Drawing and making the views of a batch, launched as the engine launches it: alone, or as one graph."""

    def make() -> Any:
        return engine.maker(engine.store.batch(engine.ids), engine.ids, engine.keys)

    if not engine.capture:
        return make
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        make()
    return graph.replay


def timed(step: Callable[[], Any], device: torch.device, seconds: float) -> float:
    """Seconds a call takes: the median of several blocks of calls, each waited for; of one that takes long, once."""

    def block(calls: int) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - start) / calls

    once = block(1)
    if once >= seconds:
        return once
    calls = max(1, int(seconds / 5 / max(once, 1e-6)))
    return statistics.median(block(calls) for _ in range(min(5, int(seconds / max(once, 1e-6)))))


def flops_per_image(engine: Engine) -> int:
    """Floating-point operations of the backbone on all views of an image, forward and (twice as many) backward."""
    sides = [engine.maker.small_size if view.small else engine.maker.size for view in engine.objective.views]
    backbone, channels = engine.objective.network.backbone, engine.store.shape[0]
    return 3 * sum(sides.count(side) * flops_per_view(backbone, channels, side) for side in set(sides))


def flops_per_view(backbone: nn.Module, channels: int, size: int) -> int:
    """Floating-point operations of one forward pass of one image, as torch counts them."""
    from prelax.nets import set_views

    weight = next(backbone.parameters())
    image = torch.zeros(1, channels, size, size, device=weight.device)
    mode = backbone.training
    backbone.eval()
    set_views(backbone, 1)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        backbone.forward(image)
    backbone.train(mode)
    return counter.get_total_flops()
