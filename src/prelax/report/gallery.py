"""A picture of augmentations: examples of each, and what it does to a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from torch import Tensor

from prelax.errors import PrelaxError
from prelax.report.gather import finite
from prelax.report.sprites import rgb, shrink
from prelax.report.style import COLUMN, PALETTE, WRONG, figure

SIDE = 96  # pixels an example keeps at most
NAMES, BAR = 4.0, 4.2  # room for the names and for each set of bars, in widths of an example


def draw_gallery(
    rows: Sequence[Mapping[str, Any]], examples: Mapping[str, Tensor], path: Path | str, *, about: str = ""
) -> list[Path]:
    """Examples under each augmentation, beside how far it moves the features and what it costs; PNG and SVG.

    Args:
        rows: as `evaluate.relaxing.candidates` ranks them: ``augmentation``, ``moved`` and, with labels, ``drop``.
        examples: uint8 images, B x C x H x W, by name; those under ``none`` are the untouched ones.
        about: a line under the picture.
    """
    if not rows:
        raise PrelaxError("no augmentation to draw")
    count = len(next(iter(examples.values())))
    lines = [{"augmentation": "none"}, *rows]
    measured = [("moved", "moved (%)")]
    if any(finite(row.get("drop")) is not None for row in rows):
        measured.append(("drop", "points lost"))
    across = NAMES + count + BAR * len(measured)
    with figure(COLUMN / across * (len(lines) + 1.2) + (0.12 * (about.count("\n") + 2) if about else 0.05), path) as (
        drawing,
        written,
    ):
        axes = drawing.subplots()
        for place, line in enumerate(lines):
            axes.text(-0.3, place, str(line["augmentation"]), ha="right", va="center", fontsize=6.5)
            for column, picture in enumerate(rgb(shrink(examples[line["augmentation"]], SIDE))):
                box = (column + 0.04, column + 0.96, place + 0.46, place - 0.46)
                axes.imshow(picture, extent=box, interpolation="nearest")
        for index, (key, title) in enumerate(measured):
            draw_numbers(axes, count + 0.6 + BAR * index, rows, key, title)
        axes.set_xlim(-NAMES, across - NAMES)
        axes.set_ylim(len(lines) - 0.4, -1.5)
        axes.set_aspect("equal")
        axes.axis("off")
        if about:
            drawing.supxlabel(about, fontsize=6)
    return written


def draw_numbers(axes: Axes, left: float, rows: Sequence[Mapping[str, Any]], key: str, title: str) -> None:
    """A bar a row, its number at its end; what to relax first in another colour."""
    values = [finite(row.get(key)) for row in rows]
    known = [value for value in values if value is not None]
    unit = (BAR - 1.9) / max([*known, 1.0])
    axes.text(left, -0.75, title, fontsize=6.5, fontweight="bold", va="center")
    axes.plot([left, left], [0.5, len(rows) + 0.5], color="black", linewidth=0.6)
    for place, value in enumerate(values, start=1):  # the first line is the untouched image
        if value is None:
            continue
        first = place == 1 and rows[0].get("advice") == "relax"
        colour = WRONG if first else PALETTE[0]
        length = unit * max(value, 0.0)
        axes.barh(place, length, left=left, height=0.6, color=colour)
        axes.text(left + length + 0.15, place, str(round(value)), va="center", fontsize=6)
