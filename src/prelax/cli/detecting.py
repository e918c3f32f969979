"""``prelax detect``: a backbone as a detector, on a dataset in COCO's format."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from prelax.cli.options import Device, chosen
from prelax.cli.speech import Debug, Json, Quiet, Seed, say, show, state, working
from prelax.cli.training import watched


def detect(
    start: Annotated[
        str, typer.Argument(metavar="START", help="A run folder, a file of weights, or the word random or pretrained.")
    ],
    data: Annotated[
        Path, typer.Option("--data", help="Holds instances_{train,val}.json, train/ and val/, or COCO's own layout.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")],
    model: Annotated[
        str, typer.Option("--model", help="retinanet (boxes) or maskrcnn (boxes, outlines).")
    ] = "retinanet",
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Passes over the training images.")] = 12,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Images a step, over all processes.")] = 16,
    lr: Annotated[
        float | None, typer.Option("--lr", help="Rate for 16 images; default 0.01, of maskrcnn 0.02.")
    ] = None,
    size: Annotated[int, typer.Option("--size", min=32, help="The shorter side of the images, in pixels.")] = 320,
    norm: Annotated[
        str, typer.Option("--norm", help="BatchNorm: trained, frozen, or auto (frozen unless random).")
    ] = "auto",
    score: Annotated[float, typer.Option("--score", help="Make no prediction below this score.")] = 0.05,
    draws: Annotated[
        int, typer.Option("--draws", min=0, help="Sets of images drawn for the standard errors; 0 makes none.")
    ] = 100,
    backbone: Annotated[
        str, typer.Option("--backbone", help="Of random and pretrained: resnet18, resnet34 or resnet50.")
    ] = "resnet18",
    stem: Annotated[str, typer.Option("--stem", help="Of a random start: imagenet or small.")] = "imagenet",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that --out holds.")] = False,
    workers: Annotated[
        int | None, typer.Option("--workers", min=0, help="Processes that decode images; default one a core, up to 8.")
    ] = None,
    precision: Annotated[
        str, typer.Option("--precision", help="bfloat16 (backbone and pyramid), float32, or auto: bfloat16 on CUDA.")
    ] = "auto",
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fine-tune a backbone to detect and outline objects, and score it with pycocotools.

    Examples: [bold]prelax detect runs/NAME --data coco --out runs/NAME-boxes[/bold] ·
    [bold]prelax detect random --data coco --model maskrcnn --epochs 24 --out runs/scratch[/bold] ·
    [bold]torchrun --nproc-per-node 2 -m prelax detect runs/NAME --data coco --out runs/NAME-boxes[/bold]
    """
    from prelax.detect import DetectSettings, detect, read_start

    chosen(device)  # a mistake in it is told before any file is looked at
    settings = DetectSettings(
        model,
        epochs,
        batch,
        lr,
        size,
        norm,
        score,
        draws,
        seed=seed,
        device=device,
        workers=workers,
        precision=precision,
    )
    state.afterwards = "; go on with the same command and --resume"
    first = int(os.environ.get("RANK", "0")) == 0  # of several processes the first speaks
    with working():
        begun = read_start(start, backbone, stem)
        if first and (cost := fine(begun, size)):
            say(cost)
        result = detect(begun, data, out, settings, resume=resume, progress=watched())
    if not first:
        return
    show(result, rows(result))
    for split, counts in result["left_out"].items():
        if counts:
            say(f"left out of {split}: " + ", ".join(f"{count} x {why}" for why, count in counts.items()))
    drawn = f", drawn predictions in {out / 'predictions.png'}" if (out / "predictions.png").exists() else ""
    say(f"the figures are in {out / 'detection.json'}{drawn}")


def fine(start: Any, size: int) -> str | None:
    """What a start with the small stem costs, in words; None where it has the usual one.

    Its maps are four times as long and as wide, so that a picture costs as much as one of four times the size.
    """
    if start.stem != "small":
        return None
    less = max(32, size // 4)
    other = f", and --size {less} as much as {4 * less}" if less < size else ""
    return (
        f"{start.name} has the small stem (model.stem), whose maps are four times as long and as wide: --size {size} "
        f"costs as much as {4 * size} with the usual one{other}"
    )


def rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The scores as a table: boxes, and outlines where there are any; then without regard to what they are called."""
    first, last = result["curve"][0]["loss"], result["curve"][-1]["loss"]
    return [
        {"of": kind.replace("_any_class", ", any class"), **result[kind], "loss": f"{first:.3f} to {last:.3f}"}
        for kind in ("box", "box_any_class", "mask", "mask_any_class")
        if result[kind]
    ]


def register(app: typer.Typer) -> None:
    app.command("detect")(detect)
