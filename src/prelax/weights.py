"""Weights that were trained before: of a run, of a file or published, and how they fit a backbone."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prelax.errors import PrelaxError, first_line
from prelax.loading import check_names, read_hub
from prelax.nets import Network
from prelax.nets.backbones import LAYERS, pretrained_timm
from prelax.run import Run
from prelax.tensors import Damaged, read_tensors

PUBLISHED = "pretrained"
# The deepest convolution that a network of torchvision's names has and the ones below it have not.
DEEPEST = {
    "layer4.2.conv3.weight": "resnet50",
    "layer4.2.conv2.weight": "resnet34",
    "layer4.1.conv2.weight": "resnet18",
    "layer3.0.conv2.weight": "resnet8",
}
STEMS = {3: "small", 7: "imagenet"}
# A ResNet's children as nn.Sequential numbers them.
NUMBERED = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}
DEPTH = 3  # of mappings within mappings in which a file's weights are looked for


@dataclass(frozen=True)
class Weights:
    """Weights by name, with what can be told of the network they are of."""

    name: str  # what they are called
    state: dict[str, Tensor]
    backbone: str | None
    seen: list[dict[str, Any]] | None = None  # the data they were trained on, as `data.json` keeps it; None: not known

    @property
    def stem(self) -> str | None:
        """The first convolution of a ResNet, which cannot be changed without losing it."""
        if self.backbone not in LAYERS:
            return None
        kernel = own_names(by_name(self.state), DEEPEST)["conv1.weight"].shape[-1]
        return STEMS.get(kernel)


def read_weights(source: str, backbone: str | None = None) -> Weights:
    """The weights that a run folder, an exported folder or a file holds, or that are published for a backbone.

    Args:
        source: a folder; a ``.safetensors`` file, or one that ``torch.save`` wrote; or ``pretrained``.
        backbone: whose published weights; those of a ResNet-18 where it is None.
    """
    if source == PUBLISHED:
        return published(backbone or "resnet18")
    path = Path(source)
    if path.is_dir():
        return of_folder(source)
    if not path.is_file():
        meant = f"did you mean {PUBLISHED}?" if source.lower() in (PUBLISHED, "imagenet") else f"or {PUBLISHED}"
        raise PrelaxError(f"{source} is no run folder and no file of weights; give one of them, {meant}")
    state = read_file(path)
    return Weights(source, state, network_of(state))


def of_folder(source: str) -> Weights:
    """The backbone of a run, or of a folder that ``prelax export --to hub`` wrote."""
    path = Path(source)
    if (path / "config.json").is_file() and not (path / "config.yaml").is_file():
        settings, state, _ = read_hub(path)
        return Weights(source, state, settings.model.backbone)
    run = Run.open(path)
    settings, before = run.settings, run.seen_before()
    own = {"data": settings.data.model_dump(mode="json"), "digest": run.trained_on().get("digest")}
    return Weights(source, run.load_backbone(), settings.model.backbone, None if before is None else [*before, own])


def read_file(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name; nothing in it is executed."""
    safe = path.suffix == ".safetensors"
    try:
        held = read_tensors(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise PrelaxError(f"{path} cannot be read: {error.strerror or first_line(error)}") from None
    except Damaged as error:
        raise PrelaxError(f"{path} cannot be read: {error}") from None
    except Exception:
        raise PrelaxError(f"{path} cannot be read: {obstacle(path, safe)}") from None
    state = tensors(held) if isinstance(held, Mapping) else {}
    if not state:
        raise PrelaxError(f"{path} holds no weights by name; save a module's state_dict()")
    return state


def obstacle(path: Path, safe: bool) -> str:
    """Why a file gave no weights; what the library that reads it says is for programmers."""
    if not safe and zipfile.is_zipfile(path):  # what torch.save writes
        return (
            "it holds more than weights (a whole model, the options of a training), and code in a file is not run; "
            "where it came from, save the weights alone: torch.save(model.state_dict(), 'weights.pth')"
        )
    return "it is no file of weights, or it is cut off or damaged"


def tensors(tree: Mapping[Any, Any], depth: int = DEPTH) -> dict[str, Tensor]:
    """The mapping of names to most tensors: checkpoints keep it under a name of their own, and others beside it.

    >>> tensors({"epoch": 3, "queue": torch.zeros(1), "state_dict": {"a": torch.zeros(1), "b": torch.ones(1)}})
    {'a': tensor([0.]), 'b': tensor([1.])}
    """
    found = [{str(name): value for name, value in tree.items() if isinstance(value, Tensor)}]
    if depth:
        found += [tensors(value, depth - 1) for value in tree.values() if isinstance(value, Mapping)]
    return max(found, key=len)


def by_name(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights with torchvision's names where a ResNet's parts are numbered, as ``nn.Sequential`` numbers them.

    >>> names = ("0.weight", "4.0.conv1.weight", "7.0.conv1.weight")
    >>> list(by_name({f"backbone.{name}": torch.zeros(1) for name in names}))
    ['backbone.conv1.weight', 'backbone.layer1.0.conv1.weight', 'backbone.layer4.0.conv1.weight']
    """
    first, last = "4.0.conv1.weight", "7.0.conv1.weight"
    starts = [key.removesuffix(last) for key in state if f".{key}".endswith(f".{last}")]
    for start in starts:
        if {f"{start}0.weight", f"{start}{first}"} <= state.keys():
            state = {renumbered(key, start): tensor for key, tensor in state.items()}
    return state


def renumbered(key: str, start: str) -> str:
    """A name whose part behind ``start`` is the number of a ResNet's child, with the child's name in its place."""
    number, dot, rest = key.removeprefix(start).partition(".")
    return f"{start}{NUMBERED[number]}{dot}{rest}" if key.startswith(start) and number in NUMBERED else key


def own_names(state: Mapping[str, Tensor], wanted: Iterable[str]) -> dict[str, Tensor]:
    """The part of a state that holds most of the wanted names, by these names: checkpoints put others before them.

    >>> list(own_names({"module.encoder_q.a.w": torch.zeros(1), "queue": torch.zeros(1)}, ["a.w"]))
    ['a.w']
    """
    wanted = list(wanted)
    starts = {"": None} | {key[: -len(name)]: None for name in wanted for key in state if key.endswith("." + name)}
    best = max(starts, key=lambda start: sum(start + name in state for name in wanted))  # of equals the first
    return {key[len(best) :]: tensor for key, tensor in state.items() if key.startswith(best)}


def network_of(state: Mapping[str, Tensor]) -> str | None:
    """Which network of torchvision's names weights are of, or None.

    >>> network_of({"fc.weight": torch.zeros(1)}) is None
    True
    """
    names = own_names(by_name(dict(state)), DEEPEST)
    return next((net for key, net in DEEPEST.items() if key in names and "conv1.weight" in names), None)


def published(backbone: str) -> Weights:
    """The weights that torchvision or timm publishes for a backbone, trained with the labels of ImageNet or so."""
    how = "without a network name a file of weights in place of pretrained"
    if backbone.startswith("timm:"):
        pretrained_timm(backbone, 3, None)  # now, before an hour of decoding; as they fit, once the images are known
        return Weights(f"timm's pretrained {backbone.removeprefix('timm:')}", {}, backbone)
    if backbone not in LAYERS:
        raise PrelaxError(
            f"nobody publishes weights of {backbone}: model.weights takes a run folder or a file; published are those "
            f"of {', '.join(LAYERS)} and timm:NAME"
        )
    from torchvision.models import get_model_weights

    chosen: Any = get_model_weights(backbone)["IMAGENET1K_V1"]
    try:
        state = chosen.get_state_dict(progress=False, check_hash=True)
    except Exception as error:
        raise PrelaxError(f"{chosen.url} cannot be fetched ({first_line(error)}); {how}") from None
    return Weights(f"torchvision's {chosen}", state, backbone)


def fitted(weights: Weights, net: nn.Module, backbone: str, channels: int, side: int = 224) -> dict[str, Tensor]:
    """The state of a network with these weights in it; refuses, by the first that differs, those of another one.

    Heads behind the network are left out, and the first convolution is made to take the images' channels.
    """
    wanted = net.state_dict()
    given = weights.state or pretrained_timm(backbone, channels, side).state_dict()
    forms = (own_names(form, wanted) for form in (given, by_name(given)))
    state = max(forms, key=lambda form: len(form.keys() & wanted.keys()))  # of equals as they are: so may the net's be
    parts = {key.split(".")[0] for key in wanted}
    kept = {key: tensor for key, tensor in state.items() if key in wanted or key.split(".")[0] in parts}
    kept = {k: t for k, t in wanted.items() if k.endswith("num_batches_tracked")} | kept  # old files have none
    first = next((key for key, tensor in wanted.items() if tensor.ndim == 4), None)
    if first in kept and kept[first].ndim == 4:
        kept[first] = for_channels(kept[first], wanted[first].shape[1])
    check_names(kept, wanted, backbone, weights.name)
    return {key: kept[key].to(tensor.dtype) for key, tensor in wanted.items()}


def put_into(network: Network, weights: Weights, backbone: str, channels: int, side: int) -> dict[str, Tensor]:
    """Puts weights into a network's backbone, and its target's, before it is trained; gives them as they fit it."""
    state = fitted(weights, network.backbone, backbone, channels, side)
    for encoder in (network.online, network.target):
        if encoder is not None:
            encoder.backbone.load_state_dict(state)
    return state


def for_channels(filters: Tensor, channels: int) -> Tensor:
    """A first convolution for images of so many channels: N x old x height x width > N x channels x height x width.

    Grey images are seen as if all colours were alike; other channels take the colours' filters in turn, scaled so that
    what comes out is as large as it was.

    >>> for_channels(torch.ones(1, 3, 1, 1), 1).flatten().tolist(), for_channels(torch.ones(1, 3, 1, 1), 6).sum().item()
    ([3.0], 3.0)
    """
    old = filters.shape[1]
    if channels == old:
        return filters
    if channels == 1:
        return filters.sum(1, keepdim=True)
    return filters[:, [n % old for n in range(channels)]] * (old / channels)
