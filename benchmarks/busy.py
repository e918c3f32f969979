"""Training on a CPU that others use too: what threads that wait for one another cost, by how they wait.

    python benchmarks/busy.py OUT.json [--rounds 2]

Takes steps over noise under each policy of waiting (environment variables that OpenMP reads before torch is imported),
in alternating rounds: a training alone, one beside a process that keeps a core busy, and two trainings at once, whose
figures are means of both.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

POLICIES: dict[str, dict[str, str]] = {
    "as it is": {},
    "spin 10000": {"GOMP_SPINCOUNT": "10000"},
    "spin 1000": {"GOMP_SPINCOUNT": "1000"},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
SHAPES = {
    "digits, ResNet-8, 16 px": ("digits/simsiam", 1, 16),
    "ResNet-8, 32 px, batch 128": ("cifar10/simsiam model.backbone=resnet8 train.batch_size=128", 3, 32),
    "ResNet-18, 32 px, batch 64": ("cifar10/simsiam train.batch_size=64", 3, 32),
}
STEPS = """
import sys, time, torch
from prelax.config import resolve
from prelax.data import ImageSet
from prelax.train import Engine, Process
recipe, *changes = sys.argv[1].split()
channels, side, seconds = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
settings = resolve(recipe, changes)
batch = settings.train.batch_size
pixels = torch.randint(0, 256, (batch, channels, side, side), dtype=torch.uint8)
engine = Engine(settings, ImageSet("noise", pixels, None, []), torch.device("cpu"), Process())
engine.set_rates(0)
engine.ids.copy_(torch.arange(batch))
engine.compute()
steps, began = 0, time.perf_counter()
while time.perf_counter() - began < seconds:
    engine.compute()
    steps += 1
print(2 * batch * steps / (time.perf_counter() - began))
"""


def views_per_s(shape: tuple[str, int, int], policy: dict[str, str], seconds: float, at_once: int) -> float:
    """Views a second of training processes, their mean."""
    words = [sys.executable, "-c", STEPS, *map(str, shape), str(seconds)]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))} | policy
    training = [subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) for _ in range(at_once)]
    return statistics.mean(float(process.communicate()[0]) for process in training)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    asked = parser.parse_args()
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for load, (loops, at_once) in {"alone": (0, 1), "beside a loop": (1, 1), "two at once": (0, 2)}.items():
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
        try:
            for _ in range(asked.rounds):
                for name, shape in SHAPES.items():
                    for policy, variables in POLICIES.items():
                        row = found.setdefault(load, {}).setdefault(name, {}).setdefault(policy, [])
                        row.append(round(views_per_s(shape, variables, asked.seconds, at_once), 1))
                        print(load, name, policy, row, flush=True)
        finally:
            for process in busy:
                process.kill()
    report = {"cores": os.cpu_count(), "seconds": asked.seconds, "views_per_s": found}
    asked.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
