"""The folder of a detection run: nothing of another run is written over, and a mistake does not spoil it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file, save_file

from prelax.cli import main
from prelax.config import resolve
from prelax.detect import DetectSettings, detect
from prelax.detect.coco import read_coco
from prelax.detect.detect import finish, percent
from prelax.errors import PrelaxError, PrelaxWarning
from prelax.nets import backbone
from prelax.run import Run
from prelax.tensors import Damaged, read_tensors

SMALL: dict[str, Any] = {"epochs": 1, "batch": 2, "size": 32, "workers": 0, "device": "cpu", "score": 0.9, "draws": 0}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_pretraining_run_is_never_written_over(toy: Path, backbone_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(backbone_run, out)
    (out / "checkpoint.pt").write_bytes(b"hours of work")
    before = contents(out)
    with pytest.raises(PrelaxError, match="holds a pre-training run; choose another --out"):
        detect("random", toy, out, DetectSettings(**SMALL), progress=False)
    assert contents(out) == before


@pytest.mark.parametrize("name", ["checkpoint.pt", "metrics.jsonl", "detector.safetensors"])
def test_a_file_of_something_else_is_not_written_over(toy: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_bytes(b"of something else")
    with pytest.raises(PrelaxError, match=f"has a {name} of something else; choose another --out"):
        detect("random", toy, tmp_path / "out", DetectSettings(**SMALL), progress=False)
    assert contents(tmp_path / "out") == {name: b"of something else"}


def test_settings_of_another_program_are_not_written_over(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"editor.tabSize": 4}')
    with pytest.raises(PrelaxError, match="is not the settings of a detection run; choose another --out"):
        detect("random", toy, tmp_path, DetectSettings(**SMALL), progress=False)
    assert (tmp_path / "settings.json").read_text() == '{"editor.tabSize": 4}'


@pytest.mark.parametrize("name", ["settings.json", "detector.safetensors"])
def test_pretraining_refuses_the_folder_of_a_detector(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(PrelaxError, match="already holds a detection run"):
        Run.create(tmp_path, resolve("digits/simsiam"))
    assert contents(tmp_path) == {name: b"{}"}


def test_a_setting_that_is_refused_leaves_the_folder_free(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["detect", "random", "--data", str(toy), "--out", str(tmp_path / "out"), "--epochs", "1", "--size", "32"]
    words += ["--workers", "0", "--device", "cpu", "--score", "0.9", "--draws", "0", "--quiet"]
    assert main([*words, "--precision", "bfloat16"]) == 2
    assert "on the CPU use float32" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*words, "--precision", "float32"]) == 0


def test_a_run_that_came_to_no_checkpoint_begins_anew(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prelax.detect.detect import Trainer

    step = Trainer.step

    def diverging(self: Trainer, *batch: Any) -> None:
        if self.done == 1:
            raise PrelaxError("the loss is nan")
        step(self, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", diverging)
        with pytest.raises(PrelaxError, match="nan"):
            detect("random", toy, tmp_path / "out", DetectSettings(**SMALL | {"epochs": 2}), progress=False)
    assert len((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()) == 1
    lower = DetectSettings(lr=1e-4, **SMALL)
    assert detect("random", toy, tmp_path / "out", lower, progress=False)["settings"]["lr"] == 1e-4
    assert json.loads((tmp_path / "out" / "settings.json").read_text())["settings"]["lr"] == 1e-4
    assert len((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()) == 1
    with pytest.raises(PrelaxError, match="already holds a detection run"):
        detect("random", toy, tmp_path / "out", lower, progress=False)


def test_a_run_that_another_process_is_writing_does_not_begin_anew(toy: Path, tmp_path: Path) -> None:
    settings = DetectSettings(**SMALL)
    detect("random", toy, tmp_path, settings, progress=False)
    for path in tmp_path.iterdir():
        if path.is_file() and path.name not in ("settings.json", ".lock"):
            path.unlink()
    before = contents(tmp_path)
    with Run(tmp_path).lock(), pytest.raises(PrelaxError, match="another process is writing"):
        detect("random", toy, tmp_path, DetectSettings(lr=1.0, **SMALL), progress=False)
    assert contents(tmp_path) == before


def test_scores_of_crowds_alone_are_written_though_there_are_none(toy: Path, tree: dict[str, Any]) -> None:
    for thing in tree["annotations"]:
        thing |= {"iscrowd": 1, "segmentation": {"size": [72, 96], "counts": [0, 72 * 10, 72 * 86]}}
    (toy / "instances_val.json").write_text(json.dumps(tree))
    result = detect("random", toy, toy / "out", DetectSettings(**SMALL), progress=False)
    assert result["box"]["AP"] is None
    assert json.loads((toy / "out" / "detection.json").read_text())["box"]["AP"] is None
    assert (toy / "out" / "predictions.png").is_file()


def test_a_title_says_small_scores_with_two_decimals_and_none_with_a_dash() -> None:
    assert [percent(value) for value in (None, 0.043, 0.1, 41.26)] == ["–", "0.04", "0.1", "41.3"]


def finished(toy: Path, categories: dict[int, str] | None = None) -> Path:
    """The files at the end of a run that found nothing, on the toy's categories or others."""
    val = read_coco(toy, "val")
    val.categories = categories or val.categories
    (toy / "out").mkdir()
    about = {"model": "retinanet", "dataset": "toy", "start": {"name": "random"}, "settings": {"draws": 0}}
    finish(Run(toy / "out"), about, torch.nn.Linear(1, 1), val, [], False)
    return toy / "out"


def test_scores_are_written_though_the_picture_cannot_be_drawn(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any, **options: Any) -> None:
        raise ValueError("Image size is too large\nand more")

    monkeypatch.setattr(sys.modules["prelax.detect.detect"], "draw_predictions", failing)
    with pytest.warns(PrelaxWarning, match=r"was not drawn \(Image size is too large\); everything else is written"):
        out = finished(toy)
    assert json.loads((out / "detection.json").read_text())["box"]["AP"] == 0.0


def test_a_picture_without_predictions_says_so(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(Figure, "supxlabel", lambda _, text, **style: told.append(text))
    finished(toy)
    assert told == ["Nothing was found in these images: no prediction reached --score; a lower one keeps weaker ones."]


def test_names_with_dollar_signs_are_drawn_as_they_are(toy: Path, recwarn: pytest.WarningsRecorder) -> None:
    assert (finished(toy, {10: r"$\frac$", 20: "5$ or 10$ _"}) / "predictions.png").is_file()
    assert not [warning for warning in recwarn if issubclass(warning.category, PrelaxWarning)]


def test_a_detector_that_is_damaged_is_not_taken_for_one(toy: Path) -> None:
    file = finished(toy) / "detector.safetensors"
    assert set(read_tensors(file)) == {"weight", "bias"}
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(Damaged):
        read_tensors(file)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_half_precision_are_trained_in_float32(toy: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    state = {name: value.to(dtype) for name, value in backbone("resnet18", "imagenet").state_dict().items()}
    save_file(state, tmp_path / "half.safetensors")
    detect(
        tmp_path / "half.safetensors", toy, tmp_path / "out", DetectSettings(norm="trained", **SMALL), progress=False
    )
    trained = load_file(tmp_path / "out" / "detector.safetensors")
    assert {value.dtype for value in trained.values()} == {torch.float32, torch.int64}
    start, now = state["layer1.0.conv1.weight"].float(), trained["backbone.body.layer1.0.conv1.weight"]
    assert 0 < (now - start).abs().max() < 0.1
