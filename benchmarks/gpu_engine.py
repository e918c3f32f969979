"""The engine on a GPU: the fast paths equal the plain one, and how fast they are.

    python benchmarks/gpu_engine.py OUT.json [--profile] [--quick] [--only=ROWS] [--unchecked] [--check]
                                    [--grouped]

Checks first (losses of six steps in every mode, from the same seed), then times SimSiam beside its peers, Prelax-all
(also at batch 4096), BYOL on ImageNette's shape and SimSiam there beside its peers, and writes the raw figures as
JSON. ``--only=0,1`` takes the first two of these rows; the checks are made if the first is among them, and
``--check`` makes them alone. ``--grouped``: as one of a group of processes (of one), with synchronised statistics and
DistributedDataParallel.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import torch

from prelax.config import resolve
from prelax.train.bench import bench, build

SPEEDS: list[tuple[str, list[str], list[str]]] = [
    ("cifar10/simsiam", [], ["torchvision", "lightly"]),
    ("cifar10/prelax-all", [], []),
    ("cifar10/prelax-all", ["train.batch_size=4096"], []),
    ("imagenette/byol", [], []),
    ("imagenette/byol-prelax-all", [], []),
    (
        "imagenette/byol",
        ["method.base=simsiam", "method.name=simsiam", "train.optimizer=sgd"],
        ["torchvision", "lightly"],
    ),
]


def losses(recipe: str, mode: str, steps: int = 6) -> list[dict[str, float]]:
    """What each of the first steps measured."""
    torch.manual_seed(0)
    engine = build(resolve(recipe, ["train.epochs=10", "train.warmup_epochs=1"]), mode, 4096)
    seen = []
    for step in range(steps):
        engine.sums = {name: value.zero_() for name, value in engine.sums.items()}
        engine.set_rates(step)
        engine.ids.copy_(torch.arange(engine.batch, device=engine.device) + (step % 8) * engine.batch)
        engine.take_step()
        seen.append({name: float(value) for name, value in engine.sums.items()})
    torch.compiler.reset()
    return seen


def main() -> None:
    out = Path(sys.argv[1])
    report: dict = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "check": {}, "speed": []}
    if "--grouped" in sys.argv:
        meeting = tempfile.mkdtemp()
        torch.distributed.init_process_group("nccl", init_method=f"file://{meeting}/meeting", rank=0, world_size=1)
        report["grouped"] = True
    quick = "--quick" in sys.argv  # only the fastest mode against the plain one, and its speed
    only = next((arg.split("=")[1] for arg in sys.argv if arg.startswith("--only=")), "")
    rows_asked = [int(n) for n in only.split(",")] if only else list(range(len(SPEEDS)))
    checked = 0 in rows_asked and "--unchecked" not in sys.argv
    if "--check" in sys.argv:
        checked, rows_asked = True, []
    for recipe in ("cifar10/prelax-all", "cifar10/byol") if checked else ():
        plain = losses(recipe, "plain")
        for mode in ("graph",) if quick else ("together", "compiled", "graph"):
            start = time.perf_counter()
            try:
                other = losses(recipe, mode)
            except Exception as error:  # one broken mode must not hide the others
                print(f"{recipe:20s} {mode:10s} FAILED {error!r}", flush=True)
                report["check"][f"{recipe} {mode}"] = {"failed": repr(error)}
                continue
            worst = max(abs(a[k] - b[k]) for a, b in zip(plain, other, strict=True) for k in a)
            report["check"][f"{recipe} {mode}"] = {"worst": worst, "plain": plain, mode: other}
            print(
                f"{recipe:20s} {mode:10s} worst difference {worst:.2e}  ({time.perf_counter() - start:.0f} s)",
                flush=True,
            )
            out.write_text(json.dumps(report, indent=1))
    for recipe, changes, peers in (SPEEDS[n] for n in rows_asked):
        try:
            rows = bench(resolve(recipe, changes), ["graph"] if quick else [], 3.0, peers=peers)
        except Exception as error:
            rows = [{"recipe": recipe, "failed": repr(error)}]
        for row in rows:
            report["speed"].append({"recipe": recipe, "changes": changes, **row})
            print(report["speed"][-1], flush=True)
            out.write_text(json.dumps(report, indent=1))
    if "--profile" in sys.argv:
        profile(out.with_suffix(".profile.txt"))


def profile(path: Path) -> None:
    """Where the device's time goes in a captured step: kernels by kind, then the longest of them."""
    engine = build(resolve("cifar10/prelax-all"), "graph", 4096)
    for _ in range(6):
        engine.take_step()
    steps = 5
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
        for _ in range(steps):
            engine.take_step()
        torch.cuda.synchronize()
    kinds: dict[str, float] = {}
    lines = []
    for event in prof.key_averages():
        took = event.self_device_time_total / steps / 1e3  # ms a step
        name = event.key
        kind = next((k for k, words in KINDS.items() if any(word in name for word in words)), "other")
        kinds[kind] = kinds.get(kind, 0.0) + took
        lines.append((took, event.count // steps, kind, name[:150]))
    said = [f"{took:8.3f} ms  {kind}" for kind, took in sorted(kinds.items(), key=lambda item: -item[1])]
    said += [f"{took:8.4f} ms {n:4d} x  {kind:8s} {name}" for took, n, kind, name in sorted(lines, reverse=True)[:90]]
    path.write_text("\n".join(said))
    print("\n".join(said[:70]))


KINDS = {
    "triton": ["triton"],
    "convolve": ["fprop", "dgrad", "wgrad", "conv", "implicit"],
    "multiply": ["gemm", "cutlass", "nvjet", "cublas"],
    "relayout": ["nchwToNhwc", "nhwcToNchw", "tensorTransform", "direct_copy", "copy", "CatArray", "Memcpy", "Memset"],
    "optimise": ["multi_tensor", "FusedSgd", "fused"],
}


if __name__ == "__main__":
    main()
