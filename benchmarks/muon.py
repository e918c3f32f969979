"""What Muon adds to a training step, beside SGD over noise: python benchmarks/muon.py OUT.json [--steps 20]

On a CPU, one thread, the folder recipe's network for photos of 48 px; on CUDA cifar10/prelax-all-tuned, captured.
Rounds of the two alternate, so that whatever else the machine does falls on both; medians are reported.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from prelax.config import resolve
from prelax.data import ImageSet
from prelax.train import Engine, Process

ROUNDS = 5
SMALL = ["model.backbone=resnet8", "model.projector_hidden=256", "model.projector_dim=256", "model.predictor_hidden=64"]
SETTINGS = {
    "cpu": ("folder", 48, ["data.root=noise", "train.batch_size=64", "train.lr=0.4", "model.head_hidden=64", *SMALL]),
    "cuda": ("cifar10/prelax-all-tuned", 32, []),
}


def build(optimizer: str, device: torch.device) -> Engine:
    recipe, side, changes = SETTINGS[device.type]
    pixels = torch.randint(0, 256, (4096, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = ImageSet("noise", pixels, torch.zeros(4096, dtype=torch.int64), ["noise"])
    engine = Engine(resolve(recipe, [*changes, f"train.optimizer={optimizer}"]), images, device, Process())
    engine.ids.copy_(torch.arange(len(engine.ids)))
    engine.set_rates(1)
    return engine


def milliseconds(engine: Engine, steps: int) -> float:
    """Of a step."""
    waits = torch.cuda.synchronize if engine.device.type == "cuda" else lambda: None
    waits()
    began = time.perf_counter()
    for _ in range(steps):
        engine.take_step()
    waits()
    return 1e3 * (time.perf_counter() - began) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    engines = {name: build(name, device) for name in ("sgd", "muon")}
    found: dict[str, list[float]] = {name: [] for name in engines}
    for engine in engines.values():
        milliseconds(engine, 5)  # compiles, captures and warms up
    for _ in range(ROUNDS):
        for name, engine in engines.items():
            found[name].append(round(milliseconds(engine, asked.steps), 3))
    middle = {name: statistics.median(times) for name, times in found.items()}
    report = {
        "recipe": SETTINGS[device.type][0],
        "step_ms": middle,
        "ratio": round(middle["muon"] / middle["sgd"], 3),
        "rounds": found,
        "hardware": torch.cuda.get_device_name() if device.type == "cuda" else "1 thread of a CPU",
        "torch": torch.__version__,
    }
    asked.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({key: report[key] for key in ("recipe", "step_ms", "ratio", "hardware")}))


if __name__ == "__main__":
    main()
