"""The COCO rows of the paper's table: a detector trained once for each start, model and seed, and read back after."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from prelax.config import Settings, nearest
from prelax.detect.coco import find, pycocotools
from prelax.detect.detect import CHANGEABLE, detect
from prelax.detect.model import read_start
from prelax.detect.settings import DetectSettings
from prelax.errors import PrelaxError
from prelax.tables import DETECTORS

COCO = (117_000, 5_000)  # 2017's images with objects to learn from (117,266; a damaged few may be left out), and scored


def table_settings(pairs: Iterable[str] = ()) -> DetectSettings:
    """The settings of every row, with ``key=value`` changes: COCO's usual size, BatchNorm trained from every start.

    >>> table_settings(["epochs=1", "lr=0.005"]).epochs
    1
    """
    values: dict[str, Any] = {"size": 800, "norm": "trained"}
    kinds = {field.name: str(field.type) for field in fields(DetectSettings)}
    fixed = {"model": "the row says which", "seed": "use --seeds", "device": "use train.device=NAME"}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise PrelaxError(f"--detect {pair!r} is not key=value, for example epochs=24")
        if key not in kinds or key in fixed:
            why = f": {fixed[key]}" if key in fixed else nearest(key, set(kinds) - set(fixed))
            raise PrelaxError(f"--detect: no setting {key}{why}")
        read = int if kinds[key].startswith("int") else float if "float" in kinds[key] else str
        try:
            values[key] = read(text)
        except ValueError:
            raise PrelaxError(f"--detect {pair}: {text!r} is no {'whole ' if read is int else ''}number") from None
    return DetectSettings(**values)


def check_coco(root: Path | str | None, row: str) -> None:
    """Refuses, before anything is trained, a table that could not be measured in the end."""
    if root is None:
        raise PrelaxError(
            f"{row}: this is measured on COCO: say where it is with --coco ROOT, or leave such rows out with --only"
        )
    pycocotools()
    for split in ("train", "val"):
        find(Path(root), split)


def measure_detection(
    folder: Path | None,
    protocol: str,
    settings: Settings,
    coco: Path | str,
    out: Path,
    wanted: DetectSettings,
    progress: bool = True,
) -> dict[str, Any]:
    """The result of a detector, trained now, gone on with, or read from the folder it was written to before.

    Args:
        folder: of the run its backbone is from, and beside which it is kept; None starts from random weights.
        settings: of the row; its backbone, stem, seed and device are the detector's.
        out: where detectors from random weights are kept.
    """
    wanted = replace(wanted, model=DETECTORS[protocol], seed=settings.seed, device=settings.train.device)
    stem = "small" if settings.model.stem == "small" else "imagenet"
    start = read_start("random", settings.model.backbone, stem) if folder is None else read_start(folder)
    about = {key: value for key, value in asdict(wanted).items() if key not in CHANGEABLE}
    about |= {"coco": str(Path(coco).resolve()), "start": [start.backbone, start.stem, start.digest]}
    digest = hashlib.sha1(json.dumps(about, sort_keys=True).encode(), usedforsecurity=False).hexdigest()[:8]
    name = f"{wanted.model}-{digest}-seed{wanted.seed}"
    target = out / f"random-{start.backbone}-{name}" if folder is None else folder / name
    done = target / "detection.json"
    if done.is_file():
        try:
            return dict(json.loads(done.read_text(encoding="utf-8")))
        except ValueError:
            raise PrelaxError(f"{done} is not JSON; remove {target} to measure again") from None
    return detect(start, coco, target, wanted, resume=(target / "settings.json").is_file(), progress=progress)


def is_coco(result: dict[str, Any]) -> bool:
    """Whether a result is of COCO 2017 itself, by its image counts; beside another set the paper's figures say nothing.

    >>> is_coco({"train_images": 117_266, "val_images": 5_000}), is_coco({"train_images": 240, "val_images": 80})
    (True, False)
    """
    return bool(result["train_images"] >= COCO[0] and result["val_images"] == COCO[1])
