"""Two processes train as one does."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist

from prelax.errors import PrelaxError
from prelax.run import Run
from prelax.train.processes import meet

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


def command(processes: int, out: Path, *changes: str, restarts: int = 0) -> list[str]:
    start = [sys.executable, "-m"]
    if processes > 1:
        start += ["torch.distributed.run", f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
        start += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "-m"]
    return [*start, "prelax", "pretrain", "digits/prelax-all", *COMMON, *changes, "--out", str(out), "--quiet"]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    "change",
    [
        ["method.name=prelax-all"],
        ["method.name=simclr"],
        ["method.base=byol", "train.lr=0.0125"],  # its loss is four times SimSiam's: the same step
    ],
)
def test_two_processes_give_the_losses_of_one(change: list[str], tmp_path: Path) -> None:
    changes = ["train.epochs=2", "train.knn_every=2", *change]
    started = [subprocess.Popen(command(n, tmp_path / str(n), *changes), env=environment()) for n in (1, 2)]
    assert [process.wait(timeout=240) for process in started] == [0, 0]
    one, two = (Run.open(tmp_path / str(n)).metrics() for n in (1, 2))
    assert len(one) == len(two) == 2
    for a, b in zip(one, two, strict=True):
        for name in a:
            if name.startswith("loss"):
                assert a[name] == pytest.approx(b[name], abs=1e-4), name
    assert one[1]["knn"] == pytest.approx(two[1]["knn"], abs=0.5)  # percent; the probe is shared out too


def test_a_killed_worker_is_started_again_and_the_run_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(command(2, out, "train.epochs=12", restarts=2), env=environment())
    metrics = out / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        time.sleep(0.01)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [int(child) for child in children if b"pretrain" in Path(f"/proc/{child}/cmdline").read_bytes()]
    assert len(workers) == 2
    os.kill(workers[-1], signal.SIGKILL)
    assert process.wait(timeout=120) == 0
    assert [line["epoch"] for line in Run.open(out).metrics()] == list(range(1, 13))
    assert "resumed at epoch" in (out / "log.txt").read_text()


def test_those_who_start_again_meet_among_what_the_dead_left_behind() -> None:
    store, world = dist.HashStore(), 4
    rooms = []
    with ThreadPoolExecutor(world) as threads:
        for start in (1, 2, 3):
            store.set("prelax/call/2", "from one that died before it was answered")
            met = list(threads.map(lambda rank: meet(store, rank, world), range(world)))
            assert [number for number, _ in met] == [start] * world
            for rank, (_, room) in enumerate(met):
                assert not room.check([f"address/{rank}"])  # the dead one's is not seen
                room.set(f"address/{rank}", "here")
            rooms.append(met[0][1])
    assert all(room.check(["address/0"]) for room in rooms)


def test_one_that_does_not_come_is_told_in_one_line() -> None:
    with pytest.raises(PrelaxError, match=r"1 of 2 processes have not come within 0\.1 s"):
        meet(dist.HashStore(), 0, 2, patience=0.1)
    with pytest.raises(PrelaxError, match="the first process has not come"):
        meet(dist.HashStore(), 1, 2, patience=0.1)
