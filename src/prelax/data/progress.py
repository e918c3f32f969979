"""A progress bar for the first read of a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@contextlib.contextmanager
def bar(title: str = "decoding images", console: Console | None = None) -> Iterator[Callable[[int, int], None]]:
    """A callback for ``load(progress=...)`` that draws a bar on standard error from its first call on.

    >>> with bar() as progress:
    ...     progress(3, 3)
    """
    from rich.console import Console  # here, not above: the processes that decode import this package too
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = console or Console(stderr=True)
    seen = console.is_terminal or console.is_jupyter  # into a pipe it would only print an empty line
    drawn = Progress(*columns, console=console, transient=True, disable=not seen)
    task = None

    def update(done: int, total: int) -> None:
        nonlocal task
        if task is None:
            task = drawn.add_task(title, total=total)
            drawn.start()  # only now: a cached set shows no bar
        drawn.update(task, completed=done, total=total)

    try:
        yield update
    finally:
        if task is not None:  # a bar that was not drawn has nothing to take away
            drawn.stop()
