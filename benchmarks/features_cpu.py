"""Features of a ResNet-18 at 128 px on the CPU: what channels-last images and kept memory are worth.

    python benchmarks/features_cpu.py OUT.json [--images 512] [--turns 3]

Each way runs in a process of its own, the ways one after another and again; the best time of a way counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

WAYS = ("as they come", "memory kept", "memory kept, channels-last")


def timed(way: str, count: int) -> float:
    """Seconds for so many images, after a first pass."""
    import torch
    from torchvision.models import resnet18

    from prelax.evaluate.features import at_once
    from prelax.memory import keep_freed_memory

    if "kept" in way:
        keep_freed_memory()
    layout = torch.channels_last if "channels-last" in way else torch.contiguous_format
    net, images = resnet18().eval(), torch.randn(count, 3, 128, 128)
    size = at_once(1024, images, torch.device("cpu"))

    @torch.inference_mode()
    def extract() -> None:
        for batch in images.split(size):
            net(batch.contiguous(memory_format=layout))

    extract()
    began = time.perf_counter()
    extract()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.way:
        print(timed(asked.way, asked.images))
        return
    command = [sys.executable, __file__, asked.out, "--images", str(asked.images), "--way"]
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(asked.turns):
        for way in WAYS:
            seconds[way].append(round(float(subprocess.check_output([*command, way])), 3))
    best = {way: min(times) for way, times in seconds.items()}
    found = {
        "command": " ".join(["python", *sys.argv]),
        "cores": os.cpu_count(),
        "images": asked.images,
        "seconds": seconds,
        "times_as_fast": {way: round(best[WAYS[0]] / took, 2) for way, took in best.items()},
    }
    Path(asked.out).write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["times_as_fast"]))


if __name__ == "__main__":
    main()
