"""Every evaluation by name, and the one function that runs them and writes ``eval/*.json``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from prelax.collectives import rank
from prelax.config import DataSettings, EvaluateSettings, nearest
from prelax.data.arrays import is_arrays
from prelax.errors import PrelaxError
from prelax.evaluate.finetune import finetune
from prelax.evaluate.probe import (
    Outcome,
    knn,
    knn_few,
    linear,
    linear_fast,
    linear_few,
    linear_tta,
    logistic,
    neighbours,
)
from prelax.evaluate.relaxing import FEW
from prelax.evaluate.residual import probe_residual
from prelax.evaluate.retrieval import precision
from prelax.evaluate.subject import Subject, random_subject, start_subject, subject
from prelax.loading import IMAGE_SIZE, Loaded, load
from prelax.names import PROTOCOLS, SOURCES
from prelax.run import Run
from prelax.stamp import device_name

Probe = Callable[[Subject, EvaluateSettings, Sequence[int]], Outcome]

PROBES: dict[str, Probe] = {
    "knn": knn,
    "linear": linear,
    "linear-tta": linear_tta,
    "linear-fast": linear_fast,
    "logistic": logistic,
    "knn-10-per-class": partial(knn_few, per_class=10),
    "linear-1pct": partial(linear_few, share=0.01),
    "linear-10pct": partial(linear_few, share=0.10),
    "finetune": partial(finetune, share=1.0),
    "finetune-1pct": partial(finetune, share=0.01),
    "finetune-10pct": partial(finetune, share=0.10),
    "retrieval": precision,
}
# A floor need not cost as much as the figure: the fast probe agrees with the slow one.
FLOOR = {"linear": "linear-fast", "linear-tta": "linear-fast"}
CHEAP_SEEDS = 5  # probes that cost seconds: the least number of seeds they are averaged over
CHEAP = ("linear-fast", "knn-10-per-class", "linear-1pct", "linear-10pct")


class Partly(PrelaxError):
    """Some protocols could not be done, and what the others gave."""

    def __init__(self, results: list[dict[str, Any]], failed: Mapping[str, PrelaxError]) -> None:
        super().__init__("; ".join(f"{name}: {error}" for name, error in failed.items()))
        self.results = results


def check(protocols: Sequence[str]) -> list[str]:
    """The names, once all of them are protocols."""
    for name in protocols:
        if name not in PROTOCOLS:
            raise PrelaxError(f"no protocol {name!r}{nearest(name, PROTOCOLS)}")
    return list(dict.fromkeys(protocols))


def evaluate(
    run: Run,
    protocols: Sequence[str] = ("knn", "logistic"),
    on: DataSettings | str | None = None,
    device: torch.device | str = "auto",
    seed: int = 0,
    settings: EvaluateSettings | None = None,
    shared: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Runs evaluations of a run's backbone, writes each to ``eval/PROTOCOL[-DATASET].json`` and returns them.

    Where some of several cannot be done, the error, a ``Partly``, has the ``results`` of the others.

    Args:
        on: the dataset whose labels are used, as settings or by name; the run's own by default, another is a transfer.
        seed: of the first probe; ``evaluate.probe_seeds`` follow one another from there.
        settings: in place of the run's own ``evaluate`` section.
        shared: called by all processes of a job together: each computes a share of the features, all get the results,
            the first writes them.
        tell: called with what is measured next: some protocols take minutes.
    """
    protocols = check(protocols)
    unfinished = run.unfinished
    loaded = load(run.path, device)
    on = dataset(on, loaded.settings.data, loaded.channels)
    own = loaded.settings.data
    elsewhere = on is not None and place(on) != place(own)
    target = on or own
    if elsewhere:
        run.evals()  # one that cannot be read is told before the work, not after it
    results: list[dict[str, Any]] = []
    failed: dict[str, PrelaxError] = {}
    judged = subject(loaded, on, seed, shared) if any(name in PROBES for name in protocols) else None
    floor = random_subject(judged, loaded) if judged is not None else None
    start = start_subject(judged, loaded) if judged is not None else None
    for number, name in enumerate(protocols, 1):
        tell(doing := f"measuring {name} ({number} of {len(protocols)})")
        try:
            if name in PROBES:
                assert judged is not None
                assert floor is not None
                judged.tell = partial(_further, tell, doing)
                floor.tell = partial(_further, tell, f"{doing}, random weights")
                result = examine(name, judged, floor, loaded, settings)
                if start is not None:
                    start.tell = partial(_further, tell, f"{doing}, as it began")
                    result |= before(name, start, result)
                if not judged.known:
                    result["weights_it_began_with_saw"] = "not known"
            else:
                result = probe_residual(run, loaded, on=on, seed=seed)
        except PrelaxError as error:  # of this protocol alone, perhaps
            if shared:  # the other processes may be inside it still
                raise
            failed[name] = error
            continue
        result["dataset"] = target.label
        if (root := root_of(target)) is not None:
            result["root"] = root
        if not shared or rank() == 0:
            named = free_name(run, f"{name}-{target.label}", result.get("root")) if elsewhere else name
            run.write_eval(named, result, unfinished)
        results.append(result)
    if failed and results:
        raise Partly(results, failed)
    for why in failed.values():
        raise why
    return results


def _further(tell: Callable[[str], None], doing: str, part: str) -> None:
    tell(f"{doing}: {part}")


def root_of(data: DataSettings) -> str | None:
    """Where a folder of images lies, whichever way it is named; None for a known dataset, the same wherever it lies."""
    return str(data.root.expanduser().resolve()) if data.source == "folder" and data.root is not None else None


def place(data: DataSettings) -> tuple[str, str | None]:
    """Whose images these are."""
    return data.source, root_of(data)


def free_name(run: Run, name: str, root: str | None) -> str:
    """The name, or the name and a number where it stands for another folder that is called the same."""
    taken, number, free = run.evals(), 1, name
    while free in taken and taken[free].get("root") != root:
        number += 1
        free = f"{name}-{number}"
    return free


def dataset(on: DataSettings | str | None, own: DataSettings, channels: int) -> DataSettings | None:
    """What ``on`` names: settings as they are, a source beside the run's own, a folder or an array file of images."""
    if on is None or isinstance(on, DataSettings):
        return on
    if on in SOURCES:
        if on == own.source:
            return own
        other = {"source": on, "image_size": image_size_on(on, own), "channels": channels}
        other |= dict.fromkeys(("test_root", "labels", "limit", *(("root",) if own.source == "folder" else ())))
        return own.model_copy(update=other)
    if Path(on).is_dir() or is_arrays(Path(on)):
        alike = {"image_size": own.image_size, "channels": channels, "range": own.range}
        return DataSettings(source="folder", root=Path(on), cache=own.cache, workers=own.workers, **alike)
    raise PrelaxError(f"no dataset {on!r}, and no folder or .npy, .npz or .h5 file of that name{nearest(on, SOURCES)}")


def image_size_on(source: str, own: DataSettings) -> int | None:
    """The size a run's backbone reads a dataset in: one with a size of its own keeps it, enlarging is preprocessing."""
    return None if source in IMAGE_SIZE else own.image_size


def examine(
    name: str, judged: Subject, floor: Subject, loaded: Loaded, settings: EvaluateSettings | None = None
) -> dict[str, Any]:
    """One evaluation as a result: the figure, its floor, and all that is needed to make it again."""
    settings = settings or loaded.settings.evaluate
    wanted = max(settings.probe_seeds, CHEAP_SEEDS) if name in CHEAP else settings.probe_seeds
    seeds = list(range(judged.seed, judged.seed + wanted))
    began = time.perf_counter()
    found = PROBES[name](judged, settings, seeds)
    seconds = time.perf_counter() - began
    beneath = FLOOR.get(name, name)
    under = PROBES[beneath](floor, settings, seeds)
    alias = {"precision": round(found.score.mean, 4)} if name == "retrieval" else {}
    return {
        "protocol": name,
        "dataset": judged.train.name,
        "pretrained_on": loaded.settings.data.source,
        "accuracy": round(found.score.mean, 4),
        **alias,
        "std": round(found.score.std, 4),
        "accuracies": [round(value, 4) for value in found.score.accuracies],
        "seeds": found.seeds,
        "floor": round(under.score.mean, 4),
        "floor_std": round(under.score.std, 4),
        "floor_protocol": f"{beneath}, random weights of seed {judged.seed}, BatchNorm settled on the training images",
        "settings": {"backbone": "frozen, eval mode", **found.settings}
        if not name.startswith("finetune")
        else found.settings,
        "train_images": len(judged.train),
        "test_images": len(judged.test),
        "classes": judged.classes,
        "test_images_left_out_as_seen": judged.dropped,
        "test_images_left_out_as_doubles": judged.doubles,
        "classes_without_test_images": only_in(judged, "train", "test"),
        "classes_without_training_images": only_in(judged, "test", "train"),
        "pretraining_images_verified": judged.verified,
        "seed": judged.seed,
        "evaluate": settings.model_dump(mode="json"),
        "device": device_name(judged.device),
        "seconds": round(seconds, 3),
    }


def before(name: str, start: Subject, result: Mapping[str, Any]) -> dict[str, Any]:
    """The same figure of the weights that a run began with."""
    beneath = FLOOR.get(name, name)
    found = PROBES[beneath](start, EvaluateSettings.model_validate(result["evaluate"]), result["seeds"])
    return {"start": round(found.score.mean, 4), "start_std": round(found.score.std, 4), "start_protocol": beneath}


def only_in(judged: Subject, split: str, other: str) -> list[str]:
    """The classes that have images of one split and none of the other."""
    here, there = (set(judged.labels(name).unique().tolist()) for name in (split, other))
    return [name for label, name in enumerate(judged.test.classes) if label in here - there]


def notes(result: Mapping[str, Any]) -> list[str]:
    """What the reader of a figure should know about how it was measured."""
    found, said = [], result.get("settings")
    asked, k = (said.get("asked_k"), said.get("k")) if isinstance(said, Mapping) else (None, None)
    if k != asked and isinstance(asked, int):
        vote = "nearest image alone votes" if k == 1 else f"{k} nearest images vote"
        found.append(f"The {vote} (a tenth of all), not the {asked} that evaluate.knn_k asks for.")
    if result.get("weights_it_began_with_saw") == "not known":
        found.append("What the weights it began with were trained on is not known: test images may be among it.")
    images, seen = (result.get(key) for key in ("test_images", "test_images_left_out_as_seen"))
    if isinstance(images, int) and 0 < images < FEW:
        few = "1 test image is" if images == 1 else f"{images} test images are"
        more = (
            ""
            if result.get("dataset") in SOURCES
            else " Without a test folder of its own, data.test_fraction=0.3 in training holds more of them out."
        )
        found.append(f"{few} few: one more or less is {100 / images:.1f} points.{more}")
    if isinstance(seen, int) and seen:
        was = "test image is left out: it was" if seen == 1 else "test images are left out: they were"
        found.append(f"{seen} {was} trained on.")
    doubles = result.get("test_images_left_out_as_doubles")
    if isinstance(doubles, int) and doubles:
        was = "test image is left out: it is" if doubles == 1 else "test images are left out: they are"
        found.append(f"{doubles} {was} among the training images of the dataset, too.")
    for kind in ("test", "training"):
        if isinstance(missed := result.get(f"classes_without_{kind}_images"), list) and missed:
            more = f" and {len(missed) - 5} more" if len(missed) > 5 else ""
            found.append(f"No {kind} image is of {', '.join(map(str, missed[:5]))}{more}.")
    return found


def made_as_now(found: Mapping[str, Any], wanted: EvaluateSettings, seed: int = 0) -> bool:
    """Whether a result was made with these settings and by the rules of today."""
    k, images = found.get("settings", {}).get("k"), found.get("train_images", 0)
    by_rule = found.get("protocol") != "knn" or k == neighbours(wanted.knn_k, images)
    return by_rule and (found.get("evaluate"), found.get("seed")) == (wanted.model_dump(), seed)
