"""``prelax list``, ``prelax doctor`` and ``--version --verbose``: what there is, and whether this machine is ready."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from prelax.cli.speech import Debug, Json, Quiet, say, show
from prelax.errors import PrelaxError

KINDS = (
    *("methods", "datasets", "recipes", "backbones", "augmentations"),
    *("protocols", "tables", "figures", "formats", "settings"),
)


def list_(
    kind: Annotated[str | None, typer.Argument(help=" | ".join(KINDS), autocompletion=lambda: list(KINDS))] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Say what there is: methods, datasets, recipes, backbones, augmentations, protocols, tables and so on.

    Example: [bold]prelax list methods[/bold]
    """
    from prelax.config import nearest

    if kind is None:
        raise PrelaxError(f"list what? For example `prelax list recipes`; valid: {', '.join(KINDS)}")
    if kind not in KINDS:
        raise PrelaxError(f"no list of {kind!r}{nearest(kind, KINDS)}")
    show(LISTS[kind]())


def list_methods() -> list[dict[str, Any]]:
    from prelax.objectives import METHODS

    return [{"method": name, "what": line.line, "loss": line.equation} for name, line in METHODS.items()]


def list_datasets() -> list[dict[str, Any]]:
    from prelax.names import SOURCES

    return [{"dataset": name, "what": line} for name, line in SOURCES.items()]


def list_recipes() -> list[dict[str, Any]]:
    from prelax.config import recipe_line, recipe_names

    return [{"recipe": name, "what": recipe_line(name)} for name in recipe_names()]


def list_backbones() -> list[dict[str, Any]]:
    from prelax.names import BACKBONES

    return [{"backbone": name, "what": line} for name, line in BACKBONES.items()]


def list_augmentations() -> list[dict[str, Any]]:
    from prelax.names import OPERATIONS, PRESETS

    presets = PRESETS | {"MODULE:NAME": "a Pipeline of your own, or a pair of them for views 1 and 2"}
    operations = OPERATIONS | {"MODULE:CLASS": "an augmentation of your own, for method.relax"}
    kinds = {"preset": presets, "operation": operations}
    return [{"name": name, "kind": kind, "what": line} for kind, of in kinds.items() for name, line in of.items()]


def list_protocols() -> list[dict[str, Any]]:
    from prelax.names import PROTOCOLS

    return [{"protocol": name, "what": str(line)} for name, line in PROTOCOLS.items()]


def list_tables() -> list[dict[str, Any]]:
    from prelax.tables import tables

    return [{"table": name, "rows": len(table.rows), "what": table.title} for name, table in tables().items()]


def list_figures() -> list[dict[str, Any]]:
    from prelax.names import FIGURES

    return [{"figure": name, "what": line} for name, line in FIGURES.items()]


def list_formats() -> list[dict[str, Any]]:
    from prelax.names import FORMATS

    return [{"format": name, "what": line} for name, line in FORMATS.items()]


def list_settings() -> list[dict[str, Any]]:
    from prelax.config import keys

    return [
        {
            "key": key,
            "default": as_typed(field.default),
            "values": kind_of(field.annotation) + (f" ({limits})" if (limits := limits_of(field)) else ""),
            "what": field.description or "",
        }
        for key, field in keys().items()
    ]


def as_typed(value: Any) -> str:
    """A value as YAML and the command line have it."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def kind_of(annotation: Any, mark: str = "") -> str:
    """What a setting may be, as a reader says it; ``mark`` stands around what is typed.

    >>> kind_of(int | None), kind_of(Literal["auto", "never"])
    ('whole number', 'auto, never')
    """
    if get_origin(annotation) is Literal:
        return ", ".join(f"{mark}{value}{mark}" for value in get_args(annotation))
    parts = [part for part in get_args(annotation) if part is not type(None)]
    if parts:
        return " or ".join(kind_of(part, mark) for part in parts)
    names = {"str": "text", "bool": "true or false", "int": "whole number", "float": "number", "Path": "path"}
    return names.get(annotation.__name__, str(annotation.__name__))


def limits_of(field: Any) -> str:
    """The range a number must lie in."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    return ", ".join(
        f"{sign} {getattr(limit, name):,}"
        for limit in field.metadata
        for name, sign in signs.items()
        if getattr(limit, name, None) is not None
    )


LISTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "methods": list_methods,
    "datasets": list_datasets,
    "recipes": list_recipes,
    "backbones": list_backbones,
    "augmentations": list_augmentations,
    "protocols": list_protocols,
    "tables": list_tables,
    "figures": list_figures,
    "formats": list_formats,
    "settings": list_settings,
}


def print_environment() -> None:
    from prelax.doctor import environment

    for name, value in environment().items():
        print(f"{name:14} {value}")


def doctor(
    run: Annotated[Path | None, typer.Argument(help="A run folder to examine as well.")] = None,
    figure: Annotated[
        bool, typer.Option("--figure", help="Draw what is wrong with the run into RUN/doctor.png.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Examine this machine and, if one is given, a run: what works, what is wrong, what to do.

    Examples: [bold]prelax doctor[/bold] · [bold]prelax doctor runs/NAME --figure[/bold]
    """
    from prelax.doctor import draw_findings, environment, examine_machine, examine_run

    of_run = examine_run(run) if run is not None else []
    findings = examine_machine() + of_run
    rows = [{"": "ok" if finding.fine else "!!", "what": finding.what, "found": finding.found} for finding in findings]
    fine = all(finding.fine for finding in findings)
    result = {
        "environment": environment(),
        "findings": [{"ok": f.fine, "what": f.what, "found": f.found} for f in findings],
        "ok": fine,
    }
    if figure:
        if run is None:
            raise PrelaxError("--figure is of a run: prelax doctor RUN --figure")
        drawn = draw_findings(run, of_run)
        result["figures"] = [str(path) for path in drawn]
    show(result, rows)
    if figure:
        if drawn:
            say(f"drawn in {drawn[0]}")
        elif not any(finding.curves for finding in of_run if not finding.fine):  # else it was said why not
            say("nothing is wrong that curves could show, so nothing was drawn")
    say("" if fine else "what is marked !! needs a look")
    if not fine:
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    app.command("list")(list_)
    app.command("doctor")(doctor)
