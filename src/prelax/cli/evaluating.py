"""``prelax evaluate``, ``embed``, ``search``, ``probe-residual`` and ``export``: what a run's backbone can do."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prelax.cli.options import Device, On, Root, RunFolder, chosen
from prelax.cli.speech import Debug, Json, Quiet, Seed, points, say, show, state, waiting, working
from prelax.errors import PrelaxError, printable, readable

if TYPE_CHECKING:
    from prelax.config import DataSettings, EvaluateSettings


def complete_protocol(incomplete: str) -> list[str]:
    from prelax.names import PROTOCOLS

    return [name for name in PROTOCOLS if name.startswith(incomplete)]


def evaluate(
    run: RunFolder,
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="evaluate.KEY=VALUE", help="Settings of the evaluation.")
    ] = None,
    protocol: Annotated[
        list[str],
        typer.Option("--protocol", "-p", help="Names of `prelax list protocols`.", autocompletion=complete_protocol),
    ] = ["knn,logistic"],  # noqa: B006
    on: On = None,
    root: Root = None,
    labels: Annotated[
        Path | None, typer.Option("--labels", help="A CSV of path,label for a folder's images; training needs none.")
    ] = None,
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure a run's backbone, frozen, beside random weights.

    Examples: [bold]prelax evaluate runs/NAME[/bold] ·
    [bold]prelax evaluate runs/NAME --on cifar100 --root ~/data --protocol knn,linear[/bold] ·
    [bold]torchrun --nproc-per-node 2 -m prelax evaluate runs/NAME[/bold]
    """
    from prelax.evaluate.protocols import Partly, check, evaluate, notes
    from prelax.run import Run
    from prelax.train import joined

    opened, names = Run.open(run), check([name for names in protocol for name in names.split(",")])
    settings = changed(opened.settings.evaluate, changes or [])
    with working(), joined(device) as process:
        target, where = with_labels(opened, dataset(opened, on, root), labels), chosen(device, process)
        shared = process.world > 1
        with waiting(quiet=not process.writes) as tell:
            missed = None
            try:
                results = evaluate(opened, names, target, where, seed, settings, shared, tell)
            except Partly as error:
                results, missed = error.results, error
    if not process.writes:
        return
    rows = [line(result) for result in results if "accuracy" in result]
    if state.json or rows:
        show(results, rows)
    for result in results:
        if "targets" in result and not state.json:
            show(result, told(result), "what a linear reader tells of the augmentations")
    for note in dict.fromkeys(note for result in results for note in notes(result)):
        say(note)
    if not opened.unkept:
        page = f"; `prelax report {shlex.quote(str(run))}` puts them on its page"
        say(f"the figures are in {run / 'eval'}{page if (run / 'report.html').is_file() else ''}")
    if missed is not None:
        raise missed


def line(result: dict[str, Any]) -> dict[str, Any]:
    """An evaluation as a row of the table."""
    several = len(result.get("seeds") or []) > 1
    return {
        "protocol": result["protocol"],
        "on": result["dataset"],
        "accuracy %": points(result["accuracy"]),
        "std": points(result["std"]) if several else None,
        "random weights %": points(result["floor"]),
        **({"as it began %": points(result["start"])} if "start" in result else {}),
        "seeds": len(result["seeds"]) if several else None,
        "test images": result["test_images"],
        "seconds": result["seconds"],
    }


def told(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The residual probe as a table: a row a parameter."""
    rows = []
    for name, residual in result["targets"].items():
        features = result["features"].get(name, {})
        measure = "accuracy" if "accuracy" in residual else "r2"
        rows.append(
            {
                "parameter": name,
                "measure": "% right" if measure == "accuracy" else "% of variance",
                "residual": residual[measure],
                "features": features.get(measure),
                "random weights": residual["random"],
                "guess": residual["floor"],
            }
        )
    return rows


def changed(settings: EvaluateSettings, changes: list[str]) -> EvaluateSettings:
    """The run's evaluation settings with changes such as ``evaluate.knn_k=20``."""
    from prelax.config import overrides, validate

    tree = overrides(changes)
    for section in tree:
        if section != "evaluate":
            raise PrelaxError(f"{section} settings cannot change after training; only evaluate.* can")
    mine = settings.model_dump(mode="json") | tree.get("evaluate", {})
    return validate({"evaluate": mine}).evaluate


def dataset(run: Any, on: str | None, root: Path | None) -> DataSettings | None:
    """The images asked for: None for the run's own, else a dataset by name, or a folder of images."""
    from prelax.config import DataSettings
    from prelax.evaluate.protocols import dataset as named
    from prelax.loading import channels_of
    from prelax.names import SOURCES

    own = run.settings.data
    if on == "":
        raise PrelaxError("--on is empty: give a dataset or a folder, or leave it out for the run's own images")
    if on is None and root is None:
        return None
    if on is not None and root is not None and on not in SOURCES:
        raise PrelaxError(f"--on {on} is a folder of images by itself: leave --root out")
    channels = channels_of(run.settings, run.load_backbone(), str(run.path))
    found = named(on or own.source, own, channels)
    if found is None or root is None or (found.source == own.source and root == own.root):
        return found
    # How the run's own folder is split and labelled is not said of another.
    other = {"root": root, "test_root": None, "labels": None, "test_fraction": DataSettings().test_fraction}
    return found.model_copy(update=other | {"channels": channels, "limit": None})


def with_labels(run: Any, target: DataSettings | None, labels: Path | None) -> DataSettings | None:
    """The images to measure on, the run's own among them, with the labels of a table."""
    if labels is None:
        return target
    data: DataSettings = target or run.settings.data
    if data.source != "folder":
        raise PrelaxError(f"--labels is for a folder of images; {data.source} has labels of its own")
    return data.model_copy(update={"labels": labels.expanduser().absolute()})


def whole(run: Any) -> DataSettings:
    """All of a run's own images, though it may have been trained on a few of them."""
    own: DataSettings = run.settings.data
    return own.model_copy(update={"limit": None})


def probe_residual(
    run: RunFolder,
    on: On = None,
    root: Root = None,
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Ask the residual what was done to an image: a linear reader for every recorded parameter.

    Example: [bold]prelax probe-residual runs/NAME[/bold]
    """
    from prelax.evaluate.protocols import evaluate
    from prelax.run import Run

    opened = Run.open(run)
    with working(), waiting() as tell:
        target, where = dataset(opened, on, root), chosen(device)
        (result,) = evaluate(opened, ["residual"], on=target, device=where, seed=seed, tell=tell)
    show(result, told(result), "what a linear reader tells of the augmentations")
    if not state.json:
        moved = [{"augmentation": name, "cosine": value} for name, value in result["cosine_after"].items()]
        show(moved, title="cosine of the features before and after (1: invariant)")
    if not opened.unkept:
        say(f"the figures are in {run / 'eval'}")


def search(
    run: RunFolder,
    pictures: Annotated[list[Path], typer.Argument(metavar="PICTURE", help="Image files to find the like of.")],
    on: On = None,
    root: Root = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The picture drawn; default RUN/search.png.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many.")] = 15,
    split: Annotated[
        str | None,
        typer.Option("--split", help="train, test or all: where to look; default all of a folder, else train."),
    ] = None,
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Find the images of a dataset that are most like some pictures.

    Example: [bold]prelax search runs/NAME cat.jpg --on ./photos -k 10[/bold]
    """
    from prelax.evaluate.retrieval import search
    from prelax.loading import load
    from prelax.run import Run

    opened, target = Run.open(run), out or run
    target = target / "search.png" if target.is_dir() else target
    with working(), waiting():
        gallery = dataset(opened, on, root) or whole(opened)
        split = split or ("all" if gallery.source == "folder" else "train")
        found, drawn = search(load(run, chosen(device)), gallery, pictures, target, k=k, split=split)
    names = [printable(str(picture)) for picture in pictures]
    results = [{"picture": name, "found": hits} for name, hits in zip(names, found, strict=True)]
    rows = [{"picture": name, **hit} for name, hits in zip(names, found, strict=True) for hit in hits]
    show({"out": readable(str(drawn)) if drawn else None, "results": results}, rows)
    if drawn:
        say(f"drawn in {drawn}")


def embed(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", "-o", help="A .parquet, .npz or .csv file.")],
    on: On = None,
    root: Root = None,
    split: Annotated[str, typer.Option("--split", help="train, test or all.")] = "all",
    thumbnails: Annotated[bool, typer.Option("--thumbnails", help="Parquet: the images too, as PNG.")] = False,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a feature vector for every image, with its path and label: opens in pandas, FiftyOne, Embedding Atlas.

    Example: [bold]prelax embed runs/NAME --on ./photos -o photos.parquet[/bold]
    """
    from prelax.evaluate.embed import embed
    from prelax.loading import load
    from prelax.run import Run
    from prelax.train import joined

    opened = Run.open(run)
    with working(), joined(device) as process:
        images, loaded = dataset(opened, on, root) or whole(opened), load(run, chosen(device, process))
        with waiting("reading the images and making vectors of them", quiet=not process.writes):
            result = embed(loaded, images, out, split=split, thumbnails=thumbnails, shared=process.world > 1)
    if not process.writes:
        return
    if state.json:
        show(result)
    else:
        print(f"{result['images']} vectors of {result['features']} numbers are in {out}")


def export(
    run: RunFolder,
    to: Annotated[str, typer.Option("--to", help="torchvision, timm, onnx, torch-export or hub.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder; default RUN/export/FORMAT.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write the backbone for those who do not have prelax.

    Example: [bold]prelax export runs/NAME --to onnx[/bold]
    """
    from prelax.export import export

    with working():
        folder = export(run, to, out)
    files = sorted(str(path) for path in folder.iterdir() if path.is_file())
    if state.json:
        show({"folder": str(folder), "files": files})
    else:
        print("\n".join(files))


def register(app: typer.Typer) -> None:
    app.command("evaluate")(evaluate)
    app.command("probe-residual")(probe_residual)
    app.command("embed")(embed)
    app.command("search")(search)
    app.command("export")(export)
