"""Make the pictures of docs/augmentations.md: every operation on one image, with the record of each view.

    python docs/make_pictures.py

The images are the two that ship with scikit-learn.
"""

from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_sample_images

from prelax.augment import OPERATIONS, Crop, Operation, Pipeline, operation, presets, relaxation, relaxed_view
from prelax.draws import Draws
from prelax.record import Record, View

matplotlib.use("Agg")
PICTURES = Path(__file__).parent / "pictures"
SIZE = 144
SHOWN = {  # strengths at which an eye sees what is done, and the columns told under each view
    "crop": ({"size": SIZE, "scale": (0.1, 1.0)}, ("y", "x", "area", "aspect")),
    "flip": ({}, ("applied",)),
    "vertical-flip": ({}, ("applied",)),
    "rotation": ({}, ("turns",)),
    "free-rotation": ({"degrees": 45.0}, ("degrees",)),
    "jigsaw": ({"grid": 3}, ("permutation", "order")),
    "jitter": ({"p": 0.8}, ("applied", "brightness", "contrast", "saturation", "hue", "order")),
    "grey": ({"p": 0.5}, ("applied",)),
    "solarise": ({"p": 0.5}, ("applied",)),
    "invert": ({}, ("applied",)),
    "blur": ({"p": 0.8}, ("applied", "sigma")),
    "erase": ({"p": 0.8}, ("applied", "y", "x", "area")),
    "noise": ({"sigma": (0.0, 0.25), "p": 0.8}, ("applied", "sigma")),
}


def squares() -> torch.Tensor:
    """The two sample images, their largest centred square at twice the size shown.  2 x 3 x 288 x 288, uint8"""
    made = []
    for image in load_sample_images().images:
        height, width = image.shape[:2]
        left = (width - height) // 2
        square = Image.fromarray(image[:, left : left + height]).resize((2 * SIZE, 2 * SIZE), Image.Resampling.LANCZOS)
        made.append(torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8).view(2 * SIZE, 2 * SIZE, 3))
    return torch.stack(made).permute(0, 3, 1, 2).contiguous()


def told(record: Record, names: list[str], row: int) -> str:
    """What a record says of one image, a line a column."""
    lines = []
    for name in names:
        value = record[name][row]
        text = " ".join(map(str, value.tolist())) if value.ndim else str(value.item())
        if value.dtype == torch.bool:
            text = "yes" if value else "no"
        elif value.is_floating_point():
            text = f"{value:.2f}"
        lines.append(f"{name.partition('.')[2]} {text}")
    return "\n".join(lines)


def strip(images: torch.Tensor, captions: list[str], lines: int) -> Figure:
    """Images side by side, a caption under each."""
    count = len(images)
    figure, axes = plt.subplots(1, count, figsize=(1.62 * count, 1.66 + 0.155 * lines), dpi=100)
    for axis, image, caption in zip(axes, images, captions, strict=True):
        axis.imshow(image.permute(1, 2, 0).clamp(0, 1).numpy(), interpolation="nearest")
        axis.set_axis_off()
        axis.text(0.5, -0.04, caption, transform=axis.transAxes, ha="center", va="top", fontsize=8, linespacing=1.25)
    bottom = (0.08 + 0.155 * lines) / (1.66 + 0.155 * lines)
    figure.subplots_adjust(left=0.005, right=0.995, top=0.99, bottom=bottom, wspace=0.04)
    return figure


def save(figure: Figure, name: str) -> None:
    """A PNG of few colours: small, and no eye sees the difference at this size."""
    path = PICTURES / f"{name}.png"
    figure.savefig(path)
    plt.close(figure)
    image = Image.open(path).convert("RGB").quantize(160, Image.Quantize.MEDIANCUT, dither=Image.Dither.FLOYDSTEINBERG)
    image.save(path, optimize=True)


def plain(pipeline: Pipeline) -> Pipeline:
    """A pipeline without its normalisation, for eyes."""
    return Pipeline(pipeline.stages[0])


def telling_seed(op: Operation, batch: torch.Tensor) -> int:
    """The first seed whose five views show what the operation can do: applied to some, and each turn at least once."""
    for seed in range(1000):
        record = Pipeline([op])(batch, seed).record
        applied, turns = record.get(f"{op.name}.applied"), record.get(f"{op.name}.turns")
        if (applied is None or 2 <= applied.sum() <= 4) and (turns is None or len(turns.unique()) == 4):
            return seed
    raise ValueError(f"no seed shows {op.name}")


def picture_of_operation(name: str, image: torch.Tensor) -> None:
    options, columns = SHOWN[name]
    op: Operation = operation(name, **options)  # type: ignore[arg-type]
    batch = image.expand(5, -1, -1, -1)
    resize = Pipeline([Crop(SIZE, (1.0, 1.0), (1.0, 1.0))])
    small = resize(batch, 0).images
    source = batch if name == "crop" else small
    view = Pipeline([op])(source, telling_seed(op, source))
    captions = [told(view.record, [f"{name}.{column}" for column in columns], row) for row in range(5)]
    save(strip(torch.cat((small[:1], view.images)), ["the image", *captions], len(columns)), name)


def picture_of_preset(name: str, image: torch.Tensor, seed: int = 4) -> None:
    one, two = presets(name, size=SIZE)
    batch = image.expand(3, -1, -1, -1)
    first = plain(one)(batch, Draws(seed, 3).at("view", 1)).images
    second = plain(two)(batch, Draws(seed, 3).at("view", 2)).images
    save(strip(torch.cat((first, second)), ["view 1"] * 3 + ["view 2"] * 3, 1), f"preset-{name}")


def picture_of_relaxed_view(image: torch.Tensor) -> None:
    pipeline = plain(presets("simsiam-32", size=SIZE)[0])
    batch, draws = image.expand(1, -1, -1, -1), Draws(9, 1)
    one: View = pipeline(batch, draws.at("view", 1))
    two = pipeline(batch, draws.at("view", 2))
    made, captions = [one.images, two.images], ["view 1", "view 2"]
    for name, options in (("rotation", {}), ("jigsaw", {}), ("vertical-flip", {"p": 1.0}), ("crop", {})):
        op = relaxation(pipeline, operation(name, **options))
        made.append(relaxed_view(pipeline, one, op, batch, draws.at("view", 3)).images)
        captions.append(f"view 3, relaxed\n{name}")
    save(strip(torch.cat(made), captions, 2), "relaxed-view")


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    china, flower = squares()
    for number, name in enumerate(name for name in OPERATIONS if name != "normalise"):
        picture_of_operation(name, (china, flower)[number % 2])
    for name in ("simsiam-32", "byol-128", "medical", "satellite"):
        picture_of_preset(name, flower if name.startswith("byol") else china)
    picture_of_relaxed_view(china)
    for path in sorted(PICTURES.glob("*.png")):
        print(f"{path.name}: {path.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
