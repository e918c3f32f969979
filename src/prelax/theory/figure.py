"""The picture of the two theorems on one joint distribution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from prelax.errors import PrelaxError
from prelax.theory.joint import Joint
from prelax.theory.theorems import theorem_1, theorem_2
from prelax.whole import replacing, writing

# Okabe and Ito's colours: told apart with any colour vision. The names under the bars carry the meaning on their own.
COLOURS = {"sup": "#999999", "prelax": "#0072B2", "mv": "#E69F00", "pl": "#009E73"}
LABELS = {"sup": "supervised", "prelax": "Prelax", "mv": "multi-view", "pl": "predictive"}
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "svg.hashsalt": "prelax",  # the same picture is the same file
}


def draw(joint: Joint, path: str | Path) -> Path:
    """Draw both theorems on a joint as a picture one column wide; the suffix of the path (png, svg, pdf) says how.

    Above, the task information I(Z;T) of each representation under the ceiling I(X;T). Below, its Bayes error, with the
    paper's bound u^e and the bound 1 - exp(-H(T|Z)) over it.
    """
    path = Path(path)
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise PrelaxError(f"cannot draw to {path.name!r}: use a name that ends in .png, .svg or .pdf")
    one, two = theorem_1(joint), theorem_2(joint)
    names, places, colours = list(COLOURS), range(len(COLOURS)), list(COLOURS.values())
    information = [one.learned[name].information for name in names]
    errors = [two.errors[name] for name in names]
    guess = 1.0 - 1.0 / two.classes
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.5, 4.6), dpi=300, layout="constrained")
        FigureCanvasAgg(figure)
        above, below = figure.subplots(2, 1, height_ratios=(1.0, 1.2))

        above.bar(places, information, color=colours, width=0.65)
        above.axhline(one.task, color="black", linewidth=0.8, linestyle="--")
        above.text(3.45, one.task, "I(X;T)", ha="right", va="bottom")
        above.set_ylim(0, max(one.task, 0.1) * 1.15)
        above.set_ylabel("I(Z;T), nats")
        above.set_title("Theorem 1: what is kept of the task")

        below.bar(places, errors, color=colours, width=0.65)
        bounds, sharper = ([of[name] for name in names] for of in (two.bounds, two.entropy_bounds))
        low, high = [i - 0.325 for i in places], [i + 0.325 for i in places]
        below.hlines(bounds, low, high, color="black", linewidth=2, label="$u^e$, the paper's bound")
        below.plot(places, sharper, "k^", markersize=5, clip_on=False, zorder=3, label="1 − exp(−H(T|Z))")
        below.axhline(guess, color="black", linewidth=0.8, linestyle=":", label=f"guessing, 1 − 1/K = {guess:.2f}")
        below.set_ylim(0, max(bounds) * 1.08)
        below.set_ylabel("Bayes error $P^e$")
        below.set_title("Theorem 2: the error left, and its bounds")

        # The figures stand under the names, where no line or mark can cross them.
        above.set_xticks(places, [f"{LABELS[n]}\n{v:.2f}" for n, v in zip(names, information, strict=True)])
        below.set_xticks(places, [f"{LABELS[n]}\n{v:.3f}" for n, v in zip(names, errors, strict=True)])
        for axes in (above, below):
            axes.tick_params(axis="x", length=0)
        figure.legend(*below.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                metadata = {"Date": None} if path.suffix == ".svg" else None
                figure.savefig(temporary, format=path.suffix[1:], metadata=metadata)
    return path
