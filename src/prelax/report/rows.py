"""Rows of the figures that compare many runs, read from the run folders themselves."""

from __future__ import annotations

import itertools
import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prelax.config import Settings
from prelax.errors import PrelaxError
from prelax.report.content import Row
from prelax.report.gather import results
from prelax.run import CHANGEABLE, Run

COEFFICIENTS = ("alpha", "beta", "gamma")


def scores(runs: Sequence[Run]) -> tuple[str, list[tuple[Any, float]]]:
    """The first measurement that all runs have, and by it the method's settings and the accuracy of every run.

    On their own dataset before others, and linear before kNN.
    """
    asked = alike(runs)
    rows = [row for row in results([run.evals() for run in runs]) if row.measure == "accuracy"]
    rows.sort(key=lambda row: row.dataset != asked[0].data.label)
    if not rows:
        raise PrelaxError(f"none of the {len(runs)} runs was evaluated; do so with `prelax evaluate RUN`")

    def values(row: Row) -> list[float]:
        return [cell.value for cell in row.cells if cell is not None and cell.value is not None]

    row = next((row for row in rows if len(values(row)) == len(runs)), None)
    if row is None:
        most = max(rows, key=lambda row: len(values(row)))
        said = ", ".join(run.name for run, cell in zip(runs, most.cells, strict=True) if cell is None)
        raise PrelaxError(
            f"the runs have no measurement in common; {said} lack(s) {most.protocol} on {most.dataset}: "
            f"`prelax evaluate RUN --protocol {most.protocol}`"
        )
    return row.protocol, list(zip((settings.method for settings in asked), values(row), strict=True))


def alike(runs: Sequence[Run]) -> list[Settings]:
    """The settings of runs; refused are runs that differ in anything but method and seed, or in nothing."""
    asked = [run.settings for run in runs]  # each is read from its file
    named = {"data.label": [settings.data.label for settings in asked]}
    for section in ("data", "model", "augment", "train"):
        trees = [getattr(settings, section).model_dump(mode="json") for settings in asked]
        named |= {f"{section}.{leaf}": [tree[leaf] for tree in trees] for leaf in trees[0]}
    named["method.base"] = [settings.method.base for settings in asked]
    for name, values in named.items():
        found = list(dict.fromkeys(map(str, values)))
        if len(found) > 1 and name not in CHANGEABLE:
            raise PrelaxError(f"the runs differ in {name} ({', '.join(found)}): such a figure is of runs that do not")
    for (other, one), (run, two) in itertools.combinations(zip(runs, asked, strict=True), 2):
        if (one.method, one.seed) == (two.method, two.seed):
            raise PrelaxError(f"{other.path} and {run.path} are one run twice: the same method, seed and settings")
    return asked


def spread(values: Sequence[float], name: str = "accuracy", std: str = "std") -> dict[str, float]:
    """Mean over seeds, and their standard deviation where there are several."""
    told = {name: statistics.fmean(values)}
    return told | ({std: statistics.stdev(values)} if len(values) > 1 else {})


def sensitivity_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Accuracy over each coefficient, from runs that differ in it alone; seeds are averaged.

    The other coefficients are held at the values most runs of the method have.
    """
    rows: list[dict[str, Any]] = []
    protocol, scored = scores(runs)
    for method in dict.fromkeys(settings.name for settings, _ in scored):
        mine = [(settings, value) for settings, value in scored if settings.name == method]
        usual = {name: statistics.mode(getattr(settings, name) for settings, _ in mine) for name in COEFFICIENTS}
        for name in COEFFICIENTS:
            rest = [other for other in COEFFICIENTS if other != name]
            held = [(s, value) for s, value in mine if all(getattr(s, other) == usual[other] for other in rest)]
            by_value: dict[float, list[float]] = {}
            first: dict[float, Any] = {}
            for settings, value in held:
                at = getattr(settings, name)
                if settings != first.setdefault(at, settings):
                    raise PrelaxError(f"{method} runs of {name} {at:g} differ in more than the seed: no mean of them")
                by_value.setdefault(at, []).append(value)
            if len(by_value) > 1:
                rows += [
                    {"method": method, "coefficient": name, "value": at, "protocol": protocol, **spread(values)}
                    for at, values in sorted(by_value.items())
                ]
    if not rows:
        raise PrelaxError("no two runs differ in alpha, beta or gamma alone; give the runs of a sweep")
    return rows


def reverse_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Accuracies with the normal and with the reverse residual, a row a method; seeds are averaged."""
    found: dict[str, dict[str, list[float]]] = {}
    first: dict[str, Any] = {}
    protocol, scored = scores(runs)
    for settings, value in scored:
        normal = settings.model_copy(update={"reverse": False})
        if normal != first.setdefault(settings.name, normal):
            raise PrelaxError(f"the {settings.name} runs differ in more than method.reverse and the seed")
        kind = "reverse" if settings.reverse else "normal"
        found.setdefault(settings.name, {}).setdefault(kind, []).append(value)
    rows: list[dict[str, Any]] = []
    for method, pair in found.items():
        row: dict[str, Any] = {"loss": method, "protocol": protocol}
        for kind, values in pair.items():
            row |= spread(values, kind, f"{kind}_std")
        rows.append(row)
    if not any("reverse" in row for row in rows):
        raise PrelaxError("none of the runs has method.reverse=true; give runs with and without it")
    return rows


def effects_rows(inputs: Sequence[Path | str]) -> list[Mapping[str, Any]]:
    """What each augmentation does, of one run (the paper's way if it was measured so) or a JSON file of rows."""
    if len(inputs) > 1:
        raise PrelaxError(f"figure augmentations is of one run or file; {len(inputs)} were given")
    path = Path(inputs[0])
    if not path.is_dir():
        return read_rows(path)
    evals = Run.open(path).evals()
    for name in ("effects", "augmentations"):
        if name in evals:
            return list(evals[name]["rows"])
    ask = f"`prelax augmentations {shlex.quote(str(path))}`"
    raise PrelaxError(f"{path} does not know what augmentations do to it; ask with {ask}")


def read_rows(path: Path | str) -> list[Mapping[str, Any]]:
    """The rows in a JSON file: a list, or what stands under ``rows``."""
    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise PrelaxError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise PrelaxError(f"{path} is not JSON") from None
    rows = told.get("rows") if isinstance(told, Mapping) else told
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise PrelaxError(f"{path} holds no rows: a JSON list of objects, or such a list under 'rows'")
    return rows
