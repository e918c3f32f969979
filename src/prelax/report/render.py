"""A page as one HTML file: plain data in, text out; no network, no template engine."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from dataclasses import asdict
from html import escape
from importlib import resources
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prelax.report.content import Album, Atlas, Bar, Card, Cell, Chart, Page, Row, Setting, Shot, Strip

MANY = 4  # runs up to which each has a column of the table
COLOURS = 8  # of the page's palette; a ninth run takes the first colour again


def render(page: Page) -> str:
    """The whole HTML file."""
    parts: list[tuple[str, str, str]] = [  # anchor, name in the bar, HTML
        ("overview", "Overview", overview(page)),
        ("results", "Results", results(page)),
        ("curves", "Curves", curves(page)),
        ("residual", "Residual", residual(page)),
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
    return {
        "runs": [card.name for card in page.cards],
        "charts": [pack_chart(chart) for chart in (*page.charts, *page.more_charts)],
        "sprites": [{"side": s.side, "columns": s.columns} for s in page.sprites],
        "atlases": [pack_atlas(atlas) for atlas in page.atlases],
    }


def pack_chart(chart: Chart) -> dict[str, Any]:
    lines = [
        {"run": line.run, "epochs": line.epochs, "values": [rounded(v) for v in line.values]} for line in chart.lines
    ]
    marks = [asdict(mark) for mark in chart.marks]
    return {"summary": chart.summary, "unit": chart.unit, "lines": lines, "marks": marks}


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
    share = 100 * (labels[atlas.neighbours] == labels[:, None]).mean(axis=1)
    return int(np.where(labels >= 0, np.abs(share - atlas.agreement), np.inf).argmin())


def uint16(array: NDArray) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype="<u2").tobytes()).decode()


def rounded(value: float | None) -> float | None:
    """Five digits are enough for a curve."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


# -- sections ----------------------------------------------------------------------------------------------------------


def overview(page: Page) -> str:
    cards = "".join(card(page, index, one) for index, one in enumerate(page.cards))
    single = " single" if len(page.cards) == 1 else " many" if len(page.cards) > MANY else ""
    missing = "".join(f"<p>{escape(line)}</p>" for line in page.left_out)
    missing = (
        f'<div class="missing" role="note"><strong>Left out of this page</strong>{missing}</div>' if missing else ""
    )
    return f'<h1>{escape(page.title)}</h1><p class="lead">{escape(sentence(page))}</p><div class="cards{single}">{cards}</div>{missing}'


def sentence(page: Page) -> str:
    """The page in a sentence or two: the best figure, whose it is, and its floor."""
    told = [(row, i, cell) for i, c in enumerate(page.cards) if (row := c.headline) and (cell := row.cells[i])]
    told = [found for found in told if found[2].value is not None]
    if not told:
        return "Not evaluated yet: what was trained, how, and how it went."
    row, index, cell = max(told, key=lambda found: found[2].value or 0.0)
    unit = " %" if row.percent else ""
    who = f"Highest: {page.cards[index].name}, " if len(page.cards) > 1 and cell.best else ""
    floor = "" if cell.floor is None else f" The same network with random weights gives {number(cell.floor)}{unit}."
    return f"{who}{number(cell.value)}{unit} {title(row.protocol)} on {row.dataset}.{floor}"


TITLES = {
    "knn": "kNN",
    "linear": "linear probe",
    "linear-fast": "linear probe (fast)",
    "knn-10-per-class": "kNN, 10 labels a class",
    "linear-1pct": "linear, 1 % of labels",
    "linear-10pct": "linear, 10 % of labels",
    "finetune": "fine-tuning",
    "finetune-1pct": "fine-tuning, 1 % of labels",
    "finetune-10pct": "fine-tuning, 10 % of labels",
    "retrieval": "retrieval among 15 nearest",
}


def title(protocol: str) -> str:
    """A protocol as people write it."""
    return TITLES.get(protocol, protocol)


def card(page: Page, index: int, one: Card) -> str:
    big = '<p class="note">Not evaluated yet.</p>'
    row = one.headline
    cell = row.cells[index] if row else None
    if row and cell and cell.value is not None:
        small = f"{'% ' if row.percent else ''}{escape(title(row.protocol))} on {escape(row.dataset)}"
        big = f'<p class="big">{number(cell.value)}<small>{small}</small></p>{gauge(cell, row.percent)}'
    facts = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in one.facts)
    words = "".join(f'<li class="{word.level}">{escape(word.text)}</li>' for word in one.words)
    words = f'<ul class="words">{words}</ul>' if words else ""
    name = f"<h2>{escape(one.name)}</h2>" if len(page.cards) > 1 else ""  # alone, it is the title of the page
    name += f'<p class="path">{escape(one.path)}</p>'
    return (
        f'<article class="card run r{index % COLOURS}"><div>{name}{big}</div>'
        f'<dl class="facts">{facts}</dl>{words}</article>'
    )


def number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.3g}"


def gauge(cell: Cell, percent: bool) -> str:
    """A bar from the floor to the value, and the floor in words."""
    if cell.value is None:
        return ""
    said = "no floor measured"
    if cell.floor is not None:
        said = f"random backbone {number(cell.floor)}, {cell.value - cell.floor:+.1f}".replace("-", "−")
    said = f'<span class="floor">{said}</span>'
    if not percent:
        return said
    low, high = sorted((min(max(cell.floor or 0.0, 0), 100), min(max(cell.value, 0), 100)))
    tick = "" if cell.floor is None else f'<b style="left:calc({min(max(cell.floor, 0), 100):.1f}% - 1px)"></b>'
    fill = f'<i style="left:{low:.1f}%;width:{high - low:.1f}%"></i>'
    return f'<div class="gauge" aria-hidden="true">{fill}{tick}</div>{said}'


def results(page: Page) -> str:
    head = "<h2>Results</h2>"
    if not page.rows:
        path = page.cards[0].path if page.cards else "RUN"
        return f'{head}<p class="lead">No evaluation yet: <code>prelax evaluate {escape(path)}</code> makes one.</p>'
    lead = (
        "Frozen backbone, figures in per cent. The tick on each bar is the floor: the same network with random weights, "
        "measured the same way. What lies to its right was learnt."
    )
    many = len(page.cards) > MANY  # then a line per run reads better than a column
    runs = [f'<span class="swatch r{i % COLOURS}"></span>{escape(one.name)}' for i, one in enumerate(page.cards)]
    protocols = [row_title(row) for row in page.rows]
    cells = [[result_cell(index, cell, row) for index, cell in enumerate(row.cells)] for row in page.rows]
    if many:
        runs, protocols, cells = protocols, runs, [list(column) for column in zip(*cells, strict=True)]
    heads = "".join(f'<th scope="col">{name}</th>' for name in runs)
    body = "".join(
        f'<tr><th scope="row">{name}</th>{"".join(line)}</tr>' for name, line in zip(protocols, cells, strict=True)
    )
    corner = "Run" if many else "Protocol"
    return (
        f'{head}<p class="lead">{lead}</p><div class="card scroll">'
        f'<table class="results" style="min-width:{108 + 140 * len(runs)}px">'
        f'<thead><tr><th scope="col">{corner}</th>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def row_title(row: Row) -> str:
    what = escape(title(row.protocol)) + (f" · {escape(row.measure)}" if row.measure != "accuracy" else "")
    return f"{what}<span>{escape(row.dataset)}</span>"


def result_cell(index: int, cell: Cell | None, row: Row) -> str:
    if cell is None or cell.value is None:
        return '<td class="empty">–</td>'
    spread = f' <span class="pm">± {cell.std:.2g} over {cell.seeds} seeds</span>' if cell.std and cell.seeds > 1 else ""
    best = " best" if cell.best else ""
    mark = '<span class="pm" title="best of its kind"> ★</span>' if cell.best else ""
    shown = f'<span class="v{best}">{number(cell.value)}</span>{mark}{spread}'
    return f'<td class="r{index % COLOURS}" title="{escape(cell.detail)}">{shown}{gauge(cell, row.percent)}</td>'


def legend(page: Page, dashed: bool = True) -> str:
    """The names of the runs with their colours, and their dashes where lines are drawn."""
    if len(page.cards) < 2:
        return ""
    dashes = ["", "7 4", "2 4", "9 4 2 4", "12 3", "4 2", "1 3", "6 2 1 2 1 2"]  # as in page.js
    items = "".join(
        f'<li><svg width="30" height="6" aria-hidden="true"><line x1="1" x2="29" y1="3" y2="3" stroke-width="2.5" '
        f'stroke="var(--c{i % COLOURS})" stroke-dasharray="{dashes[i % COLOURS] if dashed else ""}"/></svg>{escape(c.name)}</li>'
        for i, c in enumerate(page.cards)
    )
    return f'<ul class="legend">{items}</ul>'


def curves(page: Page) -> str:
    if not page.charts and not page.more_charts:
        return ""

    def one(index: int, chart: Chart) -> str:
        return (
            f'<figure class="card chart"><h3>{escape(chart.title)}</h3><p>{escape(chart.caption)}</p>'
            f'<div class="plot" data-chart="{index}"><noscript>{escape(chart.summary)}</noscript></div></figure>'
        )

    first = "".join(one(i, chart) for i, chart in enumerate(page.charts))
    rest = "".join(one(i + len(page.charts), chart) for i, chart in enumerate(page.more_charts))
    more = (
        f"<details><summary>{len(page.more_charts)} more curves: loss terms, health, speed</summary>"
        f'<div class="charts">{rest}</div></details>'
        if rest
        else ""
    )
    lead = (
        "Learning dynamics by epoch, as in the paper's appendix. Point at a curve, or focus it and use the arrow keys."
    )
    return f'<h2>Curves</h2><p class="lead">{lead}</p>{legend(page)}<div class="charts">{first}</div>{more}'


def residual(page: Page) -> str:
    if not page.bars and not page.moves:
        return ""
    html = "<h2>What the residual tells</h2>"
    if page.bars:
        lead = (
            "How well a linear reader tells, from the residual between two views of a new image, what was done to it. "
            "The tick is what a guess gives: the most frequent value, or no variance explained."
        )
        bars = "".join(bar(one, 100.0, "a guess") for one in page.bars)
        html += f'<p class="lead">{lead}</p>{legend(page, dashed=False)}<div class="card bars">{bars}</div>'
    if page.moves:
        lead = (
            "How far each augmentation alone moves the features: cosine with those of the untouched image. "
            "At 1 the backbone ignores the augmentation; the tick is the cosine of two different images."
        )
        bars = "".join(bar(one, 1.0, "different images") for one in page.moves)
        html += f'<p class="lead second">{lead}</p><div class="card bars">{bars}</div>'
    return html


def bar(one: Bar, top: float, floor: str) -> str:
    """A line per run from 0 to ``top``, with a tick at the floor."""

    def share(value: float) -> float:
        return 100 * max(0.0, min(1.0, value / top))

    def shown(value: float) -> str:
        return number(value) if top > 1 else f"{value:.2f}"

    lines = []
    for index, cell in enumerate(one.cells):
        if cell is None or cell.value is None:
            continue
        said = "" if cell.floor is None else f"{floor}: {shown(cell.floor)}"
        tick = "" if cell.floor is None else f'<b style="left:calc({share(cell.floor):.1f}% - 1px)"></b>'
        lines.append(
            f'<div class="one r{index % COLOURS}" title="{escape(said)}"><div class="gauge">'
            f'<i style="left:0;width:{share(cell.value):.1f}%"></i>{tick}</div><b class="n">{shown(cell.value)}</b></div>'
        )
    return f'<div class="name">{escape(one.name)}<span>{escape(one.unit)}</span></div><div class="set">{"".join(lines)}</div>'


def tabs(page: Page, runs: list[int], prefix: str) -> str:
    """Buttons that show one run's panel of several."""
    if len(runs) < 2:
        return ""
    buttons = "".join(
        f'<button type="button" class="r{run % COLOURS}" data-shows="{prefix}-{run}" aria-pressed="{str(i == 0).lower()}">'
        f'<span class="swatch"></span>{escape(page.cards[run].name)}</button>'
        for i, run in enumerate(runs)
    )
    return f'<div class="tabs" data-tabs role="group" aria-label="Run">{buttons}</div>'


def maps(page: Page) -> str:
    if not page.atlases:
        return ""
    sheets = "".join(
        f'<img id="sprite-{i}" src="{s.uri}" alt="" hidden width="1" height="1">' for i, s in enumerate(page.sprites)
    )
    panels = "".join(one_map(page, index, atlas) for index, atlas in enumerate(page.atlases))
    lead = (
        "Every point is a test image, placed by t-SNE of its features: near in the map means alike to the network. "
        "Point at one to see it; click it for its nearest images by cosine similarity."
    )
    return f'<h2>Map of the test set</h2><p class="lead">{lead}</p>{sheets}{tabs(page, [a.run for a in page.atlases], "map")}{panels}'


def one_map(page: Page, index: int, atlas: Atlas) -> str:
    count, k = atlas.neighbours.shape
    told = ""
    if atlas.agreement is not None:
        floor = f" (random backbone {atlas.floor:.1f} %)" if atlas.floor is not None else ""
        told = f"On average {atlas.agreement:.1f} % of the {k} nearest share the label{floor}. "
    tools = "".join(
        f'<button type="button" data-do="{do}" aria-label="{label}"{extra}>{text}</button>'
        for do, label, text, extra in (
            ("images", "Show images in place of points", "images", ' aria-pressed="false"'),
            ("in", "Zoom in", "+", ""),
            ("out", "Zoom out", "−", ""),
            ("reset", "Show the whole map", "⤢", ""),
        )
    )
    says = (
        f"t-SNE map of {count} test images of {escape(page.cards[atlas.run].name)}. "
        "Arrow keys move between points, Enter shows the nearest images."
    )
    return (
        f'<div id="map-{atlas.run}"{"" if index == 0 else " hidden"}><div class="card atlas" data-atlas="{index}">'
        f'<div class="stage"><canvas tabindex="0" role="application" aria-label="{says}"></canvas><div class="tools">{tools}</div></div>'
        f'<div class="side"><div class="answer" style="display:grid;gap:14px"></div><div class="keys" role="group" aria-label="Classes"></div>'
        f'<p class="help">{told}{count:,} images shown; neighbours are among them. Wheel or pinch zooms once the map is clicked.</p>'
        f"</div></div></div>"
    )


def views(page: Page) -> str:
    if not page.albums:
        return ""
    lead = (
        "What the network was shown, and the record of how each view was made: the numbers the residual has to tell. "
        "Boxes on the original are the crops of view 1 (solid) and view 2 (dashed)."
    )
    panels = "".join(album(one, index == 0) for index, one in enumerate(page.albums))
    return f'<h2>Views</h2><p class="lead">{lead}</p>{tabs(page, [a.run for a in page.albums], "views")}{panels}'


def album(one: Album, first: bool) -> str:
    return f'<div id="views-{one.run}" class="card"{"" if first else " hidden"}>{"".join(map(strip, one.strips))}</div>'


def strip(one: Strip) -> str:
    boxes = "".join(
        f'<i class="v{n}" style="left:{x:.1%};top:{y:.1%};width:{w:.1%};height:{h:.1%}"></i>'
        for n, shot in enumerate(one.shots[:2], 1)
        if shot.box
        for x, y, w, h in [shot.box]
    )
    first = (
        f'<figure class="shot first"><div class="frame small"><img src="{one.uri}" alt="original image, {escape(one.label)}">{boxes}</div>'
        f"<figcaption><b>original</b>{escape(one.label)}</figcaption></figure>"
    )
    return f'<div class="strip">{first}{"".join(map(shot_html, one.shots))}</div>'


def shot_html(shot: Shot) -> str:
    steps = "".join(f"<dt>{escape(op)}</dt><dd>{escape(text)}</dd>" for op, text in shot.steps)
    alt = escape(f"{shot.title}: " + ", ".join(f"{op} {text}" for op, text in shot.steps))
    return (
        f'<figure class="shot"><div class="frame small"><img src="{shot.uri}" alt="{alt}"></div>'
        f"<figcaption><b>{escape(shot.title)}</b><dl>{steps}</dl></figcaption></figure>"
    )


def settings(page: Page) -> str:
    heads = "".join(
        f'<th scope="col"><span class="swatch r{i % COLOURS}"></span>{escape(c.name)}</th>'
        for i, c in enumerate(page.cards)
    )

    def table(rows: list[Setting], row: Callable[[Setting], str]) -> str:
        body = "".join(map(row, rows))
        return f'<div class="card scroll"><table class="settings"><thead><tr><th scope="col">Setting</th>{heads}</tr></thead><tbody>{body}</tbody></table></div>'

    def one(setting: Setting) -> str:
        values = "".join(f"<td>{escape(value)}</td>" for value in setting.values)
        about = f"<span>{escape(setting.about)}</span>" if setting.about else ""
        mark = ' class="differs"' if setting.differs else ""
        return f'<tr{mark}><th scope="row"><code>{escape(setting.key)}</code>{about}</th>{values}</tr>'

    different = [setting for setting in page.settings if setting.differs and setting.key != "run.created"]
    if len(page.cards) > 1:
        top = table(different, one) if different else '<p class="note">All settings are the same.</p>'
        lead = "What differs between the runs." if different else ""
        rest = f"<details><summary>All {len(page.settings)} settings</summary>{table(page.settings, one)}</details>"
        return f'<h2>Settings</h2><p class="lead">{lead}</p>{top}{rest}'
    return f"<h2>Settings</h2><details open><summary>All {len(page.settings)} settings</summary>{table(page.settings, one)}</details>"
