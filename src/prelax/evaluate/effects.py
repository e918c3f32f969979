"""What each augmentation alone does to a trained network: to the accuracy on test images, and to their features.

The paper's Fig. 1a asks it of a supervised network on CIFAR-10, and rotation harms most there; in another domain it may
be cropping, or colour. Asked of a run on your own images it says what to relax (``method.relax``): `candidates`.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from prelax import augment
from prelax.augment.operation import trait
from prelax.config import DataSettings, Settings
from prelax.data import ImageSet, load_splits, subset
from prelax.draws import Draws
from prelax.errors import PrelaxError
from prelax.evaluate.alone import always as without_probability
from prelax.evaluate.alone import features_under, similarity, similarity_of_others, some, under
from prelax.evaluate.features import extract
from prelax.evaluate.knn import accuracy
from prelax.evaluate.labels import obstacle
from prelax.evaluate.logistic import choose_logistic
from prelax.evaluate.protocols import free_name, place, root_of
from prelax.evaluate.subject import Subject, subject
from prelax.loading import Loaded, load, views_of
from prelax.nets.backbones import width_of
from prelax.nets.heads import pretext_head
from prelax.run import Run

DRAWS = 5  # of every augmentation
ENOUGH = 100  # images to say how far they move
ALIKE = 1e-6  # distance, one less the cosine, under which features are the same but for rounding
Reader = Callable[[Tensor], Tensor]  # N x features -> N x classes


def effects(
    run: Run,
    on: DataSettings | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    *,
    operations: Sequence[str] | None = None,
    draws: int = DRAWS,
    always: bool = False,
    images: int | None = None,
    protocol: str = "effects",
) -> dict[str, Any]:
    """Accuracy and features under each augmentation alone; written to ``eval/PROTOCOL[-DATASET].json``.

    ``rows`` has a row an augmentation: ``accuracy`` (per cent, mean over the draws) and its ``std``, the ``drop`` from
    the row ``none``, the mean ``cosine`` with the features of the untouched image, and ``moved``: that distance in per
    cent of the distance between different images. Without labels the accuracies are None.

    A supervised run is judged by its own classifier; any other by a logistic regression on the frozen features of
    untouched training images.

    Args:
        on: other images than the run's own; its test split is looked at.
        operations: names of `prelax list augmentations`, or a user's own (MODULE:CLASS); by default SimSiam's, the
            run's own, and the relaxed one.
        draws: of the parameters, for every image and operation.
        always: leave out probabilities (a flip of p = 0.5 is done to all); else they are the preset's, as in Fig. 1a.
        images: at most so many test images.
        protocol: the name of the file.
    """
    began, unfinished = time.perf_counter(), run.unfinished
    loaded = load(run.path, device)
    own, target = loaded.settings.data, on or loaded.settings.data
    if place(target) != place(own):
        run.evals()  # one that cannot be read is told before the work, not after it
    test, reader, read_by = who_reads(run, loaded, on, seed)
    if images is not None and images < len(test):
        test = subset(test, some(len(test), images, seed))
    ops, left_out = chosen(loaded, test.images, operations)
    trained_with = {op.name for op in own_operations(loaded.settings, loaded.channels, test.images.shape[-1])}
    plain = extract(loaded.backbone, test.images, loaded.preprocess, device=loaded.device)
    others = similarity_of_others(plain)
    if 1 - others < ALIKE or not plain.any():
        raise PrelaxError(
            f"the backbone says the same of all {len(test)} images, so that nothing can be seen to move one; "
            f"`prelax doctor {shlex.quote(str(run.path))}` says what may be wrong with it"
        )
    clean = score(reader, plain, test)
    found: dict[str, list[tuple[float | None, float]]] = {}
    seeds = list(range(seed, seed + draws))
    applied = [without_probability(op) for op in ops] if always else ops
    for name, _, features in features_under(loaded, test.images, applied, seeds):
        found.setdefault(name, []).append((score(reader, features, test), similarity(plain, features)))
    rows = [{"augmentation": "none", "accuracy": rounded(clean), "std": 0.0, "drop": 0.0, "cosine": 1.0, "moved": 0.0}]
    rows[0] |= {"settings": "", "trained_with": False, "relaxed": False}
    relaxes = loaded.settings.method.relax if views_of(loaded.settings, loaded.channels, 32).relax else None
    for op in applied:
        by_name = op.op.name if isinstance(op, augment.Named) else op.name  # not as MODULE:CLASS
        told = {"settings": repr(op), "trained_with": by_name in trained_with, "relaxed": op.name == relaxes}
        rows.append(row(op.name, found[op.name], clean, others) | told)
    result: dict[str, Any] = {
        "protocol": protocol,
        "dataset": target.label,
        "method": loaded.settings.method.name,
        "rows": rows,
        "cosine_of_other_images": round(others, 4),
        "guess": 100.0 / max(1, len(test.classes)) if clean is not None else None,
        "left_out": left_out,
        "settings": {"read_by": read_by, "draws": draws, "applied": "always" if always else "as the preset draws"},
        "seeds": seeds,
        "test_images": len(test),
        "seconds": round(time.perf_counter() - began, 3),
    }
    if (root := root_of(target)) is not None:
        result["root"] = root
    named = free_name(run, f"{protocol}-{target.label}", root) if place(target) != place(own) else protocol
    run.write_eval(named, result, unfinished)
    return result


# -- who judges ----------------------------------------------------------------------------------------------------


def who_reads(run: Run, loaded: Loaded, on: DataSettings | None, seed: int) -> tuple[ImageSet, Reader | None, str]:
    """The images looked at, what tells their class from features (None without labels to go by), and that in words."""
    splits = load_splits(on or loaded.settings.data)
    train, test = splits["train"], splits.get("test")
    if why := obstacle(train, test) if test is not None else "no image is held out":
        # Nothing is fitted, so images of the training split serve where too few were held out.
        images = test if test is not None and len(test) >= ENOUGH else train
        if len(images) < 2:
            raise PrelaxError(f"{images.name} has fewer than two images to look at")
        return images, None, f"nobody: {why}"
    judged = subject(loaded, on, seed)
    if len(judged.test) < 2:
        raise PrelaxError(f"{judged.test.name} has fewer than two test images to look at")
    own = classifier(run, loaded) if on is None else None
    if own is not None:
        return judged.test, own, "the run's own classifier"
    return judged.test, probe(judged, seed), "logistic regression on the features of untouched training images"


def classifier(run: Run, loaded: Loaded) -> Reader | None:
    """The classifier a supervised run was trained with, in eval mode; None for any other run."""
    if loaded.settings.method.name != "supervised":
        return None
    mark = "heads.classify."
    network = (run.load_checkpoint() or {}).get("network", {})
    state = {key.removeprefix(mark): value for key, value in network.items() if key.startswith(mark)}
    if not state:  # the backbone came without its checkpoint
        return None
    model = loaded.settings.model
    width = next(reversed([value for key, value in state.items() if key.endswith(".bias") and "linears" in key]))
    head = pretext_head(width_of(loaded.backbone), len(width), model.head_hidden, model.head_layers)
    head.load_state_dict(state)
    head.to(loaded.device).eval().requires_grad_(False)
    return head


def probe(judged: Subject, seed: int) -> Reader:
    return choose_logistic(judged.features("train"), judged.labels("train"), judged.classes, seed)


def score(reader: Reader | None, features: Tensor, test: ImageSet) -> float | None:
    """Per cent right, or None where there is nothing to be right about."""
    if reader is None or test.labels is None:
        return None
    return accuracy(reader(features).argmax(1), test.labels.to(features.device))


def row(name: str, told: Sequence[tuple[float | None, float]], clean: float | None, others: float) -> dict[str, Any]:
    """One augmentation, over its draws."""
    cosine = sum(value for _, value in told) / len(told)
    right = torch.tensor([value for value, _ in told if value is not None], dtype=torch.float64)
    known = clean is not None and len(right) > 0
    mean = float(right.mean()) if known else None
    return {
        "augmentation": name,
        "accuracy": rounded(mean),
        "std": rounded(float(right.std())) if known and len(right) > 1 else None,
        "drop": rounded(clean - mean) if clean is not None and mean is not None else None,
        "cosine": round(cosine, 4),
        "moved": round(100 * (1 - cosine) / (1 - others), 2),
    }


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


# -- which augmentations ------------------------------------------------------------------------------------------


def own_operations(settings: Settings, channels: int, image_size: int) -> list[augment.Operation]:
    """What a run's views are made with, each once, as the view that does it more often does."""
    pipelines = views_of(settings, channels, image_size).pipelines.values()
    return list(augment.operations_of(*pipelines).values())


def chosen(loaded: Loaded, images: Tensor, names: Sequence[str] | None) -> tuple[list[augment.Operation], list[str]]:
    """The operations by name, set as the run sets them; those that cannot be done to the images are left out.

    What the run does not use is set as in SimSiam (or, there too unknown, as by default). One asked for by name that
    cannot be done is refused.
    """
    settings, channels, side = loaded.settings, loaded.channels, images.shape[-1]
    pipelines = list(views_of(settings, channels, side).pipelines.values())
    if not augment.operations_of(*pipelines):  # a run without augmentations is asked about those it would have had
        plain = settings.model_copy(update={"augment": settings.augment.model_copy(update={"preset": "auto"})})
        pipelines = list(views_of(plain, channels, side).pipelines.values())
    if names is None:
        usual = augment.operations_of(*augment.presets("simsiam-32", loaded.size, channels))
        wanted = dict.fromkeys([*augment.operations_of(*pipelines), *usual, settings.method.relax, "rotation"])
    else:
        wanted = dict.fromkeys(names)
    found, left_out = [], []
    for name in wanted:
        op = augment.as_set(name, pipelines, loaded.size, channels)
        if ":" in name:  # a user's own is called as it is asked for, and as method.relax would have it
            op = augment.Named(op, name)
        try:
            under(op, images[:1].to("cpu"), loaded.preprocess, Draws(0, rows=1))
        except PrelaxError as error:
            if names is not None:
                raise
            left_out.append(str(error))
            continue
        found.append(op)
    return found, left_out


def every_name(channels: int, settings: Settings | None = None) -> list[str]:
    """Every operation that can be done to images of so many channels, and a run's own."""
    names = [
        name
        for name in augment.OPERATIONS
        if name != "normalise" and (channels == 3 or not trait(augment.operation(name), "needs_rgb"))
    ]
    if settings is not None:
        own = own_operations(settings, channels, settings.data.image_size or 32)
        names += [op.name for op in own if op.name not in augment.OPERATIONS]
        names += [settings.method.relax] if ":" in settings.method.relax else []
    return names


def examples(
    loaded: Loaded, images: Tensor, rows: Sequence[dict[str, Any]], seed: int = 0
) -> Iterator[tuple[str, Tensor]]:
    """Images under each augmentation of the rows, always done: its name, and uint8 B x C x size x size."""
    draws = Draws(seed, rows=len(images))
    for told in rows:
        name = told["augmentation"]
        shown = replace(loaded.preprocess, mean=(0.0,), std=(1.0,))(images)
        if name != "none":
            (op,), _ = chosen(loaded, images, [name])
            shown = under(without_probability(op), images, loaded.preprocess, draws.at("example"))
        yield name, (shown.clamp(0, 1) * 255).round().to(torch.uint8)
