"""The bar a person watches: loss, images a second, time left."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column

NARROW = 80  # letters of a terminal; in fewer, what is left matters more than what has passed


def whole() -> Column:
    """A column that is not cut short."""
    return Column(no_wrap=True)


class Progress:
    """A rich bar over all steps of a run, on standard error; silent when not shown."""

    def __init__(self, epochs: int, steps: int, done: int, shown: bool) -> None:
        self.steps, self.done = steps, done
        console = Console(stderr=True)
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
        if not self.bar.disable and done < self.steps:
            self.bar.update(self.task, completed=self.done + done / self.steps)

    def epoch(self, line: dict[str, Any]) -> None:
        """An epoch is finished."""
        self.done = line["epoch"]
        said = f"loss {line['loss']:.3f}"
        if not self.narrow:
            said += f"  {line['images_per_s']:,.0f} images/s"
        if "knn" in line:
            said += f"  kNN {line['knn']:.1f}"
        self.bar.update(self.task, completed=self.done, said=said)
