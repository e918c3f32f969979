"""``prelax augmentations``: what each augmentation does to a trained network, and so what to relax."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prelax.cli.evaluating import dataset
from prelax.cli.options import Device, On, Root, RunFolder, chosen
from prelax.cli.speech import Debug, Json, Quiet, Seed, complain, points, say, show, waiting, working
from prelax.errors import PrelaxError

if TYPE_CHECKING:
    from prelax.config import DataSettings, Settings

EXAMPLES = 6  # images of the picture


def complete_operation(incomplete: str) -> list[str]:
    from prelax.names import OPERATIONS

    return [name for name in OPERATIONS if name.startswith(incomplete) and name != "normalise"]


def augmentations(
    run: RunFolder,
    on: On = None,
    root: Root = None,
    operation: Annotated[
        list[str] | None,
        typer.Option(
            "--operation", help="Only this one, or MODULE:CLASS; repeat for more.", autocompletion=complete_operation
        ),
    ] = None,
    as_drawn: Annotated[
        bool, typer.Option("--as-drawn", help="With the preset's probabilities (Fig. 1a), not to every image.")
    ] = False,
    draws: Annotated[int, typer.Option("--draws", min=1, max=100, help="Of the parameters, for every image.")] = 5,
    images: Annotated[int, typer.Option("--images", min=2, help="Test images to look at, at most.")] = 2000,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The picture (.png and .svg); default RUN/augmentations.png.")
    ] = None,
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Say which augmentations change what an image means to a run, and which of them to relax.

    Each is done alone to test images: how far it moves the features, in per cent of the distance between different
    images, and, where there are labels, the points of accuracy it costs. Examples:
    [bold]prelax augmentations runs/NAME[/bold] ·
    [bold]prelax augmentations runs/NAME --on ./photos --operation crop --operation jitter[/bold]
    """
    from prelax.evaluate.curves import unlearnt
    from prelax.evaluate.effects import effects, every_name
    from prelax.evaluate.relaxing import FEW, candidates
    from prelax.loading import channels_of
    from prelax.run import Run

    opened = Run.open(run)
    target = out or run / "augmentations.png"
    with working(), waiting("doing each augmentation to the images"):
        on_data = dataset(opened, on, root)
        channels = channels_of(opened.settings, opened.load_backbone(), str(run))
        names = operation or every_name(channels, opened.settings)
        result = effects(
            opened,
            on_data,
            chosen(device),
            seed,
            operations=names,
            draws=draws,
            always=not as_drawn,
            images=images,
            protocol="augmentations",
        )
        ranked = candidates(result)
        pictures: list[Path] = []
        undrawn = None
        try:
            pictures = draw_examples(opened, on_data, ranked, result, target, seed)
        except PrelaxError as error:  # once what was measured has been shown
            undrawn = error
    rows = [shown(row) for row in ranked]
    show({**result, "candidates": ranked, "figures": [str(path) for path in pictures]}, rows, heading(result))
    best = next((row for row in ranked if row["advice"] == "relax" and not row["relaxed"]), None)
    if best is not None:
        if (early := unlearnt(opened.evals())) is not None:
            complain(f"what such a network says of augmentations may be chance: it is {early.found.partition(';')[0]}")
        count = result["test_images"]
        guess = f" (a guess from {count} images: 100 are the least to go by)" if count < FEW else ""
        say(f"first to relax: {best['augmentation']}{guess}")
        say(f"  {command(opened.settings, on_data, best['augmentation'])}")
    where = "" if opened.unkept else f", the figures are in {run / 'eval'}"
    if undrawn is not None:
        raise undrawn
    say(f"drawn in {pictures[0]}{where}")


def command(settings: Settings, on: DataSettings | None, name: str) -> str:
    """What trains on the images that were asked about with one augmentation relaxed, ready to paste."""
    from prelax.check import scrambled
    from prelax.config import FOUND, resolve

    data, recipe = on or settings.data, settings.recipe
    try:
        plain = resolve(recipe)
    except PrelaxError:  # made without one, or it is gone
        plain = None
    if plain is None or data.source != settings.data.source:
        recipe = usual_recipe(data.source)
        plain = resolve(recipe)
    words = ["prelax", "pretrain", recipe]
    for leaf in type(data).model_fields:
        value = getattr(data, leaf)
        kept = f"data.{leaf}" not in FOUND and leaf not in ("cache", "store", "workers")
        if kept and value != getattr(plain.data, leaf):
            words.append(f"data.{leaf}={value}")
    if plain.method.name not in ("prelax-rot", "prelax-all"):
        words.append("method.name=prelax-all")
    words.append(f"method.relax={name}")
    if plain.method.pl_anchor == "none" and scrambled(resolve(recipe, words[3:])):
        words.append("method.pl_anchor=same")  # a view alone cannot tell it, beside the one it was made of it can
    return shlex.join(words)


def usual_recipe(source: str) -> str:
    """The recipe that relaxes an augmentation on the images of a source."""
    from prelax.config import recipe_names

    return next((name for name in recipe_names() if name.startswith(f"{source}/") and name.endswith("prelax-all")),
                "folder")  # fmt: skip


def heading(result: dict[str, Any]) -> str:
    from prelax.evaluate.relaxing import FEW

    none = result["rows"][0]["accuracy"]
    title = f"{result['test_images']} images of {result['dataset']}"
    if none is None:
        return title
    few = "; too few to go by accuracy, so by how far they move" if result["test_images"] < FEW else ""
    return f"{title}, {none:.1f} % right untouched; read by {result['settings']['read_by']}{few}"


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """A candidate as a line of the table."""
    accuracy = row["accuracy"]
    return {
        "augmentation": row["augmentation"],
        "moved %": points(row["moved"]),
        "accuracy %": None if accuracy is None else points(accuracy),
        "std": None if row["std"] is None else points(row["std"]),
        "advice": row["advice"],
        "why": row["why"],
    }


def draw_examples(
    run: Any, on: Any, ranked: list[dict[str, Any]], result: dict[str, Any], target: Path, seed: int
) -> list[Path]:
    from prelax.data import load_splits
    from prelax.evaluate.alone import some
    from prelax.evaluate.effects import examples
    from prelax.loading import load
    from prelax.report.gallery import draw_gallery

    loaded = load(run.path)
    splits = load_splits(on or loaded.settings.data)
    images = splits.get("test") or splits["train"]
    few = images.images[some(len(images), EXAMPLES, seed)]
    made = dict(examples(loaded, few, [result["rows"][0], *ranked], seed))
    about = "moved: distance of the features, in % of that between different images\norange: first to relax"
    return draw_gallery(ranked, made, target, about=about)


def register(app: typer.Typer) -> None:
    app.command("augmentations")(augmentations)
