"""Writes docs/settings.md from the settings themselves: python docs/make_settings.py"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from prelax.config import keys

PAGE = Path(__file__).parent / "settings.md"
HEAD = """# Every setting

A recipe is a set of these; `key=value` on the command line changes one, and `config.yaml` in a run folder holds them
all. An unknown key, a wrong type or a number out of range is refused before any work starts. `prelax list settings`
prints the same.

"""


def kind(annotation: Any) -> str:
    """A type as a reader says it."""
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    parts = [part for part in get_args(annotation) if part is not type(None)]
    if parts:
        return " or ".join(kind(part) for part in parts)
    return {"str": "text", "bool": "true or false", "int": "whole number", "float": "number", "Path": "path"}.get(
        annotation.__name__, annotation.__name__
    )


def bounds(field: Any) -> str:
    """The range a number must lie in."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    return ", ".join(
        f"{sign} {getattr(limit, name):,}"
        for limit in field.metadata
        for name, sign in signs.items()
        if getattr(limit, name, None) is not None
    )


def page() -> str:
    """The whole page."""
    sections: dict[str, list[str]] = {}
    for key, field in keys().items():
        values = kind(field.annotation) + (f" ({limits})" if (limits := bounds(field)) else "")
        default = str(field.default).lower() if isinstance(field.default, bool) else field.default
        shown = "" if default is None else f"`{default}`"
        row = f"| `{key}` | {shown} | {values} | {field.description or ''} |"
        sections.setdefault(key.rpartition(".")[0] or "the run", []).append(row)
    tables = [
        f"## {name}\n\n| key | default | values | |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
        for name, rows in sections.items()
    ]
    return HEAD + "\n".join(tables)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
