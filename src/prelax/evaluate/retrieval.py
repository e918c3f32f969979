"""Retrieval: the nearest images of a gallery, precision among them, and a picture of what was found."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from prelax.config import DataSettings, EvaluateSettings
from prelax.data import ImageSet, load_splits, picked
from prelax.data.decode import Plan
from prelax.data.ranges import ranges
from prelax.errors import PrelaxError, PrelaxWarning, first_line, printable
from prelax.evaluate.features import extract
from prelax.evaluate.knn import CHUNK
from prelax.evaluate.linear import Score
from prelax.evaluate.probe import Outcome
from prelax.evaluate.subject import Subject
from prelax.loading import Loaded
from prelax.preprocess import check_images, read_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEAREST = 15  # the paper's figure
WIDE = 10  # images found in a line of the picture: as many as a screen shows
LETTERS = 14  # of a name above an image
DRAWN = (40, 30)  # queries and images found of each, at most, in a picture


def nearest(gallery: Tensor, queries: Tensor, k: int, skip_self: bool = False) -> tuple[Tensor, Tensor]:
    """Cosines and rows of the k images of a gallery nearest to each query, best first, both Q x k.

    With faiss installed an exact index is searched on the CPU; without it, or for features on a GPU, torch does it in
    chunks. With ``skip_self`` the queries are the gallery itself, and no image finds itself.

    >>> cosine, rows = nearest(torch.eye(3), torch.tensor([[1.0, 0.2, 0.0]]), k=2)
    >>> rows.tolist()
    [[0, 1]]
    """
    ask = min(k + skip_self, len(gallery))
    bank, queries = (F.normalize(x.float(), dim=1) for x in (gallery, queries))
    cosine, rows = _search(bank, queries, ask)
    return without(torch.arange(len(rows), device=rows.device), cosine, rows, ask - 1) if skip_self else (cosine, rows)


def without(own: Tensor, cosine: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """What was found, k of it, without the row ``own`` of each query: the query itself (-1: it is none of them)."""
    drop = rows == own[:, None]
    drop[:, -1] |= ~drop.any(1) & (rows.shape[1] > k)  # an exact duplicate may have taken its place: the last one goes
    if (left := int((~drop).sum(1).min())) < rows.shape[1]:
        order = drop.byte().argsort(dim=1, stable=True)[:, :left]
        cosine, rows = cosine.gather(1, order), rows.gather(1, order)
    return cosine, rows


def own_rows(parts: Sequence[ImageSet], queries: Sequence[Path | str]) -> Tensor:
    """The row of each picture among the images, where it is one of their files; else -1."""
    paths = [path for part in parts for path in part.paths or [""] * len(part)]
    at = {os.path.abspath(path): row for row, path in enumerate(paths) if path}
    found = [
        next((at[name] for name in (os.path.abspath(path), os.path.realpath(path)) if name in at), -1)
        for path in queries
    ]
    return torch.tensor(found)


def _search(bank: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    if bank.device.type == "cpu":
        try:
            import faiss
        except ImportError:
            pass
        else:
            index = faiss.IndexFlatIP(bank.shape[1])
            index.add(bank.numpy())
            cosine, rows = index.search(queries.numpy(), k)
            return torch.from_numpy(cosine), torch.from_numpy(rows)
    parts = [(chunk @ bank.T).topk(k, dim=1) for chunk in queries.split(max(1, CHUNK // len(bank)))]
    return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])


def looked_at(count: int, k: int = NEAREST) -> int:
    """How many neighbours among so many images: at most half of the others, for all of them are near to everyone.

    >>> [looked_at(count) for count in (1, 2, 3, 15, 500)]
    [0, 1, 1, 7, 15]
    """
    return min(k, count - 1, max(1, (count - 1) // 2))


def precision_at(features: Tensor, labels: Tensor, k: int = NEAREST) -> float:
    """Percent of the k nearest other images that share the query's class, every image asked once.

    >>> precision_at(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]), torch.tensor([0, 0, 1, 1]), k=1)
    100.0
    """
    if len(features) < 2:
        raise PrelaxError("retrieval needs at least two images")
    _, rows = nearest(features, features, k, skip_self=True)
    labels = labels.to(rows.device)
    return 100.0 * float((labels[rows] == labels[:, None]).double().mean())


def precision(subject: Subject, settings: EvaluateSettings, seeds: Sequence[int] = ()) -> Outcome:
    """Precision among the nearest test images of every test image."""
    k = max(1, looked_at(len(subject.test)))  # all the others would be right by their number alone
    found = precision_at(subject.features("test"), subject.labels("test"), k)
    return Outcome(Score([found]), {"k": k, "metric": "cosine", "gallery": "the other test images"})


def search(
    loaded: Loaded,
    on: DataSettings,
    queries: Sequence[Path | str],
    out: Path | str,
    k: int = NEAREST,
    split: str = "train",
) -> tuple[list[list[dict[str, object]]], Path | None]:
    """The images of a dataset nearest to each picture, with path, class and cosine, and the file they are drawn in.

    A picture that is a file of the dataset does not find itself; copies of it under other names are found.
    ``split`` is where to look: train, test or all. Of many only the first are drawn; where nothing can be, the file is
    None and a warning says why.
    """
    check_ending(Path(out))
    parts = list(load_splits(on, split).values())
    side = int(parts[0].images.shape[-1])
    scale = ranges(on.range or loaded.settings.data.range or "")
    plain = Plan(side, loaded.channels, scale.get("i", Plan.whole), scale.get("f", Plan.real))
    pictures = [read_picture(path, parts[0].plan or plain) for path in queries]
    check_images(torch.stack(pictures), loaded.channels)
    asked, *bank = (
        extract(loaded.backbone, images, loaded.preprocess, device=loaded.device)
        for images in (torch.stack(pictures), *(part.images for part in parts))
    )  # Q x D, and N x D of each part
    own = own_rows(parts, queries)
    cosine, rows = (x.cpu() for x in nearest(torch.cat(bank), asked, k + int(bool((own >= 0).any()))))
    cosine, rows = without(own, cosine, rows, k)
    needed = rows.unique()  # ascending
    found = picked(parts, needed)
    at = torch.searchsorted(needed, rows)  # the places of `rows` in `found`
    drawn = None
    try:
        drawn = draw(pictures, [printable(Path(path).name) for path in queries], found, cosine, at, Path(out))
    except Exception as error:  # what was found is worth more than its picture
        warnings.warn(f"the picture was not drawn: {first_line(error)}", PrelaxWarning, stacklevel=2)
    hits = [
        [{"row": int(row)} | describe(found, int(i), float(value)) for row, i, value in zip(*told, strict=True)]
        for told in zip(rows, at, cosine, strict=True)
    ]
    return hits, drawn


def describe(gallery: ImageSet, row: int, cosine: float) -> dict[str, object]:
    """An image of a gallery as a line of a table."""
    label = int(gallery.labels[row]) if gallery.labels is not None else -1
    return {
        "path": gallery.paths[row] if gallery.paths is not None else None,
        "class": gallery.classes[label] if 0 <= label < len(gallery.classes) else None,
        "cosine": round(cosine, 4),
    }


def check_ending(out: Path) -> None:
    """Refuses a picture of a kind that matplotlib does not write."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    known = FigureCanvasAgg.get_supported_filetypes()
    if out.suffix and out.suffix[1:].lower() not in known:
        raise PrelaxError(f"cannot draw to {out}: a picture ends in .{', .'.join(sorted(known))}")


def draw(pictures: list[Tensor], names: list[str], gallery: ImageSet, cosine: Tensor, rows: Tensor, out: Path) -> Path:
    """The picture of each query, then what was found, each with its class (or file name) and cosine; the path."""
    from matplotlib.figure import Figure

    from prelax.whole import replacing, writing

    down, across = min(len(pictures), DRAWN[0]), min(rows.shape[1], DRAWN[1])
    cut = (down, across) != rows.shape
    lines = -(-across // WIDE)  # that the nearest of a query take
    wide = -(-across // lines)
    width, height = 1.1 * (wide + 1), 1.35 * down * lines + 0.25 * cut  # inches
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))  # one for all, in inches: laying out hundreds takes minutes
    axes.axis("off")
    for line in range(down):
        _show(axes, line * lines, 0, pictures[line], f"query\n{clipped(names[line])}")
        for column in range(across):
            told = describe(gallery, int(rows[line, column]), float(cosine[line, column]))
            name = str(told["class"] or Path(str(told["path"] or "")).name)
            title = f"{clipped(name)}\n{told['cosine']:.2f}"
            place = line * lines + column // wide, column % wide + 1
            _show(axes, *place, gallery.images[rows[line, column]], title)
    if cut:
        said = f"drawn: {down} of {len(pictures)} queries, {across} of the {rows.shape[1]} nearest"
        axes.text(0.05, height - 0.12, said, fontsize=7, va="center")
    axes.set(xlim=(0, width), ylim=(height, 0))
    out = out if out.suffix else out.with_name(f"{out.name.rstrip('.')}.png")  # what matplotlib would write to
    with writing(out), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph ")  # names in letters that no font has: they are told in full
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as temporary:
            figure.savefig(temporary, format=out.suffix[1:], dpi=130)
    return out


def clipped(name: str) -> str:
    """A name in the width of a picture."""
    return name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"


def _show(axes: Axes, line: int, column: int, image: Tensor, title: str) -> None:
    """An inch of image at its place in the grid, its title above."""
    left, top = 1.1 * column + 0.05, 1.35 * line + 0.3
    pixels, grey = (image[0], "gray") if image.shape[0] != 3 else (image.permute(1, 2, 0), None)
    place = (left, left + 1, top + 1, top)
    axes.imshow(pixels.numpy(), cmap=grey, vmin=0, vmax=255, extent=place, aspect="auto")
    axes.text(left + 0.5, top - 0.05, title, fontsize=6, ha="center", va="bottom", parse_math=False)
