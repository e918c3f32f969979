"""A preset at other strengths: how much a crop shows, how strong the colours are, how often the rest is done."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Any

from prelax.augment.colour import Jitter
from prelax.augment.geometry import Crop, crops_of, recropped
from prelax.augment.operation import Operation
from prelax.augment.pipeline import Pipeline
from prelax.augment.presets import operation
from prelax.errors import PrelaxError

ORDER = ("crop", "flip", "jitter", "grey", "blur", "solarise", "normalise")  # in which presets do them
STRENGTHS = ("brightness", "contrast", "saturation", "hue")


def adjust(
    pipeline: Pipeline,
    area_from: float | None = None,
    area_to: float | None = None,
    colour: float | None = None,
    flip: float | None = None,
    grey: float | None = None,
    blur: float | None = None,
    solarise: float | None = None,
) -> Pipeline:
    """The pipeline at other strengths; what is None stays, what is 0 is left out, what it lacked comes in its place.

    >>> from prelax.augment import preset
    >>> mild = adjust(preset("simsiam-32"), area_from=0.5, colour=0.5, grey=0.0, blur=0.1)
    >>> [op.name for op in mild.ops]
    ['crop', 'flip', 'jitter', 'blur', 'normalise']
    >>> mild.ops[0].scale, mild.ops[2].hue
    ((0.5, 1.0), 0.05)

    Args:
        area_from, area_to: the least and the greatest share of the image in a crop.
        colour: the jitter's strengths, as a multiple of what they are (of SimSiam's, where there is none).
        flip, grey, blur, solarise: probabilities.
    """
    chances = {"flip": flip, "grey": grey, "blur": blur, "solarise": solarise}
    if all(value is None for value in (area_from, area_to, colour, *chances.values())):
        return pipeline
    ops = list(pipeline.ops)
    if area_from is not None or area_to is not None:
        if not crops_of(ops):
            raise PrelaxError("augment.area_from and area_to say how much a crop shows, and this pipeline has no Crop")
        ops = [recropped(op, lambda crop: showing(crop, area_from, area_to)) for op in ops]
    if colour is not None:
        jitter: Any = next((op for op in ops if isinstance(op, Jitter) or op.name == "jitter"), Jitter())
        ops = _put(ops, _weaker(jitter, colour) if colour > 0 else None, jitter.name)
    for name, p in chances.items():
        if p is not None:
            known: Any = next((op for op in ops if op.name == name), operation(name))
            ops = _put(ops, _as_often(known, p) if p > 0 else None, name)
    return Pipeline(ops)


def showing(crop: Crop, least: float | None, most: float | None, what: str = "crops", key: str = "area") -> Crop:
    """The crop of another share of the image, where that is said; refused by the settings' names if it cannot be."""
    scale = (crop.scale[0] if least is None else least, crop.scale[1] if most is None else most)
    if scale[0] > scale[1]:
        raise PrelaxError(
            f"{what} would show from {scale[0]:g} to {scale[1]:g} of the image: "
            f"augment.{key}_from must not be above augment.{key}_to"
        )
    return replace(crop, scale=scale)


def _weaker(jitter: Operation, colour: float) -> Jitter:
    """A jitter of so many times its strengths."""
    if not isinstance(jitter, Jitter):
        kind = type(jitter).__name__
        raise PrelaxError(f"augment.colour changes a Jitter, and jitter is a {kind} here: change the pipeline itself")
    strengths: dict[str, Any] = {of: getattr(jitter, of) * colour for of in STRENGTHS}
    return replace(jitter, **strengths)


def _as_often(op: Operation, p: float) -> Operation:
    """An operation done with another probability."""
    own: Any = op
    if not (is_dataclass(op) and hasattr(own, "p")):
        kind = type(op).__name__
        raise PrelaxError(f"augment.{op.name} says how often, and {kind} has no p: change the pipeline itself")
    changed: Operation = replace(own, p=p)
    return changed


def _put(ops: list[Operation], op: Operation | None, name: str) -> list[Operation]:
    """Operations with one of a name replaced, or left out, or put where presets have it."""
    if any(other.name == name for other in ops):
        changed = [op if other.name == name else other for other in ops]
        return [other for other in changed if other is not None]
    if op is None:
        return ops
    later = ORDER[ORDER.index(name) + 1 :]
    place = next((n for n, other in enumerate(ops) if other.name in later), len(ops))
    return [*ops[:place], op, *ops[place:]]
