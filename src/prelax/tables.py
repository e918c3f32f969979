"""The paper's tables and figures, read from ``tables.yaml``: what is trained, how it is measured, what was printed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

import yaml

from prelax.config import nearest
from prelax.errors import PrelaxError

DETECTORS = {"detection": "retinanet", "segmentation": "maskrcnn"}  # protocol of a row: the model that measures it


@dataclass(frozen=True)
class Row:
    """A cell of a table of the paper: what is trained, how it is measured, and what the paper printed."""

    label: str
    recipe: str
    protocol: str
    column: str = ""
    set: tuple[str, ...] = ()
    figure: str = "accuracy"
    dataset: str | None = None
    init: str = "trained"
    paper: float | None = None


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    rows: tuple[Row, ...]


def tables() -> dict[str, Table]:
    """Every table that can be reproduced, by name.

    >>> tables()["tab1a"].rows[-1].paper
    93.4
    """
    text = (resources.files("prelax") / "tables.yaml").read_text(encoding="utf-8")
    found = {}
    for name, tree in yaml.safe_load(text).items():
        defaults = {key: tree[key] for key in ("protocol", "figure", "dataset", "recipe") if key in tree}
        rows = [defaults | row | {"set": tuple(row.get("set", ()))} for row in tree["rows"]]
        found[name] = Table(name, tree["title"], tuple(Row(**row) for row in rows))
    return found


def table(name: str) -> Table:
    """A table by name, or the nearest name there is."""
    known = tables()
    if name not in known:
        raise PrelaxError(f"no table {name!r}{nearest(name, known)}")
    return known[name]


def chosen(whole: Table, only: str | None) -> list[Row]:
    """The rows whose label, column or recipe matches a pattern; all of them without one."""
    try:
        rows = [row for row in whole.rows if re.search(only or "", f"{row.label} {row.column} {row.recipe}", re.I)]
    except re.error as error:
        raise PrelaxError(f"--only {only!r} is not a pattern: {error}") from None
    if not rows:
        raise PrelaxError(f"no row of {whole.name} matches {only!r}: {', '.join(row.label for row in whole.rows)}")
    return rows
