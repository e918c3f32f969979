"""This machine's training speed: the same step run plainly, with all views together, compiled, and as one graph."""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from prelax.config import Settings, merge, validate
from prelax.data import ImageSet
from prelax.train.engine import Engine, choose_device
from prelax.train.peers import bench_peer
from prelax.train.processes import Process

MODES = {
    "plain": "views one after another, eager",
    "together": "views as one batch, eager",
    "compiled": "views as one batch, backbone compiled",
    "graph": "the same, the whole step replayed as one CUDA graph",
}


def bench(
    settings: Settings,
    modes: Sequence[str] = (),
    seconds: float = 5.0,
    images: int = 0,
    peers: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Views a second, share of augmentation, TFLOP/s and peak memory of a training step, a row a mode.

    Pixels are noise in the shape of the settings' images: speed does not depend on what they show.

    Args:
        settings: what to train; ``train.device`` says where.
        modes: names of ``MODES``; by default all that the device has.
        seconds: how long to time each.
        images: how many images the set has; by default eight batches.
        peers: names of ``prelax.train.peers.PEERS`` to time on the same SimSiam job, in the same run.
    """
    device = choose_device(settings.train.device)
    cuda = device.type == "cuda"
    rows = []
    for mode in modes or (MODES if cuda else ["plain", "together"]):
        engine = build(settings, mode, images or 8 * settings.train.batch_size)
        views = len(engine.objective.views)
        position = iter(range(10**9))

        def step(engine: Engine = engine, position: Any = position) -> None:
            at = next(position)
            engine.set_rates(at % len(engine.rates))
            engine.ids.copy_((torch.arange(engine.batch, device=device) + at * engine.batch) % engine.images)
            engine.take_step()

        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
        for _ in range(15 if cuda else 3):  # compiles, captures, chooses algorithms, fills caches
            step()
        each = timed(step, device, seconds)
        augment = timed(making(engine), device, seconds / 4)
        flops = 3 * flops_per_view(engine.objective.network.backbone, engine.store.shape[0], engine.maker.size)
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
                "backbone_tflops": round(views * engine.batch * flops / each / 1e12, 2),
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
    return [*rows, *(bench_peer(name, settings, seconds) for name in peers)]


def build(settings: Settings, mode: str, images: int) -> Engine:
    """An engine in one of the modes, over noise."""
    compiled = "always" if mode in ("compiled", "graph") else "never"
    changed = merge(settings.model_dump(), {"train": {"compile": compiled}})
    settings = validate(changed)
    device = choose_device(settings.train.device)
    channels = settings.data.channels or (1 if settings.data.source == "digits" else 3)
    side = settings.data.image_size or (16 if settings.data.source == "digits" else 32)
    pixels = torch.randint(0, 256, (images, channels, side, side), dtype=torch.uint8)
    noise = ImageSet("noise", pixels, torch.zeros(images, dtype=torch.int64), ["noise"])
    engine = Engine(settings, noise, device, Process())
    engine.objective.together = mode != "plain"
    engine.capture = mode == "graph" and device.type == "cuda"
    return engine


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
    """Seconds a call takes: the median of several blocks of calls, each waited for."""

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
    calls = max(1, int(seconds / 5 / max(once, 1e-6)))
    times = sorted(block(calls) for _ in range(5))
    return times[2]


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
