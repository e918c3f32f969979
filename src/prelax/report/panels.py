"""The sections of a page that show things: the map of the images, the views, the settings."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from prelax.report.content import Album, Atlas, Page, Setting, Shot, Strip
from prelax.report.sections import COLOURS, prose

SMALL = 48  # pixels: an image up to this side is shown with its pixels, not smoothed
MANY = 3  # views in a row: of more each has its record below it, not beside it


def tabs(page: Page, runs: list[int], prefix: str) -> str:
    """Buttons that show one run's panel of several."""
    if len(runs) < 2:
        return ""
    buttons = "".join(
        f'<button type="button" class="r{run % COLOURS}" data-shows="{prefix}-{run}" '
        f'aria-pressed="{"false" if i else "true"}">'
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
    whole = all(atlas.whole for atlas in page.atlases)
    lead = (
        f"Every point is {'an' if whole else 'a test'} image; images that look alike to the network are near each "
        "other (t-SNE of its features). "
        "Point at one to see it; click or tap it for the images most similar to it (by cosine similarity)."
    )
    title = "Map of the images" if whole else "Map of the test set"
    choice = tabs(page, [atlas.run for atlas in page.atlases], "map")
    return f'<h2>{title}</h2><p class="lead">{lead}</p>{sheets}{choice}{panels}'


def one_map(page: Page, index: int, atlas: Atlas) -> str:
    count, k = atlas.neighbours.shape
    told = ""
    if atlas.agreement is not None:
        floor = f" (random backbone {atlas.floor:.1f} %)" if atlas.floor is not None else ""
        shared = f"those of the {k} nearest that have a label" if min(atlas.labels) < 0 else f"the {k} nearest"
        told = f"On average {atlas.agreement:.1f} % of {shared} share the label{floor}. "
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
        f"t-SNE map of {count} {'' if atlas.whole else 'test '}images of {escape(page.cards[atlas.run].name)}. "
        "Arrow keys move between points, Enter shows the nearest images."
    )
    shown = f"{count:,} images shown; neighbours are among them."
    if atlas.total > count:
        shown = (
            f"{count:,} of {atlas.total:,} images shown; neighbours and names are found among them alone "
            "(<code>prelax report --points</code> shows more)."
        )
    find = ""
    if atlas.captions or atlas.agreement is not None:
        find = (
            '<div class="find"><input type="search" placeholder="Find by name" '
            'aria-label="Find images by their name or class" autocomplete="off" spellcheck="false">'
            '<span role="status"></span></div>'
        )
    return (
        f'<div id="map-{atlas.run}"{"" if index == 0 else " hidden"}><div class="card atlas" data-atlas="{index}">'
        f'<div class="stage"><canvas tabindex="0" role="application" aria-label="{says}"></canvas>'
        f'<div class="tools">{tools}</div></div>'
        f'<div class="side">{find}<div class="answer"></div><div class="keys" role="group" aria-label="Classes"></div>'
        f'<p class="help">{told}{shown} '
        "Wheel or pinch zooms once the map is clicked.</p>"
        f"</div></div></div>"
    )


def views(page: Page) -> str:
    if not page.albums:
        return ""
    lead = (
        "What the network was shown, and the record of how each view was made. "
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
    small = " small" if one.side <= SMALL else ""
    first = (
        f'<figure class="shot first"><div class="frame{small}">'
        f'<img src="{one.uri}" alt="original image, {escape(one.label)}">{boxes}</div>'
        f"<figcaption><b>original</b>{escape(one.label)}</figcaption></figure>"
    )
    many = " many" if len(one.shots) > MANY else ""
    return f'<div class="strip{many}">{first}{"".join(shot_html(shot, small) for shot in one.shots)}</div>'


def shot_html(shot: Shot, small: str) -> str:
    steps = "".join(f"<dt>{escape(op)}</dt><dd>{escape(text)}</dd>" for op, text in shot.steps)
    alt = escape(f"{shot.title}: " + ", ".join(f"{op} {text}" for op, text in shot.steps))
    return (
        f'<figure class="shot"><div class="frame{small}"><img src="{shot.uri}" alt="{alt}"></div>'
        f"<figcaption><b>{escape(shot.title)}</b><dl>{steps}</dl></figcaption></figure>"
    )


def settings(page: Page) -> str:
    heads = "".join(
        f'<th scope="col"><span class="swatch r{i % COLOURS}"></span>{escape(c.name)}</th>'
        for i, c in enumerate(page.cards)
    )

    def table(rows: list[Setting], row: Callable[[Setting], str]) -> str:
        body = "".join(map(row, rows))
        head = f'<thead><tr><th scope="col">Setting</th>{heads}</tr></thead>'
        return f'<div class="card scroll"><table class="settings">{head}<tbody>{body}</tbody></table></div>'

    def one(setting: Setting) -> str:
        values = "".join(f"<td>{escape(value)}</td>" for value in setting.values)
        about = f"<span>{prose(setting.about)}</span>" if setting.about else ""
        mark = ' class="differs"' if setting.differs and len(setting.values) > 1 else ""
        return f'<tr{mark}><th scope="row"><code>{escape(setting.key)}</code>{about}</th>{values}</tr>'

    different = [setting for setting in page.settings if setting.differs and setting.key != "run.created"]
    several = len(page.cards) > 1
    lead = "What differs between the runs." if several else "What was set otherwise than the default."
    same = "All settings are the same." if several else "Every setting has its default."
    top = f'<p class="lead">{lead}</p>{table(different, one)}' if different else f'<p class="lead">{same}</p>'
    rest = f"<details><summary>All {len(page.settings)} settings</summary>{table(page.settings, one)}</details>"
    return f"<h2>Settings</h2>{top}{rest}"
