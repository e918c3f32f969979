"""Networks of timm's that are built for images of one size."""

import json
import runpy
from pathlib import Path

import pytest
import torch

from prelax import load
from prelax.config import resolve
from prelax.export import export
from prelax.nets.backbones import backbone, width_of
from prelax.train import pretrain

pytest.importorskip("timm")
TINY = ["data.limit=64", "train.batch_size=32", "train.epochs=1", "train.device=cpu", "train.watch=none"]


def test_a_transformer_is_built_for_the_views_and_takes_small_ones(tmp_path: Path) -> None:
    changes = ["model.backbone=timm:test_vit", "method.name=prelax-crops", "augment.size=32"]
    run = pretrain(resolve("digits/prelax-all", [*TINY, *changes]), tmp_path / "run", progress=False)
    weights = run.load_backbone()
    assert weights["pos_embed"].shape[1] == 1 + 2 * 2  # a class token, and patches of 16 px
    loaded = load(run.path)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in loaded.backbone.state_dict().items())
    images = torch.randint(0, 256, (4, 1, 16, 16), dtype=torch.uint8)
    assert loaded(images).shape == (4, 64)
    assert loaded.fresh(0)(torch.zeros(2, 1, 32, 32)).shape == (2, 64)
    assert loaded.encoder()(torch.zeros(2, 1, 32, 32)).shape == (2, loaded.settings.model.projector_dim)
    theirs = runpy.run_path(str(export(run.path, "timm", tmp_path / "timm") / "load.py"))["net"]
    seen = loaded.preprocess(images)
    with torch.no_grad():
        torch.testing.assert_close(theirs(seen), loaded.backbone(seen))


@pytest.mark.parametrize(
    ("name", "sides"),
    [
        ("test_vit", (32, 16, 48)),
        ("mixer_s32_224", (64,)),
        ("xcit_nano_12_p16_224", (32, 16)),
        ("test_resnet", (32, 40)),
    ],
)
def test_networks_take_the_side_they_are_built_for(name: str, sides: tuple[int, ...]) -> None:
    net = backbone(f"timm:{name}", image_size=sides[0]).eval()
    for side in sides:
        assert net(torch.zeros(2, 3, side, side)).shape == (2, net.features)


@pytest.mark.parametrize("name", ["densenet121", "resnet10t"])
def test_a_network_is_as_wide_as_it_says_whatever_its_parts_are_called(name: str) -> None:
    net = backbone(f"timm:{name}", channels=1, image_size=32).eval()
    assert net(torch.zeros(2, 1, 32, 32)).shape == (2, width_of(net))


def test_a_network_with_a_part_called_features_is_trained_measured_and_exported(tmp_path: Path) -> None:
    changes = ["data.limit=16", "train.batch_size=16", "augment.size=32", "model.backbone=timm:densenet121"]
    run = pretrain(resolve("digits/simsiam", [*TINY, *changes]), tmp_path / "run", progress=False)
    loaded = load(run.path)
    images = torch.randint(0, 256, (4, 1, 16, 16), dtype=torch.uint8)
    assert loaded(images).shape == (4, 1024)
    about = json.loads((export(run.path, "timm", tmp_path / "timm") / "backbone.json").read_text())
    assert about["features"] == 1024


def test_without_a_side_a_network_is_as_timm_has_it() -> None:
    assert backbone("timm:test_vit").pos_embed.shape[1] == 1 + 10 * 10  # 160 px
