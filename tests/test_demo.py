"""The demo: every figure it prints was measured in that run, and its words follow the figures."""

import json
import re
from pathlib import Path

import pytest

from prelax.cli import main
from prelax.demo import ROWS, explain, run_demo, table
from prelax.run import Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def result(folder: Path) -> dict:
    return run_demo(folder, seed=1, epochs=1, progress=False)


def test_the_demo_compares_random_weights_and_three_methods(result: dict) -> None:
    assert [row["method"] for row in result["rows"]] == ["random weights", *ROWS]
    assert result["seed"] == 1
    page = Path(result["page"]).read_text(encoding="utf-8")
    assert all(f"<h2>{label}</h2>" in page for label in ROWS)  # by their names, not their folders'


def test_every_figure_is_in_the_run_it_came_from(result: dict) -> None:
    for row in result["rows"][1:]:
        run = Run.open(row["run"])
        evals = run.evals()
        assert row["knn"] == evals["knn"]["accuracy"]
        assert row["knn_few"] == evals["knn-10-per-class"]["accuracy"]
        assert row["angle"] == evals["residual"]["targets"]["rotation.turns"]["accuracy"]
        assert row["residual_norm"] == run.metrics()[-1]["residual_norm"]
    first = Run.open(result["rows"][1]["run"]).evals()
    assert result["rows"][0]["knn"] == first["knn"]["floor"]
    assert result["rows"][0]["angle"] == first["residual"]["targets"]["rotation.turns"]["random"]


def test_the_three_runs_differ_in_the_method_alone(result: dict) -> None:
    trees = [Run.open(row["run"]).settings.model_dump(exclude={"recipe", "method"}) for row in result["rows"][1:]]
    assert trees[0] == trees[1] == trees[2]


def test_the_words_follow_the_figures(result: dict) -> None:
    rows = {row["method"]: row for row in result["rows"]}
    text = " ".join(explain(result))
    cost = rows["SimSiam"]["knn_few"] - rows["SimSiam + rotation"]["knn_few"]
    assert f"{'costs' if cost > 0 else 'gains'} SimSiam {abs(cost):.1f} points" in text
    turned = {**result, "rows": [{**row, "knn_few": 100.0 - row["knn_few"]} for row in result["rows"]]}
    assert f"{'gains' if cost > 0 else 'costs'} SimSiam {abs(cost):.1f} points" in " ".join(explain(turned))
    assert "were chosen on seed 0 of this comparison" in text
    assert f"seed {result['seed']}" in text


def test_the_table_has_the_columns_promised(result: dict) -> None:
    rows = table(result)
    assert len(rows) == 4
    assert list(rows[0])[1:] == [
        "kNN %",
        "kNN, 10 labels a class %",
        "residual norm",
        "angle read off the residual %",
    ]


def test_the_command_goes_on_with_what_is_there(result: dict, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = {path: path.stat().st_mtime_ns for path in folder.glob("*/eval/*.json")}
    assert main(["demo", "--out", str(folder), "--epochs", "1", "--seed", "1"]) == 0
    said = capsys.readouterr()
    assert len(written) == 9
    assert written == {path: path.stat().st_mtime_ns for path in folder.glob("*/eval/*.json")}  # measured once
    assert said.out.count("trained already") == 3
    assert re.search(r"the page is \S+demo\.html", said.out)
    assert "10 labels a class" in said.out
    assert json.loads((folder / "demo.json").read_text())["rows"] == result["rows"]
