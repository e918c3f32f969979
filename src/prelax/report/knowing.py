"""The figure of what the residual knows: read off it, read off the features, and how far features move."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.textpath import TextPath

from prelax.errors import PrelaxError
from prelax.report.content import Bar
from prelax.report.gather import bars, finite, moves, names, own_residual
from prelax.report.style import COLUMN, PALETTE, STYLE, figure
from prelax.run import Run

THICK = 0.8  # of the bars of one thing together
GAP, WIDE = 2.0, 7.0  # per cent of the axis: between a mark and a number, and what a number takes
LEGEND = 72 * COLUMN / STYLE["legend.fontsize"] - 2  # how wide one is between its margins, in sizes of its font


def legend_columns(called: Sequence[str], most: int = 3, mark: float = 5.4) -> int:
    """How many names stand side by side in a legend a column wide.

    >>> legend_columns(["tench", "English springer", "church", "parachute"])
    3

    Args:
        most: names, however short.
        mark: what a name's line or dot takes with the space around it, in sizes of the font.
    """
    with warnings.catch_warnings(action="ignore"):  # letters that no font has: said when they are drawn
        wide = [TextPath((0, 0), name, size=1).get_extents().width if name.strip() else 0.0 for name in called]
    for columns in range(min(most, len(called)), 1, -1):
        parts = np.array_split(wide, columns)  # as matplotlib fills them
        if sum(max(part) + mark for part in parts) <= LEGEND:
            return columns
    return 1


def draw_knowledge(folders: Sequence[Run], path: Path | str) -> list[Path]:
    """What a linear reader tells of each augmentation, and how far each moves the features: a bar per run.

    Above: read from the residual, with a tick where random weights are (a guess, where they were not asked) and a ring
    where the features of the one image stand.
    Below: the distance of the features of an image before and after, in per cent of that between different images (0
    is invariant). Runs without a measure of the second kind have the first panel alone.
    """
    called, evals = names(folders), [run.evals() for run in folders]
    told, moved = bars(evals), moves(evals)
    if not told:
        where = folders[0].path
        command = f"prelax evaluate {shlex.quote(str(where))} --protocol residual"
        raise PrelaxError(f"{where} has no residual probe; make one with `{command}`")
    rows = [len(part) * (len(folders) + 1) for part in (told, moved) if part]
    with figure(max(1.3, 0.105 * sum(rows) + 0.62 * len(rows) + 0.32), path) as (drawing, written):
        grid = drawing.subplots(len(rows), 1, squeeze=False, height_ratios=rows)[:, 0]
        draw_readings(grid[0], told, called, [of_features(run) for run in evals])
        if moved:
            draw_moves(grid[1], moved)
        handles, labels = grid[0].get_legend_handles_labels()
        if handles:
            drawing.legend(handles, labels, loc="outside lower center", ncols=legend_columns(labels))
    return written


def draw_readings(
    axes: Axes, told: Sequence[Bar], called: Sequence[str], features: Sequence[Mapping[str, Any]]
) -> None:
    """A bar per parameter and run: the share read off the residual."""
    thick, ringed = THICK / len(called), False
    for place, bar in enumerate(told):
        for index, cell in enumerate(bar.cells):
            if cell is None or cell.value is None:
                continue
            y = place + (index + 0.5) * thick - THICK / 2
            label = called[index] if len(called) > 1 and not any(b.cells[index] for b in told[:place]) else None
            axes.barh(y, max(cell.value, 0), thick * 0.9, color=PALETTE[index % 8], label=label)
            ring = features[index].get(bar.name)
            at = beside(cell.value, [mark for mark in (cell.floor, ring) if mark is not None])
            axes.text(at, y, str(round(cell.value)), va="center", fontsize=6)
            if cell.floor is not None:
                axes.plot([max(cell.floor, 0)] * 2, [y - thick / 2, y + thick / 2], color="black", linewidth=1.1)
            if ring is not None:
                look: dict[str, Any] = {"markersize": 2.8, "markerfacecolor": "white", "markeredgewidth": 0.7}
                mark = None if ringed else "from features"
                axes.plot(max(ring, 0), y, "o", color="black", clip_on=False, label=mark, **look)
                ringed = True
    names_at(axes, [bar.name for bar in told])
    axes.set_xlim(0, 108)
    axes.set_title("What the residual knows")
    axes.set_xlabel(f"read from the residual (%)\n{tick_name(told)}".strip())  # side by side they are too wide


def beside(value: float, marks: Sequence[float]) -> float:
    """Where the number of a bar begins: at the bar's end, or after the marks that stand there.

    >>> beside(36, [-6, 48]), beside(87, [47, 88.5])
    (38.0, 90.5)
    """
    at = max(value, 0) + GAP
    for mark in sorted(max(mark, 0) for mark in marks):
        if at - 1.5 * GAP <= mark <= at + WIDE:
            at = mark + GAP
    return float(at)


def tick_name(told: Sequence[Bar]) -> str:
    """What the black ticks are, as the axis says it."""
    kinds = {cell.guess for bar in told for cell in bar.cells if cell is not None and cell.floor is not None}
    names = {False: "random weights", True: "a guess"}
    return f"black tick: {' or '.join(names[kind] for kind in sorted(kinds))}" if kinds else ""


def draw_moves(axes: Axes, moved: Sequence[Bar]) -> None:
    """A bar per augmentation and run: how far it moves the features, where different images are 100 apart."""
    for place, bar in enumerate(moved):
        thick = THICK / len(bar.cells)
        for index, cell in enumerate(bar.cells):
            if cell is None or cell.value is None or cell.floor is None or cell.floor >= 1:
                continue
            y = place + (index + 0.5) * thick - THICK / 2
            far = 100 * (1 - cell.value) / (1 - cell.floor)
            axes.barh(y, far, thick * 0.9, color=PALETTE[index % 8])
            axes.text(far + 1.5, y, str(round(far)), va="center", fontsize=6)
    names_at(axes, [bar.name for bar in moved])
    axes.set_xlim(0, max(108.0, axes.get_xlim()[1]))
    axes.set_title("How far the features move")
    axes.set_xlabel("% of the distance between images; 0: invariant")


def names_at(axes: Axes, rows: Sequence[str]) -> None:
    axes.set_yticks(range(len(rows)), list(rows))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.45, -0.55)


def of_features(evals: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """What was read off the features of the augmented image alone, by parameter."""
    found = {}
    for result in own_residual(evals):
        for name, told in (result.get("features") or {}).items() if "targets" in result else ():
            value = finite(told.get("accuracy", told.get("r2"))) if isinstance(told, Mapping) else None
            if value is not None:
                found[str(name)] = value
    return found
