"""What a person watches: a bar with loss, images a second and time left; off a terminal, lines that say the same."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column
from torch import Tensor, nn

from prelax.data.progress import bar
from prelax.train.trial import words

NARROW = 80  # letters of a terminal; in fewer, what is left matters more than what has passed
EVERY = 60.0  # seconds from line to line, at least
SOON = 10.0  # seconds to the first line of what nothing was said about before


def whole() -> Column:
    """A column that is not cut short."""
    return Column(no_wrap=True)


def stopwatch() -> Callable[[], float]:
    """Seconds since it was made."""
    start = time.perf_counter()
    return lambda: time.perf_counter() - start


class Lines:
    """Plain lines on standard error, at most one a minute: how far something is, and about how long it will still take.

    Args:
        total: how much there is to do.
        done: how much of it is done before.
        first: seconds until a first line.
    """

    def __init__(self, total: float, done: float = 0.0, first: float = EVERY) -> None:
        self.total, self.began = total, (time.monotonic(), done)
        self.base: tuple[float, float] | None = None
        self.due, self.said = self.began[0] + first, False

    def at(self, done: float, what: str, now: bool = False) -> None:
        """So much is done, which is told in these words if a line is due, or ``now``."""
        moment = time.monotonic()
        self.base = self.base or (moment, done)  # what is done first takes longer: it compiles, or starts processes
        since, before = self.base if done > self.base[1] else self.began
        if (now or moment >= self.due) and before < done < self.total:
            self.due, self.said = moment + EVERY, True
            left = words((moment - since) * (self.total - done) / (done - before))
            if sys.stderr is not None:  # it is None where it was closed before we began
                with contextlib.suppress(OSError, ValueError):
                    print(f"{what}, about {left} to go", file=sys.stderr, flush=True)


@contextlib.contextmanager
def counted(what: str, total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """A callback that is told how many of so many are done: a bar on a terminal, elsewhere lines."""
    console, lines = Console(stderr=True), Lines(total, first=SOON)
    with bar(what, console) as drawn:

        def update(done: int) -> None:
            if shown and (console.is_terminal or console.is_jupyter):
                drawn(done, total)
            elif shown:
                lines.at(done, f"{what}: {done:,} of {total:,}")

        yield update


@contextlib.contextmanager
def looking(model: nn.Module, images: int, shown: bool) -> Iterator[None]:
    """Shows at how many of so many images a model, given lists of them, has looked meanwhile."""
    seen = 0

    def note(model: nn.Module, inputs: tuple[list[Tensor], ...], found: Any) -> None:
        nonlocal seen
        seen += len(inputs[0])
        update(seen)

    with counted("scored", images, shown) as update:
        handle = model.register_forward_hook(note)
        try:
            yield
        finally:
            handle.remove()


class Progress:
    """A rich bar over all steps of a run, on standard error, or lines where that is no terminal; silent if not shown.

    Args:
        first: seconds until a first line in the midst of an epoch; the end of the first epoch has one in any case.
    """

    def __init__(self, epochs: int, steps: int, done: int, shown: bool, first: float = EVERY) -> None:
        self.epochs, self.steps, self.done = epochs, steps, done
        console = Console(stderr=True)
        self.lines = Lines(epochs, done, first) if shown and not console.is_terminal else None
        self.narrow = console.width < NARROW
        elapsed = () if self.narrow else (TimeElapsedColumn(table_column=whole()),)
        self.bar = Bar(
            TextColumn("epoch"),
            MofNCompleteColumn(table_column=whole()),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[said]}"),
            *elapsed,
            TextColumn("left"),
            TimeRemainingColumn(table_column=whole()),
            console=console,
            disable=not shown or not console.is_terminal,  # into a pipe it would only print an empty line
            transient=True,
        )
        self.task = self.bar.add_task("train", total=epochs, completed=done, said="")

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def step(self, done: int) -> None:
        """``done`` steps of the epoch under way are taken."""
        if done >= self.steps:  # that is for `epoch` to say
            return
        if not self.bar.disable:
            self.bar.update(self.task, completed=self.done + done / self.steps)
        if self.lines is not None:
            where = f"epoch {self.done + 1} of {self.epochs}, step {done:,} of {self.steps:,}"
            self.lines.at(self.done + done / self.steps, where)

    def epoch(self, line: dict[str, Any]) -> None:
        """An epoch is finished."""
        self.done = line["epoch"]
        said = [f"loss {line['loss']:.3f}"]
        speed = line["images_per_s"]
        if not self.narrow or self.lines is not None:
            said.append(f"{speed:,.{0 if speed >= 10 else 1}f} images/s")
        if "knn" in line:
            said.append(f"kNN {line['knn']:.1f}")
        self.bar.update(self.task, completed=self.done, said="  ".join(said))
        if self.lines is not None:
            self.lines.at(self.done, f"epoch {self.done} of {self.epochs}: {', '.join(said)}", not self.lines.said)
