"""Curves for those who watch: TensorBoard files in the run folder, or Weights & Biases.

``metrics.jsonl`` is always written and is the record; this only repeats it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

from prelax.config import Settings
from prelax.errors import PrelaxError
from prelax.run import Run

Watch = Callable[[dict[str, Any]], None]  # is given each line of metrics


@contextlib.contextmanager
def watching(run: Run, settings: Settings) -> Iterator[Watch]:
    """What ``train.watch`` asks for, as a function of an epoch's metrics."""
    wanted = settings.train.watch
    if wanted == "auto":
        wanted = "tensorboard" if importlib.util.find_spec("tensorboard") else "none"
    if wanted == "tensorboard":
        with tensorboard(run) as watch:
            yield watch
    elif wanted == "wandb":
        with wandb(run, settings) as watch:
            yield watch
    else:
        yield lambda line: None


@contextlib.contextmanager
def tensorboard(run: Run) -> Iterator[Watch]:
    """Event files under ``RUN/tensorboard``; a resumed run adds to them."""
    try:  # tensorboard's own writer: torch's wrapper would import far more
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise PrelaxError("train.watch=tensorboard needs it: pip install 'prelax[logs]'") from None
    import time

    writer = EventFileWriter(str(run.path / "tensorboard"))

    def watch(line: dict[str, Any]) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers(line)]
        writer.add_event(Event(wall_time=time.time(), step=line["epoch"], summary=Summary(value=values)))
        writer.flush()

    try:
        yield watch
    finally:
        writer.close()


@contextlib.contextmanager
def wandb(run: Run, settings: Settings) -> Iterator[Watch]:
    """A run of the project ``prelax`` (``WANDB_PROJECT`` names another), under the run folder's name.

    Its id goes by the folder's name and when it was made, so that a resumed run adds to the same curves.
    """
    try:
        import wandb as service
    except ImportError:
        raise PrelaxError("train.watch=wandb needs it: pip install 'prelax[wandb]'") from None
    import os

    project = os.environ.get("WANDB_PROJECT", "prelax")
    config = settings.model_dump(mode="json")
    made = f"{run.name} {run.read_config()[1].get('created')}"
    about = {"id": hashlib.blake2b(made.encode(), digest_size=8).hexdigest(), "name": run.name, "dir": str(run.path)}
    with service.init(project=project, config=config, resume="allow", **about) as session:
        yield lambda line: session.log(dict(numbers(line)), step=line["epoch"])


def numbers(line: dict[str, Any]) -> list[tuple[str, float]]:
    """What of a line can be drawn."""
    return [(name, float(value)) for name, value in line.items() if name != "epoch" and isinstance(value, int | float)]
