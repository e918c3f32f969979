"""``prelax report``, ``reproduce``, ``theory``, ``augmentations`` and ``bench``: things to look at."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from prelax.cli.options import Device, chosen
from prelax.cli.speech import Debug, Json, Quiet, Seed, say, show, state, waiting, working
from prelax.cli.training import complete_key, watched
from prelax.errors import PrelaxError

LARGEST = 8192  # pixels a side, images a batch


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="One run folder or several to compare.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The file; default RUN/report.html, of several runs compared.html beside the first."
        ),
    ] = None,
    points: Annotated[int, typer.Option("--points", min=0, help="Images of the map; 0 leaves it out.")] = 2000,
    device: Device = "cpu",
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write one HTML file that shows and compares runs; it opens from disk without a network.

    Example: [bold]prelax report runs/simsiam runs/prelax --out compared.html[/bold]
    """
    from prelax.report import report as write

    with working(), waiting("writing the page"):
        page = write(runs, out, points=points, seed=seed, device=chosen(device))
    if state.json:
        show({"page": str(page), "runs": [str(run) for run in runs]})
    else:
        print(f"the page is {page}")


def complete_table(incomplete: str) -> list[str]:
    from prelax.tables import tables

    return [name for name in tables() if name.startswith(incomplete)]


def reproduce(
    table: Annotated[str, typer.Argument(help="A name of `prelax list tables`.", autocompletion=complete_table)],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Changes to every row.", autocompletion=complete_key),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where runs and tables are kept.")] = Path("runs/paper"),
    seeds: Annotated[str | None, typer.Option("--seeds", help="Several runs a row, for example 0,1,2.")] = None,
    only: Annotated[str | None, typer.Option("--only", help="Only rows that match this pattern.")] = None,
    coco: Annotated[
        Path | None, typer.Option("--coco", help="Where COCO is, for the rows of detection and segmentation.")
    ] = None,
    detection: Annotated[
        list[str] | None,
        typer.Option("--detect", metavar="KEY=VALUE", help="Change their detectors, as in epochs=24; repeat for more."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the rows, and stop.")] = False,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train and measure every row of a table of the paper, and set the paper's figures beside ours.

    Rows that are finished are not done again, rows that were stopped go on. Examples:
    [bold]prelax reproduce tab3b data.root=~/data[/bold] ·
    [bold]prelax reproduce tab1a train.epochs=100 --only 'simsiam|prelax' --seeds 0,1,2[/bold] ·
    [bold]prelax reproduce imagenet data.root=~/imagenet --coco ~/coco[/bold]
    """
    from prelax.reproduce import plan, reproduce
    from prelax.table_files import shown

    wanted = read_seeds(seeds) if seeds is not None else [seed]
    if dry_run:
        show(plan(table, changes or [], out, seeds=wanted, only=only))
        return
    state.afterwards = "; the same command goes on from here"
    with working():
        result = reproduce(
            table,
            changes or [],
            out,
            seeds=wanted,
            only=only,
            coco=coco,
            detection=detection or [],
            progress=watched(),
            say=say,
        )
    show(result, shown(result), result["title"])
    say(
        f"the table is {result['files']}.md, its figures {result['files']}.json, "
        f"the page {result['page'] or 'was not written'}"
    )
    failed = [row for row in result["rows"] if row["failure"]]
    if failed:
        unsaid = state.json or quiet
        why = (
            f"{failed[0]['label']}: {failed[0]['failure']}"
            if unsaid
            else f"why is said above, and in {result['files']}.md"
        )
        raise PrelaxError(f"{len(failed)} of {len(result['rows'])} rows failed; {why}")


def read_seeds(text: str) -> list[int]:
    """``[0, 1, 2]`` of ``0,1,2``."""
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise PrelaxError(f"--seeds {text!r} is not a list of numbers such as 0,1,2") from None
    if len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise PrelaxError(f"--seeds {text!r}: each must be a different number from 0 up")
    return seeds


def theory(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the figure.")] = Path("runs/theory"),
    joints: Annotated[int, typer.Option("--joints", min=1, help="Random distributions a family.")] = 100,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Check the paper's two theorems exactly on finite distributions; draw the information each method keeps.

    Example: [bold]prelax theory[/bold]
    """
    from prelax.theory import run_theory, tell

    with working():
        results = run_theory(out, seed, joints)
    if state.json:
        show(results)
    else:
        print(tell(results))


def bench(
    what: Annotated[str, typer.Argument(help="augment or train.", autocompletion=lambda: ["augment", "train"])],
    recipe: Annotated[str, typer.Argument(help="train: the recipe to time.")] = "digits/prelax-all",
    changes: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="train: settings.")] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.05, help="Measured per row.")] = 3.0,
    size: Annotated[
        list[str] | None, typer.Option("--size", help="augment: IN,OUT or IN,OUT,BATCH in pixels; repeat for more.")
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, max=1024, help="augment: of the CPU.")] = 1,
    device: Device = "auto",
    rivals: Annotated[
        bool, typer.Option("--rivals/--alone", help="Others too, where installed: torchvision, kornia; train: lightly.")
    ] = True,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure this machine: views a second of the augmentations beside torchvision's and kornia's, or of training.

    Training is timed on noise, that of a folder on its images. Examples: [bold]prelax bench augment[/bold] ·
    [bold]prelax bench train cifar10/simsiam[/bold] · [bold]prelax bench train folder data.root=./photos[/bold]
    """
    from prelax.config import nearest

    if what not in ("augment", "train"):
        raise PrelaxError(f"nothing to measure called {what!r}{nearest(what, ('augment', 'train'))}")
    where = chosen(device)
    if what == "train":
        bench_training(recipe, [f"train.device={device}", *(changes or [])], seconds, rivals)
        return
    from prelax.augment.bench import PAIRS, bench

    pairs = [read_size(text) for text in size] if size else PAIRS
    with working():
        rows = bench(pairs, threads=threads, seconds=seconds, device=where, rivals=rivals)
    show(rows)


def bench_training(recipe: str, changes: list[str], seconds: float, rivals: bool) -> None:
    """Times the steps of what ``prelax pretrain`` would train, and shows the few figures that matter of each row."""
    from prelax.check import check
    from prelax.config import resolve
    from prelax.data import bar
    from prelax.train.bench import bench, job
    from prelax.train.peers import installed

    settings = resolve(recipe, changes)
    data = settings.data
    nowhere = data.source == "folder" and data.root is None and data.shards is None
    check(settings.model_copy(update={"data": data.model_copy(update={"root": Path()})}) if nowhere else settings)
    with working():
        with bar() if not (state.quiet or state.json) else contextlib.nullcontext() as drawn:
            settings, images = job(settings, say, drawn)
        if nowhere:
            say("noise is timed: with data.root=FOLDER it is the images there, as pretrain would train on them")
        theirs = settings.model.backbone in ("resnet8", "resnet18", "resnet34", "resnet50")
        colour = settings.data.source != "digits" and settings.data.channels in (None, 3)
        fair = settings.method.name == "simsiam" and theirs and colour  # what others can do
        peers = installed() if rivals and fair else []
        rows = bench(settings, seconds=seconds, images=images or 0, peers=peers, say=say)
    one = rows[0]
    pixels = f"{len(images):,} images of {data.label}" if images is not None else "noise"
    title = f"{one['method']}, {one['backbone']}, views of {one['image_size']} px, batches of {one['batch']}, "
    memory = ["memory_gib"] if one["memory_gib"] is not None else []
    columns = ["mode", "views", "ms_per_step", "views_per_s", "augment_share", *memory]
    show(rows, [{name: row.get(name) for name in columns} for row in rows], f"{title}{pixels}, {one['device']}")


def read_size(text: str) -> tuple[int, int] | tuple[int, int, int]:
    """``(160, 128)`` of ``160,128``, or ``(160, 128, 64)`` with the batch."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3) or min(numbers) < 1:
        raise PrelaxError(f"--size {text!r} is not IN,OUT or IN,OUT,BATCH, for example 160,128,64")
    if max(numbers) > LARGEST:
        raise PrelaxError(f"--size {text!r}: {LARGEST} is the most that can be measured")
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (numbers[0], numbers[1], numbers[2])


def register(app: typer.Typer) -> None:
    app.command("report")(report)
    app.command("reproduce")(reproduce)
    app.command("theory")(theory)
    app.command("bench")(bench)
