"""``prelax transfer``: backbones of some datasets judged by the labels of others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prelax.cli.evaluating import complete_protocol, dataset
from prelax.cli.options import Device, chosen
from prelax.cli.speech import Debug, Json, Quiet, Seed, say, show, waiting, working
from prelax.errors import PrelaxError

if TYPE_CHECKING:
    from prelax.config import DataSettings
    from prelax.run import Run


def transfer(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders: the rows.")],
    on: Annotated[
        list[str] | None,
        typer.Option(
            "--on",
            metavar="NAME[=ROOT]",
            help="A dataset, with its folder, or a folder or .npz of images; repeat for more. Default: the runs' own.",
        ),
    ] = None,
    protocol: Annotated[
        str, typer.Option("--protocol", "-p", help="Of `prelax list protocols`.", autocompletion=complete_protocol)
    ] = "linear-fast",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the table there too, as Markdown.")] = None,
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure runs on other datasets' labels, the backbone frozen: a row a run, a column a dataset (Tab. 2b).

    Examples: [bold]prelax transfer runs/c100 runs/tiny --on cifar10=~/cifar10 --on cifar100=~/cifar100[/bold] ·
    [bold]prelax transfer runs/simsiam runs/prelax --on ./photos[/bold]
    """
    from prelax.evaluate.protocols import check
    from prelax.evaluate.transfer import as_table, transfer
    from prelax.run import Run
    from prelax.whole import replacing, writing

    (name,) = check([protocol])
    if name == "residual":
        raise PrelaxError("--protocol residual has no accuracy to make a table of; use `prelax probe-residual`")
    opened = [Run.open(run) for run in runs]
    with working(), waiting("measuring"):
        matrix = transfer(opened, lambda run: targets(run, opened, on or []), name, chosen(device), seed)
    show(matrix, rows(matrix), f"accuracy % by {name} (random weights in brackets)")
    if out is not None:
        with writing(out), replacing(out) as temporary:
            Path(temporary).write_text(as_table(matrix) + "\n", encoding="utf-8")
    say(f"each figure is in the run's eval folder{f', the table in {out}' if out else ''}")


def targets(run: Run, every: list[Run], on: list[str]) -> list[DataSettings]:
    """The datasets of the columns as this run can read them."""
    found: list[Any] = []
    if on:
        for asked in on:
            name, _, root = (asked, "", "") if Path(asked).exists() else asked.partition("=")
            found.append(dataset(run, name, Path(root).expanduser() if root else None))
        return found
    own = {(other.settings.data.source, other.settings.data.root): other for other in every}
    return [as_read_by(run, other) for other in own.values()]


def as_read_by(run: Run, other: Run) -> DataSettings:
    """Another run's dataset, split and labelled as that run has it, in the shape this run's backbone takes."""
    from prelax.data.ranges import as_text, ranges
    from prelax.evaluate.protocols import image_size_on
    from prelax.loading import channels_of

    mine, theirs = run.settings.data, other.settings.data
    if (mine.source, mine.root) == (theirs.source, theirs.root):
        return mine
    channels = channels_of(run.settings, run.load_backbone(), str(run.path))
    size = image_size_on(theirs.source, mine)
    levels = as_text({**ranges(theirs.range or ""), **ranges(mine.range or "")})
    return theirs.model_copy(update={"channels": channels, "image_size": size, "range": levels, "limit": None})


def rows(matrix: dict[str, Any]) -> list[dict[str, Any]]:
    """The matrix as lines to print."""
    return [
        {"run": run, "trained on": source}
        | {
            target: f"{value:.1f} ({floor:.1f})"
            for target, value, floor in zip(matrix["targets"], accuracy, floors, strict=True)
        }
        for run, source, accuracy, floors in zip(
            matrix["runs"], matrix["sources"], matrix["accuracy"], matrix["floor"], strict=True
        )
    ]


def register(app: typer.Typer) -> None:
    app.command("transfer")(transfer)
