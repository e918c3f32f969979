"""Where `prelax pretrain` puts a run that nobody named a folder for."""

import json
import re
from pathlib import Path

import pytest

from prelax.cli import main
from prelax.cli.training import claimed, known
from prelax.run import Run

QUICK = ["model.projector_hidden=16", "model.projector_dim=16", "train.epochs=1", "data.limit=64"]


def test_runs_that_begin_in_the_same_second_get_folders_of_their_own(tmp_path: Path) -> None:
    named = tmp_path / "runs" / "digits-20300101-000000"
    with claimed(named) as one, claimed(named) as two, claimed(named) as three:
        for folder in (one, two, three):
            (folder / "config.yaml").touch()
    assert [one, two, three] == [named, *(named.with_name(f"{named.name}-{n}") for n in (2, 3))]
    assert sorted(folder.name for folder in named.parent.iterdir()) == sorted(f.name for f in (one, two, three))


def test_a_folder_that_stays_empty_is_removed_and_nothing_else(tmp_path: Path) -> None:
    named = tmp_path / "runs" / "digits"
    with pytest.raises(ValueError, match="refused"), claimed(named):
        raise ValueError("refused")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs").mkdir()  # empty, and somebody's
    with claimed(named):
        pass
    assert list(tmp_path.iterdir()) == [tmp_path / "runs"]
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_place_that_cannot_be_written_is_for_training_to_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").touch()
    with claimed(tmp_path / "runs" / "digits") as place:
        assert place == tmp_path / "runs" / "digits"
    monkeypatch.chdir(tmp_path)
    assert main(["pretrain", "digits/simsiam", *QUICK, "--quiet"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "runs" in said


def test_a_refused_run_leaves_no_folder_and_a_trained_one_is_where_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["pretrain", "digits/simsiam", *QUICK, "train.precision=bfloat16", "train.device=cpu"]) == 2
    assert list(tmp_path.iterdir()) == []
    capsys.readouterr()
    assert main(["pretrain", "digits/simsiam", *QUICK, "--json"]) == 0
    place = json.loads(capsys.readouterr().out)["run"]
    assert re.fullmatch(r"runs/digits-simsiam-\d{8}-\d{6}", place)
    assert (tmp_path / place / "backbone.safetensors").is_file()


def test_only_a_command_that_may_speak_says_how_far_it_is_where_there_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pretrain", "digits/simsiam", *QUICK, "train.epochs=2", "train.device=cpu", "--out"]
    for number, more in enumerate(([], ["--json"], ["--quiet"])):
        assert main([*words, str(tmp_path / str(number)), *more]) == 0
        said = capsys.readouterr().err
        lines = [line for line in said.splitlines() if line.startswith("epoch ")]
        assert len(lines) == (0 if more else 1), said
        if not more:
            assert re.fullmatch(r"epoch 1 of 2: loss -?\d\.\d{3}, [\d,.]+ images/s, about \d+ seconds? to go", lines[0])


@pytest.mark.parametrize("epochs", [1, 3])
def test_another_length_of_a_run_is_refused_as_such_whatever_its_warm_up(
    epochs: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pretrain", "digits/simsiam", *QUICK, "train.epochs=2", "train.warmup_epochs=1.5", "train.device=cpu"]
    run = tmp_path / "run"
    assert main([*words, "--out", str(run), "--quiet"]) == 0
    assert main(["pretrain", str(run), "--resume", f"train.epochs={epochs}"]) == 2
    said = capsys.readouterr().err
    assert f"train.epochs was 2 in {run} and cannot become {epochs} on resume" in said
    assert "warmup" not in said
    assert main(["pretrain", str(run), "--resume", "train.epochs=2", "--quiet"]) == 0


def test_a_figure_that_was_measured_is_said_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pretrain", "digits/simsiam", *QUICK, "train.device=cpu", "--out"]
    assert main([*words, str(tmp_path / "one"), "train.knn_every=1"]) == 0
    assert re.search(r"^kNN \d+\.\d %, of images that it was not trained on$", capsys.readouterr().out, re.M)
    assert main([*words, str(tmp_path / "two")]) == 0
    assert "kNN" not in capsys.readouterr().out
    run = Run.open(tmp_path / "two")
    run.write_eval("knn", {"accuracy": 53.333, "floor": 40.0, "test_images": 45})
    assert known(run) == "kNN 53.3 %, random weights 40.0 %, of 45 images that it was not trained on"
    run.write_eval("knn", {"accuracy": 53.333, "floor": 40.0, "start": 50.04, "test_images": 45})
    assert "as it began 50.0 %" in str(known(run))
