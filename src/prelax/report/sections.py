"""The sections of a page that say what was measured: runs at a glance, results, curves, what the residual tells."""

from __future__ import annotations

import math
from html import escape

from prelax.report.content import Bar, Card, Cell, Chart, Page, Row

MANY = 4  # runs up to which each has a column of the table
COLOURS = 8  # of the page's palette; a ninth run takes the first colour again


def overview(page: Page) -> str:
    cards = "".join(card(page, index, one) for index, one in enumerate(page.cards))
    single = " single" if len(page.cards) == 1 else " many" if len(page.cards) > MANY else ""
    missing = "".join(f"<p>{escape(line)}</p>" for line in page.left_out)
    missing = (
        f'<div class="missing" role="note"><strong>Left out of this page</strong>{missing}</div>' if missing else ""
    )
    head = f'<h1>{escape(page.title)}</h1><p class="lead">{escape(sentence(page))}</p>'
    return f'{head}<div class="cards{single}">{cards}</div>{missing}'


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
    words = "".join(f'<li class="{w.level}"><b>{escape(w.what)}</b> {escape(w.text)}</li>' for w in one.words)
    words = f'<ul class="words">{words}</ul>' if words else ""
    name = f"<h2>{escape(one.name)}</h2>" if len(page.cards) > 1 else ""  # alone, it is the title of the page
    name += f'<p class="path">{escape(one.path)}</p>'
    return (
        f'<article class="card run r{index % COLOURS}"><div>{name}{big}</div>'
        f'<dl class="facts">{facts}</dl>{words}</article>'
    )


def number(value: float | None) -> str:
    """A figure to a tenth; a small one to two digits."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:.2g}" if 0.001 < abs(value) < 1 else f"{value:.1f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", "−")


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
    under = " under" if cell.floor is not None and cell.value < cell.floor else ""
    return f'<div class="gauge{under}" aria-hidden="true">{fill}{tick}</div>{said}'


def results(page: Page) -> str:
    head = "<h2>Results</h2>"
    if not page.rows:
        path = page.cards[0].path if page.cards else "RUN"
        return f'{head}<p class="lead">No evaluation yet: <code>prelax evaluate {escape(path)}</code> makes one.</p>'
    lead = (
        "Figures in per cent. The tick on each bar is the floor: the same network with random weights, "
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
        f'stroke="var(--c{i % COLOURS})" stroke-dasharray="{dashes[i % COLOURS] if dashed else ""}"/></svg>'
        f"{escape(c.name)}</li>"
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
            "The tick is what the residual of random weights tells (where that was not measured, a guess)."
        )
        bars = "".join(bar(one, 100.0, "random weights") for one in page.bars)
        html += f'<p class="lead">{lead}</p>{legend(page, dashed=False)}<div class="card bars">{bars}</div>'
    if page.moves:
        lead = (
            "How far each augmentation alone moves the features: cosine with those of the untouched image. "
            "At 1 the backbone ignores the augmentation; the tick is the cosine of two different images."
        )
        bars = "".join(bar(one, 1.0, "different images") for one in page.moves)
        html += f'<p class="lead second">{lead}</p><div class="card bars">{bars}</div>'
    return html


def augmentations(page: Page) -> str:
    if not page.effects:
        return ""
    lead = (
        "How many test images are still recognised when one augmentation alone is done to them. "
        "The tick is the accuracy on untouched images: what lies far left of it changes what an image means here, and "
        "is a candidate for <code>method.relax</code>."
    )
    bars = "".join(bar(one, 100.0, "untouched images") for one in page.effects)
    return (
        f'<h2>What augmentations do</h2><p class="lead">{lead}</p>{legend(page, dashed=False)}'
        f'<div class="card bars">{bars}</div>'
    )


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
            f'<i style="left:0;width:{share(cell.value):.1f}%"></i>{tick}</div>'
            f'<b class="n">{shown(cell.value)}</b></div>'
        )
    name = f'<div class="name">{escape(one.name)}<span>{escape(one.unit)}</span></div>'
    return f'{name}<div class="set">{"".join(lines)}</div>'
