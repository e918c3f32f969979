"""Whole detection runs on two images: the loss falls, pycocotools accepts, a stopped run goes on as it would have."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from prelax.cli import main
from prelax.detect import DetectSettings, average_precision, detect, read_coco
from prelax.detect.score import redrawn, standard_error
from prelax.errors import PrelaxError

SMALL: dict[str, Any] = {"batch": 1, "size": 64, "workers": 0, "device": "cpu", "score": 0.0, "draws": 5}
TOGETHER = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"}


def perfect(toy: Path) -> list[dict[str, Any]]:
    """Predictions that are the annotations themselves."""
    coco = read_coco(toy, "val", masks=True)
    tree = json.loads((toy / "instances_val.json").read_text())
    from pycocotools import mask

    results = []
    for thing in tree["annotations"]:
        runs = mask.frPyObjects(thing["segmentation"], 72, 96)[0]
        results.append(
            {key: thing[key] for key in ("image_id", "category_id", "bbox")} | {"segmentation": runs, "score": 0.9}
        )
    assert {r["image_id"] for r in results} == {image["id"] for image in coco.images}
    return results


def test_the_annotations_themselves_score_100_and_nothing_scores_0(toy: Path) -> None:
    val, best = read_coco(toy, "val", masks=True), perfect(toy)
    for kind in ("box", "mask"):
        found = average_precision(val, best, kind)
        assert (found["AP"], found["AP50"], found["AP75"]) == (100.0, 100.0, 100.0)
        assert found["AP_large"] is None
        none = average_precision(val, [], kind)
        assert (none["AP"], none["AP50"], none["AP75"]) == (0.0, 0.0, 0.0)
        assert (found["AR"], none["AR"]) == (100.0, 0.0)
    half = [result for result in best if result["category_id"] == 10]
    assert average_precision(val, half)["AP"] == 50.0


def test_of_any_class_an_object_is_found_whatever_it_is_called(toy: Path) -> None:
    val, best = read_coco(toy, "val", masks=True), perfect(toy)
    swapped = [result | {"category_id": 30 - result["category_id"]} for result in best]  # 10 and 20
    for kind in ("box", "mask"):
        assert average_precision(val, swapped, kind)["AP"] == 0.0
        assert average_precision(val, swapped, kind, any_class=True)["AP"] == 100.0
        assert standard_error(val, swapped, kind, draws=5, any_class=True)["AR"] == 0.0
    half = [result for result in swapped if result["category_id"] == 10]
    assert average_precision(val, half, any_class=True)["AR"] == 50.0
    assert average_precision(val, [], any_class=True)["AP"] == 0.0


def test_detectors_are_compared_on_the_same_draws_of_images(toy: Path) -> None:
    val, best = read_coco(toy, "val"), perfect(toy)
    one = [result for result in best if result["image_id"] == 7]
    other = [result | {"score": 0.8} for result in one]  # finds the same
    assert redrawn(val, one, draws=20).std(axis=0)[0] > 0
    assert np.array_equal(redrawn(val, one, draws=20), redrawn(val, other, draws=20))


def test_the_standard_error_is_that_of_drawing_images_anew(toy: Path) -> None:
    val, best = read_coco(toy, "val", masks=True), perfect(toy)
    assert standard_error(val, best, "mask", draws=20) == {"AP": 0.0, "AP50": 0.0, "AP75": 0.0, "AR": 0.0}
    assert standard_error(val, [], draws=20)["AP"] == 0.0
    one = [result for result in best if result["image_id"] == 7]
    both = average_precision(val, one)["AP"]
    assert both is not None
    # Two images, one of them found: neither is drawn twice half of the time.
    expected = np.sqrt(0.25 * (0 - both) ** 2 + 0.25 * (100 - both) ** 2)
    assert standard_error(val, one, draws=1000)["AP"] == pytest.approx(expected, rel=0.06)


def stopping_after(steps: int) -> Callable[[], contextlib.AbstractContextManager[Callable[[], bool]]]:
    """Ctrl-C at a step."""

    @contextlib.contextmanager
    def interruptible() -> Iterator[Callable[[], bool]]:
        asked = iter(range(1, 1000))
        yield lambda: next(asked) >= steps

    return interruptible


def test_a_run_learns_and_a_stopped_one_goes_on_as_if_it_had_not_been(
    toy: Path, backbone_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = DetectSettings(epochs=6, lr=0.16, norm="trained", **SMALL)
    result = detect(backbone_run, toy, tmp_path / "whole", settings, progress=False)
    losses = [line["loss"] for line in result["curve"]]
    assert len(losses) == 6
    assert losses[-1] < 0.9 * losses[0]
    assert result["predictions"] > 0
    assert set(result["box"]) >= {"AP", "AP50", "AP75"}
    assert result["mask"] is None
    assert set(result["box_standard_error"]) == {"AP", "AP50", "AP75", "AR"}
    assert set(result["box_any_class_standard_error"]) == {"AP", "AP50", "AP75", "AR"}
    assert result["mask_any_class"] is None
    assert result["start"]["backbone"] == "resnet18"
    written = json.loads((tmp_path / "whole" / "detection.json").read_text())
    assert written["curve"] == result["curve"]
    predicted = json.loads((tmp_path / "whole" / "predictions.json").read_text())
    assert average_precision(read_coco(toy, "val"), predicted) == result["box"]
    assert average_precision(read_coco(toy, "val"), predicted, any_class=True) == result["box_any_class"]
    with Image.open(tmp_path / "whole" / "predictions.png") as picture:
        assert min(picture.size) > 300

    stopped = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["prelax.detect.detect"], "interruptible", stopping_after(5))  # within an epoch
        with pytest.raises(KeyboardInterrupt):
            detect(backbone_run, toy, stopped, settings, progress=False)
    assert not (stopped / "detection.json").exists()
    torch.manual_seed(99)  # what else the program drew does not matter
    again = detect(backbone_run, toy, stopped, settings, resume=True, progress=False)
    assert again["curve"] == result["curve"]
    one, two = (load_file(tmp_path / name / "detector.safetensors") for name in ("whole", "stopped"))
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert (stopped / "predictions.json").read_text() == (tmp_path / "whole" / "predictions.json").read_text()
    lines = [json.loads(line)["epoch"] for line in (stopped / "metrics.jsonl").read_text().splitlines()]
    assert lines == [1, 2, 3, 4, 5, 6]

    with pytest.raises(PrelaxError, match="already holds a detection run"):
        detect(backbone_run, toy, stopped, settings, progress=False)
    with pytest.raises(PrelaxError, match=r"lr was 0\.16"):
        detect(backbone_run, toy, stopped, DetectSettings(epochs=6, lr=0.1, norm="trained", **SMALL), resume=True)
    with pytest.raises(PrelaxError, match="not from these weights"):
        detect("random", toy, stopped, settings, resume=True)
    (toy / "train" / "3.png").unlink()
    with pytest.raises(PrelaxError, match="the data are not those"):
        detect(backbone_run, toy, stopped, settings, resume=True)


def test_outlines_are_learnt_and_scored(toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = DetectSettings("maskrcnn", epochs=3, lr=0.16, proposals=16, **(SMALL | {"score": 0.05}))
    result = detect("random", toy, tmp_path / "out", settings, progress=False)
    assert result["curve"][-1]["loss"] < result["curve"][0]["loss"]
    assert "loss/loss_mask" in result["curve"][0]
    assert result["mask"]["AP"] is not None
    assert capsys.readouterr().out == ""  # pycocotools prints a good deal
    predicted = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert average_precision(read_coco(toy, "val", masks=True), predicted, "mask") == result["mask"]


def test_a_loss_that_is_no_number_stops_the_run_with_what_to_try(toy: Path, tmp_path: Path) -> None:
    settings = DetectSettings(epochs=9, lr=1e30, warmup_steps=0, **(SMALL | {"size": 32}))
    with pytest.raises(PrelaxError, match=r"the loss is (nan|inf) at step \d; try a lower --lr"):
        detect("random", toy, tmp_path / "out", settings, progress=False)


def test_the_command_prints_json_and_refuses_in_a_line(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["detect", "random", "--data", str(toy), "--out", str(tmp_path / "out"), "--epochs", "1", "--batch", "8"]
    words += ["--size", "32", "--workers", "2", "--device", "cpu", "--score", "0.9", "--json", "--quiet"]
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["settings"]["batch"], result["peak_lr"]) == (2, 0.01 * 2 / 16)  # there are two images
    assert result["predictions"] == 0  # nothing is so sure after one step
    assert (result["box"]["AP"], result["box"]["AP50"]) == (0.0, 0.0)
    assert (tmp_path / "out" / "predictions.png").is_file()
    assert main(words) == 2
    assert "already holds a detection run" in capsys.readouterr().err
    assert main(["detect", "random", "--data", str(toy / "none"), "--out", str(tmp_path / "other")]) == 2
    assert "no folder" in capsys.readouterr().err


def test_the_command_says_what_a_small_stem_costs_and_how_far_it_is(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prelax.train.progress.SOON", 0.0)
    monkeypatch.setattr("prelax.detect.score.SCORE_BATCH", 1)
    words = ["detect", "random", "--data", str(toy), "--epochs", "2", "--batch", "2", "--size", "40", "--workers", "0"]
    words += ["--device", "cpu", "--score", "0.9", "--draws", "0", "--stem", "small", "--out"]
    for number, more in enumerate(([], ["--json"], ["--quiet"])):
        assert main([*words, str(tmp_path / str(number)), *more]) == 0
        said = capsys.readouterr()
        cost = "--size 40 costs as much as 160 with the usual one, and --size 32 as much as 128"
        assert (cost in said.out) == (not more)
        lines = [line.partition(":")[0] for line in said.err.splitlines() if line.endswith(" to go")]
        assert lines == ([] if more else ["epoch 1 of 2", "scored"]), said.err
    usual = ["--size", "32", "--stem", "imagenet", "--epochs", "1"]
    assert main([*words[:-3], *usual, "--out", str(tmp_path / "usual")]) == 0
    assert "costs as much" not in capsys.readouterr().out


def test_two_processes_train_one_detector(toy: Path, tmp_path: Path) -> None:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "prelax", "detect", "random"]
    words += ["--data", str(toy), "--out", str(tmp_path / "out"), "--epochs", "2", "--batch", "2", "--size", "32"]
    words += ["--workers", "0", "--device", "cpu", "--score", "0", "--json", "--quiet"]
    done = subprocess.run([sys.executable, *words], env=TOGETHER, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["processes"] == 2
    assert len(result["curve"]) == 2
    predicted = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert {p["image_id"] for p in predicted} == {3, 7}  # each process looked at one of them


AGREE = """
import torch
from prelax.detect.detect import Trainer
from prelax.train.processes import joined

with joined("cpu") as process:
    trainer = object.__new__(Trainer)
    trainer.process, trainer.device = process, torch.device("cpu")
    trainer.sums, trainer.model = {"loss": float(process.rank)}, torch.nn.BatchNorm2d(2)
    trainer.model.running_mean.fill_(process.rank)
    assert trainer.sums_of_all() == {"loss": 0.5}
    trainer.agree()
    assert trainer.model.running_mean.tolist() == [0.0, 0.0]
"""


def test_processes_score_and_stop_with_what_the_one_that_writes_keeps(tmp_path: Path) -> None:
    (tmp_path / "agree.py").write_text(AGREE)
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(tmp_path / "agree.py")]
    done = subprocess.run([sys.executable, *words], env=TOGETHER, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
