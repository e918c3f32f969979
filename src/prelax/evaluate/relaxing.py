"""What to relax: the augmentations of a measurement, those that change most what an image means first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HARMS, HARMLESS = 5.0, 1.0  # points of accuracy: at least, at most
FAR, NEAR = 30.0, 10.0  # where there are no labels: per cent of the way to another image
FEW = 100  # test images: of fewer, one more or less that is right is points of accuracy
OUTSIDE = 100.0  # further than another image is


def candidates(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of `effects` ranked for relaxing, each with ``advice`` (relax, strong, try, keep) and ``why``.

    With labels the points of accuracy lost decide; without, or on fewer than a hundred test images, how far the
    features move. The thresholds are ours and rough: what counts is the order.

    >>> row = {"augmentation": "rotation", "accuracy": 40.0, "drop": 55.0, "std": 2.0, "moved": 70.0}
    >>> found = candidates({"rows": [{"augmentation": "none"}, row]})
    >>> found[0]["advice"], found[0]["why"]
    ('relax', 'costs 55.0 points and moves an image 70 % of the way to another: to ignore it is to lose that')
    """
    few = result.get("test_images", FEW) < FEW
    rows = [row for row in result["rows"] if row["augmentation"] != "none"]
    judged = [{**row, "drop": None, "guessed": row.get("drop") is not None} if few else row for row in rows]
    order = ("relax", "strong", "try", "keep")
    found = [({**row, **advice(one)}, weight(one)) for row, one in zip(rows, judged, strict=True)]
    return [row for row, _ in sorted(found, key=lambda pair: (order.index(pair[0]["advice"]), -pair[1]))]


def weight(row: Mapping[str, Any]) -> float:
    """What rows are ranked by."""
    return float(row["moved"] if row.get("drop") is None else row["drop"])


def advice(row: Mapping[str, Any]) -> dict[str, str]:
    drop, moved = row.get("drop"), float(row["moved"])
    high, low = (FAR, NEAR) if drop is None else (HARMS, HARMLESS)
    level = "relax" if weight(row) >= high else "keep" if weight(row) <= low else "try"
    if level == "relax" and moved >= OUTSIDE:
        level = "strong"
    though = "though the run was trained to ignore it" if row.get("trained_with") and level != "keep" else ""
    moves = f"moves an image {moved:.0f} % of the way to another"
    if drop is None:
        found = f"{moves}, {though}" if though else moves
    else:
        cost = f"costs {drop:.1f} points" if drop > 0.05 else "costs nothing"
        found = f"{cost} {though}, and {moves}" if though else f"{cost} and {moves}"
    ends = {
        "relax": "to ignore it is to lose that",
        "strong": "no image of this kind looks so; relax it only if yours can, or a milder one",
        "try": "mild enough to be ignored, strong enough to be told",
        "keep": "safe as an ordinary augmentation",
    }
    if row.get("guessed"):
        ends["keep"] = "likely safe as an ordinary augmentation"
    why = f"{found}: {ends[level]}"
    return {"advice": level, "why": why + ("; this run relaxes it" if row.get("relaxed") else "")}
