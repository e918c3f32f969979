"""Two processes train as one does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prelax.run import Run

COMMON = [
    "data.limit=96",
    "model.projector_hidden=32",
    "model.projector_dim=16",
    "model.predictor_hidden=8",
    "model.head_hidden=16",
    "train.batch_size=32",
    "train.lr=0.05",  # a gentle rate: rounding must not be amplified into a difference
    "train.stop_on_collapse=false",
    "train.device=cpu",
    "train.checkpoint_every=1",
]


def command(processes: int, out: Path, *changes: str) -> list[str]:
    start = [sys.executable, "-m"]
    if processes > 1:
        start += ["torch.distributed.run", f"--nproc-per-node={processes}", "--max-restarts=0"]
        start += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "-m"]
    return [*start, "prelax", "pretrain", "digits/prelax-all", *COMMON, *changes, "--out", str(out), "--quiet"]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("change", ["method.name=prelax-all", "method.name=simclr", "method.base=byol"])
def test_two_processes_give_the_losses_of_one(change: str, tmp_path: Path) -> None:
    started = [
        subprocess.Popen(command(n, tmp_path / str(n), "train.epochs=2", change), env=environment()) for n in (1, 2)
    ]
    assert [process.wait(timeout=240) for process in started] == [0, 0]
    one, two = (Run.open(tmp_path / str(n)).metrics() for n in (1, 2))
    assert len(one) == len(two) == 2
    for a, b in zip(one, two, strict=True):
        for name in a:
            if name.startswith("loss"):
                assert a[name] == pytest.approx(b[name], abs=1e-4), name
