"""What is shown while a run is trained, in a terminal of any width."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from prelax.config import resolve
from prelax.train import pretrain, progress


@pytest.mark.parametrize(("width", "speed"), [(60, False), (120, True)])
def test_the_time_left_is_whole_in_a_narrow_terminal(width: int, speed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()

    def console(stderr: bool) -> Console:
        return Console(file=written, width=width, force_terminal=True, color_system=None)

    monkeypatch.setattr(progress, "Console", console)
    with progress.Progress(epochs=200, steps=4, done=100, shown=True) as bar:
        bar.epoch({"epoch": 101, "loss": 1.234, "images_per_s": 12345.0, "knn": 51.2})
    last = written.getvalue().split("\r")[-2]
    assert "epoch 101/200" in last or " 101/200" in last
    assert "loss 1.234" in last
    assert "kNN 51.2" in last
    assert "left " in last
    assert "…" not in last
    assert ("12,345 images/s" in last) == speed


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(progress, "time", found := Clock())
    return found


def test_into_a_pipe_goes_a_line_after_the_first_epoch_and_then_one_a_minute_at_most(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.Progress(epochs=8, steps=4, done=0, shown=True) as bar:
        for epoch in range(1, 9):
            clock.seconds += 40 if epoch > 1 else 100  # the first compiles
            bar.epoch({"epoch": epoch, "loss": 1.2344, "images_per_s": 41.2} | ({"knn": 51.23} if epoch == 3 else {}))
    assert capsys.readouterr().err.splitlines() == [
        "epoch 1 of 8: loss 1.234, 41 images/s, about 12 minutes to go",
        "epoch 3 of 8: loss 1.234, 41 images/s, kNN 51.2, about 3 minutes to go",
        "epoch 5 of 8: loss 1.234, 41 images/s, about 2 minutes to go",
        "epoch 7 of 8: loss 1.234, 41 images/s, about 40 seconds to go",
    ]


def test_a_long_epoch_has_lines_of_its_steps_and_tells_the_time_by_those_of_now(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.Progress(epochs=3, steps=100, done=1, shown=True, first=progress.SOON) as bar:
        for step in range(1, 101):
            clock.seconds += 3 if step > 1 else 7
            bar.step(step)
            if step == 40:
                break
    assert capsys.readouterr().err.splitlines() == [
        "epoch 2 of 3, step 2 of 100, about 10 minutes to go",  # 198 steps of 3 s
        "epoch 2 of 3, step 22 of 100, about 9 minutes to go",
    ]


def test_what_is_not_shown_prints_no_line(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.Progress(epochs=3, steps=4, done=0, shown=False) as bar, progress.counted("scored", 9, False) as some:
        clock.seconds = 1000
        bar.step(2)
        bar.epoch({"epoch": 1, "loss": 1.0, "images_per_s": 9.0})
        some(3)
    assert capsys.readouterr().err == ""


def test_a_count_into_a_pipe_is_lines(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.counted("scored", 4000, True) as update:
        for done in range(1000, 4001, 1000):
            clock.seconds += 20
            update(done)
    assert capsys.readouterr().err == "scored: 1,000 of 4,000, about 60 seconds to go\n"


def test_a_stream_that_was_closed_stops_no_training(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        bar = progress.Progress(epochs=3, steps=4, done=0, shown=True)
        monkeypatch.setattr("sys.stderr", stream)
        bar.epoch({"epoch": 1, "loss": 1.0, "images_per_s": 9.0})


def test_a_run_that_goes_on_says_how_far_it_had_come(tmp_path: Path) -> None:
    small = ["train.epochs=2", "data.limit=64", "train.batch_size=32", "train.device=cpu", "train.watch=none"]
    settings = resolve("digits/simsiam", small)
    run = pretrain(settings, tmp_path / "run", progress=False)
    heard: list[str] = []
    pretrain(settings, run.path, resume=True, progress=False, say=heard.append)
    assert heard == []  # it had finished
    (run.path / "backbone.safetensors").unlink()  # as if it had been stopped
    pretrain(settings, run.path, resume=True, progress=False, say=heard.append)
    assert heard == ["going on after 2 of 2 epochs"]
