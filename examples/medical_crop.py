"""The crop relaxed instead of rotation: what matters in a scan may lie in a corner that a crop cuts off.

The images are synthetic scans, grey noise with a small bright spot in one of four corners or none; the label is where.
"""

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from prelax.config import resolve
from prelax.evaluate import evaluate
from prelax.train import pretrain


def scans(folder: Path, count: int = 60, side: int = 32) -> None:
    """Class folders of synthetic scans."""
    rng = np.random.default_rng(0)
    corners = {"none": None, "nw": (5, 5), "ne": (5, 26), "sw": (26, 5), "se": (26, 26)}
    for name, corner in corners.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            image = rng.normal(90, 20, (side, side))
            if corner is not None:
                y, x = np.array(corner) + rng.integers(-2, 3, 2)
                image[y - 2 : y + 3, x - 2 : x + 3] += 110
            Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(folder / name / f"{number}.png")


def main(epochs: int = 20) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        scans(Path(folder) / "scans")
        changes = [
            f"data.root={folder}/scans",
            f"data.cache={folder}/cache",
            "data.image_size=32",
            "data.test_fraction=0.4",  # enough held out to tell a lead from chance
            "augment.preset=medical",
            "augment.size=32",
            "model.backbone=resnet8",
            "method.name=prelax-rot",
            "method.relax=crop",  # the residual must say where the crop was and how large
            "train.batch_size=64",
            "train.warmup_epochs=0",
            f"train.epochs={epochs}",
        ]
        run = pretrain(resolve("folder", changes), Path(folder) / "run", progress=False)
        (result,) = evaluate(run, ["logistic"])
    read, floor = result["accuracy"], result["floor"]
    print(
        f"where the spot is, read off the features: right for {read:.1f} % of {result['test_images']} scans held out "
        f"(random weights: {floor:.1f} %)"
    )
    return float(read), float(floor)


if __name__ == "__main__":
    main()
