"""The views a run was trained on, with the record of how each was made."""

from __future__ import annotations

import torch
from torch import Tensor

from prelax.augment import Normalise, Pipeline
from prelax.config import Settings
from prelax.loading import views_of
from prelax.record import Record, View
from prelax.report.content import Shot, Strip
from prelax.report.sprites import rgb, shrink, uri

SIDE = 128  # an image of the grid is no larger
BOX = ("left", "top", "width", "height")
HIDDEN = ("seed", "bits")  # columns that address noise and say nothing to a reader


def strips(settings: Settings, images: Tensor, ids: Tensor, labels: list[str], epoch: int = 1) -> list[Strip]:
    """Images and their views as the run's own settings make them.

    Args:
        images: uint8, B x C x H x W.
        ids: the number of each image in its data set: the views are those that training drew for it in ``epoch``.
        labels: a word for each image.
    """
    plain = settings.model_copy(update={"augment": settings.augment.model_copy(update={"compile": "never"})})
    maker = views_of(plain, images.shape[1], images.shape[-1])
    columns: list[tuple[str, Pipeline, View, int | None, Record]] = []
    shown: dict[int, int] = {}  # of each draw, the first view that shows it
    for number, (spec, made) in enumerate(zip(maker.views, maker.make(images, ids, epoch), strict=True), start=1):
        under = shown.setdefault(spec.draw, number)
        kinds = [word for word, is_so in (("small", spec.small), ("relaxed", spec.relaxed)) if is_so]
        title = f"view {number}: {', '.join(kinds)}" if kinds else f"view {number}"
        columns.append((title, made.pipeline, made.shown, under if under < number else None, made.drawn.record))
    found = []
    for row in range(len(images)):
        shots = [shot(*column, row, images.shape) for column in columns]
        found.append(Strip(labels[row], picture(images[row]), shots, columns[0][2].images.shape[-1]))
    return found


def shot(
    title: str, pipeline: Pipeline, view: View, under: int | None, drawn: Record, row: int, shape: torch.Size
) -> Shot:
    """One view of one image; of a view made on top of view ``under`` only what was added is told."""
    shown = unnormalised(view.images[row : row + 1], pipeline)[0]
    record = view.record.map(lambda column: column[row])
    told = steps(record)
    if under is not None:
        added = Record({name: column for name, column in record.items() if name not in drawn})
        told = [*steps(added), ("all else", f"as in view {under}")]
    return Shot(title, picture(shown), told, crop_box(record, shape))


def unnormalised(images: Tensor, pipeline: Pipeline) -> Tensor:
    """Views as uint8 images to look at: what Normalise did is undone."""
    for op in reversed(pipeline.ops):
        if isinstance(op, Normalise):
            mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (op.mean, op.std))
            images = images.float() * std + mean
    return (images.float() * 255).round().clamp(0, 255).byte()


def picture(image: Tensor) -> str:
    return uri(rgb(shrink(image[None], SIDE))[0])


def crop_box(record: Record, shape: torch.Size) -> tuple[float, float, float, float] | None:
    """The box of the first crop, as shares of the image: left, top, width, height."""
    for name in record:
        op = name.removesuffix(".left")
        if op != name and all(f"{op}.{side}" in record for side in (*BOX, "aspect")):
            left, top, width, height = (float(record[f"{op}.{side}"]) for side in BOX)
            return left / shape[-1], top / shape[-2], width / shape[-1], height / shape[-2]
    return None


def steps(record: Record) -> list[tuple[str, str]]:
    """A row of a record as (operation, parameters) to print.

    >>> steps(Record({"flip.applied": torch.tensor(True), "rotation.turns": torch.tensor(2)}))
    [('flip', 'yes'), ('rotation', '180° clockwise')]
    """
    grouped: dict[str, dict[str, Tensor]] = {}
    for name, column in record.items():
        op, _, param = name.rpartition(".")
        grouped.setdefault(op, {})[param] = column
    return [(op, said) for op, params in grouped.items() if (said := parameters(params))]


def parameters(params: dict[str, Tensor]) -> str:
    """What one operation drew, in words."""
    switches = [name for name in ("maybe", "applied") if name in params]
    if any(not bool(params[name]) for name in switches):
        return "no"
    described = "area" in params  # the paper's four numbers say what the box in pixels says
    shown = {
        name: column
        for name, column in params.items()
        if name not in switches and name not in HIDDEN and not (described and name in BOX)
    }
    if set(shown) == {"turns"}:
        return f"{90 * int(shown['turns'])}° clockwise"
    said = [f"{name} {value(column)}" for name, column in shown.items() if name != "order"]
    if "order" in shown:  # of jitter's steps by their first letters, of a jigsaw's tiles by number
        steps = [int(step) for step in shown["order"].flatten()]
        said.append("order " + " ".join("bcsh"[i] if "hue" in shown else str(i) for i in steps))
    return ", ".join(said) or ("yes" if switches else "")


def value(column: Tensor) -> str:
    if column.dim():
        return " ".join(value(part) for part in column.flatten()[:16])
    if column.dtype == torch.bool:
        return "yes" if bool(column) else "no"
    return f"{float(column):.2f}".replace("-0.00", "0.00") if column.dtype.is_floating_point else str(int(column))
