"""Run folders as training leaves them, made in a moment: real settings, a real backbone, curves of plausible shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from prelax.config import resolve
from prelax.run import Run


def make_run(
    path: Path, method: str = "prelax-rot", epochs: int = 12, pairs: tuple[str, ...] = (), seed: int = 0
) -> Run:
    """A run folder on the digits with metrics, a backbone (random weights) and two evaluations."""
    from prelax.nets import backbone

    settings = resolve(f"digits/{method}", [f"train.epochs={epochs}", *pairs], seed=seed)
    run = Run.create(path, settings)
    relaxed = method.startswith("prelax")
    for epoch in range(1, epochs + 1):
        t = epoch / epochs
        entry: dict[str, Any] = {
            "epoch": epoch,
            "loss": 1.2 - 0.8 * math.sqrt(t),
            "loss/sim": (0.9 if relaxed else 0.7) - 0.55 * math.sqrt(t) + 0.02 * math.sin(9 * t),
            "residual_norm": (1.1 if relaxed else 0.6) * (1 - math.exp(-5 * t)),
            "embedding_std": 0.9 + 0.05 * t,
            "effective_rank": 20 + 60 * t,
            "lr": 0.5 * (1 + math.cos(math.pi * t)) / 2,
            "images_per_s": 4000.0 + 100 * math.sin(epoch),
            "seconds": 0.4,
        }
        if relaxed:
            entry |= {"loss/r3s": 0.8 - 0.3 * t, "loss/rotpl": 1.38 - 0.7 * t}
        if epoch % 2 == 0:
            entry["knn"] = (60 if relaxed else 70) + (36 if relaxed else 25) * (1 - math.exp(-4 * t))
        run.log_metrics(entry)
    torch.manual_seed(seed)
    run.save_backbone(backbone(settings.model.backbone, settings.model.stem, 1, 16).state_dict())
    run.write_eval(
        "knn-digits", {"protocol": "knn", "dataset": "digits", "accuracy": 96.0 - seed, "floor": 85.8, "seeds": [0]}
    )
    linear = {
        "protocol": "linear",
        "dataset": "digits",
        "accuracy": 97.9,
        "floor": 91.2,
        "std": 0.21,
        "seeds": [0, 1, 2],
    }
    run.write_eval("linear-digits", linear)
    return run


@pytest.fixture
def run_folder() -> Callable[..., Run]:
    return make_run
