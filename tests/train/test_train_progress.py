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
