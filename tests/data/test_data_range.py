"""What becomes 0 and 255 of images deeper than 8 bits: found in a draw of the set, kept by the run, or given."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from prelax.cli import main
from prelax.config import DataSettings, resolve
from prelax.data import ImageSet
from prelax.errors import PrelaxError
from prelax.evaluate import evaluate
from prelax.run import Run

Read = Callable[..., ImageSet]


def cell(path: Path, top: int, kind: type = np.uint16) -> Path:
    """An image of noise up to ``top``, different for every path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(list(path.name.encode())).random((32, 32))
    np.save(path, (pixels * top).astype(kind))
    return path


def test_channels_that_take_turns_among_the_files_do_not_hide_the_bright_ones(tmp_path: Path, read: Read) -> None:
    for field in range(256):
        for channel, top in enumerate((900, 20_000, 40_000, 60_000), 1):
            cell(tmp_path / "set" / f"field{field:03d}_ch{channel}.npy", top)
    found = read(tmp_path / "set")
    assert found.range == "0,65535;"
    assert any("0 to 65535 becomes 0 to 255: what 256 of them need" in note for note in found.notes)
    assert float((found.images == 255).float().mean()) < 0.01


@pytest.mark.parametrize(("given", "low", "high"), [("100,1123", 100, 1123), ("0,4095;", 0, 4095), (";0,1", 0, 1023)])
def test_a_range_that_is_given_is_taken(tmp_path: Path, read: Read, given: str, low: int, high: int) -> None:
    path = cell(tmp_path / "set" / "one.npy", 1000)
    found = read(tmp_path / "set", range=given)
    wanted = np.clip((np.load(path).astype(float) - low) / (high - low), 0, 1) * 255
    assert np.abs(found.images[0, 0].numpy() - wanted).max() <= 0.51


@pytest.mark.parametrize("wrong", ["5", "5,1", "a,b", "0,inf", ";", "0,1;0,1;0,1"])
def test_a_range_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(PrelaxError, match=r"data\.range: .*two numbers LOW,HIGH are wanted"):
        resolve("folder", [f"data.range={wrong}"])


def test_pixels_that_are_no_numbers_are_black_and_white_without_a_warning(tmp_path: Path, read: Read) -> None:
    (tmp_path / "set").mkdir()
    pixels = np.full((32, 32), 0.5, np.float32)
    pixels[0, :3] = np.nan, np.inf, -np.inf
    np.save(tmp_path / "set" / "one.npy", pixels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read(tmp_path / "set")
    assert found.images[0, 0, 0, :4].tolist() == [0, 255, 0, 128]


def test_an_image_without_a_finite_pixel_is_none(tmp_path: Path, read: Read) -> None:
    (tmp_path / "set").mkdir()
    np.save(tmp_path / "set" / "one.npy", np.full((32, 32), 0.5, np.float32))
    np.save(tmp_path / "set" / "void.npy", np.full((32, 32), np.nan, np.float32))
    found = read(tmp_path / "set")
    assert len(found) == 1
    assert [(Path(path).name, why) for path, why in found.skipped] == [("void.npy", "no finite pixel")]


def test_other_images_are_read_by_the_range_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PRELAX_CACHE", str(tmp_path / "cache"))
    for place in range(40):
        cell(tmp_path / "all" / f"{place:02d}.npy", 900 if place < 12 else 15_000)
    for place in range(12):  # the dim ones alone would be read by another range
        other = tmp_path / "dim" / ("train" if place < 4 else "test") / "ab"[place % 2] / f"{place:02d}.npy"
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes((tmp_path / "all" / f"{place:02d}.npy").read_bytes())
    small = ["model.backbone=resnet8", "train.epochs=1", "train.batch_size=16", "data.workers=0", "train.device=cpu"]
    out = str(tmp_path / "run")
    assert main(["pretrain", "folder", f"data.root={tmp_path}/all", *small, "--out", out, "--quiet"]) == 0
    assert Run.open(out).settings.data.range == "0,16383;"
    for name, on in (("all", []), ("dim", ["--on", str(tmp_path / "dim")])):
        assert main(["embed", out, *on, "-o", str(tmp_path / f"{name}.npz"), "--device", "cpu", "--quiet"]) == 0
    all_, dim = np.load(tmp_path / "all.npz"), np.load(tmp_path / "dim.npz")
    rows = {Path(path).name: row for row, path in enumerate(all_["path"])}
    same = [rows[Path(path).name] for path in dim["path"]]
    assert np.allclose(all_["embedding"][same], dim["embedding"], atol=1e-5)
    monkeypatch.chdir(tmp_path)  # a picture that lies there is not its own find, however its folder is named
    words = ["search", out, "dim/train/a/00.npy", "--on", "dim", "-k", "2", "--json", "--device", "cpu"]
    capsys.readouterr()
    assert main(words) == 0
    assert "train/a/00.npy" not in capsys.readouterr().out.split('"found"')[1]
    capsys.readouterr()
    assert main(["evaluate", out, "--on", "dim", "-p", "knn", "--device", "cpu"]) == 2
    assert "test images of dim were in pre-training" in capsys.readouterr().err


def test_a_blank_image_among_others_is_black_and_no_range_of_nothing(tmp_path: Path, read: Read) -> None:
    for name, value in (("a", -9999.0), ("b", 300.5)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "blank.npy", np.full((32, 32), value, np.float32))
        found = read(tmp_path / name)
        assert found.range == f";{value:g},{value + 1:g}"
        assert DataSettings(range=found.range).range == found.range
        assert not found.images.any()


def test_what_a_run_learnt_from_is_known_in_whatever_range_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRELAX_CACHE", str(tmp_path / "cache"))
    for place in range(60):
        cell(tmp_path / "set" / "ab"[place % 2] / f"{place:02d}.npy", 1000)
    small = ["model.backbone=resnet8", "train.epochs=1", "train.batch_size=8", "data.workers=0", "train.device=cpu"]
    words = [f"data.root={tmp_path}/set", "data.range=0,2000", "data.image_size=32", *small]
    assert main(["pretrain", "folder", *words, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    run = Run.open(tmp_path / "run")
    on = DataSettings(source="folder", root=tmp_path / "set", image_size=32, channels=1, workers=0)
    (found,) = evaluate(run, ["knn"], on=on, device="cpu")
    assert (found["pretraining_images_verified"], found["test_images_left_out_as_seen"]) == (False, 0)
    with pytest.raises(PrelaxError, match="were in pre-training"):
        evaluate(run, ["knn"], on=on.model_copy(update={"test_fraction": 0.7}), device="cpu")


@pytest.mark.parametrize(
    ("top", "low", "high"),
    [(1.0, 0, 1), (1.02, 0, 1.02), (5.0, 0, 5.0), (0.02, 0, 1), (200.0, 0, 255), (900.0, 0, 900.0)],
)
def test_floats_are_read_by_what_they_plainly_are_or_else_by_what_was_found(
    tmp_path: Path, read: Read, top: float, low: float, high: float
) -> None:
    (tmp_path / "set").mkdir()
    pixels = np.linspace(0, top, 32 * 32, dtype=np.float32).reshape(32, 32)
    np.save(tmp_path / "set" / "one.npy", pixels)
    wanted = (pixels - low) / (high - low) * 255
    assert np.abs(read(tmp_path / "set").images[0, 0].numpy() - wanted).max() <= 0.51


def test_floats_that_go_below_zero_by_little_are_not_squeezed(tmp_path: Path, read: Read) -> None:
    (tmp_path / "set").mkdir()
    np.save(tmp_path / "set" / "one.npy", np.linspace(-0.02, 0.05, 1024, dtype=np.float32).reshape(32, 32))
    images = read(tmp_path / "set").images
    assert (int(images.min()), int(images.max())) == (0, 255)
