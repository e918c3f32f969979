"""The sections of a page that say what was measured: runs at a glance, results, curves, what the residual tells."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from html import escape

from prelax.evaluate.protocols import FLOOR
from prelax.evaluate.relaxing import FAR, FEW
from prelax.report.content import Bar, Card, Cell, Chart, Page, Row

MANY = 4  # runs up to which each has a column of the table
COLOURS = 8  # of the page's palette; a ninth run takes the first colour again, with other dashes
DASHES = ("", "7 4", "2 4", "9 4 2 4", "12 3", "4 2", "1 3", "6 2 1 2 1 2")


def prose(text: str) -> str:
    """A sentence as HTML; what stands between backticks is code.

    >>> prose("try `prelax doctor` <now>")
    'try <code>prelax doctor</code> &lt;now&gt;'
    """
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def overview(page: Page) -> str:
    cards = "".join(card(page, index, one) for index, one in enumerate(page.cards))
    single = " single" if len(page.cards) == 1 else " many" if len(page.cards) > MANY else ""
    missing = "".join(f"<p>{prose(line)}</p>" for line in page.left_out)
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
        why = "No labels to measure by" if all(card.labelled == 0 for card in page.cards) else "Not evaluated yet"
        return f"{why}: what was trained, how, and how it went."
    row, index, cell = max(told, key=lambda found: found[2].value or 0.0)
    unit = "\N{NO-BREAK SPACE}%" if row.percent else ""
    who = f"{'Highest: ' if cell.best else ''}{page.cards[index].name}, " if len(page.cards) > 1 else ""
    of = f" ({images(cell.images)})" if cell.images is not None else ""
    floor = "" if cell.floor is None else f" The same network with random weights gives {number(cell.floor)}{unit}."
    if cell.start is not None:
        floor = f" The weights it began with give {number(cell.start)}{unit}."
    return f"{who}{number(cell.value)}{unit} {title(row.protocol)} on {row.dataset}{of}.{floor}"


def images(count: int) -> str:
    return "1 test image" if count == 1 else f"{count:,} test images"


def sized(count: int) -> str:
    """The number of test images in the space of a cell, never broken over two lines."""
    return f"n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{count:,}"


TITLES = {
    "knn": "kNN",
    "linear": "linear probe",
    "linear-fast": "linear probe (fast)",
    "linear-tta": "linear probe, several views of a test image",
    "logistic": "logistic regression",
    "knn-10-per-class": "kNN, 10 labels a class",
    "linear-1pct": "linear, 1 % of labels",
    "linear-10pct": "linear, 10 % of labels",
    "finetune": "fine-tuning",
    "finetune-1pct": "fine-tuning, 1 % of labels",
    "finetune-10pct": "fine-tuning, 10 % of labels",
    "retrieval": "retrieval among the nearest",  # 15 of them, or fewer of a small set
}
EXPLAINED = {  # what most pages have, to one who has not met it
    "knn": " kNN gives each test image the class that most of its nearest training images have, and says how many "
    "come out right.",
    "linear": " A linear probe learns the classes from the frozen features of the training images.",
    "logistic": " Logistic regression learns the classes from the frozen features of the training images.",
}


def title(protocol: str) -> str:
    """A protocol as people write it."""
    return TITLES.get(protocol, protocol)


def repeated(protocol: str) -> str:
    """What a figure is the mean over: never over networks, which are trained once."""
    if protocol.endswith(("-per-class", "pct")):
        return "draws of labels"
    return "seeds of fine-tuning" if protocol == "finetune" else "seeds of the probe"


def card(page: Page, index: int, one: Card) -> str:
    big = f'<p class="note">{"No labels to measure by." if one.labelled == 0 else "Not evaluated yet."}</p>'
    row = one.headline
    cell = row.cells[index] if row else None
    if row and cell and cell.value is not None:
        small = f"{'% ' if row.percent else ''}{escape(title(row.protocol))} on {escape(row.dataset)}"
        small += f", {sized(cell.images)}" if cell.images is not None else ""
        big = f'<p class="big">{number(cell.value)}<small>{small}</small></p>{gauge(cell, row.percent)}'
    facts = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in one.facts)
    words = "".join(f'<li class="{w.level}"><b>{escape(w.what)}</b> {prose(w.text)}</li>' for w in one.words)
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


def ahead(value: float, other: float) -> str:
    """By how much a figure is ahead of another, with its sign."""
    return f"{round(value - other, 1) or 0.0:+.1f}".replace("-", "−")  # never -0.0


def gauge(cell: Cell, percent: bool) -> str:
    """A bar from where the run began, or else from the floor, to the value; a tick at each, and both in words."""
    if cell.value is None:
        return ""
    said = "no floor measured"
    if cell.floor is not None:
        said = f"random backbone {number(cell.floor)}, {ahead(cell.value, cell.floor)}"
    if cell.start is not None:
        said += f"; as it began {number(cell.start)}, {ahead(cell.value, cell.start)}"
    said = f'<span class="floor">{said}</span>'
    if not percent:
        return said
    base = cell.floor if cell.start is None else cell.start
    low, high = sorted((min(max(base or 0.0, 0), 100), min(max(cell.value, 0), 100)))
    marks = {"": cell.floor, ' class="start"': cell.start}
    tick = "".join(
        f'<b{kind} style="left:calc({min(max(at, 0), 100):.1f}% - 1px)"></b>'
        for kind, at in marks.items()
        if at is not None
    )
    fill = f'<i style="left:{low:.1f}%;width:{high - low:.1f}%"></i>'
    under = " under" if base is not None and cell.value < base else ""
    return f'<div class="gauge{under}" aria-hidden="true">{fill}{tick}</div>{said}'


def results(page: Page) -> str:
    head = "<h2>Results</h2>"
    if not page.rows:
        return f'{head}<p class="lead">{prose(how_to_measure(page))}</p>'
    fast = " (that of a linear probe by its fast form)" if any(row.protocol in FLOOR for row in page.rows) else ""
    lead = (
        "Figures in per cent. The tick on each bar is the floor: the same network with random weights, "
        f"measured the same way{fast}. What lies to its right was learnt; a pale bar to its left is worse than that."
    )
    if any(cell.start is not None for row in page.rows for cell in row.cells if cell is not None):
        lead += (
            " Where a run began with weights that were trained before, the thick tick is what they had, and the bar "
            "from there is what these images added to it, or, pale, took from it."
        )
    lead += "".join(said for protocol, said in EXPLAINED.items() if any(row.protocol == protocol for row in page.rows))
    if any(cell.best for row in page.rows for cell in row.cells if cell is not None):
        lead += (
            f" ★ marks the highest of its kind, where it is above its floor, of {FEW} test images or more, and ahead "
            "by more than the deviation over seeds, and over samples of so many images."
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
        f"{remarks(page)}"
    )


def how_to_measure(page: Page) -> str:
    """What to do about a page without results."""
    labelled = [card for card in page.cards if card.labelled != 0]
    can = next((card for card in labelled if not card.obstacle), None)
    if can is not None or not page.cards:
        return f"No evaluation yet: `prelax evaluate {shlex.quote(can.path) if can else 'RUN'}` makes one."
    if labelled:
        who = labelled[0].name if len(page.cards) > 1 else "It"
        return (
            f"{who} cannot be measured by its own images: {labelled[0].obstacle}. Measure by others that have labels: "
            f"`prelax evaluate {shlex.quote(labelled[0].path)} --on FOLDER`."
        )
    return (
        "The images have no labels, so there is nothing to measure by. Give them in a table of path and label, "
        f"`prelax evaluate {shlex.quote(page.cards[0].path)} --labels FILE.csv`, or measure by other images that have "
        f"labels, in sub-folders named after classes: `prelax evaluate {shlex.quote(page.cards[0].path)} --on FOLDER`."
    )


def remarks(page: Page) -> str:
    """What the reader of the table should know, each thing once, with the runs it is true of."""
    told: dict[tuple[str, str], dict[str, None]] = {}
    measured: dict[str, set[str]] = {}
    for row in page.rows:
        for card, cell in zip(page.cards, row.cells, strict=True):
            if cell is not None:
                measured.setdefault(row.dataset, set()).add(card.name)
                for note in cell.notes:
                    told.setdefault((row.dataset, note), {})[card.name] = None
    found = []
    for (dataset, note), runs in told.items():
        some = f" ({', '.join(runs)})" if measured[dataset] - set(runs) else ""
        found.append(f"{dataset}{some}: {note}")
    if any(cell.std and cell.seeds > 1 for row in page.rows for cell in row.cells if cell is not None):
        found.append("± is the deviation over draws of labels or seeds of the probe. Each network was trained once.")
    return f'<ul class="notes">{"".join(f"<li>{escape(one)}</li>" for one in found)}</ul>' if found else ""


def row_title(row: Row) -> str:
    what = escape(title(row.protocol)) + (f" · {escape(row.measure)}" if row.measure != "accuracy" else "")
    counts = count_of(row)
    return f"{what}<span>{escape(row.dataset)}{f', {sized(counts)}' if counts is not None else ''}</span>"


def count_of(row: Row) -> int | None:
    """The number of test images of a row, if its runs agree in it."""
    counts = {cell.images for cell in row.cells if cell is not None and cell.value is not None}
    return counts.pop() if len(counts) == 1 else None


def result_cell(index: int, cell: Cell | None, row: Row) -> str:
    if cell is None or cell.value is None:
        return '<td class="empty">–</td>'
    said = f"± {number(cell.std)} over {cell.seeds} {repeated(row.protocol)}" if cell.std and cell.seeds > 1 else ""
    if cell.images is not None and count_of(row) is None:
        said += f"{', ' if said else ''}{sized(cell.images)}"
    best = " best" if cell.best else ""
    mark = '<span class="pm" title="highest of its kind"> ★</span>' if cell.best else ""
    more = f' <span class="pm">{said}</span>' if said else ""
    shown = f'<span class="v{best}">{number(cell.value)}</span>{mark}{more}'
    return f'<td class="r{index % COLOURS}" title="{escape(cell.detail)}">{shown}{gauge(cell, row.percent)}</td>'


def dash(run: int) -> str:
    """How the curve of a run is dashed: runs that share a colour do not share their dashes.

    >>> dash(0) == dash(8), len({(i % COLOURS, dash(i)) for i in range(64)})
    (False, 64)
    """
    return DASHES[(run + run // COLOURS) % len(DASHES)]


def legend(page: Page, dashed: bool = True) -> str:
    """The names of the runs with their colours, and their dashes where lines are drawn."""
    if len(page.cards) < 2:
        return ""
    items = "".join(
        f'<li><svg width="30" height="6" aria-hidden="true"><line x1="1" x2="29" y1="3" y2="3" stroke-width="2.5" '
        f'stroke="var(--c{i % COLOURS})" stroke-dasharray="{dash(i) if dashed else ""}"/></svg>'
        f"{escape(c.name)}</li>"
        for i, c in enumerate(page.cards)
    )
    return f'<ul class="legend">{items}</ul>'


def curves(page: Page) -> str:
    if not page.charts and not page.more_charts:
        return ""

    names = [card.name for card in page.cards]

    def one(index: int, chart: Chart) -> str:
        return (
            f'<figure class="card chart"><h3>{escape(chart.title)}</h3><p>{escape(chart.caption)}</p>'
            f'<div class="plot" data-chart="{index}"><noscript>{escape(chart.summary(names))}</noscript></div></figure>'
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
        html += panel(lead, page.bars, 100.0, "random weights", legend(page, dashed=False))
    if page.moves:
        lead = (
            "How far each augmentation alone moves the features: cosine with those of the untouched image. "
            "At 1 the backbone ignores the augmentation; the tick is the cosine of two different images."
        )
        html += panel(lead, page.moves, 1.0, "different images")
    return html


def augmentations(page: Page) -> str:
    told = page.effects
    if not told.accuracy and not told.moved:
        return ""
    html = "<h2>What augmentations do</h2>"
    if told.accuracy:
        lead = (
            "How many test images are still recognised when one augmentation alone is done to them. "
            "The tick is the accuracy on untouched images: what lies far left of it changes what an image means here, "
            "and is a candidate for <code>method.relax</code>."
        )
        html += panel(lead, told.accuracy, 100.0, "untouched images", legend(page, dashed=False))
    if told.moved:
        lead = (
            "How far one augmentation alone moves the features of an image, in per cent of the distance to another "
            f"image, which is the tick. What moves them {FAR:.0f} % of the way or more changes what an image means "
            "here, and is a candidate for <code>method.relax</code>; past the tick it looks like no image of this kind."
        )
        lead = " ".join([*map(escape, told.remarks), lead])
        top = max(100.0, *(cell.value or 0.0 for one in told.moved for cell in one.cells if cell is not None))
        html += panel(lead, told.moved, top, "another image", None if told.accuracy else legend(page, dashed=False))
    return html


def panel(lead: str, bars: Sequence[Bar], top: float, tick: str, names: str | None = None) -> str:
    """Bars from 0 to ``top`` under a lead; the first of a room has the names of the runs."""
    drawn = "".join(bar(one, top, tick) for one in bars)
    second = " second" if names is None else ""
    return f'<p class="lead{second}">{lead}</p>{names or ""}<div class="card bars">{drawn}</div>'


def bar(one: Bar, top: float, floor: str) -> str:
    """A line per run from 0 to ``top``, with a tick at the floor."""

    def share(value: float) -> float:
        return 100 * max(0.0, min(1.0, value / top))

    def shown(value: float) -> str:
        return f"{value:.1f}".replace("-0.0", "0.0").replace("-", "−") if top > 1 else f"{value:.2f}"

    lines = []
    for index, cell in enumerate(one.cells):
        if cell is None or cell.value is None:
            continue
        said = "" if cell.floor is None else f"{'a guess' if cell.guess else floor}: {shown(cell.floor)}"
        tick = "" if cell.floor is None else f'<b style="left:calc({share(cell.floor):.1f}% - 1px)"></b>'
        lines.append(
            f'<div class="one r{index % COLOURS}" title="{escape(said)}"><div class="gauge">'
            f'<i style="left:0;width:{share(cell.value):.1f}%"></i>{tick}</div>'
            f'<b class="n">{shown(cell.value)}</b></div>'
        )
    name = f'<div class="name">{escape(one.name)}<span>{escape(one.unit)}</span></div>'
    return f'{name}<div class="set">{"".join(lines)}</div>'
