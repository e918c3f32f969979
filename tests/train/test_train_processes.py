"""Two processes train as one does."""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing import spawn

from prelax.config import resolve
from prelax.errors import PrelaxError
from prelax.nets import backbone
from prelax.run import Run
from prelax.train import joined, pretrain
from prelax.train.processes import Process, meet

COMMON = [
    "seed=2",  # of some others a ReLU near 0 makes the last digit of a sum the fourth of a loss within six steps
    "data.limit=96",
    "model.projector_hidden=32",
    "model.projector_dim=16",
    "model.predictor_hidden=8",
    "model.head_hidden=16",
    "train.batch_size=32",
    "train.optimizer=sgd",
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
        ["method.name=looc", "seed=0"],
        ["method.name=prelax-turns"],
        ["method.name=prelax-crops", "seed=1"],
        ["train.optimizer=muon"],
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
            if name.startswith("loss") or name == "embedding_std":
                assert a[name] == pytest.approx(b[name], abs=1e-4), name
    assert one[1]["knn"] == pytest.approx(two[1]["knn"], abs=0.5)  # percent; the probe is shared out too


OWN = """
from torch import nn

class Net(nn.Sequential):
    features = 16

    def __init__(self, channels):
        flat = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 16), nn.BatchNorm1d(16)]
        super().__init__(nn.Conv2d(channels, 8, 3, 2), nn.BatchNorm2d(8, momentum=None), nn.ReLU(), *flat)
        self[2].head = nn.Linear(16, 10)  # of another task, and not called
"""


def test_two_processes_give_the_losses_of_one_with_a_backbone_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    changes = ["model.backbone=own:Net", "train.epochs=2"]
    found = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    started = [subprocess.Popen(command(n, tmp_path / str(n), *changes), env=environment() | found) for n in (1, 2)]
    assert [process.wait(timeout=240) for process in started] == [0, 0]
    one, two = (Run.open(tmp_path / str(n)).metrics() for n in (1, 2))
    for a, b in zip(one, two, strict=True):
        assert {name: a[name] for name in a if name.startswith("loss")} == pytest.approx(
            {name: b[name] for name in b if name.startswith("loss")}, abs=1e-4
        )


def test_two_processes_begin_with_the_weights_that_one_begins_with(tmp_path: Path) -> None:
    torch.manual_seed(0)
    torch.save(backbone("resnet8", channels=1).state_dict(), tmp_path / "theirs.pth")
    changes = ["train.epochs=1", f"model.weights={tmp_path / 'theirs.pth'}", "method.base=byol", "train.lr=0.0125"]
    started = [subprocess.Popen(command(n, tmp_path / str(n), *changes), env=environment()) for n in (1, 2)]
    assert [process.wait(timeout=240) for process in started] == [0, 0]
    one, two = (Run.open(tmp_path / str(n)) for n in (1, 2))
    theirs = torch.load(tmp_path / "theirs.pth")
    for run in (one, two):
        began = run.load_start()
        assert began is not None
        assert all(torch.equal(began[name], theirs[name]) for name in theirs)
    assert one.metrics()[0]["loss"] == pytest.approx(two.metrics()[0]["loss"], abs=5e-3)


def test_a_run_begun_by_one_process_goes_on_with_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    settings = resolve("digits/prelax-all", [*COMMON, "train.epochs=2"])
    pretrain(settings, whole, progress=False)
    with monkeypatch.context() as patch:  # as if Ctrl-C came at the first step
        patch.setattr(
            importlib.import_module("prelax.train.pretrain"),
            "interruptible",
            lambda: contextlib.nullcontext(lambda: True),
        )
        with pytest.raises(KeyboardInterrupt):
            pretrain(settings, torn, progress=False)
    done = subprocess.run(
        [*command(2, torn, "train.epochs=2"), "--resume"], env=environment(), capture_output=True, timeout=240
    )
    assert done.returncode == 0, done.stderr.decode()
    assert "resumed at epoch 0, step 1" in (torn / "log.txt").read_text()
    for a, b in zip(Run.open(whole).metrics(), Run.open(torn).metrics(), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-4)


def test_several_processes_stop_within_an_epoch_and_go_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One of two processes, its partner left out: torchrun kills those that do not end within half a minute.
    module = importlib.import_module("prelax.train.pretrain")
    asked = iter([False, True])
    monkeypatch.setattr(module, "joined", lambda device: contextlib.nullcontext(Process(rank=0, world=2)))
    monkeypatch.setattr(module, "wait_for_all", lambda process: None)
    monkeypatch.setattr(module, "any_of", lambda process, flag: flag and next(asked))
    monkeypatch.setattr(module, "interruptible", lambda: contextlib.nullcontext(lambda: True))
    with pytest.raises(KeyboardInterrupt):
        pretrain(resolve("digits/prelax-all", [*COMMON, "train.epochs=2"]), tmp_path / "run", progress=False)
    state = Run.open(tmp_path / "run").load_checkpoint()
    assert state is not None
    assert (state["epoch"], state["step"]) == (0, 2)  # of three


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


def test_processes_that_torchrun_did_not_start_are_told_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(PrelaxError, match=r"WORLD_SIZE=2 without RANK: .*torchrun"), joined("cpu"):
        pass
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(PrelaxError, match=r"WORLD_SIZE=2 without MASTER_ADDR: .*torchrun"), joined("cpu"):
        pass
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(PrelaxError, match="WORLD_SIZE=two is not a number"), joined("cpu"):
        pass


def test_more_processes_than_gpus_are_refused_with_the_number_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PrelaxError, match=r"4 processes .* and 2 CUDA device.*--nproc-per-node 2\)"), joined("auto"):
        pass


def trained_in_a_group(rank: int, meeting: Path, out: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    pretrain(resolve("digits/prelax-all", [*COMMON, "train.epochs=1"]), out, progress=False)
    dist.destroy_process_group()


def test_a_group_that_a_script_has_made_itself_trains_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    spawn(trained_in_a_group, (tmp_path / "meeting", tmp_path / "two"), nprocs=2)
    one = pretrain(resolve("digits/prelax-all", [*COMMON, "train.epochs=1"]), tmp_path / "one", progress=False)
    (a,), (b,) = one.metrics(), Run.open(tmp_path / "two").metrics()
    assert a["loss"] == pytest.approx(b["loss"], abs=1e-4)
