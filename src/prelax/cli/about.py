"""``prelax list`` and ``prelax doctor``: what there is, and whether this machine is ready for it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from prelax.cli.speech import Debug, Json, Quiet, show
from prelax.errors import PrelaxError

KINDS = ("methods", "datasets", "recipes", "backbones", "augmentations", "settings", "tables", "protocols")


def list_(
    kind: Annotated[str, typer.Argument(help=" | ".join(KINDS), autocompletion=lambda: list(KINDS))],
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Say what there is: methods, datasets, recipes, backbones, augmentations, settings, tables or protocols.

    Example: [bold]prelax list methods[/bold]
    """
    from prelax.config import nearest

    if kind not in KINDS:
        raise PrelaxError(f"no list of {kind!r}{nearest(kind, KINDS)}")
    show(LISTS[kind]())


def list_recipes() -> list[dict[str, Any]]:
    from prelax.config import recipe_line, recipe_names

    return [{"recipe": name, "what": recipe_line(name)} for name in recipe_names()]


def list_settings() -> list[dict[str, Any]]:
    from prelax.config import keys

    return [
        {
            "key": key,
            "default": "none" if field.default is None else str(field.default),
            "what": field.description or "",
        }
        for key, field in keys().items()
    ]


LISTS = {"recipes": list_recipes, "settings": list_settings}


def print_environment() -> None:
    pass


def register(app: typer.Typer) -> None:
    app.command("list")(list_)
