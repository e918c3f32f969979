"""Curves for those who watch: TensorBoard files in the run folder, or Weights & Biases.

``metrics.jsonl`` is always written and is the record; this only repeats it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from prelax.config import Settings
from prelax.errors import PrelaxError, PrelaxWarning, first_line
from prelax.run import Run

Watch = Callable[[dict[str, Any]], None]  # is given each line of metrics
NEEDS = {"tensorboard": "prelax[logs]", "wandb": "prelax[wandb]"}


def watcher(settings: Settings) -> str:
    """Who watches, of those ``train.watch`` may name; refuses one that is not installed."""
    wanted = settings.train.watch
    if wanted == "auto":
        return "tensorboard" if importlib.util.find_spec("tensorboard") else "none"
    if wanted in NEEDS and not importlib.util.find_spec(wanted):
        raise PrelaxError(f"train.watch={wanted} needs it: pip install '{NEEDS[wanted]}'")
    return wanted


@contextlib.contextmanager
def watching(run: Run, settings: Settings) -> Iterator[Watch]:
    """What ``train.watch`` asks for, as a function of an epoch's metrics; one that fails is left out, and says so."""
    name = watcher(settings)
    watch: Watch | None = None

    def leave_out(error: Exception) -> None:
        nonlocal watch
        watch = None
        said = f"{name} is left out from now on ({first_line(error)}); metrics.jsonl has every line"
        warnings.warn(said, PrelaxWarning, stacklevel=3)

    def tell(line: dict[str, Any]) -> None:
        if watch is not None:
            try:
                watch(line)
            except Exception as error:
                leave_out(error)

    opened: AbstractContextManager[Watch] = contextlib.nullcontext(lambda line: None)
    if name in NEEDS:
        opened = tensorboard(run) if name == "tensorboard" else wandb(run, settings)
    try:
        watch = opened.__enter__()
    except Exception as error:
        leave_out(error)
        yield tell
        return
    try:
        yield tell
    except BaseException:
        with contextlib.suppress(Exception):
            opened.__exit__(*sys.exc_info())
        raise
    try:
        opened.__exit__(None, None, None)
    except Exception as error:
        if watch is not None:  # else it has been said
            leave_out(error)


@contextlib.contextmanager
def tensorboard(run: Run) -> Iterator[Watch]:
    """Event files under ``RUN/tensorboard``; a resumed run adds to them."""
    # The least of tensorboard: torch's wrapper would import far more, and its own writer works in a thread, which
    # prints a traceback when the disk is full.
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder = run.path / "tensorboard"
    folder.mkdir(exist_ok=True)
    name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
    with open(folder / name, "ab") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        writer.flush()

        def watch(line: dict[str, Any]) -> None:
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in numbers(line)]
            event = Event(wall_time=time.time(), step=line["epoch"], summary=Summary(value=values))
            writer.write(event.SerializeToString())
            writer.flush()

        yield watch


@contextlib.contextmanager
def wandb(run: Run, settings: Settings) -> Iterator[Watch]:
    """A run of the project ``prelax`` (``WANDB_PROJECT`` names another), under the run folder's name.

    Its id goes by the folder's name and when it was made, so that a resumed run adds to the same curves.
    """
    import wandb as service

    project = os.environ.get("WANDB_PROJECT", "prelax")
    config = settings.model_dump(mode="json")
    made = f"{run.name} {run.read_config()[1].get('created')}"
    about = {"id": hashlib.blake2b(made.encode(), digest_size=8).hexdigest(), "name": run.name, "dir": str(run.path)}
    with service.init(project=project, config=config, resume="allow", **about) as session:
        yield lambda line: session.log(dict(numbers(line)), step=line["epoch"])


def numbers(line: dict[str, Any]) -> list[tuple[str, float]]:
    """What of a line can be drawn."""
    return [(name, float(value)) for name, value in line.items() if name != "epoch" and isinstance(value, int | float)]
