"""Detectors: where their weights come from, and that they are torchvision's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.retinanet import _default_anchorgen
from torchvision.ops import FrozenBatchNorm2d

from prelax.detect import DetectSettings, detector, read_start
from prelax.detect.model import onto
from prelax.errors import PrelaxError
from prelax.run import Run

RETINA, MASK = DetectSettings(size=64), DetectSettings(model="maskrcnn", size=64)


@pytest.mark.parametrize("settings", [RETINA, MASK], ids=["retinanet", "maskrcnn"])
@pytest.mark.parametrize("norm", ["trained", "frozen"])
def test_every_weight_of_the_body_is_the_runs(backbone_run: Path, settings: DetectSettings, norm: str) -> None:
    settings = DetectSettings(settings.model, size=64, norm=norm)
    body = detector(read_start(backbone_run), settings, 2).backbone.body.state_dict()  # type: ignore[union-attr]
    state = Run.open(backbone_run).load_backbone()
    if norm == "frozen":
        state = {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}
    assert set(body) == set(state)
    assert all(torch.equal(body[key], state[key]) for key in state)


def test_a_file_of_torchvisions_weights_is_recognised_with_its_classifier(tmp_path: Path) -> None:
    for name in ("resnet18", "resnet34", "resnet50"):
        state = getattr(torchvision.models, name)(weights=None).state_dict()
        save_file(state, tmp_path / f"{name}.safetensors")
        start = read_start(tmp_path / f"{name}.safetensors")
        assert (start.backbone, start.stem) == (name, "imagenet")
    torch.save({"state_dict": {f"module.{key}": tensor for key, tensor in state.items()}}, tmp_path / "theirs.pth")
    assert read_start(tmp_path / "theirs.pth").digest == start.digest
    body = detector(start, RETINA, 2).backbone.body  # type: ignore[union-attr]
    assert torch.equal(body.layer4[2].conv3.weight, state["layer4.2.conv3.weight"])  # type: ignore[union-attr, index]


def test_a_file_whose_parts_are_numbered_is_the_resnet_it_was_cut_from(tmp_path: Path) -> None:
    net = torchvision.models.resnet34(weights=None)
    listed = nn.Sequential(*list(net.children())[:-1]).state_dict()
    torch.save({f"backbone.{key}": tensor for key, tensor in listed.items()}, tmp_path / "listed.pth")
    save_file(net.state_dict(), tmp_path / "named.safetensors")
    start = read_start(tmp_path / "listed.pth")
    assert (start.backbone, start.stem) == ("resnet34", "imagenet")
    assert start.digest == read_start(tmp_path / "named.safetensors").digest


def test_the_detector_is_torchvisions_on_a_plain_resnet() -> None:
    torch.manual_seed(0)
    theirs = torchvision.models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=3)
    ours = detector(read_start("random", "resnet50"), MASK, 2)
    assert {k: v.shape for k, v in ours.state_dict().items()} == {k: v.shape for k, v in theirs.state_dict().items()}
    assert ours.rpn.anchor_generator.sizes == theirs.rpn.anchor_generator.sizes  # type: ignore[union-attr]
    assert detector(read_start("random"), RETINA, 2).anchor_generator.sizes == _default_anchorgen().sizes  # type: ignore[union-attr]


def test_levels_are_torchvisions_in_either_memory_layout() -> None:
    pyramid = detector(read_start("random"), RETINA, 2).eval().backbone
    images = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        plain = BackboneWithFPN.forward(pyramid, images)  # type: ignore[arg-type]
        pyramid.memory_format = torch.channels_last  # type: ignore[assignment]
        ours = pyramid(images)  # type: ignore[operator]
    assert list(ours) == list(plain)
    assert all(torch.allclose(ours[level], plain[level], atol=1e-5) for level in plain)


def test_bfloat16_is_refused_on_the_cpu_and_auto_is_float32_there() -> None:
    made = detector(read_start("random"), RETINA, 2)
    with pytest.raises(PrelaxError, match="bfloat16 is for CUDA"):
        onto(made, torch.device("cpu"), "bfloat16")
    assert onto(made, torch.device("cpu"), "auto").backbone.bfloat16 is False  # type: ignore[union-attr]


def test_one_process_a_core_decodes_up_to_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(16), raising=False)
    assert [DetectSettings().decoders(world) for world in (1, 4, 32)] == [8, 4, 1]
    assert DetectSettings(workers=0).decoders() == 0


def test_pyramid_and_heads_do_not_depend_on_the_start(backbone_run: Path) -> None:
    one, two = (detector(read_start(name), RETINA, 2).state_dict() for name in ("random", backbone_run))
    heads = [key for key in one if not key.startswith("backbone.body")]
    assert heads
    assert all(torch.equal(one[key], two[key]) for key in heads)
    assert not torch.equal(one["backbone.body.conv1.weight"], two["backbone.body.conv1.weight"])
    other = detector(read_start("random"), DetectSettings(size=64, seed=1), 2).state_dict()
    assert not torch.equal(one["head.regression_head.conv.0.0.weight"], other["head.regression_head.conv.0.0.weight"])


def test_weights_are_frozen_norms_by_default_and_random_ones_are_not(backbone_run: Path) -> None:
    found = detector(read_start(backbone_run), RETINA, 2)
    fresh = detector(read_start("random"), RETINA, 2)
    assert sum(isinstance(m, FrozenBatchNorm2d) for m in found.modules()) == 20
    assert sum(type(m) is nn.BatchNorm2d for m in fresh.modules()) == 20
    with pytest.raises(PrelaxError, match="random weights have no statistics"):
        detector(read_start("random"), DetectSettings(norm="frozen"), 2)


def test_the_small_stem_is_kept_and_anchors_follow_its_strides() -> None:
    net = detector(read_start("random", stem="small"), DetectSettings(size=32), 2).eval()
    assert net.backbone.body.conv1.weight.shape == (64, 3, 3, 3)  # type: ignore[union-attr]
    maps = net.backbone(torch.zeros(1, 3, 32, 32))  # type: ignore[operator]
    assert [m.shape[-1] for m in maps.values()] == [16, 8, 4, 2, 1]
    sizes = net.anchor_generator.sizes  # type: ignore[union-attr]
    assert [level[0] for level in sizes] == [4 * 32 // m.shape[-1] for m in maps.values()]


def test_a_start_that_cannot_be_one_is_refused_in_a_line(tmp_path: Path, backbone_run: Path) -> None:
    state = Run.open(backbone_run).load_backbone()
    save_file({k: v for k, v in state.items() if k != "layer3.0.bn1.weight"}, tmp_path / "less.safetensors")
    save_file(state | {"conv1.weight": torch.zeros(64, 1, 7, 7)}, tmp_path / "grey.safetensors")
    (tmp_path / "torn.safetensors").write_bytes(b"no weights")
    (tmp_path / "old.pth").write_bytes(b"anything")
    for name, said in {
        "less.safetensors": "layer3.0.bn1.weight is missing",
        "grey.safetensors": "not the first convolution of a ResNet on colour images",
        "torn.safetensors": "cannot be read",
        "old.pth": "cannot be read",
        "nothing": "no run folder and no file",
    }.items():
        with pytest.raises(PrelaxError, match=said) as error:
            read_start(tmp_path / name)
        assert "\n" not in str(error.value)
    with pytest.raises(PrelaxError, match="no detector on 'resnet8'"):
        read_start("random", "resnet8")


def test_a_run_of_a_backbone_without_four_stages_is_refused(tmp_path: Path) -> None:
    from prelax.config import resolve
    from prelax.nets import backbone

    run = Run.create(tmp_path / "digits", resolve("digits/simsiam"))
    run.save_backbone(backbone("resnet8", channels=1).state_dict())
    with pytest.raises(PrelaxError, match="is a run of resnet8; a detector needs one of resnet18"):
        read_start(tmp_path / "digits")


@pytest.mark.parametrize(
    "bad", [{"model": "yolo"}, {"epochs": 0}, {"norm": "group"}, {"lr": -1.0}, {"lr": float("nan")}, {"score": 2.0}]
)
def test_settings_that_make_no_sense_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(PrelaxError, match=next(iter(bad))):
        DetectSettings(**bad)  # type: ignore[arg-type]
