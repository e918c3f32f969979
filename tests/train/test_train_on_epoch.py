"""A word after every epoch: what `pretrain(on_epoch=...)` is told, and how it ends a run that can go on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing import spawn

from prelax import load
from prelax.config import Settings, resolve
from prelax.errors import PrelaxError, PrelaxWarning
from prelax.run import Run
from prelax.train import pretrain
from prelax.train.processes import is_true

TINY = [
    "data.limit=64",
    "model.projector_hidden=16",
    "model.projector_dim=16",
    "model.predictor_hidden=8",
    "train.batch_size=32",
    "train.epochs=3",
    "train.checkpoint_every=100",
    "train.stop_on_collapse=false",
    "train.device=cpu",
    "train.watch=none",
]


def tiny(*changes: str) -> Settings:
    return resolve("digits/simsiam", [*TINY, *changes])


def kept(run: Run) -> dict[str, Any]:
    state = run.load_checkpoint()
    assert state is not None
    return state


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of three epochs that nobody stopped."""
    return pretrain(tiny(), tmp_path_factory.mktemp("whole") / "run", progress=False)


def same_weights(run: Run, other: Run) -> bool:
    one, two = run.load_backbone(), other.load_backbone()
    return all(torch.equal(one[name], two[name]) for name in two)


def test_it_is_told_the_line_of_every_epoch_and_moves_nothing(whole: Run, tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = []

    def note(line: dict[str, Any]) -> str:
        lines.append(dict(line))
        line.clear()  # its own
        torch.rand(5)  # nobody else's, either
        return "go on"

    run = pretrain(tiny(), tmp_path / "run", progress=False, on_epoch=note)
    assert lines == run.metrics()
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert same_weights(run, whole)


def test_true_stops_with_a_checkpoint_and_resume_ends_as_if_it_had_not(whole: Run, tmp_path: Path) -> None:
    run = pretrain(tiny(), tmp_path / "run", progress=False, on_epoch=lambda line: line["epoch"] == 2)
    assert (kept(run)["epoch"], kept(run)["step"]) == (2, 0)
    assert run.unfinished
    assert "stopped after epoch 2 of 3: on_epoch gave True" in (run.path / "log.txt").read_text()
    with pytest.warns(PrelaxWarning, match="after epoch 2 of 3"):
        assert load(run.path)(torch.zeros(1, 1, 16, 16, dtype=torch.uint8)).shape == (1, 64)
    seen: list[int] = []
    pretrain(tiny(), run.path, resume=True, progress=False, on_epoch=lambda line: seen.append(line["epoch"]))
    assert seen == [3]  # what was told is not told again
    assert same_weights(run, whole)


def test_true_after_the_last_epoch_is_a_finished_run(whole: Run, tmp_path: Path) -> None:
    run = pretrain(tiny(), tmp_path / "run", progress=False, on_epoch=lambda line: line["epoch"] == 3)
    assert not run.unfinished
    assert same_weights(run, whole)


@pytest.mark.parametrize("kind", [ZeroDivisionError, PrelaxError, SystemExit])
@pytest.mark.parametrize("at", [1, 3])
def test_what_it_raises_comes_out_after_a_checkpoint(
    kind: type[BaseException], at: int, whole: Run, tmp_path: Path
) -> None:
    def raises(line: dict[str, Any]) -> None:
        if line["epoch"] == at:
            raise kind("mine")

    with pytest.raises(kind, match="mine"):
        pretrain(tiny(), tmp_path / "run", progress=False, on_epoch=raises)
    run = Run.open(tmp_path / "run")
    assert kept(run)["epoch"] == at
    assert len(run.metrics()) == at
    pretrain(tiny(), run.path, resume=True, progress=False)
    assert same_weights(run, whole)


def test_too_little_memory_of_its_own_is_not_laid_to_the_batch(tmp_path: Path) -> None:
    def greedy(line: dict[str, Any]) -> None:
        raise torch.OutOfMemoryError("tried to allocate 900 GiB")

    with pytest.raises(PrelaxError, match=r"on_epoch had too little memory after epoch 1 \(tried to allocate") as error:
        pretrain(tiny(), tmp_path / "run", progress=False, on_epoch=greedy)
    assert "batch_size" not in str(error.value)


@pytest.mark.parametrize(
    ("answer", "stops"),
    [
        (True, True),
        (np.float64(0.5) < 1, True),
        (torch.tensor(0.5) < 1, True),
        (False, False),
        (None, False),
        (1, False),
        ("stop", False),
        (torch.tensor(1.0), False),
        (torch.tensor([True, True]), False),
        (np.ones(3, dtype=bool), False),
    ],
    ids=repr,
)
def test_true_alone_stops_whosever_it_is(answer: object, stops: bool) -> None:
    assert is_true(answer) is stops


def of_two(rank: int, folder: Path) -> None:
    """One of two processes: a run that is stopped, and one whose callable fails."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    torch.set_num_threads(1)

    def stop(line: dict[str, Any]) -> bool:
        (folder / f"asked-{rank}").write_text(json.dumps(line["epoch"]))
        return line["epoch"] == 2

    def fail(line: dict[str, Any]) -> None:
        raise ZeroDivisionError("mine")

    pretrain(tiny(), folder / "stopped", progress=False, on_epoch=stop)
    try:
        pretrain(tiny(), folder / "failed", progress=False, on_epoch=fail)
    except (PrelaxError, ZeroDivisionError) as error:
        (folder / f"heard-{rank}").write_text(f"{type(error).__name__}: {error}")
    dist.destroy_process_group()


def test_of_several_processes_the_first_is_asked_and_all_end_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    spawn(of_two, (tmp_path,), nprocs=2)
    assert (tmp_path / "asked-0").read_text() == "2"
    assert not (tmp_path / "asked-1").exists()
    assert kept(Run.open(tmp_path / "stopped"))["epoch"] == 2
    assert (tmp_path / "heard-0").read_text() == "ZeroDivisionError: mine"
    assert (tmp_path / "heard-1").read_text().startswith("PrelaxError: the first process has stopped with an error")
    assert kept(Run.open(tmp_path / "failed"))["epoch"] == 1
