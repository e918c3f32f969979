"""Backbones by name: images in, one vector an image out, state dicts that load anywhere."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable

import torch
import torchvision
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck

from prelax.collectives import alone
from prelax.config import nearest
from prelax.errors import PrelaxError, first_line
from prelax.names import BACKBONES
from prelax.nets.norm import ViewNorm2d, normalised
from prelax.own import find_own, make_own


class Basic(BasicBlock):
    """torchvision's block, with what follows a normalisation said in the same call."""

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = normalised(self.bn1, self.conv1(x), relu=True)
        return normalised(self.bn2, self.conv2(out), shortcut, relu=True)


class Deep(Bottleneck):
    """torchvision's block of three, in the same way."""

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = normalised(self.bn1, self.conv1(x), relu=True)
        out = normalised(self.bn2, self.conv2(out), relu=True)
        return normalised(self.bn3, self.conv3(out), shortcut, relu=True)


class ResNet(torchvision.models.ResNet):
    """torchvision's network of these blocks: its names, its initial weights, its state dict."""

    def _forward_impl(self, x: Tensor) -> Tensor:
        x = self.maxpool(normalised(self.bn1, self.conv1(x), relu=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


LAYERS: dict[str, tuple[type[Basic | Deep], list[int]]] = {
    "resnet18": (Basic, [2, 2, 2, 2]),
    "resnet34": (Basic, [3, 4, 6, 3]),
    "resnet50": (Deep, [3, 4, 6, 3]),
}


def check_backbone_name(name: str) -> None:
    """Refuses a name that no backbone has, without making one."""
    if name.startswith("timm:"):
        own = name.removeprefix("timm:")
        try:
            import timm
        except ImportError:
            raise PrelaxError(f"backbone {name} needs timm: pip install 'prelax[timm]'") from None
        if not timm.is_model(own):
            raise PrelaxError(f"timm has no model {own!r}{nearest(own, timm.list_models())[:80]}")
    elif ":" in name:
        find_own(name, "backbone", "MODULE:CLASS")
    elif name not in BACKBONES:
        raise PrelaxError(f"model.backbone: no {name!r}{nearest(name, BACKBONES)}")


def backbone(
    name: str, stem: str = "auto", channels: int = 3, image_size: int | None = None, init: str = "fan-out"
) -> nn.Module:
    """A network from B x C x H x W to B x ``features``.

    Args:
        name: a name of ``BACKBONES``; ``MODULE:CLASS`` is imported, from the folder one is in among others.
        stem: ``small`` (3x3, stride 1, no max-pool), ``imagenet`` (7x7, stride 2, max-pool), or ``auto``: small for
            images up to 64 px.
        channels: of the images.
        image_size: what ``auto`` goes by, and what a timm network of a fixed size is built for.
        init: ``torch`` gives convolutions nn.Conv2d's own first weights in place of the network's.

    >>> backbone("resnet18", "small").features
    512
    """
    check_backbone_name(name)
    if name.startswith("timm:"):
        net = _timm(name.removeprefix("timm:"), channels, image_size)
    elif ":" in name:
        net = _own(name, channels)
    elif name == "resnet8":
        net = ResNet8(channels)
    else:
        net = _resnet(name, channels, stem == "small" or (stem == "auto" and (image_size or 65) <= 64))
    if init == "torch":
        for layer in net.modules():
            if isinstance(layer, nn.Conv2d):
                layer.reset_parameters()
    return net


def channels_last(net: nn.Module) -> None:
    """Lays the weights of convolutions over images out as those images are; weights of five dimensions stay."""
    for tensor in (*net.parameters(), *net.buffers()):
        if tensor.ndim == 4:
            tensor.data = tensor.data.to(memory_format=torch.channels_last)  # of 1 x 1 kernels the strides as well


def _resnet(name: str, channels: int, small: bool) -> nn.Module:
    net = ResNet(*LAYERS[name], norm_layer=ViewNorm2d)
    net.features = net.fc.in_features
    net.fc = nn.Identity()
    if small:
        net.conv1 = nn.Conv2d(channels, 64, kernel_size=3, stride=1, padding=1, bias=False)
        net.maxpool = nn.Identity()
    elif channels != 3:
        net.conv1 = nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
    if small or channels != 3:
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    return net


def pretrained_timm(name: str, channels: int, side: int | None) -> nn.Module:
    """A network ``timm:NAME`` with the weights that timm publishes for it, fitted by timm to channels and side."""
    try:
        return _timm(name.removeprefix("timm:"), channels, side, pretrained=True)
    except PrelaxError:
        raise
    except Exception as error:
        raise PrelaxError(
            f"timm's weights of {name.removeprefix('timm:')} cannot be fetched ({first_line(error)}); without a "
            "network name a file of weights in place of pretrained"
        ) from None


def _timm(name: str, channels: int, side: int | None, pretrained: bool = False) -> nn.Module:
    """A network of timm's; a transformer, which has a place for every patch of an image, for images of this side."""
    check_backbone_name(f"timm:{name}")
    import timm

    make: Callable[..., nn.Module] = functools.partial(
        timm.create_model, name, pretrained=pretrained, num_classes=0, in_chans=channels
    )
    fixed = side is not None and getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False)
    sized = {"img_size": side}
    for given in ({**sized, "dynamic_img_size": True}, sized) if fixed else ():  # not all of them know both
        with contextlib.suppress(TypeError, ValueError, AssertionError, RuntimeError):
            net = make(**given)
            net.side = side  # type: ignore[assignment]
            break
    else:
        net = make()
    width = getattr(net, "head_hidden_size", None) or net.num_features  # some widen what they pool
    setattr(net, says_width(net), width)
    return net


def says_width(net: nn.Module) -> str:
    """Where a network says how wide its vectors are: some have a part that is called features."""
    return "features_wide" if "features" in dict(net.named_children()) else "features"


def width_of(net: nn.Module) -> int:
    """How wide the vectors of a backbone are.

    >>> width_of(backbone("resnet8"))
    64
    """
    wide = getattr(net, "features_wide", None)
    return int(net.features if wide is None else wide)  # type: ignore[arg-type]


def asked_side(net: nn.Module, channels: int, side: int) -> int:
    """The side of the images a network takes: this one, or the only one that a timm network of fixed size takes."""
    about = getattr(net, "pretrained_cfg", None) or {}
    only = getattr(net, "side", None) or (about["input_size"][-1] if about.get("fixed_input_size") else side)
    if only == side:
        return side
    try:
        tried(net, channels, side)
    except PrelaxError:
        return int(only)
    return side  # some take others all the same


@torch.no_grad()
def tried(net: nn.Module, channels: int, side: int) -> object:
    """What a network gives for two images of a side; refused in its own words where it cannot take them."""
    training, weight = net.training, next(net.parameters())
    try:
        return net.eval()(torch.zeros(2, channels, side, side, device=weight.device))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # each network has its own way to refuse
        raise PrelaxError(f"cannot take views of {side} px ({first_line(error)})") from error
    finally:
        net.train(training)


@alone()
def idle_weights(net: nn.Module, channels: int, side: int) -> list[nn.Parameter]:
    """The weights that have no part in what a network gives, in training or in eval mode: a head it leaves out."""
    idle = [weight for weight in net.parameters() if weight.requires_grad]
    twin = copy.deepcopy(net)
    kept = dict(zip(net.parameters(), twin.parameters(), strict=True))
    images = torch.zeros(2, channels, side, side, device=next(net.parameters()).device)
    for mode in (True, False):
        with torch.random.fork_rng([images.device] if images.is_cuda else []):
            given = twin.train(mode)(images).sum()
        if idle and given.requires_grad:
            found = torch.autograd.grad(given, [kept[weight] for weight in idle], allow_unused=True)
            idle = [weight for weight, gradient in zip(idle, found, strict=True) if gradient is None]
    return idle


def _own(name: str, channels: int) -> nn.Module:
    net: nn.Module = make_own(name, "backbone", nn.Module, channels=channels)
    said = says_width(net)
    if not isinstance(getattr(net, said, None), int):
        raise PrelaxError(f"backbone {name} does not say how wide its output is: set self.{said} to an int")
    return net


class ResNet8(nn.Module):
    """A small ResNet in torchvision's names: one basic block a stage, stem of stride 2."""

    def __init__(self, channels: int = 3, widths: tuple[int, int, int] = (16, 32, 64)) -> None:
        super().__init__()
        self.features = widths[-1]
        self.conv1 = nn.Conv2d(channels, widths[0], kernel_size=3, stride=2, padding=1, bias=False)
        self.bn1 = ViewNorm2d(widths[0])
        self.layer1 = self._stage(widths[0], widths[0], stride=1)
        self.layer2 = self._stage(widths[0], widths[1], stride=2)
        self.layer3 = self._stage(widths[1], widths[2], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @staticmethod
    def _stage(before: int, width: int, stride: int) -> nn.Sequential:
        shortcut = None
        if before != width:
            shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), ViewNorm2d(width))
        return nn.Sequential(Basic(before, width, stride, shortcut, norm_layer=ViewNorm2d))

    def forward(self, x: Tensor) -> Tensor:
        x = normalised(self.bn1, self.conv1(x), relu=True)
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.avgpool(x).flatten(1)  # B x 64
