"""A picture of what is wrong with a run: the curves that show it, and the limits they crossed."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from prelax.errors import PrelaxError
from prelax.report.gather import caption, line
from prelax.report.style import PALETTE, WRONG, figure

if TYPE_CHECKING:
    from prelax.doctor import Finding

WIDE, SMALLER = 47, 0.75  # letters of a title that fit over a panel, and what one at its right takes of them
NAMES = {"data_wait": "share of time waiting", "images_per_s": "images/s", "knn": "kNN (%)"}
LIMITS = {"divergence": "at first", "pretext": "a guess", "kNN": "best"}  # what the dashed line is, else "the limit"


def draw_health(metrics: Sequence[Mapping[str, Any]], findings: Sequence[Finding], path: Path | str) -> list[Path]:
    """A panel a curve, what is wrong in words above it, the limit dashed; PNG and SVG."""
    panels = [(finding, key, limit) for finding in findings for key, limit in finding.curves.items()]
    panels = [panel for panel in panels if line(metrics, panel[1], 0) is not None]
    if not panels:
        raise PrelaxError("nothing to draw: no curve shows what is wrong")
    with figure(1.25 * len(panels) + 0.2, path) as (drawing, written):
        grid = drawing.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        said: Finding | None = None
        for axes, (finding, key, limit) in zip(grid, panels, strict=True):
            draw_curve(axes, metrics, key)
            right = ""
            if limit is not None:
                axes.axhline(limit, color="black", linewidth=0.8, linestyle=(0, (3, 2)))
                called = LIMITS.get(finding.what, "the limit")
                right = f"– – {called}, {limit:,.0f}" if limit >= 100 else f"– – {called}, {limit:.3g}"
                beside(axes, right)
            if finding is not said:  # a finding with two curves is said once
                axes.set_title(headline(finding.found, int(WIDE - SMALLER * len(right))), fontsize=7)
            said = finding
            axes.set_ylabel(NAMES.get(key, caption(key)[0].lower()))
            axes.grid(axis="y")
            if key != "knn":  # what is near its limit shall look so
                low, high = axes.get_ylim()
                axes.set_ylim(min(0.0, low), max(0.0, high + 0.08 * (high - min(0.0, low))))
        grid[-1].set_xlabel("epoch")
        grid[-1].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return written


def headline(found: str, room: int) -> str:
    """A finding in as many words as fit over a panel, where there is room for so many letters.

    >>> headline("the run collapsed: all images get nearly the same embedding (embedding std 0.007); try ...", 40)
    'the run collapsed'
    """
    whole = found.split(";")[0].split(" (")[0]
    return whole if len(whole) <= room else textwrap.shorten(whole.split(":")[0], room, placeholder=" …")


def beside(axes: Axes, text: str) -> None:
    """A few words at the right over a panel, clear of its curve."""
    axes.set_title(text, loc="right", fontsize=6, fontweight="normal")


def draw_curve(axes: Axes, metrics: Sequence[Mapping[str, Any]], key: str) -> None:
    """The curve, and a cross on the axis at every epoch where it is not a number."""
    curve = line(metrics, key, 0)
    assert curve is not None
    values = [math.nan if value is None else value for value in curve.values]
    axes.plot(curve.epochs, values, color=PALETTE[0], marker="." if len(values) < 4 else None)
    lost = [epoch for epoch, value in zip(curve.epochs, values, strict=True) if math.isnan(value)]
    if lost:
        at = axes.get_xaxis_transform()
        axes.plot(lost, [0.0] * len(lost), "x", color=WRONG, markersize=4, transform=at, clip_on=False)
        beside(axes, "crosses: not a number")
