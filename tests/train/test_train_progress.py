"""What is shown while a run is trained, in a terminal of any width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from prelax.train import progress


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
