"""Writes docs/settings.md from the settings themselves: python docs/make_settings.py"""

from __future__ import annotations

from pathlib import Path

from prelax.cli.about import as_typed, kind_of, limits_of
from prelax.config import keys

PAGE = Path(__file__).parent / "settings.md"
HEAD = """# Every setting

A recipe is a set of these; `key=value` on the command line changes one, and `config.yaml` in a run folder holds them
all. An unknown key, a wrong type or a number out of range is refused before any work starts. `prelax list settings`
prints the same.

"""


def page() -> str:
    """The whole page."""
    sections: dict[str, list[str]] = {}
    for key, field in keys().items():
        values = kind_of(field.annotation, "`") + (f" ({limits})" if (limits := limits_of(field)) else "")
        shown = "" if field.default is None else f"`{as_typed(field.default)}`"
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
