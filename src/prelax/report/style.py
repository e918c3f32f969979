"""One look for every figure: a column wide, readable at print size, told apart with any colour vision."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from prelax.errors import PrelaxError, PrelaxWarning
from prelax.whole import replacing, writing

COLUMN = 3.3  # inches
# Okabe and Ito; line styles and markers repeat what colours say.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A7F00")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
MARKERS = ("o", "s", "^", "D", "P")
RIGHT, WRONG = "#009E73", "#D55E00"
STYLE: dict[Any, Any] = {
    "font.size": 7,
    "font.family": "sans-serif",
    "axes.titlesize": 7.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "grid.color": "#E4E4E0",
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 6.5,
    "lines.linewidth": 1.3,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "prelax",  # the same picture is the same file
}


@contextmanager
def boxes_told() -> Iterator[None]:
    """What is drawn inside may have letters that no font has: a line says so, where matplotlib has two a letter."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        yield
    missing = [one for one in caught if str(one.message).startswith("Glyph ")]
    for one in caught:
        if one not in missing:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    if missing:
        said = "some letters of the names are in none of matplotlib's fonts, and are drawn as boxes"
        warnings.warn(said, PrelaxWarning, stacklevel=3)


@contextmanager
def figure(height: float, path: Path | str, width: float = COLUMN) -> Iterator[tuple[Figure, list[Path]]]:
    """A figure to draw on, and the list its files are put in: PNG (300 dpi) and SVG beside one another.

    The suffix of ``path`` does not matter: both are written.
    """
    path = Path(path)
    if path.suffix in (".png", ".svg"):
        path = path.with_suffix("")
    if not path.name:
        raise PrelaxError(f"{path} is no name for a figure; give one such as figures/dynamics")
    written: list[Path] = []
    with matplotlib.rc_context(STYLE):
        drawing = Figure(figsize=(width, height), dpi=300, layout="constrained")
        FigureCanvasAgg(drawing)
        yield drawing, written
        for suffix, metadata in ((".png", {"Software": None}), (".svg", {"Date": None})):
            target = path.with_name(path.name + suffix)
            with writing(target), boxes_told():
                target.parent.mkdir(parents=True, exist_ok=True)
                with replacing(target) as temporary:
                    drawing.savefig(temporary, format=suffix[1:], metadata=metadata)
            written.append(target)
