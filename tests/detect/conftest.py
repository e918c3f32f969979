from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

torch.set_num_threads(1)

COLOURS = {10: (220, 40, 40), 20: (40, 60, 220)}  # category: its colour


def write_toy(root: Path) -> Path:
    """Two images of 96 x 72 with a red box and a blue one each, as both splits; ids that do not begin at 1."""
    things = {
        7: [(10, [8, 10, 30, 24]), (20, [52, 30, 36, 36])],
        3: [(20, [6, 34, 34, 30]), (10, [50, 6, 28, 30])],
    }
    grain = np.random.default_rng(0)
    pictures, annotations = {}, []
    for image, objects in things.items():
        pixels = grain.integers(90, 130, (72, 96, 3), dtype=np.uint8)
        for category, (left, top, width, height) in objects:
            pixels[top : top + height, left : left + width] = COLOURS[category]
            right, bottom = left + width, top + height
            annotations.append(
                {
                    "id": len(annotations),
                    "image_id": image,
                    "category_id": category,
                    "bbox": [left, top, width, height],
                    "area": width * height,
                    "iscrowd": 0,
                    "segmentation": [[left, top, right, top, right, bottom, left, bottom]],
                }
            )
        pictures[image] = pixels
    tree = {
        "images": [{"id": i, "file_name": f"{i}.png", "width": 96, "height": 72} for i in things],
        "annotations": annotations,
        "categories": [{"id": 20, "name": "blue"}, {"id": 10, "name": "red"}],
    }
    for split in ("train", "val"):
        (root / split).mkdir(parents=True)
        for image, pixels in pictures.items():
            Image.fromarray(pixels).save(root / split / f"{image}.png")
        (root / f"instances_{split}.json").write_text(json.dumps(tree))
    return root


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "toy")


@pytest.fixture
def tree(toy: Path) -> dict[str, Any]:
    """The annotations of the toy's splits, to be changed and written back."""
    return json.loads((toy / "instances_train.json").read_text())  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def backbone_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of a ResNet-18 with the large stem, its BatchNorm statistics away from the start values."""
    from prelax.config import resolve
    from prelax.nets import backbone
    from prelax.run import Run

    path = tmp_path_factory.mktemp("runs") / "imagenette"
    run = Run.create(path, resolve("imagenette/byol", ["data.root=somewhere", "model.backbone=resnet18"]))
    torch.manual_seed(5)
    net = backbone("resnet18", "imagenet").train()
    with torch.no_grad():
        net(torch.randn(4, 3, 64, 64))
    run.save_backbone(net.state_dict())
    return path
