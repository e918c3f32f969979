"""How long a run over a large cached folder takes from the command to its first step, and what memory it holds.

    python benchmarks/startup.py OUT.json [--images 1000000] [--scratch FOLDER] [--keep]

A folder of that many files (hard links to a few small pictures, in a thousand class folders) is made once, and its
cache entry is filled with noise of 32 px, as if it had been decoded before. Then a new process trains on it with
``prelax.train.pretrain`` until its first step is done. Times are of the wall and, of the same parts, of the processor;
the first of three rounds also hashes the pixels, later ones find the hash in the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

SIDE = 32


def make(root: Path, images: int) -> None:
    """A tree of that many picture files."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    base = root.parent / "base"
    base.mkdir(parents=True)
    for number in range(0, images, 20_000):  # file systems limit the links to a file
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(base / f"{number // 20_000}.png")
    for number in range(images):
        folder = root / f"class-{number % 1000:04d}"
        if number < 1000:
            folder.mkdir(parents=True)
        os.link(base / f"{number // 20_000}.png", folder / f"image-{number:08d}.png")


def fill(root: Path, cache: Path) -> None:
    """The cache entry of the training split, filled with noise by the library's own writer."""
    import numpy as np

    from prelax.config import DataSettings
    from prelax.data import folder as folders
    from prelax.data import load, pool

    noise = np.random.default_rng(1).integers(0, 256, (8192, 3, SIDE, SIDE), dtype=np.uint8)

    def blocks(paths: list[str], plan: object, workers: int | None) -> object:
        for start in range(0, len(paths), len(noise)):
            rows = min(len(noise), len(paths) - start)
            block = noise[:rows].copy()
            block[:, 0, 0, :4] = np.arange(start, start + rows, dtype=np.uint32).view(np.uint8).reshape(-1, 4)
            yield block, [None] * rows

    assert folders.decode_all is pool.decode_all
    folders.decode_all = blocks  # type: ignore[assignment]
    load(DataSettings(source="folder", root=root, cache=cache, image_size=SIDE), "train")


def child(root: str, cache: str, out: str, began: float) -> None:
    """Trains until the first step is done, and prints when each part of the start was over."""
    marks: dict[str, tuple[float, float]] = {}

    def mark(name: str) -> None:
        marks[name] = (round(time.time() - began, 3), round(time.process_time(), 3))

    mark("python")
    from prelax.config import resolve
    from prelax.train import engine, pretrain

    module = sys.modules["prelax.train.pretrain"]
    mark("imports")

    def marked(owner: object, name: str) -> None:
        inner = getattr(owner, name)

        def outer(*words: object, **named: object) -> object:
            found = inner(*words, **named)
            mark(name)
            return found

        setattr(owner, name, outer)

    for name in ("load_training", "suit", "note_data"):
        marked(module, name)
    step = engine.Engine.take_step

    def first(self: engine.Engine) -> None:
        step(self)
        mark("first step")
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        memory = {key: int(status[key].split()[0]) / 2**20 for key in ("RssAnon", "RssFile", "VmHWM")}
        print(json.dumps({"marks": marks, "gib": memory, "images": self.images, "store": self.store.where}))
        sys.stdout.flush()
        os._exit(0)

    engine.Engine.take_step = first  # type: ignore[method-assign]
    words = [f"data.root={root}", f"data.cache={cache}", f"data.image_size={SIDE}", "train.watch=none"]
    words += ["model.backbone=resnet8", "train.batch_size=64", "train.epochs=1", "train.warmup_epochs=0"]
    module.estimate = lambda *words: None  # it takes steps to time them; here only the start is of interest
    pretrain(resolve("folder", words), out, progress=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--scratch", type=Path, default=Path("startup-scratch"))
    parser.add_argument("--keep", action="store_true", help="leave the folder for the next time")
    asked = parser.parse_args()
    scratch = asked.scratch.resolve()
    root, cache = scratch / "images", scratch / "cache"
    if not root.exists():
        make(root, asked.images)
        fill(root, cache)
    rounds = []
    for turn in range(3):
        shutil.rmtree(scratch / f"run-{turn}", ignore_errors=True)
        words = [str(root), str(cache), str(scratch / f"run-{turn}"), str(time.time())]
        done = subprocess.run(
            [sys.executable, __file__, "--child", *words], stdout=subprocess.PIPE, text=True, check=True
        )
        rounds.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps(rounds[-1]))
    import torch

    about = {"command": " ".join(["python", *sys.argv]), "cores": os.cpu_count(), "machine": platform.machine()}
    about |= {"torch": str(torch.__version__), "files": asked.images, "image_size": SIDE, "rounds": rounds}
    about["seconds_to_first_step"] = sorted(turn["marks"]["first step"][0] for turn in rounds)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(about, indent=1) + "\n")
    if not asked.keep:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:5], float(sys.argv[5]))
    else:
        main()
