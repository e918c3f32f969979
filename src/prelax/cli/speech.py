"""How commands speak: tables or JSON on standard output, everything else on standard error."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from prelax.errors import PrelaxWarning, escaped


@dataclass
class State:
    """What the common options of the running command asked for."""

    json: bool = False
    quiet: bool = False
    debug: bool = False
    afterwards: str = ""  # what to do after Ctrl-C, said when it comes

    def reset(self) -> None:
        self.json = self.quiet = self.debug = False
        self.afterwards = ""


state = State()


def _noting(name: str) -> Any:
    def note(value: bool) -> bool:
        setattr(state, name, value)
        return value

    return note


Json = Annotated[
    bool, typer.Option("--json", callback=_noting("json"), help="JSON on standard output, and nothing else there.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", callback=_noting("quiet"), help="No progress, only the result.")]
Debug = Annotated[bool, typer.Option("--debug", callback=_noting("debug"), help="Show the traceback of an error.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="Decides every random draw.")]


def say(line: str = "") -> None:
    """A line for the reader; silent with --json and --quiet. That it cannot be said stops no work."""
    if not state.json and not state.quiet:
        with contextlib.suppress(OSError):
            print(line)


def complain(line: str) -> None:
    """A line on standard error, if that can be written to."""
    with contextlib.suppress(OSError):
        print(f"prelax: {line}", file=sys.stderr)


def _escape(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(escaped(ord(letter)) for letter in error.object[error.start : error.end]), error.end


codecs.register_error("prelax", _escape)


@contextlib.contextmanager
def anything_printed() -> Iterator[None]:
    """Lets any text be printed: what a terminal has no letters for, and names that are no text, are escaped."""
    changed = []
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            changed.append((stream, stream.errors))
            stream.reconfigure(errors="prelax")
    try:
        yield
    finally:
        for stream, before in changed:
            with contextlib.suppress(ValueError, OSError):  # closed meanwhile, or its reader left
                stream.reconfigure(errors=before)


@contextlib.contextmanager
def warnings_told() -> Iterator[None]:
    """Our warnings as lines of ours, each once; what torch's compiler remarks to its authors is left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", PrelaxWarning)
        warnings.filterwarnings("ignore", module=r"torch\._(inductor|dynamo)\b")
        shown, told = warnings.showwarning, set[str]()

        def tell(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            line = " ".join(str(message).split())
            if not issubclass(category, PrelaxWarning):
                shown(message, category, *where, **more)
            elif line not in told:
                told.add(line)
                complain(line)

        warnings.showwarning = tell
        yield


@contextlib.contextmanager
def working() -> Iterator[None]:
    """Keeps standard output clean for the JSON while a command works: what is printed meanwhile goes to stderr."""
    if state.json:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    else:
        yield


@contextlib.contextmanager
def waiting(doing: str = "reading the images", quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Shows on a terminal what a command is at, until it is done; into a pipe, and with --quiet, nothing."""
    from rich.console import Console

    with Console(stderr=True, quiet=quiet or state.quiet).status(doing) as line:
        yield line.update


def show(result: Any, table: Sequence[Mapping[str, Any]] | None = None, title: str = "") -> None:
    """A command's result: JSON with --json, else a table of its rows."""
    if state.json:
        print(json.dumps(result, indent=1, default=plain, allow_nan=False))
        return
    rows = table if table is not None else result
    from rich.console import Console
    from rich.table import Table

    columns = list(dict.fromkeys(name for row in rows for name in row))
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        numeric = all(isinstance(row.get(name), int | float | None) for row in rows)
        drawn.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(cell(row.get(name)) for name in columns))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:  # a pipe has no width to fold to
        console = Console(highlight=False, markup=False, width=200)
    if title:  # a table's own is folded to the table's width
        console.print(title, style="table.title", soft_wrap=True)
    console.print(drawn)


def cell(value: Any) -> str:
    """A value as a table shows it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1 else f"{value:,.1f}"
    return str(value)


def points(value: float) -> float:
    """A figure in per cent, rounded once, to the digits that `cell` shows of it; small ones to two.

    >>> cell(points(30.9524)), cell(points(0.3561))
    ('31.0', '0.36')
    """
    return round(value, 1 if abs(value) >= 1 else 2)


def plain(value: Any) -> Any:
    """What JSON does not know, as something it does."""
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)
