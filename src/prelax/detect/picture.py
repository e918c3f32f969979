"""A picture of a detector at work: what people marked in a few images, and beneath it what the detector found."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle

from prelax.data import order
from prelax.detect.coco import CocoSet, drawable, mask_of
from prelax.report.style import PALETTE, STYLE, boxes_told
from prelax.whole import replacing, writing

SURE = 0.3  # predictions drawn are scored at least this
AT_LEAST = 3  # where none is, so many of the best are drawn all the same
AT_MOST = 12
COLOURS = tuple(colour for colour in PALETTE if colour != "#000000")


def below(found: bool) -> str:
    """What the row of predictions shows, in a line."""
    if not found:
        return "Nothing was found in these images: no prediction reached --score; a lower one keeps weaker ones."
    return f"Predictions scored {SURE} or more, at most {AT_MOST}; dashed: the best {AT_LEAST}, where none is sure."


def draw_predictions(
    val: CocoSet, results: list[dict[str, Any]], path: Path, title: str, images: int = 5, masks: bool = False
) -> Path:
    """Writes a PNG: a column an image, the annotations above, the surest predictions below with their scores."""
    rows = chosen(val, images)
    by_image: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        by_image[result["image_id"]].append(result)
    shapes = [val.images[row]["width"] / val.images[row]["height"] for row in rows]
    side = 2.1  # inches, of every picture's height
    with matplotlib.rc_context(STYLE):
        width = side * sum(shapes) + 0.08 * len(rows) + 0.3
        figure = Figure(
            figsize=(width, 2 * side + 0.55), dpi=200, layout=ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03, wspace=0)
        )
        FigureCanvasAgg(figure)
        axes = figure.subplots(2, len(rows), squeeze=False, gridspec_kw={"width_ratios": shapes})
        found = [surest(by_image[val.images[row]["id"]]) for row in rows]
        for column, row in enumerate(rows):
            pixels = val.pixels(row)
            panel(axes[0, column], pixels, val, val.objects[row][:60], masks)
            panel(axes[1, column], pixels, val, found[column], masks)
        axes[0, 0].set_ylabel("annotated", fontsize=8)
        axes[1, 0].set_ylabel("predicted", fontsize=8)
        figure.suptitle(title, x=0.005, ha="left", fontsize=9, fontweight="bold", parse_math=False)
        figure.supxlabel(below(any(found)), x=0.005, ha="left", fontsize=7, color="#555555")
        with writing(path), boxes_told(), replacing(path) as temporary:
            figure.savefig(temporary, format="png", metadata={"Software": None})
    return path


def chosen(val: CocoSet, images: int) -> list[int]:
    """A few images that have objects, the same ones for every detector on the set."""
    rows = [row for row in order(0, 0, len(val)).tolist() if val.objects[row]]
    return rows[:images]


def surest(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The predictions worth drawing; with ``unsure`` set where only the best of bad ones are left.

    >>> [r.get("unsure", False) for r in surest([{"score": 0.9}, {"score": 0.1}])], surest([{"score": 0.1}])
    ([False], [{'score': 0.1, 'unsure': True}])
    """
    ranked = sorted(found, key=lambda result: -result["score"])
    sure = [result for result in ranked if result["score"] >= SURE][:AT_MOST]
    return sure or [result | {"unsure": True} for result in ranked[:AT_LEAST]]


def panel(axes: Axes, pixels: np.ndarray, val: CocoSet, things: list[dict[str, Any]], masks: bool) -> None:
    """An image with its objects: outline or box, name, score."""
    height, width = pixels.shape[:2]
    canvas = pixels.astype(np.float32) / 255
    # The large first, so that the small stay in sight on top of them.
    things = sorted(things, key=lambda thing: -thing["bbox"][2] * thing["bbox"][3])
    labels = val.labels
    for thing in things:
        outline = thing.get("segmentation")
        if masks and drawable(outline, width, height):
            mask = mask_of(outline, width, height).astype(bool)
            tint = np.array(to_rgb(COLOURS[labels[thing["category_id"]] % len(COLOURS)]), np.float32)
            canvas[mask] = 0.5 * canvas[mask] + 0.5 * tint
    axes.imshow(canvas, interpolation="antialiased")
    shown = height / 2.1 / 72  # image pixels to a point
    for thing in things:
        left, top, wide, high = thing["bbox"]
        colour = COLOURS[labels[thing["category_id"]] % len(COLOURS)]
        dashes = (0, (3, 2)) if thing.get("unsure") else "-"
        axes.add_patch(Rectangle((left, top), wide, high, fill=False, ec=colour, lw=1.1, ls=dashes))
        said = val.categories[thing["category_id"]]
        if "score" in thing:
            said += f" {thing['score']:.2f}"
        elif wide * high < 0.004 * width * height:  # an annotation too small to write on
            continue
        far = left > 0.8 * width  # its name would run over the edge
        axes.text(
            min(left + wide, width) if far else max(left, 0),
            max(top, 7 * shown),
            said,
            fontsize=5,
            color="white",
            va="bottom",
            ha="right" if far else "left",
            clip_on=True,
            parse_math=False,  # a class may be called "$5"
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.8, "alpha": 0.9},
        )
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
