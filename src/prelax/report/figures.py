"""The paper's figures, each a call: PNG and SVG, a column wide."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Polygon, Rectangle
from matplotlib.ticker import MaxNLocator

from prelax.config import nearest
from prelax.errors import PrelaxError
from prelax.names import FIGURES
from prelax.report import embedding
from prelax.report.gather import DYNAMICS, line, names
from prelax.report.knowing import draw_knowledge, legend_columns
from prelax.report.rows import effects_rows, read_rows, reverse_rows, sensitivity_rows
from prelax.report.sprites import rgb
from prelax.report.style import COLUMN, DASHES, MARKERS, PALETTE, RIGHT, WRONG, figure
from prelax.report.sweeps import draw_bars, draw_reverse, draw_sensitivity
from prelax.run import Run

__all__ = [
    "FIGURES",
    "draw",
    "draw_bars",
    "draw_dynamics",
    "draw_residual_probe",
    "draw_retrieval",
    "draw_reverse",
    "draw_sensitivity",
    "draw_tsne",
]

Runs = Sequence[Run | Path | str]
LONG = 40  # epochs from which on the first eighth of a run may leave a panel


def draw(
    name: str,
    inputs: Sequence[Path | str],
    path: Path | str,
    *,
    points: int = 2000,
    seed: int = 0,
    device: torch.device | str = "cpu",
    called: Sequence[str] | None = None,
    pictures: bool = True,
) -> list[Path]:
    """A figure of ``FIGURES`` by name, from run folders (or a JSON file of rows); the PNG and SVG written.

    ``called`` names the runs of a figure that has a line for each; else their folders do. Without ``pictures``
    retrieval shows classes in their place, for images that may not be passed on.
    """
    if name not in FIGURES:
        raise PrelaxError(f"no figure {name!r}{nearest(name, FIGURES)}")
    if not inputs:
        raise PrelaxError(f"figure {name} needs something to draw: {FIGURES[name]}")
    if name in ("tsne", "retrieval"):
        if len(inputs) > 1:
            raise PrelaxError(f"figure {name} is of one run; {len(inputs)} were given")
        if name == "tsne":
            return draw_tsne(inputs[0], path, points=points, seed=seed, device=device)
        return draw_retrieval(inputs[0], path, seed=seed, device=device, pictures=pictures)
    if name == "dynamics":
        return draw_dynamics(inputs, path, called)
    if name == "residual-probe":
        return draw_residual_probe(inputs, path)
    if name == "augmentations":
        return draw_bars(effects_rows(inputs), path)
    from_file = len(inputs) == 1 and Path(inputs[0]).suffix == ".json"
    if name == "sensitivity":
        return draw_sensitivity(read_rows(inputs[0]) if from_file else sensitivity_rows(opened(inputs)), path)
    return draw_reverse(read_rows(inputs[0]) if from_file else reverse_rows(opened(inputs)), path)


def opened(runs: Runs) -> list[Run]:
    found = [run if isinstance(run, Run) else Run.open(run) for run in runs]
    if not found:
        raise PrelaxError("no run to draw; give one or more run folders")
    return found


def draw_dynamics(runs: Runs, path: Path | str, called: Sequence[str] | None = None) -> list[Path]:
    """Accuracy, similarity loss and residual norm by epoch, a line per run; the files written."""
    folders = opened(runs)
    called = called or names(folders)
    columns = legend_columns(called)
    metrics = [run.metrics() for run in folders]
    panels = [(key, title) for key, title, *_ in DYNAMICS if any(key in entry for run in metrics for entry in run)]
    if not panels:
        raise PrelaxError(f"{folders[0].path} has no curves yet: its metrics.jsonl holds none of them")
    ylabel = {"knn": "kNN accuracy (%)", "loss/sim": "similarity loss", "residual_norm": r"$\|r\|_2$"}
    with figure(1.15 * len(panels) + 0.2 + 0.15 * -(-len(called) // columns), path) as (drawing, written):
        grid = drawing.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (key, title) in zip(grid, panels, strict=True):
            for index, run in enumerate(metrics):
                curve = line(run, key, index)
                if curve is None:
                    continue
                values = [np.nan if v is None else v for v in curve.values]
                few = "." if len(values) < 3 else None
                axes.plot(
                    curve.epochs,
                    values,
                    color=PALETTE[index % 8],
                    linestyle=DASHES[(index + index // 8) % 4],
                    marker=few,
                    label=called[index],
                )
            axes.set_title(title)
            axes.set_ylabel(ylabel[key])
            axes.grid(axis="y")
            if key == "residual_norm":
                axes.set_ylim(0, 1.08 * max(axes.dataLim.y1, 1e-3))  # flat curves too stay clear of the title
            else:
                look_at_the_settled(axes)
            if key == "knn" and (short := 2.0 - float(np.ptp(axes.get_ylim()))) > 0:  # a tenth of a point is no gap
                low, high = axes.get_ylim()
                axes.set_ylim(low - short / 2, high + short / 2)
        grid[-1].set_xlabel("epoch")
        grid[-1].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        handles = {text: h for axes in grid for h, text in zip(*axes.get_legend_handles_labels(), strict=True)}
        drawing.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, handlelength=2.6)
    return written


def look_at_the_settled(axes: Axes) -> None:
    """Heights that leave out the first eighth of long runs, whose rise or fall would flatten what follows."""
    heights = []
    for drawn in axes.get_lines():
        epochs, values = np.asarray(drawn.get_xydata(), float).T
        known = np.isfinite(values)
        late = known & (epochs >= epochs[-1] / 8) if epochs[-1] >= LONG else known
        heights.append(values[late if late.any() else known])
    seen = np.concatenate(heights) if heights else np.empty(0)
    if len(seen) and np.ptp(seen) > 0:
        room = 0.08 * float(np.ptp(seen))
        axes.set_ylim(float(seen.min()) - room, float(seen.max()) + room)


def features_of(
    run: Run, points: int | None, seed: int, device: torch.device | str
) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Test set, rows (a stratified sample, or all) and their features."""
    from prelax.data import load as load_data
    from prelax.evaluate.features import extract
    from prelax.loading import load

    loaded = load(run.path, device)
    test = load_data(run.settings.data, "test")
    if len(test) == 0:
        raise PrelaxError(f"{test.name} has no test images to draw")
    rows = embedding.sample(test.labels, len(test), points or len(test), seed)
    features = extract(loaded.backbone, test.images[rows], loaded.preprocess, device=device, batch_size=256, keep="cpu")
    return test, rows, features


def draw_tsne(
    run: Run | Path | str, path: Path | str, *, points: int = 2000, seed: int = 0, device: torch.device | str = "cpu"
) -> list[Path]:
    """The t-SNE of the test set, a colour and a shape per class."""
    (folder,) = opened([run])
    test, rows, features = features_of(folder, points, seed, device)
    places = embedding.tsne(features, seed)
    labels = test.labels[rows].numpy() if test.labels is not None else np.full(len(rows), -1)
    classes = [label for label in np.unique(labels) if label >= 0]
    called = [test.classes[label] if label < len(test.classes) else str(label) for label in classes]
    named = 0 < len(classes) <= 20  # more than that does not fit a legend
    columns = legend_columns(called, most=4, mark=3.1)
    wide, high = np.ptp(places, axis=0) + 1e-9
    height = min(3.3, max(1.5, 3.1 * high / wide))  # of the map: no more paper than it covers
    with figure(height + (0.16 * -(-len(classes) // columns) if named else 0), path) as (drawing, written):
        axes = drawing.subplots()
        size = max(1.5, min(10.0, 6000 / len(rows)))
        unknown = labels < 0
        axes.scatter(places[unknown, 0], places[unknown, 1], s=size, c="#777777", linewidths=0, alpha=0.8)
        for label, name in zip(classes, called, strict=True):
            chosen = labels == label
            axes.scatter(
                places[chosen, 0],
                places[chosen, 1],
                s=size,
                c=PALETTE[label % 8],
                marker=MARKERS[label // 8 % 5],
                linewidths=0,
                alpha=0.85,
                label=name,
            )
        axes.set_aspect("equal")
        axes.axis("off")
        if named:
            drawing.legend(
                loc="outside lower center",
                ncols=columns,
                markerscale=(18 / size) ** 0.5,
                handletextpad=0.1,
                columnspacing=1.0,
            )
    return written


def draw_retrieval(
    run: Run | Path | str,
    path: Path | str,
    *,
    queries: int = 10,
    seed: int = 0,
    device: torch.device | str = "cpu",
    pictures: bool = True,
) -> list[Path]:
    """Random test images and the 15 nearest of each among the test set; right and wrong by colour and corner."""
    (folder,) = opened([run])
    test, _, features = features_of(folder, None, seed, device)
    if test.labels is None and not pictures:
        raise PrelaxError("retrieval without pictures shows classes, and the images have none")
    near = embedding.nearest(features)  # N x 15
    asked = embedding.sample(None, len(test), queries, seed)
    labels = test.labels if test.labels is not None else torch.full((len(test),), -1)
    called = [test.classes[i] if 0 <= i < len(test.classes) else str(i) for i in labels[asked].tolist()]
    told = bool((labels[asked] >= 0).any())
    beside = 0.5 + 0.29 * max(len(name[:12]) for name in called) if told else 0.1  # names, in cells
    across = beside + near.shape[1] + (2.5 if told else 1.6)
    cell = (COLUMN - 0.1) / across  # inches
    with figure(cell * len(asked) + 0.2, path) as (drawing, written):
        axes = drawing.subplots()
        for row, query in enumerate(asked.tolist()):
            shown = [query, *near[query].tolist()]
            right = 0
            for column, other in enumerate(shown):
                left = column + (0.5 if column else 0)
                if pictures:
                    place = (left + 0.06, left + 0.94, row + 0.94, row + 0.06)
                    axes.imshow(rgb(test.images[other : other + 1])[0], extent=place, interpolation="nearest")
                elif column and labels[other] >= 0:  # the query's stands beside it
                    axes.text(
                        left + 0.5, row + 0.5, test.classes[labels[other]][:4], ha="center", va="center", fontsize=3
                    )
                if column and labels[query] >= 0 and labels[other] >= 0:
                    same = bool(labels[query] == labels[other])
                    right += same
                    judge(axes, left, row, same)
            if labels[query] >= 0:
                axes.text(-0.15, row + 0.5, called[row][:12], ha="right", va="center", fontsize=6)
                axes.text(len(shown) + 0.65, row + 0.5, f"{right}", ha="left", va="center", fontsize=6)
        where, side = (0.5, "center") if pictures else (-0.15, "right")
        axes.text(where, -0.25, "query", ha=side, va="bottom", fontsize=6)
        axes.text(1.5 + near.shape[1] / 2, -0.25, f"{near.shape[1]} nearest", ha="center", va="bottom", fontsize=6)
        axes.set_xlim(-beside, across - beside)
        axes.set_ylim(len(asked) + 0.05, -0.3)
        axes.set_aspect("equal")
        axes.axis("off")
    return written


def judge(axes: Axes, left: float, top: float, same: bool) -> None:
    """A frame round a neighbour; a wrong one also has a corner, for a reader who does not see the colours."""
    colour = RIGHT if same else WRONG
    axes.add_patch(Rectangle((left + 0.06, top + 0.06), 0.88, 0.88, fill=False, edgecolor=colour, linewidth=0.9))
    if not same:
        corner = [(left + 0.94, top + 0.06), (left + 0.54, top + 0.06), (left + 0.94, top + 0.46)]
        axes.add_patch(Polygon(corner, facecolor=colour, edgecolor="white", linewidth=0.3))


def draw_residual_probe(runs: Runs, path: Path | str) -> list[Path]:
    """What a linear reader tells from the residual and from the features, and how far each augmentation moves them."""
    return draw_knowledge(opened(runs), path)
