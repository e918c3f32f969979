"""A page as one HTML file: plain data in, text out; no network, no template engine."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from importlib import resources
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prelax.report.content import Atlas, Chart, Page
from prelax.report.panels import maps, settings, views
from prelax.report.sections import augmentations, curves, dash, overview, residual, results


def render(page: Page) -> str:
    """The whole HTML file."""
    parts: list[tuple[str, str, str]] = [  # anchor, name in the bar, HTML
        ("overview", "Overview", overview(page)),
        ("results", "Results", results(page)),
        ("curves", "Curves", curves(page)),
        ("residual", "Residual", residual(page)),
        ("augmentations", "Augmentations", augmentations(page)),
        ("map", "Map", maps(page)),
        ("views", "Views", views(page)),
        ("settings", "Settings", settings(page)),
    ]
    parts = [part for part in parts if part[2]]
    shell = Template(read("page.html"))
    return shell.substitute(
        title=escape(page.title),
        version=escape(page.version),
        made=escape(page.made),
        css=read("page.css"),
        js=read("page.js") + (read("map.js") if page.atlases else ""),
        nav="".join(f'<a href="#{anchor}">{name}</a>' for anchor, name, _ in parts),
        body="\n".join(f'<section id="{anchor}" aria-label="{name}">{html}</section>' for anchor, name, html in parts),
        data=to_json(data(page)),
    )


def read(name: str) -> str:
    return (resources.files("prelax.report") / name).read_text(encoding="utf-8")


def to_json(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can close the element or open another."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def data(page: Page) -> dict[str, Any]:
    """What the scripts draw: curves and maps."""
    names = [card.name for card in page.cards]
    return {
        "runs": names,
        "dashes": [dash(index) for index in range(len(names))],
        "charts": [pack_chart(chart, names) for chart in (*page.charts, *page.more_charts)],
        "sprites": [{"side": s.side, "columns": s.columns} for s in page.sprites],
        "atlases": [pack_atlas(atlas) for atlas in page.atlases],
    }


def pack_chart(chart: Chart, names: Sequence[str]) -> dict[str, Any]:
    lines = [
        {"run": line.run, "epochs": line.epochs, "values": [rounded(v) for v in line.values]} for line in chart.lines
    ]
    marks = [asdict(mark) for mark in chart.marks]
    return {"summary": chart.summary(names), "unit": chart.unit, "lines": lines, "marks": marks}


def pack_atlas(atlas: Atlas) -> dict[str, Any]:
    return {
        "run": atlas.run,
        "sprite": atlas.sprite,
        "places": uint16(np.round(np.clip(atlas.places, 0, 1) * 65535)),
        "near": uint16(atlas.neighbours),
        "labels": atlas.labels,
        "classes": atlas.classes,
        "captions": atlas.captions,
        "start": start(atlas),
    }


def start(atlas: Atlas) -> int:
    """The point the page opens with: one whose neighbours are as mixed as they are on average."""
    if atlas.agreement is None:
        return 0
    labels = np.asarray(atlas.labels)
    known = (labels[:, None] >= 0) & (labels[atlas.neighbours] >= 0)
    same = known & (labels[atlas.neighbours] == labels[:, None])
    share = 100 * same.sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return int(np.where(known.any(axis=1), np.abs(share - atlas.agreement), np.inf).argmin())


def uint16(array: NDArray) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype="<u2").tobytes()).decode()


def rounded(value: float | None) -> float | None:
    """Five digits are enough for a curve."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")
