"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
On = Annotated[str | None, typer.Option("--on", help="Another dataset, or a folder of images; default the run's own.")]
Root = Annotated[Path | None, typer.Option("--root", help="Where the files of --on are.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]


def chosen(device: str) -> torch.device:
    """The device that ``--device`` names."""
    from prelax.train import choose_device

    return choose_device(device, asked="--device ")
