"""What becomes 0 and 255 of pixels deeper than 8 bits, as a setting: ``LOW,HIGH``."""

from __future__ import annotations

import math
from collections.abc import Mapping

Range = tuple[float, float]


def ranges(text: str) -> dict[str, Range]:
    """The range of integers ("i") and of floats ("f") that a setting names: one for both, or ``INTEGERS;FLOATS``.

    >>> ranges("0,4095"), ranges("0,4095;"), ranges("0,255;0,1")
    ({'i': (0.0, 4095.0), 'f': (0.0, 4095.0)}, {'i': (0.0, 4095.0)}, {'i': (0.0, 255.0), 'f': (0.0, 1.0)})
    """
    if not text:
        return {}
    parts = text.split(";") if ";" in text else [text, text]
    try:
        found = {kind: _two(part) for kind, part in zip("if", parts, strict=True) if part.strip()}
    except ValueError:
        found = {}
    if not found:
        raise ValueError("two numbers LOW,HIGH are wanted, as 0,4095 (or integers' and floats' own: 0,4095;0,1)")
    return found


def _two(part: str) -> Range:
    low, high = map(float, part.split(","))
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError
    return low, high


def as_text(found: Mapping[str, Range]) -> str | None:
    """Ranges as the setting that names them; None where no image needs one.

    >>> as_text({"i": (0.0, 4095.0)}), as_text({"f": (-1.5, 0.1)}), as_text({})
    ('0,4095;', ';-1.5,0.1', None)
    """
    said = (",".join(map(_number, found[kind])) if kind in found else "" for kind in "if")
    return ";".join(said) if found else None


def _number(value: float) -> str:
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)
