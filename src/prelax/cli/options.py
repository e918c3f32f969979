"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

    from prelax.train import Process

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
On = Annotated[
    str | None,
    typer.Option("--on", help="Another dataset, or a folder (or .npz, .h5 file) of images; default the run's own."),
]
Root = Annotated[Path | None, typer.Option("--root", help="Where the files of --on are.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]


def chosen(device: str, process: Process | None = None) -> torch.device:
    """The device that ``--device`` names; of several processes each has its own."""
    from prelax.train import choose_device

    return choose_device(device, process, asked="--device ")
