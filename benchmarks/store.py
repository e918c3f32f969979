"""Training speed from device memory, host memory and disk, side by side, and how an epoch grows with images and views.

    python benchmarks/store.py OUT.json [--recipe cifar10/prelax-all] [--images 200000] [--epochs 3] [--once]
                                [KEY=VALUE ...]

Pixels are noise in the shape of the recipe's images. Each placement trains whole epochs with the engine that
``prelax pretrain`` uses; the first epoch compiles and is left out, of the others the median counts. The placements are
gone through twice (``--once``: once), the second time backwards, so that a machine that warms up or slows down favours
none of them. Then epochs over a quarter, half and all of the images, and of methods of two and three views, are timed
from device memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prelax.config import Settings, merge, resolve, validate
from prelax.data import ImageSet
from prelax.train import Engine, Process, choose_device

PLACES = ("device", "host", "disk")


def noise(file: Path, images: int, channels: int, side: int) -> ImageSet:
    """A memory-mapped set of noise, as the cache would give it."""
    rng = np.random.default_rng(0)
    pixels = np.lib.format.open_memmap(file, "w+", np.uint8, (images, channels, side, side))
    for start in range(0, images, 8192):
        stop = min(start + 8192, images)
        pixels[start:stop] = rng.integers(0, 256, (stop - start, channels, side, side), dtype=np.uint8)
    pixels.flush()
    mapped = torch.from_numpy(np.load(file, mmap_mode="c"))
    return ImageSet("noise", mapped, torch.zeros(images, dtype=torch.int64), ["noise"], file=file)


def timed(settings: Settings, images: ImageSet, epochs: int) -> dict[str, Any]:
    """Seconds of each epoch after the first, and what follows from their median."""
    device = choose_device(settings.train.device)
    engine = Engine(settings, images, device, Process())
    seconds, waited = [], []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for epoch in range(1, epochs + 2):
        began = time.perf_counter()
        engine.run_epoch(epoch, 0, lambda done: False)
        engine.measurements(engine.steps)  # waits for the device
        seconds.append(time.perf_counter() - began)
        waited.append(engine.waited)
    middle = statistics.median(seconds[1:])
    views = len(engine.objective.views)
    found = {
        "store": engine.store.where,
        "images": len(images),
        "views": views,
        "epoch_s": [round(s, 4) for s in seconds[1:]],
        "views_per_s": round(views * engine.steps * engine.batch / middle, 1),
        "data_wait": round(statistics.median(waited[1:]) / middle, 4),
    }
    if device.type == "cuda":
        found["memory_gib"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 3)
    del engine
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.compiler.reset()
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--recipe", default="cifar10/prelax-all")
    parser.add_argument("--images", type=int, default=200_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--once", action="store_true")
    asked = parser.parse_intermixed_args()
    settings = resolve(asked.recipe, asked.changes)

    def changed(**sections: dict[str, Any]) -> Settings:
        return validate(merge(settings.model_dump(), sections))

    channels = settings.data.channels or (1 if settings.data.source == "digits" else 3)
    side = settings.data.image_size or (16 if settings.data.source == "digits" else 32)
    with tempfile.TemporaryDirectory() as folder:
        images = noise(Path(folder) / "pixels.npy", asked.images, channels, side)
        walk = PLACES if asked.once else (*PLACES, *PLACES[::-1])
        places = [timed(changed(data={"store": place}), images, asked.epochs) for place in walk]
        parts = [images.first(asked.images * share // 4) for share in (1, 2, 4)]
        growth = [timed(changed(data={"store": "device"}), part, asked.epochs) for part in parts]
        methods = [changed(data={"store": "device"}, method={"name": name}) for name in ("simsiam", "prelax-all")]
        by_views = [timed(one, images, asked.epochs) for one in methods]
    device = choose_device(settings.train.device)
    named = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    # On a CPU "device" is the host's memory and called so.
    best = {p: max((r["views_per_s"] for r in places if r["store"] == p), default=0.0) for p in PLACES}
    best["device"] = best["device"] or best["host"]
    found = {
        "command": " ".join(["python", *sys.argv]),
        "device": named,
        "cores": os.cpu_count(),
        "torch": str(torch.__version__),
        "image_size": side,
        "batch": settings.train.batch_size,
        "places": places,
        "relative_to_device": {p: round(v / best["device"], 4) for p, v in best.items()},
        "growth_with_images": growth,
        "growth_with_views": by_views,
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
