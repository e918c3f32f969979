"""``prelax pretrain`` and ``prelax demo``: from images to weights."""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from prelax.cli.speech import Debug, Json, Quiet, Seed, cell, complain, points, say, show, state, waiting, working
from prelax.errors import PrelaxError


def complete_recipe(incomplete: str) -> list[str]:
    from prelax.config import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


def complete_key(incomplete: str) -> list[str]:
    from prelax.config import keys

    return [f"{key}=" for key in keys() if key.startswith(incomplete)]


def pretrain(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A name of `prelax list recipes`, a YAML file, or a run folder to go on with.",
            autocompletion=complete_recipe,
        ),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings to change.", autocompletion=complete_key),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The run folder; default runs/RECIPE-TIME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that --out (or RECIPE) holds.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the settings that would be used, and stop.")
    ] = False,
    seed: Annotated[int | None, typer.Option("--seed", min=0, max=2**31 - 1, help="Decides every draw.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train a backbone on images without labels.

    Examples: [bold]prelax pretrain digits/prelax-rot[/bold] ·
    [bold]prelax pretrain folder data.root=./photos train.epochs=100[/bold] ·
    [bold]prelax pretrain runs/NAME --resume[/bold] ·
    [bold]torchrun --nproc-per-node 2 -m prelax pretrain cifar10/prelax-all data.root=...[/bold]
    """
    from prelax.config import FOUND, SUITED, left_open, recipe_names, resolve, to_yaml
    from prelax.run import Run

    changes = changes or []
    for word in changes:
        if "=" not in word and os.path.isdir(word):
            raise PrelaxError(f"{word} is not key=value; to train on the images in it: data.root={shlex.quote(word)}")
    if (Path(recipe) / "config.yaml").is_file():
        if not resume:
            raise PrelaxError(f"{recipe} is a run folder: add --resume to go on with it")
        settings, out = again(Path(recipe), changes, seed), out or Path(recipe)
    else:
        if resume and out is None:
            if recipe not in recipe_names() and not os.path.isfile(recipe):
                Run.open(recipe)  # says what is wrong with it
            raise PrelaxError("--resume needs the run folder: prelax pretrain RUN --resume")
        settings = resolve(recipe, changes, seed)
    from prelax.check import check, remarks

    check(settings)
    if int(os.environ.get("RANK", "0")) == 0:
        for line in remarks(settings, changes):
            complain(line)
    if dry_run:
        print_settings(settings.model_dump(mode="json"), to_yaml(settings))
        if by_images := [key for key in (*FOUND, *SUITED) if left_open(settings, key)]:
            complain(f"chosen by the images when it starts: {', '.join(by_images)}")
        return
    from prelax.run import Run
    from prelax.train import pretrain as train

    began = time.perf_counter()
    place = out or Path("runs") / f"{slug(recipe)}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    alone = out is None and "RANK" not in os.environ  # several processes share a folder, which the first makes
    whole = len(Run(place).metrics()) if resume and (place / "backbone.safetensors").is_file() else None
    with working(), claimed(place) if alone else contextlib.nullcontext(place) as out:
        state.afterwards = f"; go on with `prelax pretrain {shlex.quote(str(out))} --resume`"
        if not quiet:
            state.afterwards += f", look at what there is with `prelax report {shlex.quote(str(out))}`"
        try:
            run = train(settings, out, resume=resume, progress=watched(), say=say)
        except KeyboardInterrupt:
            if not (out / "config.yaml").is_file():
                state.afterwards = "; nothing was trained or written yet"
            raise
    if int(os.environ.get("RANK", "0")) > 0:  # of several processes the first speaks
        return
    if whole is not None and len(run.metrics()) == whole:
        say(f"it had all of its epochs already ({run.settings.train.epochs}): nothing was left to train")
    folder, named = settings.data.source == "folder", shlex.quote(str(run.path))
    with working():
        page = write_page(run, settings.train.device) if folder and not quiet else None
    last = run.metrics()[-1:]
    result = {
        "run": str(run.path),
        "recipe": settings.recipe,
        "method": settings.method.name,
        "seed": settings.seed,
        "seconds": round(time.perf_counter() - began, 1),
        "metrics": last[0] if last else {},
    }
    if folder:
        result["page"] = str(page) if page else None
    if state.json:
        show(result)
    elif folder:
        say(f"the run is in {run.path}, its backbone in {run.path / 'backbone.safetensors'}")
        if figure := known(run):
            say(figure)
        say(f"look at it: {page or f'prelax report {named}'}")
        say("next:")
        for command in next_commands(run):
            say(f"  {command}")
    else:
        if figure := known(run):
            say(figure)
        say(f"the run is in {run.path}; look at it with `prelax report {named}`, "
            f"measure it with `prelax evaluate {named}`")  # fmt: skip


def watched() -> bool:
    """Whether a command shows how far it is: not with --quiet, and with --json on a terminal alone."""
    terminal = sys.stderr is not None and sys.stderr.isatty()
    return not state.quiet and (terminal or not state.json)


def known(run: Any) -> str | None:
    """What kNN said of a run's own images, beside random weights where those were measured; None where it was not."""
    with contextlib.suppress(PrelaxError):  # a figure that cannot be read is the page's to tell
        found = run.evals().get("knn", {})
        figures = [found.get(name) for name in ("accuracy", "floor", "start")]
        if isinstance(figures[0], int | float):
            named = zip(("kNN", "random weights", "as it began"), figures, strict=True)
            said = [f"{name} {cell(points(figure))} %" for name, figure in named if isinstance(figure, int | float)]
            return f"{', '.join(said)}, of {found.get('test_images')} images that it was not trained on"
        for line in run.metrics()[-1:]:
            if isinstance(line.get("knn"), int | float):
                return f"kNN {cell(points(line['knn']))} %, of images that it was not trained on"
    return None


def write_page(run: Any, device: str) -> Path | None:
    """The run's page; a run that has been trained does not fail for want of one."""
    from prelax.evaluate.curves import forgot
    from prelax.evaluate.protocols import evaluate
    from prelax.report import report
    from prelax.train import choose_device

    where = choose_device(device)
    if run.trained_on().get("labelled"):
        results: list[dict[str, Any]] = []
        # one class, or too few held out: the page says it was not evaluated
        with contextlib.suppress(PrelaxError), waiting("measuring the images held out"):
            results = evaluate(run, ["knn"], device=where)
        if (worse := forgot({result["protocol"]: result for result in results}, run.settings)) is not None:
            complain(worse.found)
    note_held_out(run)
    try:
        with waiting("writing the page"):
            return report([run.path], device=where)
    except PrelaxError as error:
        complain(f"no page: {error}")
        return None


def note_held_out(run: Any) -> None:
    """Names in the log what could not be read among the images held out: training did not open them."""
    from prelax.data import load

    log = run.path / "log.txt"
    told = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    with contextlib.suppress(PrelaxError):  # none are held out
        for path, reason in load(run.settings.data, "test").skipped:
            if f"skipped {path}: " not in told:
                run.log(f"skipped {path}: {reason} (held out)")


def next_commands(run: Any) -> list[str]:
    """What one would type after training on a folder of images, ready to paste."""
    about = run.trained_on()
    folder = shlex.quote(str(run.path))
    kind = "parquet" if importlib.util.find_spec("pyarrow") else "npz"
    if "shards" in about:  # only trained on; what is looked at is named, by data.root or later
        on = "" if run.settings.data.root else " --on FOLDER"
        return [
            f"prelax evaluate {folder}{on}",
            f"prelax embed {folder}{on} -o {shlex.quote(str(run.path / f'vectors.{kind}'))}",
        ]
    first = str(about["first"])  # as a log shows it: a name that is no text opens nothing
    picture = shlex.quote(first) if os.path.isfile(first) else "PICTURE"
    commands = [
        f"prelax search {folder} {picture} -k 10",
        f"prelax embed {folder} -o {shlex.quote(str(run.path / f'vectors.{kind}'))}",
    ]
    if run.evals():  # the page was measured, so this can be
        commands.append(f"prelax evaluate {folder}")
    return commands


def again(folder: Path, changes: list[str], seed: int | None) -> Any:
    """The settings of a run, with the changes that resuming may make."""
    from prelax.config import merge, overrides, validate
    from prelax.run import Run

    run = Run.open(folder)
    stored = run.settings.model_dump(mode="json")
    tree = merge(stored, overrides(changes))
    if tree["train"]["epochs"] != stored["train"]["epochs"]:  # refused as such, whatever the warm-up would say to it
        run.check_resumable(validate(merge(tree, {"train": {"warmup_epochs": 0.0}})))
    return validate(tree | ({"seed": seed} if seed is not None else {}))


def print_settings(tree: dict[str, Any], text: str) -> None:
    if state.json:
        show(tree)
    else:
        print(text, end="")


@contextlib.contextmanager
def claimed(named: Path) -> Iterator[Path]:
    """A new folder of this name, or with a number behind it: two runs may begin in the same second.

    It is removed in the end if it is still empty.
    """
    first, made = named.parent.exists(), None
    for path in (named, *(named.with_name(f"{named.name}-{n}") for n in range(2, 1000))):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:
            break  # training says why
        made = path
        break
    try:
        yield made or named
    finally:
        if made is not None:
            with contextlib.suppress(OSError):
                made.rmdir()
                if not first:
                    made.parent.rmdir()


def slug(recipe: str) -> str:
    """``cifar10-prelax-all`` of ``cifar10/prelax-all`` or of ``my/own.yaml``."""
    return (Path(recipe).stem if recipe.endswith((".yaml", ".yml")) else recipe).replace("/", "-")


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where runs and the page go.")] = Path("runs/demo"),
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="Shorten or lengthen every run.")] = None,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train on handwritten digits and compare three methods: a minute on a laptop, nothing to download.

    Example: [bold]prelax demo[/bold]
    """
    from prelax.demo import explain, run_demo, table

    state.afterwards = "; the same command goes on from here"
    with working():
        result = run_demo(out, seed=seed, epochs=epochs, progress=not (quiet or as_json))
    show(result, table(result), "The digits, learnt without labels")
    for line in explain(result):
        say(line)


def register(app: typer.Typer) -> None:
    app.command("pretrain")(pretrain)
    app.command("demo")(demo)
