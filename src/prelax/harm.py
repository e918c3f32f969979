"""Which augmentation harms? The accuracy of a backbone on test images that each augmentation alone was applied to.

The paper's Fig. 1a asks this of a supervised network on CIFAR-10, and rotation harms most there; in another domain it
may be cropping, or colour. Asked of a run on your own images it says which augmentation to relax (``method.relax``).
"""

from __future__ import annotations

import time
from typing import Any

import torch

from prelax import augment
from prelax.config import DataSettings
from prelax.draws import Draws
from prelax.evaluate.features import extract
from prelax.evaluate.knn import accuracy
from prelax.evaluate.logistic import choose_logistic
from prelax.evaluate.subject import Subject, subject
from prelax.loading import load, views_of
from prelax.run import Run

DRAWS = 5  # of every augmentation


def harm(
    run: Run, on: DataSettings | None = None, device: torch.device | str = "cpu", seed: int = 0, draws: int = DRAWS
) -> dict[str, Any]:
    """The accuracy of a linear reader, fitted to untouched training images, on test images under each augmentation.

    Writes ``eval/augmentations.json``: ``accuracy`` of untouched test images, and ``under``, a figure an augmentation,
    each the mean over ``draws`` draws of its parameters. The augmentations are the run's own, as they are set there,
    and the one it relaxes (rotation unless the run says otherwise).
    """
    began = time.perf_counter()
    loaded = load(run.path, device)
    judged = subject(loaded, on, seed)
    reader = choose_logistic(judged.features("train"), judged.labels("train"), judged.classes, seed)
    labels = judged.labels("test")
    clean = accuracy(reader(judged.features("test")).argmax(1), labels)
    pipeline = views_of(loaded.settings, loaded.channels, judged.test.images.shape[-1]).pipelines[1]
    relax = loaded.settings.method.relax
    options = {"size": loaded.size} if relax == "crop" else {}
    operations = [op for op in pipeline.ops if not isinstance(op, augment.Normalise)]
    if relax not in {op.name for op in operations}:
        operations.append(augment.operation(relax, **options))
    under, std = {}, {}
    for op in operations:
        told = torch.tensor([under_one(judged, op, loaded.size, reader, seed + draw) for draw in range(draws)])
        under[op.name] = round(float(told.mean()), 4)
        std[op.name] = round(float(told.std()), 4) if draws > 1 else 0.0
    result = {
        "protocol": "augmentations",
        "dataset": judged.test.name,
        "accuracy": round(clean, 4),
        "under": under,
        "under_std": std,
        "settings": {"reader": "logistic regression on untouched training images", "draws": draws, "l2": reader.l2},
        "seeds": list(range(seed, seed + draws)),
        "test_images": len(judged.test),
        "seconds": round(time.perf_counter() - began, 3),
    }
    run.write_eval("augmentations" if on is None else f"augmentations-{judged.test.name}", result)
    return result


def under_one(judged: Subject, op: augment.Operation, size: int, reader: Any, seed: int) -> float:
    """Accuracy on the test images after one augmentation."""
    crop = isinstance(op, augment.Crop)
    whole = augment.Crop(size, scale=(1.0, 1.0), ratio=(1.0, 1.0), interpolation="bilinear")
    pre = judged.preprocess
    normalise = augment.Normalise(pre.mean, pre.std)  # type: ignore[attr-defined]
    pipeline = augment.Pipeline([*([] if crop else [whole]), op, normalise])
    start = 0  # images come in order, and an image's draw goes by its number

    def augmented(images: torch.Tensor) -> torch.Tensor:
        nonlocal start
        ids = torch.arange(start, start + len(images), device=images.device)
        start += len(images)
        return pipeline(images, Draws(seed, ids).at("harm", op.name)).images

    features = extract(judged.backbone, judged.test.images, augmented, device=judged.device, batch_size=1024)
    return accuracy(reader(features).argmax(1), judged.labels("test"))


def rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The result as rows for a table or a figure, the most harmful last; ``none`` is the untouched image."""
    base = {"augmentation": "none", "accuracy": result["accuracy"], "std": None, "harm": 0.0}
    found = [
        {
            "augmentation": name,
            "accuracy": value,
            "std": result["under_std"][name],
            "harm": round(result["accuracy"] - value, 4),
        }
        for name, value in result["under"].items()
    ]
    return [base, *sorted(found, key=lambda row: row["harm"])]
