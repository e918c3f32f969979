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
from pydantic import BaseModel, ValidationError

from prelax.errors import PrelaxError
from prelax.settings import (
    AugmentSettings,
    DataSettings,
    EvaluateSettings,
    MethodSettings,
    ModelSettings,
    Section,
    Settings,
    TrainSettings,
)

__all__ = [
    "FOUND",
    "SUITED",
    "AugmentSettings",
    "DataSettings",
    "EvaluateSettings",
    "MethodSettings",
    "ModelSettings",
    "Section",
    "Settings",
    "TrainSettings",
    "keys",
    "leaves",
    "left_open",
    "merge",
    "nearest",
    "overrides",
    "read_recipe",
    "recipe_line",
    "recipe_names",
    "resolve",
    "to_yaml",
    "validate",
    "with_values",
]

# By what images and weights are, where nobody said.
FOUND = ("data.image_size", "data.channels", "data.range", "model.stem")
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
# What pydantic calls a mistake, and what it is.
PLAIN = {"int_": "a whole number", "float_": "a number", "bool_": "true or false", "model_": "a section of settings"}
BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
FEW = 24  # names that can be listed in a line


def left_open(settings: Settings, key: str) -> bool:
    """Whether a setting is one that goes by the images, and neither recipe nor user gave it."""
    name, _, leaf = key.rpartition(".")
    if key == "model.stem":
        return settings.model.stem == "auto" and settings.model.weights is not None
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


def leaves(tree: Mapping[str, Any]) -> dict[str, Any]:
    """What a tree of settings holds by dotted key.

    >>> leaves({"seed": 0, "train": {"epochs": 3}})
    {'seed': 0, 'train.epochs': 3}
    """
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= {f"{name}.{leaf}": v for leaf, v in value.items()} if isinstance(value, Mapping) else {name: value}
    return found


def with_values(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """The settings with values by dotted key, which are not checked.

    >>> with_values(resolve("digits/simsiam"), {"train.epochs": 3, "train.lr": 0.1}).train.epochs
    3
    """
    changed: dict[str, Section] = {}
    for key, value in values.items():
        name, leaf = key.split(".")
        section = changed.get(name, getattr(settings, name))
        changed[name] = section.model_copy(update={leaf: value})
    return settings.model_copy(update=changed)


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
        said = in_words(first["type"], first["msg"], first.get("ctx", {}))
        got = "" if isinstance(first["input"], Mapping | Section) else f" (got {short(first['input'])})"
        raise PrelaxError(f"{key}: {said}{got}") from None


def in_words(kind: str, said: str, limits: Mapping[str, Any]) -> str:
    """What is wrong with a value, in the words of one who does not program.

    >>> in_words("int_parsing", "Input should be a valid integer", {}), in_words("less_than", "", {"lt": 1.0})
    ('should be a whole number', 'should be less than 1')
    """
    for start, words in PLAIN.items():
        if kind.startswith(start):
            return f"should be {words}"
    for name, words in BOUNDS.items():
        if name in limits:
            return f"should be {words} {limits[name]:g}"
    return said.removeprefix("Value error, ").removeprefix("Input ")


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
