"""What the engine does on CUDA, asked without it."""

from pathlib import Path

import pytest
import torch

from prelax.config import Settings, resolve
from prelax.data import load_training
from prelax.errors import PrelaxError, PrelaxWarning
from prelax.train import Engine, Process, pretrain

CPU = torch.device("cpu")


def digits() -> Settings:
    return resolve(
        "digits/prelax-all", ["data.limit=64", "train.batch_size=32", "train.device=cpu", "train.watch=none"]
    )


class Lane:
    """What of a stream of CUDA is asked for here: which others it waited for."""

    def __init__(self) -> None:
        self.waited: list[object] = []

    def wait_stream(self, other: object) -> None:
        self.waited.append(other)


class Recorded:
    """A captured step that counts how often it is replayed."""

    replays = 0

    def replay(self) -> None:
        self.replays += 1


def capturing(monkeypatch: pytest.MonkeyPatch, steps: list[str]) -> Engine:
    """An engine whose next step is captured, and which notes the steps it takes plainly."""
    settings = digits()
    engine = Engine(settings, load_training(settings.data), CPU, Process())
    monkeypatch.setattr(engine, "compute", lambda: steps.append("plain"))
    engine.fused = engine.capture = True
    engine._eager_left = 0
    return engine


def test_a_step_aside_that_fails_is_waited_for_before_it_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, main, side = capturing(monkeypatch, []), Lane(), Lane()

    def fails() -> None:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    monkeypatch.setattr(engine, "_side", side)
    with pytest.raises(RuntimeError, match="no compiler"):
        engine._aside(fails)
    assert side.waited == [main]
    assert main.waited == [side]


def test_a_captured_step_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, steps = Recorded(), []
    engine = capturing(monkeypatch, steps)
    monkeypatch.setattr(engine, "_captured", lambda: (graph, ""))
    for _ in range(3):
        engine.take_step()
    assert graph.replays == 3
    assert steps == []


@pytest.mark.parametrize("here", [True, False])
def test_a_step_that_one_process_cannot_capture_is_captured_by_none(
    here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, steps = Recorded(), []
    engine = capturing(monkeypatch, steps)
    monkeypatch.setattr(engine, "_captured", lambda: (None, "it asks the device") if here else (graph, ""))
    monkeypatch.setattr("prelax.train.engine.any_of", lambda process, flag: True)
    with pytest.warns(PrelaxWarning, match="it asks the device" if here else "another process cannot"):
        engine.take_step()
    engine.take_step()
    assert steps == ["plain", "plain"]
    assert engine.graph is None
    assert graph.replays == 0


def test_a_run_that_ends_in_an_error_has_let_go_of_its_captured_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def fails(engine: Engine, *args: object) -> int:
        engine.graph = Recorded()  # type: ignore[assignment]
        seen.append(engine)
        raise PrelaxError("a shard cannot be read any more")

    monkeypatch.setattr(Engine, "run_epoch", fails)
    with pytest.raises(PrelaxError, match="a shard"):
        pretrain(digits(), tmp_path / "run", progress=False)
    assert [engine.graph for engine in seen] == [None]
