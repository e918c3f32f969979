"""The training benchmark: its rows, and that no path of ours is slower than a plain loop by design."""

import json
import statistics
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from prelax.cli import main
from prelax.config import resolve
from prelax.train import bench as module
from prelax.train.bench import bench, build, flops_per_image, job, timed
from prelax.train.devices import choose_device
from prelax.train.engine import Engine
from prelax.train.peers import bench_peer, installed, transform_of

SMALL = [
    "model.backbone=resnet8",
    "model.projector_hidden=32",
    "model.projector_dim=16",
    "model.predictor_hidden=8",
    "train.batch_size=16",
    "train.device=cpu",
]


def test_rows_tell_speed_and_the_share_of_augmentation() -> None:
    rows = bench(resolve("cifar10/prelax-rot", SMALL), seconds=0.05)
    assert [row["mode"] for row in rows] == ["plain", "together"]
    for row in rows:
        assert row["views"] == 3
        assert row["views_per_s"] == pytest.approx(3 * 16 / row["ms_per_step"] * 1e3, rel=0.05)
        assert 0 < row["augment_share"] < 1


def test_a_small_view_counts_for_what_it_costs() -> None:
    def flops(name: str) -> int:
        return flops_per_image(build(resolve("cifar10/simsiam", [*SMALL, f"method.name={name}"]), "plain", 16))

    two = flops("simsiam")
    assert flops("prelax-rot") == pytest.approx(1.5 * two)
    assert flops("prelax-turns") == pytest.approx(1.5 * two, rel=0.01)  # four views of a quarter of the pixels


@pytest.mark.parametrize("name", installed())
def test_a_peer_trains_the_same_job(name: str) -> None:
    row = bench_peer(name, resolve("cifar10/simsiam", SMALL), seconds=0.05, workers=0)
    assert row["mode"] == name
    assert row["views_per_s"] > 0


def rough(view: torch.Tensor) -> float:
    """How much of a view's variance lies between neighbouring pixels."""
    return float(view.diff(dim=2).var() / view.var())


@pytest.mark.parametrize("name", installed())
def test_a_peer_blurs_as_the_preset_does(name: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    roughness = {}
    for recipe in ("imagenette/byol", "cifar10/simsiam"):
        views = transform_of(name, resolve(recipe), 64)
        pairs = [views(noise) for _ in range(40)]
        roughness[recipe] = [statistics.mean(rough(pair[n]) for pair in pairs) for n in (0, 1)]
    always, seldom = roughness["imagenette/byol"]
    assert always < 0.7 * seldom  # BYOL blurs all first views and a tenth of the second
    one, two = roughness["cifar10/simsiam"]
    assert one == pytest.approx(two, rel=0.25)  # nothing is blurred


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dozen colour photos of 48 px."""
    monkeypatch.setenv("PRELAX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "photos").mkdir()
    rng = np.random.default_rng(0)
    for number in range(12):
        pixels = rng.integers(0, 256, (48, 52, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    return tmp_path / "photos"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times of all steps, each of which takes a tenth of a second."""
    taken: list[float] = []

    def slow(self: Engine) -> None:
        taken.append(time.perf_counter())
        time.sleep(0.1)

    monkeypatch.setattr(Engine, "take_step", slow)
    return taken


def test_of_a_folder_its_images_are_timed_with_the_settings_that_suit_them(photos: Path) -> None:
    heard: list[str] = []
    asked = resolve("folder", [f"data.root={photos}", "train.device=cpu", "data.test_fraction=0"])
    settings, images = job(asked, heard.append)
    assert images is not None
    assert images.shape == (3, 32, 32)
    assert len(images) == 12
    assert images.images.float().std() > 20  # what is in the files
    assert (settings.model.backbone, settings.train.batch_size, settings.data.image_size) == ("resnet8", 2, 32)
    assert any("batches of 2" in line for line in heard)
    assert job(resolve("cifar10/simsiam"))[1] is None


def test_the_command_times_a_folder_and_shows_what_fits_a_terminal(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "train", "folder", f"data.root={photos}", "--seconds", "0.05", "--device", "cpu"]
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["backbone"], row["image_size"], row["batch"]) for row in rows} == {("resnet8", 32, 2)}
    assert {"method", "device", "torch", "backbone_tflops"} <= set(rows[0])
    assert main(words) == 0
    said = capsys.readouterr().out.splitlines()
    table = next(place for place, line in enumerate(said) if line.startswith("mode"))
    assert said[table].split() == ["mode", "views", "ms_per_step", "views_per_s", "augment_share"]
    assert max(len(line.rstrip()) for line in said[table:]) <= 80
    assert said[table - 1].startswith("prelax-crops, resnet8, views of 32 px, batches of 2, 11 images of photos, ")


def test_without_a_folder_noise_is_timed_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "train", "folder", *SMALL, "--seconds", "0.05", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "with data.root=FOLDER it is the images there" in said
    assert "batches of 16, noise, " in said


def test_a_long_step_is_neither_warmed_up_nor_timed_for_longer_than_asked(
    steps: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench(resolve("cifar10/simsiam", SMALL), seconds=0.05)
    assert len(steps) == 4  # in both modes one before and one that counts
    steps.clear()
    bench(resolve("cifar10/simsiam", SMALL), ["plain"], seconds=0.25)
    assert 3 <= len(steps) <= 3 + 1 + 2
    steps.clear()
    monkeypatch.setattr(module, "LONG", 0.05)
    bench(resolve("cifar10/simsiam", SMALL), seconds=0.05)
    assert len(steps) == 2  # one that takes very long is timed at once


def test_peers_are_left_out_where_they_would_take_minutes(steps: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG", 0.3)
    monkeypatch.setattr(module, "bench_peer", lambda name, settings, seconds: {"mode": name})
    settings, heard = resolve("cifar10/simsiam", SMALL), []
    rows = bench(settings, seconds=0.05, peers=["torchvision"], say=heard.append)
    assert [row["mode"] for row in rows] == ["plain", "together"]
    assert "torchvision left out: a step takes 0." in heard[0]
    monkeypatch.setattr(module, "LONG", 1e9)
    assert bench(settings, ["plain"], seconds=0.05, peers=["torchvision"])[-1]["mode"] == "torchvision"


def test_what_is_timed_is_the_median_of_five_blocks() -> None:
    calls: list[int] = []
    each = timed(lambda: (calls.append(1), time.sleep(0.01)), choose_device("cpu"), 0.2)
    assert each >= 0.01
    assert len(calls) <= 21
