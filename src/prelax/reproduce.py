"""A table of the paper, row by row: what is not trained yet is trained, what is not measured yet is measured.

Everything made is kept in one folder, whatever table asked for it, so that SimSiam on CIFAR-10 is trained once and
stands in every table. A run's folder carries a short hash of its settings: a quick pass never passes for the real one.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prelax.check import check
from prelax.config import EvaluateSettings, Settings, overrides, resolve
from prelax.errors import PrelaxError
from prelax.table_files import stem_of, write
from prelax.tables import DETECTORS, Row, chosen, table
from prelax.whole import write_whole, writing

Say = Callable[[str], None]


def settings_of(row: Row, changes: Sequence[str], seed: int) -> Settings:
    """What a row trains: its recipe, its own changes, then the user's."""
    return resolve(row.recipe, [*row.set, *changes], seed)


def run_name(settings: Settings) -> str:
    """A folder name that two runs share only when they compute the same thing."""
    from prelax.run import CHANGEABLE

    tree = settings.model_dump(mode="json", exclude={"recipe", "evaluate"})
    data = settings.data
    places = {"data.root": data.source == "folder", "data.test_root": True, "data.shards": True}
    for key in CHANGEABLE:
        section, _, leaf = key.partition(".")
        value = tree[section].pop(leaf, None)
        if value is not None and places.get(key):  # other images; a known dataset is the same wherever it lies
            tree[section][leaf] = value if leaf == "shards" else str(Path(value).expanduser().resolve())
    digest = hashlib.sha1(json.dumps(tree, sort_keys=True).encode(), usedforsecurity=False).hexdigest()[:8]
    stem = re.sub(r"[^\w.+-]+", "-", settings.recipe)
    return f"{stem}-{digest}-seed{settings.seed}"


def folder_of(out: Path | str, row: Row, settings: Settings) -> Path:
    """Where a row's run is kept: in the one that other tables use too, unless that has no curve the row needs."""
    folder = Path(out) / run_name(settings)
    if row.protocol == "metrics" and settings.train.knn_every and trained(settings, folder):
        from prelax.run import Run

        if not any("knn" in entry for entry in Run(folder).metrics()):
            return folder.with_name(f"{folder.name}-knn{settings.train.knn_every}")
    return folder


def reproduce(
    name: str,
    changes: Sequence[str] = (),
    out: Path | str = "runs/paper",
    *,
    seeds: Sequence[int] = (0,),
    only: str | None = None,
    coco: Path | str | None = None,
    detection: Sequence[str] = (),
    progress: bool = True,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """The table with our figures beside the paper's; also written to ``out/NAME.json``, ``.md`` and ``.html``.

    Where those are of another pass over the table (other changes, rows or seeds), a number is added to the name.

    A row that fails keeps its reason and does not stop the others. Where no row has its data, nothing is begun.

    Args:
        changes: ``key=value`` for every row, for example ``train.epochs=100`` for a quick pass.
        seeds: a run of every row for each; the table then has mean and standard deviation.
        only: a pattern; rows whose label, column or recipe does not match it are left out.
        coco: where COCO is, for the rows of detection and segmentation.
        detection: ``key=value`` for their detectors (``prelax.detect.DetectSettings``), for example ``epochs=24``.
        say: called with a line before each piece of work.
    """
    from prelax.detect.rows import is_coco, measure_detection, table_settings

    wanted = chosen(table(name), only)
    check_protocols(wanted, coco)
    detectors = table_settings(detection) if any(row.protocol in DETECTORS for row in wanted) else None
    # Every mistake in the settings shows up here, before the first row is trained.
    jobs = {row: [check(settings_of(row, changes, seed)) for seed in seeds] for row in wanted}
    source = overrides(changes).get("data", {}).get("source")
    out = Path(out)
    check_data(jobs, out)
    made, results = [], []
    told: set[str] = set()
    for row, several in jobs.items():
        figures: list[float] = []
        beside: list[float] = []
        folders, failure, like = [], None, True
        for settings in several:
            folder = folder_of(out, row, settings)
            on = source if row.dataset and source else row.dataset
            try:
                say(f"{row.label}{f', {row.column}' if row.column else ''}, seed {settings.seed}: {folder}")
                if is_trained(row):
                    train_or_skip(settings, folder, progress, say)
                if detectors is not None and row.protocol in DETECTORS:
                    say(f"  {row.protocol} on {coco}")
                    start = folder if is_trained(row) else None
                    found = measure_detection(start, row.protocol, settings, str(coco), out, detectors, progress)
                    figures.append(figure_of(found, row.figure, str(folder)))
                    like = like and is_coco(found)
                else:
                    figures.append(measure(folder, row, on, settings.train.device, settings.evaluate, say))
                if row.protocol.startswith("linear"):  # kNN stands beside every linear figure
                    knn = Row(row.label, row.recipe, "knn", init=row.init)
                    beside.append(measure(folder, knn, on, settings.train.device, settings.evaluate, say))
            except PrelaxError as error:
                failure = str(error)
                say("failed, as above" if failure in told else f"failed: {failure}")
                told.add(failure)
            folders.append(str(folder))
            if folder not in made and (folder / "backbone.safetensors").is_file():
                made.append(folder)
        results.append(line(row, figures, beside, folders, failure, several[0], like))
    result = {
        "table": name,
        "title": table(name).title,
        "changes": list(changes),
        "only": only,
        "seeds": list(seeds),
        "detection": asdict(detectors) if detectors is not None else None,
        "detection_changes": list(detection),
        "rows": results,
    }
    stem = stem_of(out, result)
    result["files"] = str(stem)
    result["page"] = write_page(made, stem.with_name(f"{stem.name}.html"), say)
    result["figure"] = draw_figure(name, result, made, stem, say)
    write(stem, result)
    return result


def plan(
    name: str,
    changes: Sequence[str] = (),
    out: Path | str = "runs/paper",
    *,
    seeds: Sequence[int] = (0,),
    only: str | None = None,
) -> list[dict[str, Any]]:
    """What ``reproduce`` would do: a line a row and seed, with the run folder and how far it is."""
    lines = []
    for row in chosen(table(name), only):
        for seed in seeds:
            settings = check(settings_of(row, changes, seed))
            folder = folder_of(out, row, settings)
            done = finished_epochs(folder)
            lines.append(
                {
                    "method": row.label,
                    "column": row.column,
                    "recipe": row.recipe,
                    "seed": seed,
                    "run": str(folder),
                    "epochs": f"{done} of {settings.train.epochs}" if is_trained(row) else "none",
                    "measured by": row.protocol,
                    "paper": row.paper,
                }
            )
    return lines


def train_or_skip(settings: Settings, folder: Path, progress: bool, say: Say) -> None:
    """Leaves a finished run alone, goes on with one that was stopped, and starts one that is not there."""
    from prelax.train import pretrain

    begun = (folder / "config.yaml").is_file()
    if begun:
        if trained(settings, folder):
            say("  trained already")
            return
        say(f"  going on from epoch {finished_epochs(folder)} of {settings.train.epochs}")
    pretrain(settings, folder, resume=begun, progress=progress)


def trained(settings: Settings, folder: Path) -> bool:
    return (folder / "backbone.safetensors").is_file() and finished_epochs(folder) >= settings.train.epochs


def finished_epochs(folder: Path) -> int:
    from prelax.run import Run

    return max((entry["epoch"] for entry in Run(folder).metrics()), default=0)


def measure(folder: Path, row: Row, on: str | None, device: str, wanted: EvaluateSettings, say: Say) -> float:
    """The row's figure, measured now or, when it was measured with these settings before, read from the run folder."""
    from prelax.evaluate.effects import effects
    from prelax.evaluate.protocols import PROBES, dataset, evaluate, made_as_now
    from prelax.run import Run
    from prelax.train import choose_device

    run = Run.open(folder)
    if row.protocol == "metrics":
        return figure_of(run.metrics()[-1], row.figure, f"the metrics of {folder}")
    figure = "floor" if row.init == "random" else row.figure
    own = run.settings.data
    for found in run.evals().values():
        made_so = row.protocol not in PROBES or made_as_now(found, wanted)
        if made_so and found.get("protocol") == row.protocol and found.get("dataset") == (on or own.label):
            return figure_of(found, figure, str(folder))
    say(f"  measuring {row.protocol}" + (f" on {on}" if on else ""))
    target = dataset(on, own, own.channels or 3) if on and on != own.source else None
    where = choose_device(device)
    if row.protocol == "effects":
        result = effects(run, target, where)
    else:
        result = evaluate(run, [row.protocol], on=target, device=where, settings=wanted)[0]
    return figure_of(result, figure, str(folder))


def figure_of(result: Mapping[str, Any], name: str, where: str) -> float:
    """A number of an evaluation by name; a dot goes one level deeper."""
    outer, _, inner = name.rpartition(".")
    numbers = result.get(outer, {}) if outer else result
    if isinstance(numbers, list):  # what augmentations do: a row each
        numbers = {row["augmentation"]: row["accuracy"] for row in numbers}
    value = numbers.get(inner)
    if not isinstance(value, int | float) or not math.isfinite(value):
        known = sorted(key for key, number in numbers.items() if isinstance(number, int | float))
        raise PrelaxError(f"{where} has no figure {name!r}, only {', '.join(known)}")
    return float(value)


def is_trained(row: Row) -> bool:
    """Whether a row needs a run at all: a detector from random weights does not."""
    return not (row.init == "random" and row.protocol in DETECTORS)


def check_protocols(rows: Iterable[Row], coco: Path | str | None) -> None:
    """Refuses a row that could be trained but not measured."""
    from prelax.detect.rows import check_coco
    from prelax.names import PROTOCOLS

    for row in rows:
        if row.protocol in DETECTORS:
            check_coco(coco, f"{row.label}, {row.column}")
        elif row.protocol not in {*PROTOCOLS, "effects", "metrics"}:
            raise PrelaxError(
                f"{row.label}, {row.column}: {row.protocol} cannot be measured; leave such rows out with --only"
            )


def check_data(jobs: Mapping[Row, Sequence[Settings]], out: Path) -> None:
    """Refuses what could only fail, once: every row is yet to be trained, and on data that are not there."""
    from prelax.data.missing import missing

    reasons: dict[str | None, None] = {}
    for row, several in jobs.items():
        for settings in several:
            begins = is_trained(row) and not trained(settings, folder_of(out, row, settings))
            reasons[missing(settings.data) if begins else None] = None
    if None not in reasons:
        raise PrelaxError("; ".join(filter(None, reasons)))


def line(
    row: Row,
    figures: list[float],
    beside: list[float],
    folders: list[str],
    failure: str | None,
    settings: Settings,
    like: bool = True,
) -> dict[str, Any]:
    """A row of the result: ours, the paper's and the difference. On other data the paper's figure says nothing."""
    ours, std = mean_std(figures)
    recipe = resolve(row.recipe)
    same_data = settings.data.source == recipe.data.source and settings.data.limit is None and like
    paper = row.paper if same_data else None
    return {
        **{key: value for key, value in asdict(row).items() if key not in ("init", "set", "paper")},
        "set": list(row.set),
        "trained_on": settings.data.source,
        "recipe_data": recipe.data.source,
        "epochs": settings.train.epochs,
        "recipe_epochs": recipe.train.epochs,
        "ours": ours,
        "std": std,
        "figures": figures,
        "knn": mean_std(beside)[0],
        "paper": paper,
        "difference": round(ours - paper, 2) if ours is not None and paper is not None else None,
        "runs": folders,
        "failure": failure,
    }


def mean_std(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The mean, and the standard deviation when there are several.

    >>> mean_std([90.0, 92.0])
    (91.0, 1.4142)
    """
    if not values:
        return None, None
    std = round(statistics.stdev(values), 4) if len(values) > 1 else None
    return round(statistics.fmean(values), 4), std


def draw_figure(name: str, result: Mapping[str, Any], folders: Sequence[Path], stem: Path, say: Say) -> str | None:
    """The paper's figure, for the tables that are figures: ``STEM.png`` and ``.svg``."""
    from prelax.names import FIGURES
    from prelax.report.figures import draw

    kind = name.removeprefix("fig-")
    if kind not in FIGURES or kind == name or not folders:
        return None
    inputs: Sequence[Path] = folders
    seeds = result["seeds"]
    labels = {
        folder: f"{row['label']}, seed {seed}" if len(seeds) > 1 else row["label"]
        for row in result["rows"]
        for folder, seed in zip(row["runs"], seeds, strict=True)
    }
    called = [labels[str(folder)] for folder in folders]
    if kind == "augmentations":
        rows = [{"augmentation": row["column"], "accuracy": row["ours"], "std": row["std"]} for row in result["rows"]]
        inputs = [stem.with_name(f"{stem.name}.rows.json")]
        with writing(inputs[0]):
            write_whole(inputs[0], json.dumps(rows))
    try:
        inputs = inputs[:1] if kind in ("tsne", "retrieval") else inputs
        return str(draw(kind, inputs, stem.with_name(f"{stem.name}.png"), called=called)[0])
    except PrelaxError as error:
        say(f"no figure: {error}")
        return None


def write_page(folders: Sequence[Path], target: Path, say: Say) -> str | None:
    """One page of the rows' runs: curves, maps and nearest images."""
    from prelax.report import report

    try:
        return str(report(folders, target)) if folders else None
    except PrelaxError as error:
        say(f"no page: {error}")
        return None
