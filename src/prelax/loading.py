"""A trained backbone back in memory: from a run folder, or from a folder in the Hugging Face Hub's layout."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor, nn

import prelax
from prelax import augment
from prelax.config import MethodSettings, Settings, validate
from prelax.data.decode import Plan
from prelax.data.ranges import ranges
from prelax.errors import PrelaxError, first_line
from prelax.nets import Encoder, backbone, projector_of
from prelax.nets.backbones import LAYERS, width_of
from prelax.objectives import Method, method, terms_of
from prelax.objectives.parts import coefficient
from prelax.preprocess import Preprocess, as_stored, check_images, read_picture
from prelax.run import Run
from prelax.stamp import now
from prelax.tensors import plain, read_tensors, write_tensors
from prelax.whole import replacing, write_whole, writing

if TYPE_CHECKING:
    from prelax.train.views import ViewMaker

Picture = str | Path | Image.Image

IMAGE_SIZE = {"digits": 16, "cifar10": 32, "cifar100": 32, "tiny-imagenet": 32}
PATHS = ("root", "test_root", "labels", "cache", "shards")  # of data: this machine's, nobody else's


@dataclass(frozen=True)
class Loaded:
    """A trained backbone with all that is needed to use it."""

    backbone: nn.Module  # B x C x size x size floats -> B x features
    preprocess: Preprocess
    settings: Settings
    channels: int
    device: torch.device
    path: Path
    _quick: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)  # the backbone as a function

    @property
    def size(self) -> int:
        """Side of the images the backbone takes, in pixels."""
        return self.preprocess.size

    def __call__(self, images: Tensor | Picture | Sequence[Tensor | Picture]) -> Tensor:
        """Features of images: B x features.

        Images of other sizes than those the run keeps are brought to theirs first, as files are: the features are those
        of ``prelax embed``, but for the rounding of another resizing (of large JPEGs, which are read reduced).

        Args:
            images: uint8, B x C x H x W; or a picture (a file's path, a Pillow image), or a list of them.
        """
        from prelax.evaluate.features import extract, forward, state_of

        if isinstance(images, str | Path | Image.Image):
            images = [images]
        if isinstance(images, list | tuple) and images:
            images = torch.stack([self.picture(image) for image in images])
        check_images(images, self.channels)
        assert isinstance(images, Tensor)
        state, stored = state_of(self.backbone), own_size(self.settings)
        if self._quick.get("of") != state:
            self._quick.update({"of": state, "run": forward(self.backbone, self.device)})

        def preprocess(x: Tensor) -> Tensor:
            return self.preprocess(as_stored(x, stored))

        return extract(self.backbone, images, preprocess, device=self.device, run=self._quick["run"])

    def picture(self, image: Tensor | Picture) -> Tensor:
        """A picture as the run keeps its own, uint8, C x side x side: for a data loader, which wants all of one size.

        Args:
            image: a file's path, a Pillow image, or a uint8 tensor C x H x W.
        """
        stored, scale = own_size(self.settings), ranges(self.settings.data.range or "")
        if isinstance(image, Tensor):
            check_images(image[None], self.channels)
            return as_stored(image[None], stored)[0]
        if isinstance(image, str | Path | Image.Image):
            plan = Plan(stored, self.channels, scale.get("i", Plan.whole), scale.get("f", Plan.real))
            return read_picture(image, plan)
        raise PrelaxError(f"a picture is a file's path, a Pillow image or a tensor, not a {type(image).__name__}")

    def __repr__(self) -> str:
        taken = f"B x {self.channels} x H x W (seen at {self.size} px)"
        return f"Loaded({self.settings.model.backbone} of {self.path}: {taken} -> B x {width_of(self.backbone)})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_quick": {}}  # a function of this process

    def fresh(self, seed: int) -> nn.Module:
        """The same backbone with random weights: the floor of every figure. Draws nothing from the global generator."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed reaches every device
            net = build(self.settings, self.channels, self.size, self.backbone.state_dict(), str(self.path))
        return net.to(self.device)

    def begun(self) -> nn.Module | None:
        """The same backbone with the weights it began with, in eval mode; None where those were random."""
        state = Run(self.path).load_start()
        if state is None:
            return None
        net = build(self.settings, self.channels, self.size, state, str(self.path))
        net.load_state_dict(state)
        return net.to(self.device).eval()

    def seen_before(self) -> list[dict[str, Any]] | None:
        """The data that the weights it began with were trained on; none where these were random, None: not known."""
        if (self.path / "config.yaml").is_file():
            return Run(self.path).seen_before()
        return [] if self.settings.model.weights is None else None

    def fresh_encoder(self, seed: int) -> nn.Module:
        """F with random weights: the same backbone and projector."""
        body = self.fresh(seed)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed reaches every device
            return Encoder(body, projector_of(self.settings.model, width_of(body))).to(self.device)

    def encoder(self) -> nn.Module:
        """F of the run's checkpoint: backbone and projector, in eval mode; images as the backbone takes them -> z."""
        return load_encoder(Run.open(self.path), self).to(self.device).eval()


def load(path: Path | str, device: torch.device | str = "cpu") -> Loaded:
    """The backbone of a run folder, or of a folder with ``config.json`` and ``model.safetensors``.

    ``device`` may be ``auto``: CUDA where there is one. The backbone comes in eval mode, with ``preprocess`` (uint8
    images in, what it was trained on out) and ``settings``. Weights of another architecture are refused.
    """
    path = Path(path)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError):
        raise PrelaxError(f"device={device!r}: use auto, cpu, cuda or cuda:N") from None
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise PrelaxError(f"device={device}: this machine has no CUDA device; use cpu, or auto")
    if (path / "config.json").is_file() and not (path / "config.yaml").is_file():
        settings, state, preprocess = read_hub(path)
    else:
        run = Run.open(path)
        settings, state = run.settings, run.load_backbone()
        preprocess = kept_preprocess(run) or preprocess_of(settings, channels_of(settings, state, str(path)))
    channels = channels_of(settings, state, str(path))
    net = build(settings, channels, preprocess.size, state, str(path))
    net.load_state_dict(state)
    return Loaded(net.to(device).eval(), preprocess, settings, channels, torch.device(device), path)


def channels_of(settings: Settings, state: dict[str, Tensor], where: str) -> int:
    """The channels of the images: as the run wrote them down, else from what looks like the first convolution."""
    if settings.data.channels is not None:
        return settings.data.channels
    first = next((tensor for tensor in state.values() if tensor.dim() == 4), None)
    stem = state.get("conv1.weight", first)
    if stem is None:
        raise PrelaxError(f"{where}: the weights hold no convolution; they are not a backbone of this library")
    return int(stem.shape[1])


def build(settings: Settings, channels: int, size: int, state: dict[str, Tensor], where: str) -> nn.Module:
    """The backbone of the settings for views of a size, once the names and shapes of the weights are its own."""
    stem = settings.model.stem
    if stem == "auto":  # decided by the image size when the run began, and kept in the weights
        kernel = state["conv1.weight"].shape[-1] if "conv1.weight" in state else 7
        stem = "small" if kernel == 3 else "imagenet"
    name = settings.model.backbone
    net = backbone(name, stem, channels, size, settings.model.init)
    check_names(state, net.state_dict(), f"{name} ({stem} stem)" if name in LAYERS else name, where)
    return net


def check_names(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], what: str, where: str) -> None:
    """Refuses weights whose names and shapes are not those of a network, by the first that differs."""
    not_of = f"{where}: the weights are not of a {what}"
    for key in wanted:
        if key not in state:
            raise PrelaxError(f"{not_of}: {key} is missing")
        if state[key].shape != wanted[key].shape:
            has, needs = ("x".join(map(str, t.shape)) for t in (state[key], wanted[key]))
            raise PrelaxError(f"{not_of}: {key} is {has}, it should be {needs}")
    for key in state:
        if key not in wanted:
            raise PrelaxError(f"{not_of}: {key} is not one of its names")


def views_of(settings: Settings, channels: int, image_size: int | None = None) -> ViewMaker:
    """What made the views of a run; ``image_size`` is needed only for a folder of small images."""
    from prelax.train.views import ViewMaker

    return ViewMaker(settings, channels, image_size or own_size(settings), torch.device("cpu"))


def pipelines_of(settings: Settings, channels: int, image_size: int | None = None) -> tuple[augment.Pipeline, ...]:
    """What views 1 and 2 of a run went through; its method, which may be somebody's own, need not be known for it."""
    from prelax.train.views import plain_pipelines

    return plain_pipelines(settings, channels, image_size or own_size(settings))


def own_size(settings: Settings) -> int:
    return settings.data.image_size or IMAGE_SIZE.get(settings.data.source, 224)


def preprocess_of(settings: Settings, channels: int, image_size: int | None = None) -> Preprocess:
    """The preprocessing that goes with a run's augmentations: their size and normalisation, nothing random."""
    from prelax.train.views import size_of

    one = pipelines_of(settings, channels, image_size)[0]
    ops = one.ops
    normalise = next((op for op in ops if isinstance(op, augment.Normalise)), None)
    crop = next(iter(augment.crops_of(ops)), None)
    mean, std = (normalise.mean, normalise.std) if normalise else ((0.0,), (1.0,))
    size = size_of(one, image_size or own_size(settings))
    return Preprocess(size, mean, std, crop.interpolation if crop else "bilinear")


def kept_preprocess(run: Run) -> Preprocess | None:
    """The preprocessing that a run with a user's own preset keeps: that may have changed since, or not be here."""
    with contextlib.suppress(KeyError, TypeError, ValueError):
        return preprocess_from(run.trained_on()["preprocess"])
    return None


def to_keep(pre: Preprocess) -> dict[str, Any]:
    """A preprocessing as files keep it: what ``preprocess_from`` takes."""
    return {"size": pre.size, "mean": pre.mean, "std": pre.std, "interpolation": pre.interpolation}


def preprocess_from(kept: dict[str, Any]) -> Preprocess:
    return Preprocess(int(kept["size"]), tuple(kept["mean"]), tuple(kept["std"]), kept["interpolation"])


def load_encoder(run: Run, loaded: Loaded) -> nn.Module:
    """The online F of a run's checkpoint, with the backbone's weights checked against the loaded ones' names."""
    checkpoint = run.load_checkpoint()
    if checkpoint is None:
        raise PrelaxError(f"{run.path} has no checkpoint: the projector is kept there, and this needs it")
    mark = "online."
    network = checkpoint.get("network")
    named = network.items() if isinstance(network, dict) else ()
    found = {key[len(mark) :]: value for key, value in named if str(key).startswith(mark)}
    if not found:
        raise PrelaxError(f"{run.path}: the checkpoint holds no projector; this needs the embeddings of a trained run")
    body = build(loaded.settings, loaded.channels, loaded.size, loaded.backbone.state_dict(), str(run.path))
    encoder = Encoder(body, projector_of(loaded.settings.model, width_of(body)))
    try:
        encoder.load_state_dict(found)
    except RuntimeError as error:
        raise PrelaxError(f"{run.path}: the checkpoint is of another network ({first_line(error)})") from None
    return encoder


# -- Hugging Face Hub layout -----------------------------------------------------------------------------------------


def save_hub(run: Run, folder: Path | str) -> Path:
    """Writes ``config.json``, ``model.safetensors`` and a model card: what ``load`` reads and the Hub shows."""
    folder = Path(folder)
    loaded = load(run.path)
    settings = loaded.settings.model_dump(mode="json")
    settings["data"].update(dict.fromkeys(PATHS))
    settings["model"]["weights"] = began_with(loaded.settings)
    config = {
        "library_name": "prelax",
        "prelax": prelax.__version__,
        "backbone": loaded.settings.model.backbone,
        "channels": loaded.channels,
        "features": width_of(loaded.backbone),
        "preprocess": to_keep(loaded.preprocess),
        "settings": settings,
    }
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / "model.safetensors") as temporary:
            write_tensors(plain(loaded.backbone.state_dict()), temporary)
        write_whole(folder / "config.json", json.dumps(config, indent=1) + "\n")
        write_whole(folder / "README.md", model_card(run, loaded))
    return folder


def read_hub(path: Path) -> tuple[Settings, dict[str, Tensor], Preprocess]:
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        preprocess, tree = preprocess_from(config["preprocess"]), config["settings"]
    except (ValueError, KeyError, TypeError) as error:
        raise PrelaxError(f"{path / 'config.json'} was not written by prelax ({first_line(error)})") from None
    weights = path / "model.safetensors"
    if not weights.is_file():
        raise PrelaxError(f"{path} has a config.json but no model.safetensors")
    try:
        return validate(tree, str(path)), read_tensors(weights), preprocess
    except PrelaxError:
        raise
    except Exception as error:
        raise PrelaxError(f"{weights} cannot be read ({first_line(error)})") from None


def model_card(run: Run, loaded: Loaded) -> str:
    """The README of a model: data, method, figures and how to load it."""
    s = loaded.settings
    epochs = next((line["epoch"] for line in reversed(run.metrics())), None)
    rows = [figures_of(name, e) for name, e in run.evals().items() if isinstance(e.get("accuracy"), int | float)]
    figures = (
        "| protocol | dataset | accuracy (%) | std | random backbone | test images |\n|---|---|---|---|---|---|\n"
        + "\n".join(rows)
        if rows
        else "No evaluation was made of this run."
    )
    width = width_of(loaded.backbone)
    try:
        known: Method | None = method(s.method.name)
    except PrelaxError:  # a user's own, which is not here
        known = None
    base = f" on {s.method.base}" if known is not None and known.base is None else ""
    weights = "".join(f", {name} {value:g}" for name, value in weights_of(s.method).items()) if known else ""
    turn = f", turn {s.train.turn:g}" if s.train.optimizer == "muon" else ""
    source = began_with(s)
    began = f"- **Began with**: weights of {source}, which may have seen labels\n" if source else ""
    taught, tag = ("without", "self-supervised-learning, ") if s.method.name != "supervised" else ("with", "")
    return f"""---
library_name: prelax
pipeline_tag: image-feature-extraction
tags: [prelax, {tag}{s.method.name.replace(":", ".")}, {s.data.source}]
---

# {s.model.backbone}, {s.method.name}{base}, {s.data.source}

A backbone trained {taught} labels by prelax {prelax.__version__}; card written {now()[:10]}.

- **Data**: {s.data.source}, views of {loaded.size} px, {loaded.channels} channel(s)
- **Method**: {s.method.name}{base}{weights}
- **Training**: {epochs if epochs is not None else s.train.epochs} epochs, batch {s.train.batch_size}, \
{s.train.optimizer}, lr {s.train.lr:g} per 256 images{turn}, seed {s.seed}
{began}- **Output**: {width} features an image

{figures}

```python
import prelax
model = prelax.load("this folder")
features = model(images)  # uint8, B x {loaded.channels} x H x W -> B x {width}
```
"""


def began_with(settings: Settings) -> str | None:
    """What a backbone began with, by the last part of its name: where it lay says nothing to others."""
    return Path(settings.model.weights).name if settings.model.weights is not None else None


def figures_of(name: str, e: dict[str, Any]) -> str:
    """An evaluation as a line of a model card; what was not measured, a deviation of one seed among it, is a dash."""
    several = len(e.get("seeds") or []) > 1
    shown = [e["accuracy"], e.get("std") if several else None, e.get("floor")]
    cells = [f"{value:.2f}" if isinstance(value, int | float) else "–" for value in shown]
    return f"| {' | '.join([e.get('protocol', name), e.get('dataset', '–'), *cells, str(e.get('test_images', '–'))])} |"


def weights_of(settings: MethodSettings) -> dict[str, float]:
    """The coefficients that a method's terms use, by name.

    >>> weights_of(MethodSettings(name="prelax-all", gamma2=3.2))
    {'alpha': 1.0, 'alpha2': 1.0, 'gamma': 0.1, 'gamma2': 3.2, 'beta': 1.0}
    >>> weights_of(MethodSettings(name="simsiam"))
    {}
    """
    used: list[str] = []
    for term in terms_of(settings):
        used += [term.alpha] if term.kind == "relax" else ["eta"] if term.kind == "margin" else []
        used += [term.coefficient] if term.coefficient is not None else []
    return {name: coefficient(settings, name) for name in dict.fromkeys(used)}
