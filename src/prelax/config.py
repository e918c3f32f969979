"""One validated tree of settings: recipes in YAML, ``key=value`` on the command line, ``config.yaml`` in a run."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from prelax.errors import PrelaxError, readable


class Section(BaseModel):
    """A part of the tree; unknown keys and wrong types are refused, and nothing changes once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSettings(Section):
    source: str = Field("digits", description="a name of `prelax list datasets`")
    root: Path | None = Field(None, description="where the files are (not needed for digits)")
    test_root: Path | None = Field(None, description="folder: a second tree of labelled images to evaluate on")
    download: bool = Field(False, description="fetch the files of cifar10 and cifar100 when they are missing")
    shards: str | None = Field(
        None, description="train on WebDataset tar shards: photos-{000..099}.tar, a URL, or pipe:COMMAND; several by ::"
    )
    mix: int = Field(8, ge=1, le=1024, description="shards: a batch is drawn from this many of them at a time")
    image_size: int | None = Field(None, ge=4, le=4096, description="side in pixels images are decoded to; by source")
    channels: int | None = Field(None, ge=1, le=64, description="1 grey, 3 colour; by source")
    labels: Path | None = Field(None, description="folder: a CSV of path,label instead of class sub-folders")
    test_fraction: float = Field(0.1, ge=0.0, lt=1.0, description="folder: share held out when there is no test_root")
    limit: int | None = Field(None, ge=1, le=10**12, description="use only this many training images (a quick pass)")
    cache: Path | None = Field(None, description="folder for decoded pixels; default ~/.cache/prelax")
    store: Literal["auto", "device", "host", "disk"] = Field("auto", description="where decoded pixels stay")
    workers: int | None = Field(None, ge=0, le=256, description="processes that decode; default all cores")

    @property
    def label(self) -> str:
        """What results on it are called: the source, or a folder's own name."""
        named = self.root.expanduser().resolve().name if self.source == "folder" and self.root is not None else ""
        return readable(named) or self.source


class AugmentSettings(Section):
    preset: str = Field("auto", description="a name of `prelax list augmentations`; auto: by source and size")
    size: int | None = Field(None, ge=4, le=2048, description="side of a view in pixels; default by preset")
    small_size: int | None = Field(
        None, ge=4, le=2048, description="side of small views (essl, prelax-turns, -crops); default half a view"
    )
    small_area_from: float | None = Field(
        None, gt=0.0, le=1.0, description="least share of the image in a small crop; default as in the other views"
    )
    small_area_to: float | None = Field(None, gt=0.0, le=1.0, description="the greatest (essl, prelax-crops)")
    compile: Literal["auto", "always", "never"] = Field("auto", description="fuse with torch.compile; auto: on CUDA")


class ModelSettings(Section):
    backbone: str = Field("resnet18", description="resnet8, resnet18, resnet34, resnet50, timm:NAME or MODULE:CLASS")
    stem: Literal["auto", "small", "imagenet"] = Field("auto", description="small: 3x3 stride 1, no max-pool (32 px)")
    init: Literal["fan-out", "torch"] = Field(
        "fan-out", description="of convolutions: torchvision's ResNets', or nn.Conv2d's own, 2.4 times smaller"
    )
    projector_layers: int = Field(3, ge=1, le=8, description="layers of the projector F ends with")
    projector_hidden: int = Field(2048, ge=1, le=65536)
    projector_dim: int = Field(2048, ge=2, le=65536, description="size of an embedding z")
    projector_last_norm: bool = Field(True, description="BatchNorm without affine after the last layer (SimSiam)")
    predictor_hidden: int = Field(512, ge=1, le=65536, description="width inside the predictor G")
    head_layers: int = Field(2, ge=1, le=4, description="depth of the pretext heads H; 1 is linear")
    head_hidden: int = Field(512, ge=1, le=65536)


class MethodSettings(Section):
    name: str = Field("prelax-all", description="a line of `prelax list methods`, or MODULE:NAME")
    base: Literal["simsiam", "byol", "simclr"] = Field("simsiam", description="what Prelax is built on")
    alpha: float = Field(1.0, ge=0.0, le=1.0, description="R2S: 0 exact alignment, 1 identity alignment")
    alpha2: float | None = Field(None, ge=0.0, le=1.0, description="the same for R3S; default alpha")
    beta: float = Field(1.0, ge=0.0, le=1e4, description="weight of the similarity constraint")
    gamma: float = Field(0.1, ge=0.0, le=1e4, description="weight of the predictive loss PL")
    gamma2: float | None = Field(None, ge=0.0, le=1e4, description="the same for the relaxed view's PL; default gamma")
    gamma_end: float = Field(1.0, ge=0.0, le=1.0, description="share of gamma, gamma2 left at the end; falls by cosine")
    eta: float = Field(0.5, ge=0.0, le=1e4, description="margin: mismatch that costs nothing")
    relax: str = Field("rotation", description="the third view: of `prelax list augmentations`, or MODULE:CLASS")
    residual: Literal["raw", "normalised"] = Field("raw", description="difference of embeddings, or of unit embeddings")
    residual_gradient: Literal["full", "detach-in-g", "detach-anchor", "detach"] = Field(
        "full", description="full: the paper's letter; detach-in-g: only PL trains it; detach-anchor: not through z_j"
    )
    residual_norm: Literal["own", "shared"] = Field(
        "own", description="G(r) normalised by its own batch statistics, or by those of the views (affine: no 1/|r|)"
    )
    reverse: bool = Field(False, description="R2S with r21 in place of r12; R3S with r13 where there is no R2S")
    pl_anchor: Literal["same", "other", "none"] = Field(
        "same",
        description="RotPL reads z3 - z1 (the paper's letter), z3 - z2 (another crop, other colours), or z3 alone",
    )
    std_anchor: Literal["other", "none"] = Field("other", description="PL reads z1 - z2 (the letter), or z1 alone")
    pl_reads: Literal["embedding", "backbone"] = Field(
        "embedding", description="PL and RotPL read the residual of embeddings z (the paper's letter) or of features h"
    )
    std_reads: Literal["embedding", "backbone"] | None = Field(None, description="the same for PL; default pl_reads")
    similarity: Literal["both", "one-way"] = Field("both", description="one-way (x2 > x1) is the paper's letter")
    pl_reduction: Literal["sum", "mean"] = Field("mean", description="over the targets of one PL")
    loss_scale: float | None = Field(
        None, gt=0.0, le=1e4, description="of the printed squared distances; default by base"
    )
    temperature: float = Field(0.5, ge=1e-3, le=1e3, description="simclr: NT-Xent")
    tau: float = Field(0.996, ge=0.0, le=1.0, description="byol: the target's decay at the start; rises to 1 by cosine")


class TrainSettings(Section):
    epochs: int = Field(800, ge=1, le=10**6)
    batch_size: int = Field(512, ge=2, le=2**20, description="images a step, over all processes")
    optimizer: Literal["sgd", "lars", "adamw", "muon"] = Field("sgd", description="muon: train.turn, the rest by sgd")
    lr: float = Field(0.03, gt=0.0, le=1e4, description="per 256 images: the rate used is lr * batch_size / 256")
    turn: float = Field(0.02, gt=0.0, le=1.0, description="muon: a matrix's step at its peak, as a share of its length")
    momentum: float = Field(0.9, ge=0.0, lt=1.0)
    weight_decay: float = Field(5e-4, ge=0.0, le=100.0)
    decay_norms: bool = Field(True, description="whether BatchNorms and biases decay as well (never with lars)")
    warmup_epochs: float = Field(0.0, ge=0.0, description="linear from 0")
    final_lr: float = Field(0.0, ge=0.0, le=1.0, description="share of lr that cosine decay ends at")
    predictor_lr: Literal["constant", "cosine"] = Field("constant", description="SimSiam's predictor does not decay")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    precision: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on CUDA")
    compile: Literal["auto", "always", "never"] = Field("auto", description="auto: on CUDA")
    checkpoint_every: int = Field(
        10, ge=1, le=10**6, description="epochs between checkpoints; the last is always written"
    )
    knn_every: int = Field(0, ge=0, le=10**6, description="epochs between kNN probes; 0: none")
    watch: Literal["auto", "none", "tensorboard", "wandb"] = Field(
        "auto", description="curves beside metrics.jsonl; auto: TensorBoard where it is installed"
    )
    stop_on_collapse: bool = Field(True, description="stop when the representation has collapsed")


class EvaluateSettings(Section):
    knn_k: int = Field(200, ge=1, le=10**9, description="neighbours that vote; at most a tenth of the images do")
    knn_temperature: float = Field(0.1, ge=1e-3, le=1e3, description="a vote weighs exp(cosine / this)")
    linear: Literal["simsiam", "byol"] = Field("simsiam", description="the paper's linear protocol for this base")
    linear_view: Literal["centre", "whole"] = Field(
        "centre",
        description="linear probes see the central 7/8 of test images (SimSiam's own), or small ones whole",
    )
    probe_seeds: int = Field(1, ge=1, le=100, description="probes trained, each from a seed of its own")


class Settings(Section):
    """Everything that decides a run."""

    recipe: str = Field("custom", description="the recipe these settings began as, for the record")
    seed: int = Field(0, ge=0, lt=2**31, description="decides every random draw; also --seed")
    data: DataSettings = DataSettings()
    augment: AugmentSettings = AugmentSettings()
    model: ModelSettings = ModelSettings()
    method: MethodSettings = MethodSettings()
    train: TrainSettings = TrainSettings()
    evaluate: EvaluateSettings = EvaluateSettings()

    @model_validator(mode="after")
    def _warmup_is_shorter(self) -> Settings:
        if self.train.warmup_epochs >= self.train.epochs and self.train.warmup_epochs > 0:
            raise ValueError(
                f"train.warmup_epochs ({self.train.warmup_epochs:g}) must be under train.epochs ({self.train.epochs})"
            )
        return self


FOUND = ("data.image_size", "data.channels")  # chosen by what the images are, where nobody said
SUITED = (  # chosen for a folder of images by their size and number, where nobody said
    "augment.size",
    "model.backbone",
    "model.projector_hidden",
    "model.projector_dim",
    "model.predictor_hidden",
    "model.head_hidden",
    "train.epochs",
    "train.batch_size",
    "train.lr",
    "train.turn",
    "train.warmup_epochs",
)
CLOSE = 0.65  # of the letters, for a wrong name to be taken for a right one
FEW = 24  # names that can be listed in a line


def left_open(settings: Settings, key: str) -> bool:
    """Whether a setting is one that goes by the images, and neither recipe nor user gave it."""
    name, _, leaf = key.rpartition(".")
    if key in FOUND:
        return getattr(settings.data, leaf) is None
    if key not in SUITED or settings.data.source != "folder":
        return False
    section = getattr(settings, name)
    return leaf not in section.model_fields_set or getattr(section, leaf) is None


def nearest(name: str, valid: Iterable[str]) -> str:
    """``; did you mean NAME?`` for a valid name close to a wrong one, else the valid names, or their sections.

    >>> nearest("epoch", ["train.epochs", "train.lr"])
    '; did you mean train.epochs?'
    """
    valid = sorted(valid)
    cut = max(name.rfind("."), name.rfind("/")) + 1
    section, leaf = name[:cut], name[cut:]
    leaves = {re.split(r"[./]", full)[-1]: full for full in reversed(valid)}  # `lr` is meant as train.lr
    beside = {full[cut:]: full for full in valid if section and full.startswith(section)}
    if leaf in leaves and (beside or not section):
        return f"; did you mean {leaves[leaf]}?"
    inside = [full for full in valid if full.startswith((f"{name}.", f"{name}/"))]
    tries = [(leaf, beside)] if beside else [(name, dict(zip(valid, valid, strict=True))), (leaf, leaves)]
    for wrong, names in [] if inside else tries:  # to be of one section is no likeness
        small = {known.lower(): full for known, full in names.items()}
        if close := difflib.get_close_matches(wrong.lower(), small, n=1, cutoff=CLOSE):
            return f"; did you mean {small[close[0]]}?"
    sections = sorted({re.sub(r"([./]).*", r"\1*", full) for full in valid})
    few = next((names for names in (valid, inside, [*beside.values()], sections) if 0 < len(names) <= FEW), [])
    return f"; valid: {', '.join(few)}" if few else ""


def keys(section: type[BaseModel] = Settings, prefix: str = "") -> dict[str, Any]:
    """Every dotted key of the tree and its pydantic field."""
    found: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= keys(field.annotation, f"{prefix}{name}.")
        else:
            found[prefix + name] = field
    return found


def recipe_names() -> list[str]:
    """The recipes inside the package, for example ``cifar10/prelax-all``."""
    root = resources.files("prelax") / "recipes"
    names: list[str] = []

    def walk(folder: Any, prefix: str) -> None:
        for item in folder.iterdir():
            if item.is_dir():
                walk(item, f"{prefix}{item.name}/")
            elif item.name.endswith(".yaml"):
                names.append(prefix + item.name[: -len(".yaml")])

    walk(root, "")
    return sorted(names)


def read_recipe(name: str, below: tuple[str, ...] = ()) -> dict[str, Any]:
    """A recipe of the package by name, or a YAML file by path, with the recipe it ``extends`` beneath it."""
    if name in below:
        raise PrelaxError(f"recipe {name} extends itself: {' > '.join((*below, name))}")
    try:
        if name.endswith((".yaml", ".yml")):
            if not Path(name).is_file():
                raise PrelaxError(f"no recipe file {name}")
            text = Path(name).read_text(encoding="utf-8")
        else:
            if name not in recipe_names():
                if not below and os.path.isdir(name) and not os.path.isfile(f"{name}/config.yaml"):
                    raise PrelaxError(
                        f"no recipe {name!r}, but there is such a folder; to train on the images in it: "
                        f"prelax pretrain folder data.root={shlex.quote(name)}"
                    )
                raise PrelaxError(f"no recipe {name!r}{nearest(name, recipe_names())}")
            text = (resources.files("prelax") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
        tree = yaml.safe_load(text) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date of no calendar, not UTF-8
        raise PrelaxError(f"recipe {name} is not YAML: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise PrelaxError(f"recipe {name} cannot be read: {error.strerror}") from None
    if not isinstance(tree, dict):
        raise PrelaxError(f"recipe {name} must be a mapping of settings")
    parent = tree.pop("extends", None)
    tree.pop("about", None)
    if parent is None:
        return tree
    if not isinstance(parent, str):
        raise PrelaxError(f"recipe {name}: extends must be the name of one recipe (got {parent!r})")
    if parent.endswith((".yaml", ".yml")):  # a file beside this one
        parent = str(Path(name).parent / parent)
    return merge(read_recipe(parent, (*below, name)), tree)


def recipe_line(name: str) -> str:
    """What a recipe of the package is, in its own words."""
    text = (resources.files("prelax") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    return str(yaml.safe_load(text).get("about", ""))


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Two trees as one; ``over`` wins leaf by leaf."""
    merged = dict(under)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """``["train.epochs=200"]`` as a tree; refuses a key the settings do not have."""
    valid = keys()
    tree: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise PrelaxError(f"{pair!r} is not key=value, for example train.epochs=200")
        if key not in valid:
            raise PrelaxError(f"unknown setting {key}{nearest(key, valid)}")
        value = parse(text, valid[key].annotation)
        *sections, leaf = key.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[leaf] = value
    return tree


def parse(text: str, annotation: Any) -> Any:
    """A value typed on the command line; what the settings hold as text or a path stays as it was typed.

    >>> parse("1e-3", float), parse("2024", Path | None), parse("none", Path | None)
    (0.001, '2024', None)
    """
    parts = get_args(annotation) or (annotation,)
    if text.lower() in ("none", "null", "") and type(None) in parts:
        return None
    if Path in parts:
        try:
            return str(Path(text).expanduser())  # the shell leaves the ~ of data.root=~/photos alone
        except RuntimeError:
            raise PrelaxError(f"{text}: there is no such user's home folder") from None
    if str in parts or get_origin(annotation) is Literal:
        return text
    try:
        value = yaml.safe_load(text)
        return float(value) if isinstance(value, str) else value  # YAML reads 1e-3 as text
    except (yaml.YAMLError, ValueError):  # ValueError: no number either, no such day, more digits than Python reads
        return text


def validate(tree: Mapping[str, Any], where: str = "settings") -> Settings:
    """A tree as settings, or one line naming the first key that is wrong and why."""
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or where
        if first["type"] == "extra_forbidden":
            raise PrelaxError(f"unknown setting {key}{nearest(key, keys())}") from None
        said = first["msg"].removeprefix("Value error, ")
        got = "" if isinstance(first["input"], Mapping | Section) else f" (got {short(first['input'])})"
        raise PrelaxError(f"{key}: {said}{got}") from None


def short(value: Any, letters: int = 80) -> str:
    """A value as it was typed, in no more than a few letters.

    >>> short("x" * 100, 10)
    "'xxxx..."
    """
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a very long number"
    return text if len(text) <= letters else f"{text[: letters - 5]}..."


def resolve(recipe: str, pairs: Iterable[str] = (), seed: int | None = None) -> Settings:
    """A recipe with ``key=value`` changes as settings.

    >>> resolve("digits/simsiam", ["train.epochs=3"]).train.epochs
    3
    """
    recipe_tree, changes = read_recipe(recipe), overrides(pairs)
    tree = {"recipe": recipe, **scale_warmup(recipe_tree, changes)}
    if seed is not None:
        tree["seed"] = seed
    return validate(tree)


def scale_warmup(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with the changes; a changed number of epochs keeps the share of them that warms up."""
    merged = merge(tree, changes)
    epochs, train = changes.get("train", {}).get("epochs"), tree.get("train", {})
    if not isinstance(train, Mapping) or not isinstance(epochs, int) or "warmup_epochs" in changes["train"]:
        return merged
    warm, whole = train.get("warmup_epochs"), train.get("epochs", TrainSettings().epochs)
    if all(isinstance(number, int | float) and number > 0 for number in (warm, whole)):  # else refused by name, later
        merged["train"] = merged["train"] | {"warmup_epochs": warm * (epochs / whole)}
    return merged


def to_yaml(settings: Settings) -> str:
    """The whole tree as YAML."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
