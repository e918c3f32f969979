"""Figures of many runs at once, drawn from the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prelax.errors import PrelaxError
from prelax.report.gather import finite
from prelax.report.style import DASHES, MARKERS, PALETTE, WRONG, figure


def draw_bars(rows: Sequence[Mapping[str, Any]], path: Path | str) -> list[Path]:
    """Fig. 1a: what each augmentation alone does to the accuracy of a supervised model.

    Args:
        rows: ``augmentation``, ``accuracy`` (per cent) and, where known, ``std``. The row called ``none`` is the
            reference line.
    """
    told = checked(rows, "augmentation")
    base = next((row["accuracy"] for row in told if row["augmentation"] in ("none", "clean")), None)
    shown = sorted((row for row in told if row["augmentation"] not in ("none", "clean")), key=lambda r: -r["accuracy"])
    with figure(0.21 * len(shown) + 0.55, path) as (drawing, written):
        axes = drawing.subplots()
        widest = min(
            108.0, 1.08 * max((row["accuracy"] + (finite(row.get("std")) or 0.0) for row in told), default=100.0)
        )
        worst = shown[-1]["accuracy"] if len(shown) > 1 else None
        for place, row in enumerate(shown):
            colour = WRONG if row["accuracy"] == worst else PALETTE[0]
            axes.barh(
                place, row["accuracy"], height=0.68, color=colour, xerr=finite(row.get("std")), error_kw={"lw": 0.7}
            )
            inside = row["accuracy"] > 0.15 * widest  # outside it would meet the dashed line
            clear = 0.012 * widest + (finite(row.get("std")) or 0.0)  # of the whisker
            axes.text(
                row["accuracy"] + (-clear if inside else clear),
                place,
                f"{row['accuracy']:.1f}",
                ha="right" if inside else "left",
                va="center",
                fontsize=6.5,
                color="white" if inside else "black",
            )
        axes.set_yticks(range(len(shown)), [str(row["augmentation"]) for row in shown])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.set_xlim(0, max(widest, 1.0))
        axes.set_xlabel("test accuracy (%)")
        if base is not None:  # beneath the bars, or it would strike numbers out
            axes.axvline(base, color="black", linewidth=0.8, linestyle=(0, (3, 2)), zorder=0.5)
            said = f"dashed: no augmentation, {base:.1f} %" + ("" if worst is None else "; orange: the lowest")
            axes.set_title(said, fontsize=6.5, fontweight="normal", loc="right")
    return written


def draw_sensitivity(points: Sequence[Mapping[str, Any]], path: Path | str) -> list[Path]:
    """Accuracy over alpha, beta and gamma: a panel per coefficient, a line per method.

    Args:
        points: ``coefficient``, ``value``, ``accuracy`` and, where known, ``method`` and ``std``.
    """
    told = checked(points, "coefficient", "value")
    coefficients = list(dict.fromkeys(str(row["coefficient"]) for row in told))
    methods = list(dict.fromkeys(str(row.get("method", "prelax")) for row in told))
    greek = {
        "alpha": r"$\alpha$",
        "beta": r"$\beta$",
        "gamma": r"$\gamma$",
        "alpha2": r"$\alpha_2$",
        "gamma2": r"$\gamma_2$",
    }
    with figure(1.75, path) as (drawing, written):
        grid = drawing.subplots(1, len(coefficients), sharey=True, squeeze=False)[0]
        for axes, coefficient in zip(grid, coefficients, strict=True):
            for index, method in enumerate(methods):
                mine = [
                    row
                    for row in told
                    if str(row["coefficient"]) == coefficient and str(row.get("method", "prelax")) == method
                ]
                mine.sort(key=lambda row: row["value"])
                if mine:
                    axes.errorbar(
                        [row["value"] for row in mine],
                        [row["accuracy"] for row in mine],
                        [finite(row.get("std")) or 0.0 for row in mine],
                        color=PALETTE[index % 8],
                        linestyle=DASHES[index % 4],
                        marker=MARKERS[index % 5],
                        markersize=3,
                        elinewidth=0.7,
                        label=method,
                    )
            axes.set_xlabel(greek.get(coefficient, coefficient))
            axes.grid(axis="y")
        grid[0].set_ylabel(measured(told))
        handles = {text: h for axes in grid for h, text in zip(*axes.get_legend_handles_labels(), strict=True)}
        if len(methods) > 1:
            drawing.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(methods))
    return written


def draw_reverse(rows: Sequence[Mapping[str, Any]], path: Path | str) -> list[Path]:
    """Normal against reverse residual: a pair of points for each relaxed loss.

    Args:
        rows: ``loss`` (R2S, R3S), ``normal`` and ``reverse`` accuracies and, where known, their ``normal_std`` and
            ``reverse_std``.
    """
    told = [row for row in rows if finite(row.get("normal")) is not None or finite(row.get("reverse")) is not None]
    if not told:
        raise PrelaxError("nothing to draw: no row has a `normal` or a `reverse` accuracy")
    with figure(0.32 * len(told) + 0.75, path) as (drawing, written):
        axes = drawing.subplots()
        for place, row in enumerate(told):
            pair = [value for kind in ("normal", "reverse") if (value := finite(row.get(kind))) is not None]
            axes.plot([min(pair), max(pair)], [place, place], color="#BBBBBB", linewidth=2, zorder=1)
            for index, kind in enumerate(("normal", "reverse")):
                value, std = finite(row.get(kind)), finite(row.get(f"{kind}_std"))
                if value is None:
                    continue
                label = f"{kind} residual" if all(finite(r.get(kind)) is None for r in told[:place]) else None
                look: dict[str, Any] = {
                    "color": PALETTE[index],
                    "marker": MARKERS[index],
                    "linestyle": "none",
                    "markersize": 5,
                }
                axes.errorbar(value, place, xerr=std, label=label, elinewidth=0.8, **look)
                lower = value < max(pair) or (len(pair) == 2 and pair[0] == pair[1] and index == 0)
                away = (-5, 0) if lower else (5, 0)
                side = "right" if lower else "left"
                axes.annotate(f"{value:.1f}", (value, place), away, textcoords="offset points", ha=side, va="center")
        axes.set_yticks(range(len(told)), [str(row.get("loss", "")) for row in told])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(told) - 0.4, -0.6)
        axes.margins(x=0.16)
        axes.grid(axis="x")
        axes.set_xlabel(measured(told))
        drawing.legend(loc="outside lower center", ncols=2)
    return written


def measured(rows: Sequence[Mapping[str, Any]]) -> str:
    """The name of an axis: by which measurement the rows are; rows that do not say are the paper's, linear."""
    names = {"knn": "kNN", "linear-fast": "linear"}
    protocol = str(next((row["protocol"] for row in rows if row.get("protocol")), "linear"))
    return f"{names.get(protocol, protocol)} accuracy (%)"


def checked(rows: Sequence[Mapping[str, Any]], name: str, *also: str) -> list[Mapping[str, Any]]:
    """The rows that have a name and a finite accuracy (and ``also`` finite); refuses to draw none."""
    numbers = ["accuracy", *also]
    good = [row for row in rows if name in row and all(finite(row.get(key)) is not None for key in numbers)]
    if not good:
        said = " and ".join(f"a finite {key!r}" for key in numbers)
        raise PrelaxError(f"nothing to draw: no row has {name!r} and {said}")
    return good
