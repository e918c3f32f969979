"""Views of your own for training, and a function of your own that hears every epoch and ends the run.

On the command line it is `prelax pretrain digits/prelax-all augment.preset=own_views:VIEWS`, run beside this file.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from prelax.augment import Crop, FreeRotation, Maybe, Noise, Normalise, Pipeline
from prelax.config import resolve
from prelax.train import pretrain

# Digits have an up and a left: slightly turned, never mirrored. The residual is asked for whatever is drawn here.
VIEWS = Pipeline(
    [
        Crop(16, scale=(0.5, 1.0)),
        Maybe(FreeRotation(15.0), 0.5),
        Noise((0.0, 0.1)),
        Normalise((0.3053,), (0.3189,)),
    ]
)


def main(wanted: float = 95.0) -> float:
    sys.path.insert(0, str(Path(__file__).parent))
    heard: list[float] = []

    def good_enough(line: dict[str, Any]) -> bool:
        heard.append(line["knn"])
        print(f"epoch {line['epoch']}: {line['knn']:.1f} % right by kNN")
        return heard[-1] >= wanted

    settings = resolve("digits/prelax-all", ["augment.preset=own_views:VIEWS", "train.knn_every=1"])
    with tempfile.TemporaryDirectory() as folder:
        run = pretrain(settings, Path(folder) / "run", progress=False, on_epoch=good_enough)
        end = "stopped, resume=True would go on" if run.unfinished else "finished"
        print(f"{end}: {len(heard)} of {settings.train.epochs} epochs")
    return heard[-1]


if __name__ == "__main__":
    main()
