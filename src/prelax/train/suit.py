"""Settings to suit a folder of images nobody has tuned for: what was left open, by the images' size and number."""

from __future__ import annotations

import math
from typing import Any

import torch

from prelax.config import SUITED, Settings, left_open, validate, with_values
from prelax.data import ImageSet, ShardSet
from prelax.errors import PrelaxError
from prelax.objectives import terms_of, without_angle
from prelax.train.views import plain_pipelines, size_of

BATCH = {"cuda": 256, "cpu": 64}  # at most
VISITS = {"cuda": 4_000_000, "cpu": 50_000}  # looks at an image over a run, about, for views of 128 px or more
CHEAPER = 8  # times as many at most, for smaller views: their cost goes by the area
EPOCHS = {"cuda": (50, 800), "cpu": (5, 200)}  # at least and at most, whatever the visits
VIEW = {"cuda": 2048, "cpu": 128}  # pixels, at most
BACKBONE = {"cuda": "resnet18", "cpu": "resnet8"}
SMALL_HEADS = {"projector_hidden": 256, "projector_dim": 256, "predictor_hidden": 64, "head_hidden": 64}
# Of other networks on a CPU: with the paper's 2,048 a step of resnet18 over 32 photos (views of 64 px, imagenet stem)
# took a busy thread 9.6 s, most of it Muon's; with these 2.3.
CPU_HEADS = {"projector_hidden": 512, "projector_dim": 512, "predictor_hidden": 128}
# For 256 images. resnet8 on 1,500 photos of ImageNette at 48 px, 20 epochs in batches of 64, seed 0: with 0.05 it ends
# below random weights (kNN 26.8 % against 27.9), with 0.2 to 0.8 above (29.7 to 30.3), with 1.6 level (28.1).
RATE, RATES = 0.05, {"resnet8": 0.4}  # the first is SimSiam's
# Others take another kind of rate: at 0.4 AdamW fell to two directions on 269 photos (13 at this rate), and LARS hardly
# moved.
USUAL = {"adamw": (0.001, "usual for AdamW"), "lars": (2.0, "the paper's for LARS")}
# Of Muon's steps, by how many a run has. Best of those tried: 0.05 (of 0.005 to 0.1) over 800 steps of resnet8, 0.03 or
# 0.05, hardly apart, over 1,600 and 2,300, 0.03 (of 0.01 and 0.03) over 3,900 of resnet18, where 0.015 over 19,400
# reached 93.1 % on CIFAR-10 (results/log.md, 30).
TURN, TURNED = 0.05, 1500
# Of a step for random weights, where weights begin trained. A resnet8 of CIFAR-10 gains, on 1,500 photos of 48 px,
# 4 points of kNN and 3 to 4 of the logistic probe (by whole steps 0 and 1), on 400 photos 1 and 1 to 2 (by whole steps
# it loses 1.5 and 0.4); on 120 it loses 2 and 2 (11 and 10): results/log.md, 48.
BEGUN = 0.2
WARMUP = 0.05  # of the epochs
FEW_MORE = 400  # images: so many taught trained weights a point of kNN, 120 cost them two (results/log.md, 48)
FEW = 100  # images; of photos 120 were enough to come out ahead of random weights


def suit(
    settings: Settings, images: ImageSet | ShardSet, device: torch.device, processes: int = 1
) -> tuple[Settings, list[str]]:
    """The settings with every choice made that neither recipe nor user made, and a line in words for each.

    Args:
        settings: which fields were set is read off pydantic's ``model_fields_set``.
        images: the training set.
        device: where it will be trained; a CPU gets a smaller network and fewer epochs.
        processes: that share a batch.
    """
    kind = "cpu" if device.type == "cpu" else "cuda"
    wanted = choices(settings, images, kind, processes)
    lines = reasons(settings, wanted, images, kind)
    if kind == "cpu":
        other = choices(settings, images, "cuda", processes)
        names = {"augment.size": "views of {} px", "model.backbone": "{}", "train.batch_size": "batches of {}"}
        names["train.epochs"] = "{} epochs"
        differ = [words.format(other[key]) for key, words in names.items() if other.get(key) != wanted.get(key)]
        if differ:
            lines.append(f"these are a CPU's choices; a GPU would get {', '.join(differ)}")
    chosen = with_values(settings, wanted)
    warmup, epochs = chosen.train.warmup_epochs, chosen.train.epochs
    if warmup >= epochs:
        raise PrelaxError(
            f"train.warmup_epochs={warmup:g} is not under the {epochs} epochs chosen for {len(images):,} images: "
            "set train.epochs too, or a shorter warm-up"
        )
    validate(chosen.model_dump(mode="json"))  # copies are not checked
    return chosen, lines


def choices(settings: Settings, images: ImageSet | ShardSet, kind: str, processes: int = 1) -> dict[str, Any]:
    """What is chosen by dotted key, where the settings leave it open; ``kind`` is cpu or cuda."""
    count, side = len(images), images.shape[-1]
    backbone = BACKBONE[kind] if left_open(settings, "model.backbone") else settings.model.backbone
    size = views_side(settings, side, kind)
    epochs = epochs_for(count, kind, size) if left_open(settings, "train.epochs") else settings.train.epochs
    found: dict[str, Any] = {
        "augment.size": size,
        "model.backbone": backbone,
        "train.batch_size": batch_for(count, BATCH[kind], processes),
        "train.epochs": epochs,
        "train.lr": rate_for(settings.train.optimizer, backbone),
        "train.warmup_epochs": round(WARMUP * epochs, 2),
    }
    if settings.train.optimizer == "muon":
        batch = found["train.batch_size"] if left_open(settings, "train.batch_size") else settings.train.batch_size
        found["train.turn"] = turn_for(epochs * (count // min(batch, count)), settings.model.weights is not None)
    heads: dict[str, int] = SMALL_HEADS if backbone == "resnet8" else CPU_HEADS if kind == "cpu" else {}
    found |= {f"model.{key}": value for key, value in heads.items()}
    assert set(found) <= set(SUITED)  # resuming keeps these and no others
    if ":" in settings.augment.preset:  # a user's own says it
        del found["augment.size"]
    return {key: value for key, value in found.items() if left_open(settings, key)}


def views_side(settings: Settings, side: int, kind: str) -> int:
    """The side of the views of images of a side: as the settings or a user's own preset have it, else as it suits."""
    if settings.augment.size is None and ":" in settings.augment.preset:
        return size_of(plain_pipelines(settings, settings.data.channels or 3, side)[0], side)
    return settings.augment.size or min(view_size(side), VIEW[kind])


def view_size(side: int) -> int:
    """The side of a view: small images' own, of larger ones four fifths in steps of 32, so that crops differ.

    >>> [view_size(side) for side in (32, 64, 96, 128, 160, 256)]
    [32, 64, 64, 96, 128, 192]
    """
    return side if side <= 64 else 32 * round(0.8 * side / 32)


def batch_for(count: int, most: int, processes: int = 1) -> int:
    """A power of two, at most a quarter of the images, at least two a process and the same for each.

    >>> batch_for(1204, 256), batch_for(300, 256), batch_for(3, 256), batch_for(1204, 256, 3)
    (256, 64, 2, 255)
    """
    fits = max(2, min(most, count // 4))
    power = 1 << (fits.bit_length() - 1)
    return max(2, power // processes) * processes


def epochs_for(count: int, kind: str, size: int) -> int:
    """As many as the budget of looks at an image allows for views of a size, within bounds.

    >>> [epochs_for(count, "cuda", 128) for count in (100, 20_000, 1_281_167)], epochs_for(50_000, "cuda", 32)
    ([800, 200, 50], 640)
    """
    least, most = EPOCHS[kind]
    return max(least, min(most, round(visits(kind, size) / count)))


def rate_for(optimizer: str, backbone: str) -> float:
    """The learning rate for 256 images.

    >>> [rate_for(name, "resnet8") for name in ("sgd", "muon", "adamw", "lars")], rate_for("sgd", "resnet18")
    ([0.4, 0.4, 0.001, 2.0], 0.05)
    """
    return USUAL[optimizer][0] if optimizer in USUAL else RATES.get(backbone, RATE)


def turn_for(steps: int, begun: bool = False) -> float:
    """How far Muon turns a matrix at most in a run of so many steps; less where weights begin trained.

    >>> [turn_for(steps) for steps in (300, 1_500, 20_000, 10**9)], turn_for(300, begun=True)
    ([0.05, 0.05, 0.014, 0.001], 0.01)
    """
    whole = TURN * min(1.0, math.sqrt(TURNED / max(steps, 1)))
    return max(round(whole * (BEGUN if begun else 1.0), 3), 0.001)


def visits(kind: str, size: int) -> int:
    """The budget of looks at an image."""
    return int(VISITS[kind] * min(CHEAPER, max(1.0, (128 / size) ** 2)))


def reasons(settings: Settings, wanted: dict[str, Any], images: ImageSet | ShardSet, kind: str) -> list[str]:
    """A line for each choice a reader would ask about."""
    count, side = len(images), images.shape[-1]
    lines = []
    if "augment.size" in wanted:
        size = wanted["augment.size"]
        why = "small images are used whole" if size == side else "smaller than the images, so that crops differ"
        if size < view_size(side):
            why = "the most for a CPU"
        lines.append(f"images of {side} px: views of {size} px (augment.size: {why})")
    if "train.batch_size" in wanted:
        batch = wanted["train.batch_size"]
        limit = "the most that is chosen" if batch == BATCH[kind] else "a power of two, at most a quarter of them"
        lines.append(f"{count:,} images: batches of {batch} (train.batch_size: {limit if batch > 2 else 'the least'})")
    if "model.backbone" in wanted:
        name = wanted["model.backbone"]
        why = "77 thousand weights, few enough for a CPU" if kind == "cpu" else "11.2 million weights, the paper's"
        lines.append(f"backbone {name} (model.backbone: {why})")
    if "train.lr" in wanted:
        why = "SimSiam's" if wanted["train.lr"] == RATE else "a small network takes more"
        _, why = USUAL.get(settings.train.optimizer, (None, why))
        lines.append(f"learning rate {wanted['train.lr']} for 256 images (train.lr: {why})")
    if "train.turn" in wanted:
        why = "the most that is chosen" if wanted["train.turn"] == TURN else "the more steps, the shorter"
        if settings.model.weights is not None:
            why = "a fifth of what random weights get, so that what these know is not lost"
        share = f"{100 * wanted['train.turn']:g} %"
        lines.append(f"a step changes the weights of a layer by {share} of their length at most (train.turn: {why})")
    if "train.epochs" in wanted:
        epochs = wanted["train.epochs"]
        why = {EPOCHS[kind][0]: "the fewest that are chosen", EPOCHS[kind][1]: "the most that are chosen"}.get(
            epochs, f"about {visits(kind, views_side(settings, side, kind)):,} looks at an image"
        )
        where = "CPU" if kind == "cpu" else "GPU"
        lines.append(f"{count:,} images: {epochs} epochs (train.epochs: {why} for a {where})")
    return lines


def remarks(settings: Settings, images: ImageSet | ShardSet) -> list[str]:
    """What somebody who has read nothing should know of their images before the training, a line each."""
    lines = []
    if len(images) < FEW:
        lines.append(f"{len(images)} images are very few to learn from; some hundreds or more are better")
    if settings.model.weights is not None and len(images) < FEW_MORE:
        lines.append(
            f"{len(images)} images may teach trained weights little, or make them worse: compare with what they had "
            "before, which `prelax evaluate` shows beside"
        )
    asked = settings.method
    if asked.relax == "rotation" and any(term.kind == "relaxpl" and term.weight(asked) for term in terms_of(asked)):
        lines.append(
            "part of the task is to tell how far a picture was turned; if yours have no up and down (from a "
            f"microscope, from above), stop and use method.name={without_angle(asked)}"
        )
    return lines
