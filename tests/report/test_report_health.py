"""What is wrong with a run is drawn from its own curves, and only when something is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from prelax.cli import main
from prelax.doctor import draw_findings, examine_run
from prelax.errors import PrelaxError
from prelax.report.health import draw_health
from prelax.run import Run


def spoil(run: Run, change: Callable[[dict], dict]) -> None:
    run.write("metrics.jsonl", "".join(json.dumps({**entry, **change(entry)}) + "\n" for entry in run.metrics()))


def wrong(run: Run) -> dict[str, dict]:
    return {finding.what: dict(finding.curves) for finding in examine_run(run.path) if finding.curves}


@pytest.mark.parametrize(
    ("change", "what", "curves"),
    [
        (lambda e: {"embedding_std": 0.9 / e["epoch"] ** 2}, "collapse", {"embedding_std", "effective_rank"}),
        (lambda e: {"loss": float(e["epoch"])}, "divergence", {"loss"}),
        (lambda e: {"loss/r3s": math.nan if e["epoch"] > 9 else 0.5}, "divergence", {"loss/r3s"}),
        (lambda e: {"data_wait": 0.4}, "speed", {"data_wait"}),
        (lambda e: {"loss/rotpl": 1.386}, "pretext", {"loss/rotpl"}),
        (lambda e: {"knn": 90.0 - 3 * e["epoch"]}, "kNN", {"knn"}),
    ],
)
def test_each_illness_is_drawn_with_the_curves_that_show_it(
    run_folder: Callable[..., Run], tmp_path: Path, change: Callable, what: str, curves: set[str]
) -> None:
    run = run_folder(tmp_path / "run")
    spoil(run, change)
    assert set(wrong(run)[what]) == curves
    written = draw_findings(run.path, examine_run(run.path))
    assert written[0] == run.path / "doctor.png"
    assert "epoch" in written[1].read_text()


def test_the_limit_of_the_pretext_is_the_loss_of_a_guess(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    spoil(run, lambda e: {"loss/rotpl": 1.386})
    assert wrong(run)["pretext"]["loss/rotpl"] == pytest.approx(math.log(4))
    text = draw_findings(run.path, examine_run(run.path))[1].read_text()
    assert "the residual ignores its pretext" in text
    assert "– – a guess, 1.39" in text


def test_a_healthy_run_is_not_drawn(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    assert draw_findings(run.path, examine_run(run.path)) == []
    assert not (run.path / "doctor.png").exists()
    with pytest.raises(PrelaxError, match="nothing to draw"):
        draw_health(run.metrics(), [], tmp_path / "x")


def test_the_command_draws_on_request(
    run_folder: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_folder(tmp_path / "run")
    spoil(run, lambda e: {"effective_rank": 1.01})
    assert main(["doctor", str(run.path), "--json"]) == 1
    assert not (run.path / "doctor.png").exists()
    capsys.readouterr()
    assert main(["doctor", str(run.path), "--figure", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["figures"][0] == str(run.path / "doctor.png")
    assert main(["doctor", "--figure"]) == 2


def test_the_page_shows_what_augmentations_do(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    from prelax.report.page import gather
    from prelax.report.render import render

    run = run_folder(tmp_path / "run", epochs=2)
    rows = [
        {"augmentation": "none", "accuracy": 94.0, "std": 0.0},
        {"augmentation": "rotation", "accuracy": 37.5, "std": 1.0},
        {"augmentation": "blur", "accuracy": None, "std": None},
    ]
    run.write_eval("effects", {"protocol": "effects", "dataset": "digits", "rows": rows, "seeds": [0]})
    page = gather([run], points=0)
    (bar,) = page.effects.accuracy
    cell = bar.cells[0]
    assert (bar.name, cell.value, cell.floor) == ("rotation", 37.5, 94.0)
    assert all(row.protocol != "effects" for row in page.rows)  # a section of its own, not a line of the results
    assert "What augmentations do" in render(page)


def test_a_figure_that_cannot_be_written_is_not_called_needless(
    run_folder: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_folder(tmp_path / "run")
    spoil(run, lambda e: {"effective_rank": 1.01})
    (run.path / "doctor.png").mkdir()
    assert main(["doctor", str(run.path), "--figure"]) == 1
    said = capsys.readouterr()
    assert "not drawn: cannot write" in said.err
    assert "nothing is wrong that curves could show" not in said.out
