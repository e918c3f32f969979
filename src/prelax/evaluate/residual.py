"""Does the residual know? What can be read off it of what was done to an image, and how far the backbone is moved.

The residual r = z_i - z_j is all that tells two views apart in the embedding. A linear reader is fitted to it on some
images and asked about others: for every recorded parameter, the percent right (or, for a number, the percent of its
variance explained). The views are the same for every method: x1 and x2 are two draws of the run's own augmentations,
x3 is x1 with the relaxed one (rotation unless the run says otherwise) on top, so SimSiam can be asked too. r12 is asked
about x1's parameters and r31 about x3's, as in the paper's PL and RotPL.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prelax import augment
from prelax.collectives import alone
from prelax.config import DataSettings
from prelax.data import load
from prelax.draws import Draws
from prelax.evaluate.alone import always, features_under, similarity, similarity_of_others, some
from prelax.evaluate.features import at_once, extract, forward, frozen
from prelax.evaluate.logistic import fit_logistic, fit_ridge, r2
from prelax.evaluate.subject import settled
from prelax.loading import Loaded, views_of
from prelax.record import Target
from prelax.run import Run
from prelax.train.views import ViewMaker

BATCH = 512
IMAGES = 4096  # of each split, at most
ROWS = 8192  # views of each split, at least: small sets are drawn several times, or the reader starves
DRAWS = 16  # times an image is drawn, at most
L2 = (1e-1, 1e-2, 1e-3, 1e-4)


@dataclass(frozen=True)
class Asked:
    """Views of a set of images as the network sees them, and what was drawn for them."""

    r12: Tensor  # N x D
    r31: Tensor  # N x D
    h1: Tensor  # N x features: of view 1
    h3: Tensor  # N x features: of view 3
    drawn: dict[str, Tensor]  # of view 1, standardised
    relaxed: dict[str, Tensor]  # of view 3, standardised


@torch.no_grad()
def ask(loaded: Loaded, encoder: nn.Module, images: Tensor, seed: int, rows: int = ROWS) -> Asked:
    """Residuals and features of three views of every image, with what was drawn.

    The images are drawn as often as give so many rows; row i is of image i modulo their number.
    """
    maker = views_as_trained(loaded)
    pipelines = maker.pipelines
    relax = relaxed_operation(loaded, maker)
    unit = loaded.settings.method.residual == "normalised"
    parts: dict[str, list[Tensor]] = {}
    size = at_once(BATCH, images, loaded.device)
    turns = min(DRAWS, max(1, math.ceil(rows / len(images))))
    with frozen(encoder):  # once for all turns: it reads every weight twice
        features = forward(encoder.backbone, loaded.device, "float32")  # type: ignore[arg-type]
        for turn, start in itertools.product(range(turns), range(0, len(images), size)):
            pixels = images[start : start + size].to(loaded.device)
            ids = torch.arange(start, start + len(pixels), device=loaded.device)
            draws = Draws(seed * DRAWS + turn, ids).at("residual")
            one = pipelines[1](pixels, draws.at("draw", 1))
            two = pipelines[2](pixels, draws.at("draw", 2))
            three = augment.relaxed_view(pipelines[1], one, relax, pixels, draws.at("view", 3))
            h = [features(view.images) for view in (one, two, three)]
            z = [encoder.projector(x) for x in h]  # type: ignore[operator]
            if unit:
                z = [F.normalize(x, dim=1) for x in z]
            found = {"r12": z[0] - z[1], "r31": z[2] - z[0], "h1": h[0], "h3": h[2]}
            found |= {f"1 {spec.name}": spec.value(one.record[spec.name]) for spec in pipelines[1].specs}
            found |= {f"3 {spec.name}": spec.value(three.record[spec.name]) for spec in relax.targets}
            for name, value in found.items():
                parts.setdefault(name, []).append(value)
    whole = {name: torch.cat(values) for name, values in parts.items()}
    drawn, relaxed = (
        {name[2:]: value for name, value in whole.items() if name.startswith(view)} for view in ("1 ", "3 ")
    )
    return Asked(whole["r12"], whole["r31"], whole["h1"], whole["h3"], drawn, relaxed)


def views_as_trained(loaded: Loaded) -> ViewMaker:
    """What made the run's views: they are of the size its backbone takes, whatever that of the images looked at."""
    return views_of(loaded.settings, loaded.channels, loaded.size)


def relaxed_operation(loaded: Loaded, maker: ViewMaker) -> augment.Operation:
    """The run's relaxed augmentation as it was trained with, under the name it has in records."""
    one, two = maker.pipelines[1], maker.pipelines[2]
    return augment.relaxation(
        one, augment.as_set(loaded.settings.method.relax, (one, two), maker.size, loaded.channels)
    )


def read_off(
    train: Tensor,
    train_drawn: Tensor,
    test: Tensor,
    test_drawn: Tensor,
    target: Target,
    images: int | None = None,
) -> dict[str, Any] | None:
    """How well a linear reader fitted to one set of images tells a parameter of others; None if it never varies.

    The strength of its L2 is chosen on a fifth of the images it is fitted to, by likelihood (or squared error).

    Args:
        images: how many images the rows of ``train`` are of, over and over; all draws of one stay on one side.
    """
    if not varies(train_drawn, test_drawn):
        return None
    if target.kind == "continuous":
        return read_numbers(train, train_drawn[:, None], test, test_drawn[:, None], images)[0]
    classes, truth = target.classes if target.kind == "categorical" else 2, train_drawn.long()
    held = held_out(train, images)
    best, chosen, start, reader = -math.inf, L2[0], None, None
    for l2 in L2:  # strongest first: each fit starts where the one before ended
        reader = fit_logistic(train[~held], truth[~held], classes, l2, reader, tolerance=1e-4)
        fits = -float(F.cross_entropy(reader(train[held]), truth[held]))  # finer than counting right answers
        if fits > best:
            best, chosen, start = fits, l2, reader
    said = fit_logistic(train, truth, classes, chosen, start, tolerance=1e-4)(test)
    told = 100.0 * float((said.argmax(1) == test_drawn.long()).double().mean())
    guess = 100.0 * float((test_drawn.long() == truth.mode().values).double().mean())
    return {"accuracy": round(told, 2), "floor": round(guess, 2), "kind": target.kind, "l2": chosen}


def read_numbers(
    train: Tensor, train_drawn: Tensor, test: Tensor, test_drawn: Tensor, images: int | None = None
) -> list[dict[str, Any]]:
    """``read_off`` for several numbers at once, which share all that is slow.  Drawn: N x T"""
    held = held_out(train, images)
    fits = [r2(fit_ridge(train[~held], train_drawn[~held], l2)(train[held]), train_drawn[held]) for l2 in L2]
    chosen = torch.stack(fits).argmax(0)
    told = train_drawn.new_zeros(train_drawn.shape[1])
    for row in chosen.unique().tolist():
        these = chosen == row
        told[these] = r2(fit_ridge(train, train_drawn[:, these], L2[row])(test), test_drawn[:, these])
    return [
        {"r2": round(100.0 * share, 2), "floor": 0.0, "kind": "continuous", "l2": L2[row]}
        for share, row in zip(told.tolist(), chosen.tolist(), strict=True)
    ]


def varies(*drawn: Tensor) -> bool:
    return all(len(column.unique()) > 1 for column in drawn)


def held_out(x: Tensor, images: int | None) -> Tensor:
    """Which rows are of the fifth of the images that L2 is chosen on."""
    images = images or len(x)
    return torch.arange(len(x), device=x.device) % images < max(1, images // 5)


def tell(
    train: Asked, test: Asked, specs: Sequence[Target], relaxed: Sequence[Target], what: str, images: int
) -> dict[str, Any]:
    """Every parameter read off the residual (``r``) or off the features of the one augmented image (``h``)."""
    views = {"r": ("r12", "r31"), "h": ("h1", "h3")}[what]
    found: dict[str, Any] = {}
    for asked, x, drawn in ((specs, views[0], "drawn"), (relaxed, views[1], "relaxed")):
        seen, columns = [getattr(one, x) for one in (train, test)], [getattr(one, drawn) for one in (train, test)]
        told = {spec.name: spec for spec in asked if varies(*(column[spec.name] for column in columns))}
        numbers = [name for name, spec in told.items() if spec.kind == "continuous"]
        known: dict[str, Any] = {}
        if numbers:
            truth = [torch.stack([column[name] for name in numbers], 1) for column in columns]
            known = dict(zip(numbers, read_numbers(seen[0], truth[0], seen[1], truth[1], images), strict=True))
        for name, spec in told.items():
            one, other = (column[name] for column in columns)
            found[name] = known.get(name) or read_off(seen[0], one, seen[1], other, spec, images)
    return found


def moved(loaded: Loaded, images: Tensor, seed: int) -> dict[str, float]:
    """How far each augmentation, alone and always done, moves the features: mean cosine with the untouched image's.

    At 1 the features are the same.

    ``other images`` is the cosine between different images, what total forgetting would look like.
    """
    maker = views_as_trained(loaded)
    pipeline = maker.pipelines[1]
    drawn = [op for op in pipeline.ops if not isinstance(op, augment.Normalise)]
    plain = extract(loaded.backbone, images, loaded.preprocess, device=loaded.device)
    found = {"other images": similarity_of_others(plain)}
    asked = [always(op) for op in (*drawn, relaxed_operation(loaded, maker))]
    for name, _, features in features_under(loaded, images, asked, [seed]):
        found[name] = similarity(plain, features)
    return {name: round(cosine, 4) for name, cosine in found.items()}


@alone()
def random_encoder(loaded: Loaded, images: Tensor, seed: int) -> nn.Module:
    """F with random weights and BatchNorms that know the images: what a residual tells before anything is learnt."""
    batches = (loaded.preprocess(part.to(loaded.device)) for part in images.chunk(math.ceil(len(images) / BATCH)))
    return settled(loaded.fresh_encoder(seed), batches)


def probe_residual(
    run: Run, loaded: Loaded, on: DataSettings | None = None, seed: int = 0, images: int = IMAGES
) -> dict[str, Any]:
    """What the residual of a run tells of each recorded parameter, what its features tell, and how far they move.

    Readers are fitted to images of the training split and asked about images of the test split; no label is used.
    """
    began = time.perf_counter()
    encoder = loaded.encoder()
    data = on or loaded.settings.data
    whole = {split: load(data, split).images for split in ("train", "test")}
    sets = {split: pixels[some(len(pixels), images, seed)] for split, pixels in whole.items()}
    # Seeds of the two splits are never the same, whatever seed is asked for.
    asked = {split: ask(loaded, encoder, sets[split], 2 * seed + turn) for turn, split in enumerate(sets)}
    images_fitted = len(sets["train"])
    maker = views_as_trained(loaded)
    specs, relaxed = maker.pipelines[1].specs, relaxed_operation(loaded, maker).targets
    targets = tell(asked["train"], asked["test"], specs, relaxed, "r", images_fitted)
    random = random_encoder(loaded, sets["train"], seed)
    unlearnt = {split: ask(loaded, random, sets[split], 2 * seed + turn) for turn, split in enumerate(sets)}
    for name, untold in tell(unlearnt["train"], unlearnt["test"], specs, relaxed, "r", images_fitted).items():
        targets[name]["random"] = untold.get("accuracy", untold.get("r2"))
    return {
        "protocol": "residual",
        "dataset": data.source,
        "method": loaded.settings.method.name,
        "targets": targets,
        "features": tell(asked["train"], asked["test"], specs, relaxed, "h", images_fitted),
        "cosine_after": moved(loaded, sets["test"], seed),
        "settings": {
            "reader": "linear, L2 chosen on a fifth of the fitting images",
            "fitted_on": f"{len(asked['train'].h1)} views of {len(sets['train'])} training images",
            "asked_about": f"{len(asked['test'].h1)} views of {len(sets['test'])} test images",
            "floor": "accuracy: the most frequent value; r2: 0",
            "random": f"off the residual of random weights of seed {seed}, BatchNorm settled on the training images",
        },
        "seeds": [seed],
        "seconds": round(time.perf_counter() - began, 3),
    }
