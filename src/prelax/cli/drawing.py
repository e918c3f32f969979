"""``prelax figure``: the paper's figures, one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prelax.cli.options import Device, chosen
from prelax.cli.speech import Debug, Json, Quiet, Seed, say, show, state, waiting, working


def complete_figure(incomplete: str) -> list[str]:
    from prelax.names import FIGURES

    return [name for name in FIGURES if name.startswith(incomplete)]


def figure(
    name: Annotated[str, typer.Argument(help="A name of `prelax list figures`.", autocompletion=complete_figure)],
    inputs: Annotated[
        list[Path], typer.Argument(metavar="INPUT", help="Run folders, or a JSON file of rows where one will do.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to draw; .png and .svg are written.")],
    points: Annotated[int, typer.Option("--points", min=10, help="tsne: images, at most.")] = 2000,
    pictures: Annotated[
        bool, typer.Option("--pictures/--no-pictures", help="retrieval: or the names of classes in their place.")
    ] = True,
    device: Device = "cpu",
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Draw a figure of the paper from run folders: PNG and SVG, a column wide.

    Examples: [bold]prelax figure dynamics runs/simsiam runs/prelax-rot -o dynamics.png[/bold] ·
    [bold]prelax figure tsne runs/NAME -o tsne.png[/bold]
    """
    from prelax.report.figures import draw

    with working(), waiting("drawing"):
        written = draw(name, inputs, out, points=points, seed=seed, device=chosen(device), pictures=pictures)
    if state.json:
        show({"figure": name, "files": [str(path) for path in written]})
    else:
        say("drawn in " + " and ".join(map(str, written)))


def register(app: typer.Typer) -> None:
    app.command("figure")(figure)
