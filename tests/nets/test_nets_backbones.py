"""Backbones by name, and state dicts that load anywhere."""

import copy
from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn

from prelax.config import ModelSettings
from prelax.errors import PrelaxError
from prelax.nets import Network, backbone, width_of
from prelax.nets.backbones import idle_weights


@pytest.mark.parametrize(
    ("name", "features"), [("resnet8", 64), ("resnet18", 512), ("resnet34", 512), ("resnet50", 2048)]
)
def test_features_are_as_wide_as_they_say(name: str, features: int) -> None:
    net = backbone(name, "small").eval()
    assert net.features == features
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, features)


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_a_state_dict_is_torchvisions_own_without_the_classifier(name: str) -> None:
    net = getattr(torchvision.models, name)(weights=None)
    result = net.load_state_dict(backbone(name, "imagenet").state_dict(), strict=False)
    assert result.unexpected_keys == []
    assert set(result.missing_keys) == {"fc.weight", "fc.bias"}


@pytest.mark.parametrize(
    ("stem", "size", "small"),
    [("auto", 64, True), ("auto", 65, False), ("auto", None, False), ("small", None, True), ("imagenet", 32, False)],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_stem_is_cifars_or_imagenets_and_auto_is_small_up_to_64_pixels(
    stem: str, size: int | None, small: bool, channels: int
) -> None:
    torch.manual_seed(0)
    net = backbone("resnet18", stem, channels, size)
    theirs = torchvision.models.resnet18(weights=None)
    if small:
        theirs.conv1, theirs.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    assert repr(net.conv1) == repr(theirs.conv1).replace("Conv2d(3,", f"Conv2d({channels},")
    assert repr(net.maxpool) == repr(theirs.maxpool)
    fan_out = 64 * net.conv1.kernel_size[0] ** 2
    assert float(net.conv1.weight.detach().std()) * fan_out**0.5 == pytest.approx(2**0.5, rel=0.08)


@pytest.mark.parametrize("name", ["resnet8", "resnet18"])
def test_convolutions_start_as_torchvisions_do_or_as_torchs_own(name: str) -> None:
    def spread(init: str) -> float:
        torch.manual_seed(0)
        model = ModelSettings(backbone=name, init=init, projector_hidden=8, projector_dim=8, predictor_hidden=8)
        block = Network(model, 3, 32, {}).backbone.layer2[0].conv2
        assert block.in_channels == block.out_channels
        return float(block.weight.detach().std()) * (9 * block.in_channels) ** 0.5

    assert spread("fan-out") == pytest.approx(2**0.5, rel=0.03)
    assert spread("torch") == pytest.approx(3**-0.5, rel=0.03)


def test_resnet8_is_three_blocks_that_halve_the_image_three_times() -> None:
    net = backbone("resnet8", channels=1).eval()
    x = net.conv1(torch.randn(1, 1, 16, 16))
    shapes = [tuple(x.shape[1:])]
    for stage in (net.layer1, net.layer2, net.layer3):
        assert len(stage) == 1
        x = stage(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [(16, 8, 8), (16, 8, 8), (32, 4, 4), (64, 2, 2)]
    assert sum(weight.numel() for weight in net.parameters()) == 77_104


def test_images_of_one_or_many_channels_are_taken() -> None:
    for channels in (1, 6):
        assert backbone("resnet18", "imagenet", channels).eval()(torch.randn(1, channels, 64, 64)).shape == (1, 512)


@pytest.mark.parametrize("name", ["resnet10t", "mobilenetv3_small_050", "lcnet_050"])
def test_any_timm_model_by_name(name: str) -> None:
    net = backbone(f"timm:{name}", channels=3).eval()
    assert net(torch.randn(1, 3, 32, 32)).shape == (1, net.features)


@pytest.mark.parametrize("name", ["resnet19", "timm:nothing_like_it"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(PrelaxError):
        backbone(name)


def test_the_moving_average_is_its_closed_form() -> None:
    torch.manual_seed(0)
    sizes = ModelSettings(backbone="resnet8", projector_hidden=8, projector_dim=4, predictor_hidden=4)
    network = Network(sizes, channels=1, image_size=16, heads={}, moving_target=True)
    theta, phi = list(network.online.parameters()), list(network.target.parameters())
    start = [p.clone() for p in phi]
    seen = []
    for _ in range(3):
        with torch.no_grad():
            for weight in theta:
                weight.add_(torch.randn_like(weight))
        seen.append([weight.clone() for weight in theta])
        network.follow(torch.tensor(0.9))
    for i, weight in enumerate(phi):  # phi_3 = t^3 phi_0 + (1 - t)(t^2 theta_1 + t theta_2 + theta_3)
        wanted = 0.9**3 * start[i] + 0.1 * (0.81 * seen[0][i] + 0.9 * seen[1][i] + seen[2][i])
        torch.testing.assert_close(weight, wanted, rtol=1e-5, atol=1e-6)
    assert not any(weight.requires_grad for weight in phi)


OWN = """
from torch import nn

class Tiny(nn.Sequential):
    features = 8

    def __init__(self, channels):
        layers = nn.Conv2d(channels, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        super().__init__(*layers)

class Wide(nn.Linear):
    def __init__(self, channels):
        super().__init__(channels, 2)

class Parted(nn.Module):
    features_wide = 8

    def __init__(self, channels):
        super().__init__()
        self.features = Tiny(channels)

    def forward(self, images):
        return self.features(images)

class Silent(Parted):
    features_wide = None

def function(channels):
    raise SystemExit("called")
"""


def test_a_network_of_ones_own_is_imported_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_networks.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    net = backbone("own_networks:Tiny", channels=4)
    assert net(torch.zeros(2, 4, 16, 16)).shape == (2, net.features)
    assert width_of(net) == width_of(backbone("own_networks:Parted", channels=4)) == 8
    for name, says in [
        ("own_networks:Wide", r"set self\.features to"),
        ("own_networks:Silent", r"set self\.features_wide to"),
        ("own_networks:function", "function is no Module"),
        ("own_networks:Missing", "Missing"),
        ("no_such_module:Tiny", "no_such_module"),
        ("os:_exit", "_exit is no Module"),
        (":", "must be MODULE:CLASS"),
    ]:
        with pytest.raises(PrelaxError, match=says):
            backbone(name)


def test_weights_that_a_network_leaves_out_are_found_and_nothing_of_it_moves() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net[4].head = nn.Linear(4, 2)
    before, drawn = copy.deepcopy(net.state_dict()), torch.random.get_rng_state()
    assert {id(weight) for weight in idle_weights(net, 3, 8)} == {id(weight) for weight in net[4].head.parameters()}
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert idle_weights(net.requires_grad_(False), 3, 8) == []
