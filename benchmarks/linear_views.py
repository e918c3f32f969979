"""What a linear probe should be shown of a test image: the same probes judged on several views of the test set.

    python benchmarks/linear_views.py OUT.json RUN [RUN ...]

For every run three probes by SimSiam's protocol (trained on random crops), judged on whole test images, on their
central 7/8 (what ``evaluate.linear_view`` chooses between) and on images scaled to 9/8 and 5/4 and cropped at the
centre; then all of it again with BatchNorm's statistics taken anew from whole training images.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from prelax.config import EvaluateSettings
from prelax.evaluate.linear import LINEAR, score
from prelax.evaluate.probe import knn, logistic, train_linear
from prelax.evaluate.subject import Subject, settle_norms, subject
from prelax.loading import load


def enlarged(pixels: Tensor, share: float, mode: str) -> Tensor:
    """uint8 images scaled up and cropped back to their size at the centre."""
    side = pixels.shape[-1]
    to = round(side * share)
    larger = F.interpolate(pixels.float(), (to, to), mode=mode, antialias=True).round().clamp(0, 255).byte()
    at = (to - side) // 2
    return larger[..., at : at + side, at : at + side]


def judged(one: Subject) -> dict[str, Any]:
    """Accuracies of kNN, of a logistic regression, and of each linear probe on every view."""
    began = time.perf_counter()
    probes = train_linear(one, LINEAR["simsiam"], [0, 1, 2])
    labels = one.labels("test")
    found: dict[str, Any] = {
        "knn": knn(one, EvaluateSettings()).score.mean,
        "logistic": logistic(one, EvaluateSettings()).score.mean,
    }
    for view in ("whole", "centre"):
        features, seen = one.for_linear(view)
        found[f"linear, {seen}"] = score(probes.predict(features), labels).accuracies
    for share in (1.125, 1.25):
        for mode in ("bilinear", "bicubic"):
            features = one.extracted(
                one.test.images, lambda pixels, share=share, mode=mode: one.preprocess(enlarged(pixels, share, mode))
            )
            name = f"linear, scaled by {share}, {mode}, and cropped at the centre"
            found[name] = score(probes.predict(features), labels).accuracies
    return {**found, "seconds": round(time.perf_counter() - began, 1)}


def main() -> None:
    out, report = Path(sys.argv[1]), {}
    for folder in sys.argv[2:]:
        loaded = load(folder, "cuda" if torch.cuda.is_available() else "cpu")
        one = subject(loaded)
        settled = replace(one, backbone=settle_norms(copy.deepcopy(one.backbone), one), kept={})
        for how, which in (("as trained", one), ("BatchNorm settled on whole training images", settled)):
            report[f"{Path(folder).name}, {how}"] = judged(which)
            print(json.dumps(report, indent=1), flush=True)
            out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
