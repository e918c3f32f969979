"""Detectors on a backbone of this library: where the weights start from, and torchvision's models around them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.ops import FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool, LastLevelP6P7

from prelax.detect.settings import MODELS, DetectSettings
from prelax.errors import PrelaxError
from prelax.loading import load
from prelax.nets import backbone, width_of
from prelax.weights import DEEPEST, PUBLISHED, Weights, by_name, fitted, network_of, own_names, published, read_file

__all__ = ["MODELS", "Start", "detector", "read_start"]

BACKBONES = ("resnet18", "resnet34", "resnet50")
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
PYRAMID = 256  # channels of every level


@dataclass(frozen=True)
class Start:
    """The backbone a detector begins with.

    Args:
        name: as the user gave it.
        backbone: resnet18, resnet34 or resnet50.
        stem: ``imagenet`` (7x7, stride 2, max-pool) or ``small`` (3x3, stride 1), the one the weights have.
        state: the weights; None for random ones.
        mean, std: the normalisation the weights were trained with.
    """

    name: str
    backbone: str
    stem: str
    state: dict[str, Tensor] | None
    mean: tuple[float, ...] = IMAGENET[0]
    std: tuple[float, ...] = IMAGENET[1]

    @property
    def digest(self) -> str | None:
        """A short name of the weights; None of random ones."""
        if self.state is None:
            return None
        found = hashlib.blake2b(digest_size=8)
        for key in sorted(self.state):
            found.update(key.encode() + self.state[key].contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return found.hexdigest()


def read_start(source: Path | str, net: str = "resnet18", stem: str = "imagenet") -> Start:
    """The start a source names: ``random``, a run folder, a file of weights in torchvision's names, or ``pretrained``.

    Args:
        net: of random and of published weights; others say themselves what they are.
        stem: of random weights.
    """
    if str(source) in ("random", PUBLISHED) and net not in BACKBONES:
        raise PrelaxError(f"no detector on {net!r}; use {', '.join(BACKBONES)}")
    if str(source) == "random":
        if stem not in ("imagenet", "small"):
            raise PrelaxError(f"no stem {stem!r}; use imagenet or small")
        return Start("random", net, stem, None)
    if str(source) == PUBLISHED:
        return of_weights(PUBLISHED, published(net).state)
    path = Path(source)
    if path.is_dir():
        return of_run(path)
    if not path.is_file():
        raise PrelaxError(
            f"{source} is no run folder and no file of weights; `random` starts from nothing, "
            f"`{PUBLISHED}` from what torchvision publishes"
        )
    return of_weights(str(source), by_name(read_file(path)))


def of_run(path: Path) -> Start:
    loaded = load(path)
    name, state = loaded.settings.model.backbone, loaded.backbone.state_dict()
    if name not in BACKBONES:
        raise PrelaxError(
            f"{path} is a run of {name}; a detector needs one of {', '.join(BACKBONES)}: train it with "
            f"model.backbone={BACKBONES[0]}"
        )
    if loaded.channels != 3:
        raise PrelaxError(f"{path} takes images of {loaded.channels} channel(s); a detector needs 3")
    mean, std = ((v * 3 if len(v) == 1 else v) for v in (loaded.preprocess.mean, loaded.preprocess.std))
    return Start(str(path), name, stem_of(state, str(path)), state, mean, std)


def of_weights(name: str, state: dict[str, Tensor]) -> Start:
    """A state dict of torchvision's ResNet-18, 34 or 50, with or without its classifier."""
    net = found if (found := network_of(state)) in BACKBONES else BACKBONES[0]
    state = own_names(state, DEEPEST)
    stem = stem_of(state, name)
    state = fitted(Weights(name, state, net), backbone(net, stem), net, 3)
    return Start(name, net, stem, state)


def stem_of(state: dict[str, Tensor], where: str) -> str:
    """Which first convolution the weights have; it cannot be changed without losing them."""
    kernel = tuple(state["conv1.weight"].shape[1:]) if "conv1.weight" in state else ()
    stems = {(3, 7, 7): "imagenet", (3, 3, 3): "small"}
    if kernel not in stems:
        raise PrelaxError(f"{where}: its conv1 is not the first convolution of a ResNet on colour images")
    return stems[kernel]


class Pyramid(BackboneWithFPN):
    """torchvision's backbone with a feature pyramid; on request in bfloat16, its levels handed on in float32.

    Only here: torchvision decodes boxes in the dtype of its heads, and bfloat16 has eight bits for a coordinate.
    """

    bfloat16 = False
    memory_format = torch.contiguous_format

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = x.contiguous(memory_format=self.memory_format)
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=self.bfloat16):
            levels: dict[str, Tensor] = super().forward(x)
        return {name: level.float() for name, level in levels.items()}


def onto(model: nn.Module, device: torch.device, precision: str) -> nn.Module:
    """A detector on a device, in the precision and memory layout that suit it."""
    if precision == "bfloat16" and device.type != "cuda":
        raise PrelaxError("precision=bfloat16 is for CUDA devices; on the CPU use float32")
    model.to(device)
    if device.type == "cuda":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        pyramid = model.backbone
        assert isinstance(pyramid, Pyramid)
        pyramid.memory_format = torch.channels_last
        pyramid.bfloat16 = precision != "float32"
    return model


def detector(start: Start, settings: DetectSettings, categories: int) -> nn.Module:
    """torchvision's RetinaNet or Mask R-CNN on the start's backbone, every layer of it to be trained.

    Pyramid and heads are drawn from the seed alone: the same whatever the backbone starts from. Anchors keep
    torchvision's ratio to the stride, so that they follow a backbone with the small stem, whose strides are a quarter.

    Args:
        categories: how many, the background not counted.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(settings.seed)  # torch.manual_seed reaches every device
        body = backbone(start.backbone, start.stem)
        if start.state is not None:
            body.load_state_dict(start.state)
        body = with_norm(body, norm_of(settings, start))
        torch.default_generator.manual_seed(settings.seed)
        return assemble(body, start, settings, categories)


def assemble(body: nn.Module, start: Start, settings: DetectSettings, categories: int) -> nn.Module:
    """The pyramid and the heads on a backbone."""
    width, first = width_of(body) // 8, 4 if start.stem == "imagenet" else 1
    size, longest = settings.size, round(settings.size * 1333 / 800)
    shape = {"min_size": size, "max_size": longest, "image_mean": list(start.mean), "image_std": list(start.std)}
    if settings.masks:
        layers = {f"layer{k}": str(k - 1) for k in (1, 2, 3, 4)}
        pyramid = Pyramid(body, layers, [width * 2**k for k in range(4)], PYRAMID, LastLevelMaxPool())
        sizes = tuple((8 * first * 2**k,) for k in range(5))
        anchors = AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * 5)
        return MaskRCNN(
            pyramid,
            categories + 1,
            rpn_anchor_generator=anchors,
            box_score_thresh=settings.score,
            box_batch_size_per_image=settings.proposals,
            **shape,
        )
    layers = {f"layer{k}": str(k - 2) for k in (2, 3, 4)}
    extra = LastLevelP6P7(PYRAMID, PYRAMID)
    pyramid = Pyramid(body, layers, [width * 2**k for k in (1, 2, 3)], PYRAMID, extra)
    octaves = [8 * first * 2**k for k in range(5)]  # four times the stride
    sizes = tuple((side, int(side * 2 ** (1 / 3)), int(side * 2 ** (2 / 3))) for side in octaves)  # type: ignore[misc]
    anchors = AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * 5)
    return RetinaNet(
        pyramid,
        categories + 1,
        anchor_generator=anchors,
        score_thresh=settings.score,
        detections_per_img=100,
        **shape,  # type: ignore[arg-type]
    )


def norm_of(settings: DetectSettings, start: Start) -> str:
    """What becomes of BatchNorm; refuses to freeze what was never trained."""
    if settings.norm == "auto":
        return "trained" if start.state is None else "frozen"
    if settings.norm == "frozen" and start.state is None:
        raise PrelaxError("norm=frozen: random weights have no statistics to keep; use norm=trained")
    return settings.norm


def with_norm(body: nn.Module, norm: str) -> nn.Module:
    """A backbone with its BatchNorms frozen, or made torch's own.

    The library's ViewNorm2d takes it that every process has as many pixels as the next, which batches of pictures of
    different shapes do not grant.
    """
    for name, child in body.named_children():
        if isinstance(child, nn.BatchNorm2d):
            kind = FrozenBatchNorm2d if norm == "frozen" else nn.BatchNorm2d
            fresh = kind(child.num_features, eps=child.eps)
            fresh.load_state_dict(child.state_dict())
            setattr(body, name, fresh)
        else:
            with_norm(child, norm)
    return body
