"""The COCO rows of the paper's table, on two images: trained once, read back, refused early when they cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prelax.cli import main
from prelax.detect.rows import table_settings
from prelax.errors import PrelaxError
from prelax.reproduce import plan, reproduce
from prelax.table_files import as_markdown

DETECT = ["epochs=1", "batch=1", "size=64", "workers=0", "score=0.0", "draws=2"]


def changes(toy: Path) -> list[str]:
    """The imagenet recipes at toy size: the two images of the toy, 32 px, one epoch."""
    heads = [f"model.{key}=8" for key in ("projector_hidden", "projector_dim", "predictor_hidden", "head_hidden")]
    data = ["data.source=folder", f"data.root={toy}", "data.image_size=32", f"data.cache={toy}-cache", "data.workers=0"]
    return [*heads, *data, "augment.size=32", "train.epochs=1", "train.batch_size=2", "train.device=cpu",
            "train.watch=none"]  # fmt: skip


def test_a_detector_is_trained_once_and_gives_every_column(toy: Path, tmp_path: Path) -> None:
    heard: list[str] = []
    result = reproduce("imagenet", changes(toy), tmp_path / "out", only="(RandInit|^BYOL) box", coco=toy,
                       detection=DETECT, progress=False, say=heard.append)  # fmt: skip
    assert [row["failure"] for row in result["rows"]] == [None] * 6
    folders = sorted((tmp_path / "out").rglob("detection.json"))
    assert len(folders) == 2  # three columns of two starts
    random, byol = sorted((json.loads(file.read_text()) for file in folders), key=lambda r: r["start"]["weights"] or "")
    assert random["start"]["name"] == "random"
    assert Path(byol["start"]["name"]).name.startswith("imagenet-byol")
    assert {r["settings"]["norm"] for r in (random, byol)} == {"trained"}
    for start, rows in ((random, result["rows"][:3]), (byol, result["rows"][3:])):
        assert [row["ours"] for row in rows] == [
            pytest.approx(start["box"][k], abs=1e-3) for k in ("AP50", "AP", "AP75")
        ]
    assert all(row["paper"] is None for row in result["rows"])  # two images are not COCO
    assert "--coco ROOT --detect epochs=1" in as_markdown(result)
    stamps = [file.stat().st_mtime_ns for file in folders]
    again = reproduce("imagenet", changes(toy), tmp_path / "out", only="(RandInit|^BYOL) box", coco=toy,
                      detection=DETECT, progress=False)  # fmt: skip
    assert again["rows"] == result["rows"]
    assert [file.stat().st_mtime_ns for file in folders] == stamps


def test_segmentation_is_mask_r_cnn_and_random_weights_train_no_run(toy: Path, tmp_path: Path) -> None:
    words = ["reproduce", "imagenet", *changes(toy), "--only", "RandInit mask", "--coco", str(toy), "--quiet"]
    for pair in [*DETECT, "proposals=16"]:
        words += ["--detect", pair]
    assert main([*words, "-o", str(tmp_path / "out")]) == 0
    (row,) = json.loads((tmp_path / "out" / "imagenet.json").read_text())["rows"]
    (file,) = (tmp_path / "out").rglob("detection.json")
    found = json.loads(file.read_text())
    assert found["model"] == "maskrcnn"
    assert row["ours"] == pytest.approx(found["mask"]["AP"], abs=1e-3)
    assert not list((tmp_path / "out").rglob("backbone.safetensors"))


def test_without_coco_nothing_is_trained(toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["reproduce", "imagenet", *changes(toy), "-o", str(out)]) == 2
    said = capsys.readouterr().err.strip()
    assert "--coco ROOT" in said
    assert "\n" not in said
    assert main(["reproduce", "imagenet", *changes(toy), "-o", str(out), "--coco", str(tmp_path / "nowhere")]) == 2
    assert "no folder" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("epoch=3", "did you mean epochs"),
        ("epochs", "is not key=value"),
        ("epochs=many", "no whole number"),
        ("epochs=0", "must be 1 or more"),
        ("seed=3", "use --seeds"),
    ],
)
def test_a_wrong_setting_of_detectors_is_one_line(pair: str, says: str) -> None:
    with pytest.raises(PrelaxError, match=says) as refusal:
        table_settings([pair])
    assert "\n" not in str(refusal.value)


def test_the_plan_says_that_random_weights_need_no_epochs(tmp_path: Path) -> None:
    lines = plan("imagenet", [f"data.root={tmp_path}"], tmp_path)
    assert {line["epochs"] for line in lines if line["method"] == "RandInit"} == {"none"}
    assert {line["epochs"] for line in lines if line["method"] == "BYOL"} == {"0 of 100"}
