"""Training from tar shards: stopped anywhere and resumed, in one process or several, it is the same run."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("webdataset")

from prelax.cli.app import main
from prelax.config import resolve
from prelax.data import ShardStore
from prelax.errors import PrelaxError
from prelax.run import Run
from prelax.train import pretrain
from prelax.train.pretrain import interruptible
from prelax.train.processes import Process

COUNTS = (13, 9, 17, 11, 14)
TINY = [
    "model.backbone=resnet8",
    "model.projector_hidden=32",
    "model.projector_dim=16",
    "model.predictor_hidden=8",
    "model.head_hidden=16",
    "data.image_size=16",
    "data.mix=2",
    "augment.size=16",
    "train.batch_size=8",
    "train.optimizer=sgd",
    "train.epochs=3",
    "train.warmup_epochs=0",
    "train.lr=0.05",
    "train.stop_on_collapse=false",
    "train.checkpoint_every=1",
    "train.device=cpu",
    "train.watch=none",
]


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The pattern of some shards of small grey images, one of them broken."""
    monkeypatch.setenv("PRELAX_CACHE", str(tmp_path / "cache"))
    rng, number = np.random.default_rng(0), 0
    for shard, count in enumerate(COUNTS):
        with tarfile.open(tmp_path / f"photos-{shard}.tar", "w") as tar:
            for _ in range(count):
                held = io.BytesIO()
                Image.fromarray(rng.integers(0, 256, (16, 16), dtype=np.uint8)).save(held, "PNG")
                content = held.getvalue() if number != 20 else b"no image"
                info = tarfile.TarInfo(f"{number:06d}.png")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
                number += 1
    return f"{tmp_path}/photos-{{0..4}}.tar"


def words(shards: str, workers: int = 0) -> list[str]:
    return [*TINY, f"data.shards={shards}", f"data.workers={workers}"]


def same(one: Run, two: Run) -> None:
    """That two runs computed the same, bit for bit."""
    for a, b in zip(one.metrics(), two.metrics(), strict=True):
        assert {k: v for k, v in a.items() if "loss" in k or "rank" in k} == {
            k: v for k, v in b.items() if "loss" in k or "rank" in k
        }
    first, second = one.load_checkpoint(), two.load_checkpoint()
    assert first is not None
    assert second is not None
    assert all(torch.equal(value, second["network"][name]) for name, value in first["network"].items())


def test_a_run_stopped_within_an_epoch_and_resumed_is_the_run_never_stopped(
    shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = resolve("folder", words(shards))
    whole = pretrain(settings, tmp_path / "whole", progress=False)
    assert "photos-1.tar, image 7: not an image" in (whole.path / "log.txt").read_text()
    steps = iter(range(1000))

    @contextlib.contextmanager
    def stops_at(step: int) -> Iterator[Callable[[], bool]]:
        yield lambda: next(steps) >= step

    for stop in (4, 9):  # steps of 8 an epoch: in the first, and in the second
        monkeypatch.setattr(sys.modules["prelax.train.pretrain"], "interruptible", lambda stop=stop: stops_at(stop))
        with pytest.raises(KeyboardInterrupt):
            pretrain(settings, tmp_path / "torn", resume=stop > 4, progress=False)
    state = Run.open(tmp_path / "torn").load_checkpoint()
    assert state is not None
    assert (state["epoch"], state["step"]) == (1, 1)
    monkeypatch.setattr(sys.modules["prelax.train.pretrain"], "interruptible", interruptible)
    same(pretrain(settings, tmp_path / "torn", resume=True, progress=False), whole)


@pytest.mark.parametrize("stopped", [False, True])  # by a signal that the processes that decode heard first
def test_a_shard_that_cannot_be_read_any_more_costs_no_step(
    stopped: bool, shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = resolve("folder", [*words(shards), "train.checkpoint_every=100"])
    whole = pretrain(settings, tmp_path / "whole", progress=False)
    reads, read = iter(range(1000)), ShardStore.read

    def fails(store: ShardStore, shard: int) -> tuple[np.ndarray, list[str]]:
        if next(reads) == 8:  # the fourth of the second epoch's five
            raise PrelaxError("the network is gone")
        return read(store, shard)

    with monkeypatch.context() as patched:
        patched.setattr(ShardStore, "read", fails)
        if stopped:
            heard = contextlib.nullcontext(lambda: sys.exception() is not None)  # not before the shard has failed
            patched.setattr(sys.modules["prelax.train.pretrain"], "interruptible", lambda: heard)
        with pytest.raises(KeyboardInterrupt if stopped else PrelaxError):
            pretrain(settings, tmp_path / "torn", progress=False)
    state = Run.open(tmp_path / "torn").load_checkpoint()
    assert state is not None
    assert state["epoch"] == 1
    assert state["step"] > 0
    same(pretrain(settings, tmp_path / "torn", resume=True, progress=False), whole)


def test_a_shard_that_another_process_cannot_read_costs_no_step(
    shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One of two processes, its partner left out, which has no images for the third step of the second epoch. All are
    # asked at each of eight steps, and twice after an epoch: whether on_epoch failed, and what it said.
    training, asked = sys.modules["prelax.train.pretrain"], iter(range(1000))
    monkeypatch.setattr(training, "joined", lambda device: contextlib.nullcontext(Process(rank=0, world=2)))
    monkeypatch.setattr(training, "wait_for_all", lambda process: None)
    monkeypatch.setattr(training, "any_of", lambda process, flag: flag)
    monkeypatch.setattr("prelax.train.processes.any_of", lambda process, flag: flag or next(asked) == 8 + 2 + 2)
    settings = resolve("folder", [*words(shards), "train.checkpoint_every=100"])
    with pytest.raises(PrelaxError, match=r"another process cannot read its images; .* --resume` goes on from epoch 2"):
        pretrain(settings, tmp_path / "run", progress=False)
    state = Run.open(tmp_path / "run").load_checkpoint()
    assert state is not None
    assert (state["epoch"], state["step"]) == (1, 2)


def test_a_run_killed_and_resumed_is_the_run_never_stopped_and_leaves_no_worker(shards: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "prelax", "pretrain", "folder", *words(shards, 1), "train.epochs=4"]
    out = tmp_path / "torn"
    process = subprocess.Popen([*command, "--out", str(out), "--quiet"], env={**os.environ, "OMP_NUM_THREADS": "1"})
    metrics = out / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") >= 2):
        time.sleep(0.01)
    below = family(process.pid)
    assert below
    process.kill()
    process.wait()
    settings = resolve("folder", [*words(shards), "train.epochs=4"])
    whole = pretrain(settings, tmp_path / "whole", progress=False)
    same(pretrain(settings, out, resume=True, progress=False), whole)
    for _ in range(100):
        if not any(alive(pid) for pid in below):
            break
        time.sleep(0.1)
    assert not any(alive(pid) for pid in below)


def family(pid: int) -> list[int]:
    """The processes below one."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *family(int(child))]
    return found


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_two_processes_give_the_losses_of_one(shards: str, tmp_path: Path) -> None:
    two = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    two += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "-m", "prelax", "pretrain", "folder"]
    out = tmp_path / "two"
    asked = [*two, *words(shards), "--out", str(out), "--quiet"]
    process = subprocess.Popen(asked, env={**os.environ, "OMP_NUM_THREADS": "1"})
    one = pretrain(resolve("folder", words(shards)), tmp_path / "one", progress=False)
    assert process.wait(timeout=240) == 0
    for a, b in zip(one.metrics(), Run.open(out).metrics(), strict=True):
        for name in a:
            if name.startswith("loss"):
                assert a[name] == pytest.approx(b[name], abs=1e-4), name


def test_other_shards_are_refused_and_the_same_elsewhere_are_taken(shards: str, tmp_path: Path) -> None:
    settings = resolve("folder", [*words(shards), "train.epochs=1"])
    run = pretrain(settings, tmp_path / "run", progress=False)
    (tmp_path / "copy").mkdir()
    for tar in tmp_path.glob("photos-*.tar"):
        (tmp_path / "copy" / tar.name).write_bytes(tar.read_bytes())
    piped = "::".join(f"pipe:cat {tmp_path}/copy/photos-{shard}.tar" for shard in range(5))
    assert main(["pretrain", str(run.path), f"data.shards={piped}", "--resume", "--quiet"]) == 0
    with pytest.raises(PrelaxError, match="64 images and there are 50 now"):
        pretrain(
            resolve("folder", [*words(shards.replace("..4", "..3")), "train.epochs=1"]),
            run.path,
            resume=True,
            progress=False,
        )


def test_a_run_from_shards_is_measured_on_other_images(
    shards: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["pretrain", "folder", *words(shards), "train.epochs=1", "--out", str(run)]) == 0
    assert "prelax evaluate" in capsys.readouterr().out
    assert main(["evaluate", str(run), "--quiet"]) == 2
    assert "name others with --on" in capsys.readouterr().err
    assert main(["evaluate", str(run), "--on", "digits", "-p", "knn", "--quiet"]) == 0
    assert Run.open(run).evals()["knn-digits"]["test_images_left_out_as_seen"] is None


def test_shards_of_other_images_are_refused(shards: str, tmp_path: Path) -> None:
    settings = resolve("folder", [*words(shards), "train.epochs=1"])
    run = pretrain(settings, tmp_path / "run", progress=False)
    held = io.BytesIO()
    Image.fromarray(np.zeros((16, 16), dtype=np.uint8)).save(held, "PNG")
    with tarfile.open(tmp_path / "photos-2.tar", "w") as tar:
        for i in range(COUNTS[2]):
            info = tarfile.TarInfo(f"{i:06d}.png")
            info.size = len(held.getvalue())
            tar.addfile(info, io.BytesIO(held.getvalue()))
    with pytest.raises(PrelaxError, match="not those"):
        pretrain(settings, run.path, resume=True, progress=False)


def test_a_run_with_an_older_record_of_its_shards_goes_on(shards: str, tmp_path: Path) -> None:
    settings = resolve("folder", [*words(shards), "train.epochs=1"])
    run = pretrain(settings, tmp_path / "run", progress=False)
    about = json.loads((run.path / "data.json").read_text())
    del about["contents"]
    run.write("data.json", json.dumps(about))
    pretrain(settings, run.path, resume=True, progress=False)
