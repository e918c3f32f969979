"""Where `prelax pretrain` puts a run that nobody named a folder for."""

import json
import re
from pathlib import Path

import pytest

from prelax.cli import main
from prelax.cli.training import claimed

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
