"""What run folders say, as the parts of a page; nothing here looks at an image."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from prelax.config import keys
from prelax.errors import PrelaxError
from prelax.evaluate.protocols import notes
from prelax.evaluate.relaxing import FEW
from prelax.evaluate.transfer import tails, tell_apart
from prelax.report.content import Bar, Card, Cell, Chart, Effects, Line, Mark, Row, Setting, Word
from prelax.run import Run

# Fields of an evaluation that describe it; what else is a number is a figure.
ABOUT = {
    *("protocol", "dataset", "settings", "seeds", "std", "floor", "floor_std", "date", "prelax", "accuracy", "seconds"),
    *("train_images", "test_images", "classes", "test_images_left_out_as_seen"),
    *("test_images_left_out_as_doubles", "k", "epochs", "batch_size"),
}
EFFECTS = ("effects", "augmentations")  # what augmentations do: a section of its own
FIRST = ("linear", "linear-fast", "knn", "logistic")  # the figure a run is known by, when there are several

DYNAMICS = (  # the paper's figure: accuracy, similarity loss, residual norm
    ("knn", "Accuracy", "kNN on frozen features, per cent. A random backbone is dotted, or named at the edge.", " %"),
    ("loss/sim", "Similarity loss", "How far the views of one image still are from agreeing.", ""),
    (
        "residual_norm",
        "Residual norm",
        "Distance of two views as unit vectors. Near 0 they say the same; larger, the residual carries what was done.",
        "",
    ),
)
CAPTIONS = {
    "loss": ("Total loss", "What training minimises."),
    "embedding_std": (
        "Embedding spread",
        "Deviation over a batch, times the root of the dimension; near 0 is collapse.",
    ),
    "effective_rank": ("Effective rank", "How many directions the embeddings use."),
    "silent_channels": (
        "Silent channels",
        "Share of the backbone's BatchNorm channels whose variance is under its eps: dead, or no longer normalised.",
    ),
    "lr": ("Learning rate", "As scheduled."),
    "images_per_s": ("Speed", "Images a second."),
    "views_per_s": ("Views", "Views a second; each image is shown in several."),
    "data_wait": ("Waiting", "Share of the time that went into waiting for images."),
    "seconds": ("Time", "Seconds an epoch."),
}


MADE = {  # what a run folder says of its making
    "created": "when the run began",
    "prelax": "version of this library",
    "torch": "version of PyTorch",
    "python": "version of Python",
    "commit": "of the checkout prelax ran from",
}


def finite(value: Any) -> float | None:
    """A number that can be drawn, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def names(runs: Sequence[Run]) -> list[str]:
    """A name for every run, with as much of its path as tells it from the others.

    >>> names([Run("a/prelax"), Run("b/prelax"), Run("c/simsiam")])
    ['a/prelax', 'b/prelax', 'simsiam']
    """
    return tails([run.path.resolve() for run in runs])


# -- results -----------------------------------------------------------------------------------------------------------


def results(evals: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[Row]:
    """The table: a row per protocol, dataset and measure, a cell per run; the best of a row is marked."""
    found: dict[tuple[str, tuple[str, str | None], str], list[Cell | None]] = {}
    for index, run in enumerate(evals):
        for name, result in run.items():
            # The residual probe and the effects of augmentations have figures of their own.
            if not isinstance(result, Mapping) or "targets" in result or result.get("protocol") in EFFECTS:
                continue
            for measure, cell in measures(result).items():
                key = (str(result.get("protocol", name)), place(result), measure)
                found.setdefault(key, [None] * len(evals))[index] = cell
    called = datasets(evals)
    order = {protocol: rank for rank, protocol in enumerate(FIRST)}
    rows = [
        Row(protocol, called[where], measure, mark_best(cells), percent=is_percent(measure))
        for (protocol, where, measure), cells in found.items()
    ]
    return sorted(rows, key=lambda row: (order.get(row.protocol, len(FIRST)), row.protocol, row.dataset))


def place(result: Mapping[str, Any]) -> tuple[str, str | None]:
    """The dataset of an evaluation, and the folder it lies in."""
    root = result.get("root")
    return str(result.get("dataset", "–")), str(root) if root is not None else None


def datasets(evals: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[tuple[str, str | None], str]:
    """What the page calls each dataset: one name in all its rooms."""
    every = list(dict.fromkeys(place(one) for run in evals for one in run.values() if isinstance(one, Mapping)))
    return dict(zip(every, tell_apart(every), strict=True))


def is_percent(measure: str) -> bool:
    return not measure.endswith(("loss", "_s", "seconds", "count"))


def measures(result: Mapping[str, Any]) -> dict[str, Cell]:
    """The figures of one evaluation: its accuracy, or every number in it that is not about how it was made."""
    seeds = result.get("seeds")
    count = len(seeds) if isinstance(seeds, list) else 1
    told = result.get("settings")
    detail = ", ".join(f"{key} {value}" for key, value in told.items()) if isinstance(told, Mapping) else ""
    images = finite(result.get("test_images"))
    about: dict[str, Any] = {
        "detail": detail,
        "images": None if images is None else int(images),
        "notes": tuple(notes(result)),
        "start": finite(result.get("start")),
    }
    if "accuracy" in result:
        value, floor, std = (finite(result.get(key)) for key in ("accuracy", "floor", "std"))
        return {"accuracy": Cell(value, floor, std, count, **about)}
    floors = result.get("floor") if isinstance(result.get("floor"), Mapping) else {}
    found = {}
    for key, value in result.items():
        if key not in ABOUT and finite(value) is not None:
            found[key] = Cell(finite(value), finite((floors or {}).get(key)), None, count, **about)
    return found


def mark_best(cells: list[Cell | None]) -> list[Cell | None]:
    """The cells with the highest one marked, where it was learnt and is ahead.

    None is marked that is not above its floor, is ahead of another by no more than the deviation of either, or was
    measured on few images. A figure that draws nothing, kNN's, still deviates by which test images there happen to be.
    """
    known = [(value, cell) for cell in cells if cell is not None and (value := cell.value) is not None]
    if len(known) < 2:
        return cells
    top, best = max(known, key=lambda pair: pair[0])
    ahead = all(top - value > max(deviation(best), deviation(cell)) for value, cell in known if cell is not best)
    learnt = best.floor is None or top > best.floor
    if not ahead or not learnt or (best.images is not None and best.images < FEW):
        return cells
    return [replace(cell, best=True) if cell is best else cell for cell in cells]


def deviation(cell: Cell) -> float:
    """By how much a figure in per cent varies: over its seeds, or, if that is more, over samples of as many images."""
    share = min(max((cell.value or 0.0) / 100, 0.0), 1.0)
    return max(cell.std or 0.0, 100 * math.sqrt(share * (1 - share) / cell.images) if cell.images else 0.0)


def headline(rows: Sequence[Row], index: int, dataset: str) -> Row | None:
    """The row a run is known by: linear before kNN, on its own dataset before others."""
    mine = [row for row in rows if row.cells[index] is not None and row.cells[index].value is not None]  # type: ignore[union-attr]
    accuracy = [row for row in mine if row.measure == "accuracy"]
    at_home = [row for row in accuracy if row.dataset == dataset or row.dataset.endswith(f"/{dataset}")]
    return next(iter(at_home or accuracy or mine), None)


def own_residual(run: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What the residual probe found on the run's own images; on others only if it was not asked about its own."""
    return [run["residual"]] if "residual" in run else list(run.values())


def bars(evals: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[Bar]:
    """What the residual probe read: a bar per parameter and run."""
    found: dict[tuple[str, str], list[Cell | None]] = {}
    for index, run in enumerate(evals):
        for result in own_residual(run):
            targets = result.get("targets") if isinstance(result, Mapping) else None
            if not isinstance(targets, Mapping):
                continue
            for name, told in targets.items():
                if not isinstance(told, Mapping):
                    continue
                kind = "accuracy, %" if "accuracy" in told else "variance explained, %"
                value = finite(told.get("accuracy", told.get("r2")))
                random, guess = finite(told.get("random")), finite(told.get("floor"))
                cells = found.setdefault((str(name), kind), [None] * len(evals))
                cells[index] = Cell(value, guess if random is None else random, guess=random is None)
    return [Bar(name, unit, cells) for (name, unit), cells in found.items()]


def moves(evals: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[Bar]:
    """How far each augmentation alone moves the features: a cosine per run; the floor is that of different images."""
    found: dict[str, list[Cell | None]] = {}
    for index, run in enumerate(evals):
        for result in own_residual(run):
            told = result.get("cosine_after") if isinstance(result, Mapping) else None
            if not isinstance(told, Mapping):
                continue
            for name, value in told.items():
                if name != "other images":
                    cells = found.setdefault(str(name), [None] * len(evals))
                    cells[index] = Cell(finite(value), finite(told.get("other images")))
    return [Bar(name, "cosine", cells) for name, cells in found.items()]


def effects(evals: Sequence[Mapping[str, Mapping[str, Any]]]) -> Effects:
    """What each augmentation alone does to test images.

    The accuracy (the floor is that of untouched images); how far the features move where there are no labels, or too
    few images to go by accuracy (the floor is where another image lies).
    """
    found: dict[tuple[bool, str, str], list[Cell | None]] = {}
    remarks, called = [], datasets(evals)
    for index, run in enumerate(evals):
        for result in run.values():
            if not isinstance(result, Mapping) or result.get("protocol") not in EFFECTS:
                continue
            rows = {str(row.get("augmentation")): row for row in result.get("rows", []) if isinstance(row, Mapping)}
            untouched = finite(rows.pop("none", {}).get("accuracy"))
            done = "done to all" if (result.get("settings") or {}).get("applied") == "always" else "as drawn"
            name, images = called[place(result)], finite(result.get("test_images"))
            few = images is not None and images < FEW
            if untouched is not None and few:
                remarks.append(f"{images:.0f} images of {name}: too few to go by accuracy, so by how far they move.")
            judged = untouched is not None and not few
            for augmentation, row in rows.items():
                value, floor = (finite(row.get("accuracy")), untouched) if judged else (finite(row.get("moved")), 100.0)
                if value is not None:
                    key = (judged, augmentation, f"{name}, {done}, %")
                    found.setdefault(key, [None] * len(evals))[index] = Cell(value, floor)
    made = [(judged, Bar(name, unit, cells)) for (judged, name, unit), cells in found.items()]
    units = list(dict.fromkeys(bar.unit for _, bar in made))
    moved = [bar for judged, bar in made if not judged]
    moved.sort(key=lambda bar: (units.index(bar.unit), -max(cell.value or 0.0 for cell in bar.cells if cell)))
    return Effects([bar for judged, bar in made if judged], moved, list(dict.fromkeys(remarks)))


# -- curves ------------------------------------------------------------------------------------------------------------


def line(metrics: Sequence[Mapping[str, Any]], key: str, run: int) -> Line | None:
    """One metric of one run by epoch; None if it was never logged. Sparse metrics keep only the epochs they have."""
    told = [(at, entry) for entry in metrics if isinstance(at := entry.get("epoch"), int) and key in entry]
    if not told:
        return None
    return Line(run, [at for at, _ in told], [finite(entry[key]) for _, entry in told])


def charts(
    metrics: Sequence[Sequence[Mapping[str, Any]]], evals: Sequence[Mapping[str, Mapping[str, Any]]]
) -> tuple[list[Chart], list[Chart]]:
    """The paper's three curves, and all others that were logged."""

    def chart(key: str, title: str, caption: str, unit: str = "", marks: list[Mark] | None = None) -> Chart | None:
        lines = [one for index, run in enumerate(metrics) if (one := line(run, key, index))]
        return Chart(key, title, caption, lines, marks or [], unit) if lines else None

    floors = []
    for index, run in enumerate(evals):
        floor = finite(run.get("knn", {}).get("floor"))  # on the run's own images, as the curve is
        curve = line(metrics[index], "knn", index)
        if floor is not None and curve is not None and any(value is not None for value in curve.values):
            floors.append(Mark(index, floor, "random backbone"))
    first = [chart(key, title, said, unit, floors if key == "knn" else None) for key, title, said, unit in DYNAMICS]
    shown = {key for key, *_ in DYNAMICS} | {"epoch"}
    if not any(first):  # labels or angles alone: the loss is what there is to see
        first, shown = [chart("loss", *CAPTIONS["loss"])], shown | {"loss"}
    logged = [key for run in metrics for entry in run for key, value in entry.items() if isinstance(value, int | float)]
    others = [key for key in dict.fromkeys(logged) if key not in shown]
    rest = [chart(key, *caption(key)) for key in others]
    return [one for one in first if one], [one for one in rest if one]


def caption(key: str) -> tuple[str, str]:
    if key in CAPTIONS:
        return CAPTIONS[key]
    if key.startswith("loss/"):
        return f"Loss: {key.removeprefix('loss/')}", "One term of the total."
    return key.replace("_", " ").capitalize(), ""


# -- runs and settings -------------------------------------------------------------------------------------------------


def card(run: Run, name: str, index: int, rows: Sequence[Row], words: Sequence[Word], obstacle: str = "") -> Card:
    """A run at a glance, and why it cannot be measured by its own images."""
    settings = run.settings
    metrics = run.metrics()
    last = max((e for entry in metrics if isinstance(e := entry.get("epoch"), int)), default=0)
    seconds = sum(s for entry in metrics if (s := finite(entry.get("seconds"))) is not None)
    epochs = f"{last}" if last >= settings.train.epochs else f"{last} of {settings.train.epochs}"
    facts = [
        ("method", settings.method.name),
        ("data", settings.data.label),
        ("backbone", settings.model.backbone),
        ("epochs", epochs),
        ("batch size", str(settings.train.batch_size)),
        ("seed", str(settings.seed)),
    ]
    if seconds:
        facts.append(("training time", duration(seconds)))
    row = headline(rows, index, settings.data.label)
    return Card(name, str(run.path), row, facts, list(words), labelled(run), obstacle)


def labelled(run: Run) -> int | None:
    """How many training images have a label, by the run's record of them; None without one."""
    count = run.trained_on().get("labelled")
    return count if isinstance(count, int) else None


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(42), duration(754), duration(7300)
    ('42 s', '12 min 34 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def settings_table(runs: Sequence[Run]) -> list[Setting]:
    """Every setting, with a value per run, and what each folder says of its making."""
    trees = [run.settings for run in runs]

    def value(tree: Any, key: str) -> str:
        for part in key.split("."):
            tree = getattr(tree, part)
        return said(tree)

    def said(leaf: Any) -> str:
        return "none" if leaf is None else str(leaf).lower() if isinstance(leaf, bool) else str(leaf)

    found = []
    for key, field in keys().items():
        found.append(Setting(key, [value(tree, key) for tree in trees], field.description or "", said(field.default)))
    abouts = [run.read_config()[1] for run in runs]
    for key, about in MADE.items():
        values = [str(told.get(key) or "unknown").replace("+00:00", " UTC") for told in abouts]
        found.append(Setting(f"run.{key}", values, about))
    return found


def attempt(what: str, name: str, make: Callable[[], Any], left_out: list[str]) -> Any:
    """What ``make`` gives, or None and a line on why it could not be made; runs that lack it alike share a line."""
    try:
        return make()
    except (PrelaxError, OSError) as error:
        start, why = f"{what} of ", f": {error}"
        alike = [i for i, line in enumerate(left_out) if line.startswith(start) and line.endswith(why)]
        if alike:
            left_out[alike[0]] = f"{left_out[alike[0]].removesuffix(why)}, {name}{why}"
        else:
            left_out.append(f"{start}{name}{why}")
    return None
