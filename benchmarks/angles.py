"""Was the angle learnt, or learnt by heart? A linear reader of the backbone's features of turned images.

    python benchmarks/angles.py OUT.json RUN [RUN ...] [KEY=VALUE ...]

The reader is fitted to the four rotations of test images, and asked about other test images and about images the
run was trained on: what it tells of the second better than of the first, the run has by heart. Beside it, how far a
rotation moves the features, as a share of their variance among images.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from prelax.config import validate
from prelax.data import load as load_images
from prelax.loading import Loaded, load

IMAGES = 1500  # of each split; the reader is fitted to two thirds of those of the test split


def turned(loaded: Loaded, images: Tensor) -> Tensor:
    """Features of all four rotations.  N x C x H x W -> 4 x N x D"""
    return torch.stack([loaded(torch.rot90(images, turns, (2, 3))) for turns in range(4)])


def judged(path: str, changes: list[str]) -> dict[str, Any]:
    loaded = load(path, "auto")
    changed = {key.removeprefix("data."): value for key, value in (pair.split("=", 1) for pair in changes)}
    settings = validate({"data": {**loaded.settings.data.model_dump(), **changed}}).data
    features = {}
    for split in ("train", "test"):
        images = load_images(settings, split).images
        rows = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:IMAGES].sort().values
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))]
        features[split] = turned(loaded, torch.stack([torch.as_tensor(images[int(row)]) for row in rows])).cpu()
    test = features["test"]
    fit = test.shape[1] * 2 // 3
    seen, asked = test[:, :fit].flatten(0, 1), {"test": test[:, fit:], "train": features["train"]}
    mean, std = seen.mean(0), seen.std(0) + 1e-6
    angle = torch.arange(4).repeat_interleave(fit)
    reader = LogisticRegression(C=0.02, max_iter=500).fit(((seen - mean) / std).numpy(), angle.numpy())
    found: dict[str, Any] = {"run": Path(path).name, "images": {"fitted": fit}}
    for split, h in asked.items():
        right = reader.score(((h.flatten(0, 1) - mean) / std).numpy(), torch.arange(4).repeat_interleave(h.shape[1]))
        found["images"][split], found[f"angle of {split} images, percent right"] = h.shape[1], round(100 * right, 2)
    centre = test.mean(0)
    moved = (test - centre).square().sum(2).mean() / (centre - centre.mean(0)).square().sum(1).mean()
    found["rotation moves features by, share of variance among images"] = round(float(moved), 3)
    return found


def main() -> None:
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    runs = [word for word in sys.argv[2:] if "=" not in word]
    changes = [word for word in sys.argv[2:] if "=" in word]
    found = [judged(run, changes) for run in runs]
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
