"""Whole runs on the digits: every method, base and optimiser trains, and what goes wrong is said."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from prelax.config import Settings, resolve
from prelax.errors import PrelaxError
from prelax.loading import load, save_hub
from prelax.objectives import METHODS
from prelax.train import effective_rank, pretrain
from prelax.train.pretrain import trouble

TINY = [
    "data.limit=96",
    "model.projector_hidden=32",
    "model.projector_dim=16",
    "model.predictor_hidden=8",
    "model.head_hidden=16",
    "train.batch_size=32",
    "train.epochs=1",
    "train.stop_on_collapse=false",
    "train.device=cpu",
    "train.watch=none",
]


def tiny(*changes: str, recipe: str = "digits/prelax-all") -> Settings:
    return resolve(recipe, [*TINY, *changes])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_an_epoch(name: str, tmp_path: Path) -> None:
    run = pretrain(tiny(f"method.name={name}"), tmp_path / "run", progress=False)
    (line,) = run.metrics()
    assert line["epoch"] == 1
    assert all(value == value for value in line.values())
    assert run.load_backbone()["conv1.weight"].shape == (16, 1, 3, 3)


@pytest.mark.parametrize("base", ["byol", "simclr"])
@pytest.mark.parametrize("name", ["prelax-std", "prelax-rot", "prelax-all"])
def test_prelax_stands_on_every_base(name: str, base: str, tmp_path: Path) -> None:
    run = pretrain(tiny(f"method.name={name}", f"method.base={base}"), tmp_path / "run", progress=False)
    assert run.metrics()[0]["loss"] > 0


@pytest.mark.parametrize("relax", ["vertical-flip", "jigsaw", "crop", "blur", "free-rotation"])
def test_any_augmentation_can_be_relaxed(relax: str, tmp_path: Path) -> None:
    run = pretrain(tiny("method.name=prelax-rot", f"method.relax={relax}"), tmp_path / "run", progress=False)
    assert run.metrics()[0]["loss/rotpl"] > 0


@pytest.mark.parametrize("optimizer", ["lars", "adamw", "muon"])
def test_every_optimiser_trains(optimizer: str, tmp_path: Path) -> None:
    run = pretrain(tiny(f"train.optimizer={optimizer}", "train.lr=0.01"), tmp_path / "run", progress=False)
    assert run.metrics()[0]["loss"] > 0


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(tmp_path: Path) -> None:
    one, two = (pretrain(tiny(), tmp_path / name, progress=False).load_backbone() for name in "ab")
    assert all(torch.equal(one[name], two[name]) for name in one)
    other = pretrain(resolve("digits/prelax-all", TINY, seed=1), tmp_path / "c", progress=False).load_backbone()
    assert not torch.equal(one["conv1.weight"], other["conv1.weight"])


SHARES = """
from torch import nn

class Net(nn.Sequential):
    features = 8

    def __init__(self, channels):
        layer = nn.Linear(8, 8)
        super().__init__(nn.Conv2d(channels, 8, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), layer, nn.ReLU(), layer)
"""


def test_a_network_whose_layers_share_weights_is_kept_and_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sharing.py").write_text(SHARES)
    monkeypatch.chdir(tmp_path)
    run = pretrain(tiny("model.backbone=sharing:Net", "train.epochs=1"), tmp_path / "run", progress=False)
    images = torch.randint(256, (4, 1, 16, 16), dtype=torch.uint8)
    assert torch.equal(load(save_hub(run, tmp_path / "hub"))(images), load(run.path)(images))


BANDS = """
import torch
from torch import nn

class Net(nn.Module):
    features = 8

    def __init__(self, channels):
        super().__init__()
        self.over = nn.Sequential(nn.Conv3d(1, 8, (channels, 3, 3), 2), nn.BatchNorm3d(8), nn.AdaptiveAvgPool3d(1))
        self.register_buffer("window", torch.ones(1, 1, 1, 1, 1))

    def forward(self, images):
        return self.over(images[:, None] * self.window).flatten(1)
"""


def test_a_network_with_weights_of_five_dimensions_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bands.py").write_text(BANDS)
    monkeypatch.chdir(tmp_path)
    run = pretrain(tiny("model.backbone=bands:Net", "data.channels=1"), tmp_path / "run", progress=False)
    assert load(run.path)(torch.zeros(2, 1, 16, 16, dtype=torch.uint8)).shape == (2, 8)


@pytest.mark.parametrize("every", [1, 40])
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_checkpoint_there_is(
    every: int, tmp_path: Path
) -> None:
    changes = ("train.epochs=40", "train.lr=1e4", f"train.checkpoint_every={every}", "model.projector_last_norm=false")
    with pytest.raises(PrelaxError, match=r"Try a lower train\.turn, a lower train\.lr or train\.warmup") as raised:
        pretrain(tiny(*changes), tmp_path / "run", progress=False)
    assert ("checkpoint" in str(raised.value)) == (tmp_path / "run" / "checkpoint.pt").exists()
    last = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["loss"] is None


def test_collapse_is_told_in_words() -> None:
    line = {"loss": 0.1, "embedding_std": 0.001, "effective_rank": 1.01}
    watched = tiny("train.stop_on_collapse=true")
    assert "collapsed" in trouble([line] * 10, watched, 32)
    assert trouble([line] * 9, watched, 32) is None  # it may pass
    assert trouble([line] * 10, tiny(), 32) is None
    assert trouble([line] * 9 + [{**line, "embedding_std": 0.9, "effective_rank": 12.0}], watched, 32) is None
    assert trouble([{**line, "embedding_std": 0.9}] * 10, watched, 2) is None  # two images span one direction
    assert trouble([{**line, "embedding_std": 0.8, "effective_rank": 1.4}] * 10, watched, 32) is None  # near one line


def test_effective_rank_counts_directions() -> None:
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(400, 3, generator=generator) @ torch.linalg.qr(torch.randn(20, 20, generator=generator))[0][:3]
    assert effective_rank(wide) == pytest.approx(3.0, abs=0.1)
    assert effective_rank(torch.ones(5, 4)) == pytest.approx(1.0, abs=1e-6)


def test_bfloat16_on_the_cpu_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(PrelaxError, match="float32"):
        pretrain(tiny("train.precision=bfloat16"), tmp_path / "run", progress=False)


def test_two_runs_into_one_folder_are_refused(tmp_path: Path) -> None:
    run = pretrain(tiny(), tmp_path / "run", progress=False)
    with run.lock(), pytest.raises(PrelaxError, match="another process"):
        pretrain(tiny(), tmp_path / "run", resume=True, progress=False)


def test_tensorboard_gets_the_same_curves(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = pretrain(tiny("train.epochs=2", "train.watch=tensorboard"), tmp_path / "run", progress=False)
    events = EventAccumulator(str(run.path / "tensorboard")).Reload()
    seen = [(event.step, event.value) for event in events.Scalars("loss/sim")]
    assert seen == [(line["epoch"], pytest.approx(line["loss/sim"])) for line in run.metrics()]


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(PrelaxError, match=r"prelax\[wandb\]"):
        pretrain(tiny("train.watch=wandb"), tmp_path / "run", progress=False)


def test_metrics_are_json_a_line_an_epoch(tmp_path: Path) -> None:
    run = pretrain(tiny("train.epochs=2"), tmp_path / "run", progress=False)
    lines = [json.loads(text) for text in (run.path / "metrics.jsonl").read_text().splitlines()]
    wanted = {"epoch", "loss", "loss/sim", "residual_norm", "embedding_std", "effective_rank", "lr", "images_per_s"}
    wanted |= {"seconds", "views_per_s", "data_wait"}
    assert [line["epoch"] for line in lines] == [1, 2]
    assert wanted <= lines[0].keys()
    assert os.path.exists(run.path / "checkpoint.pt")


def test_wandb_gets_one_run_of_its_own_and_resuming_adds_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = pretrain(tiny("train.watch=wandb"), tmp_path / "run", progress=False)
    pretrain(tiny("train.watch=wandb"), run.path, resume=True, progress=False)
    assert len({folder.name.rpartition("-")[2] for folder in run.path.glob("wandb/offline-run-*")}) == 1


def test_an_augmentation_refused_in_the_first_step_leaves_the_folder_free(tmp_path: Path) -> None:
    with pytest.raises(PrelaxError, match="channel"):
        pretrain(tiny("method.relax=jitter"), tmp_path / "run", progress=False)
    pretrain(tiny(), tmp_path / "run", progress=False)
