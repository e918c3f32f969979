"""Retrieval: the nearest images of a gallery, precision among them, and a picture of what was found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from prelax.config import DataSettings, EvaluateSettings
from prelax.data import ImageSet, load_splits, picked
from prelax.errors import PrelaxError
from prelax.evaluate.features import extract
from prelax.evaluate.knn import CHUNK
from prelax.evaluate.linear import Score
from prelax.evaluate.probe import Outcome
from prelax.evaluate.subject import Subject
from prelax.loading import Loaded

NEAREST = 15  # the paper's figure


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
    if skip_self:
        own = rows == torch.arange(len(rows), device=rows.device)[:, None]
        own[:, -1] |= ~own.any(1)  # an exact duplicate may have taken its place: then the last one goes
        keep = ~own
        cosine, rows = (x[keep].view(len(x), ask - 1) for x in (cosine, rows))
    return cosine, rows


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
    k = min(NEAREST, len(subject.test) - 1)
    found = precision_at(subject.features("test"), subject.labels("test"), k)
    return Outcome(Score([found]), {"k": k, "metric": "cosine", "gallery": "the other test images"})


def search(
    loaded: Loaded,
    on: DataSettings,
    queries: Sequence[Path | str],
    out: Path | str,
    k: int = NEAREST,
    split: str = "train",
) -> list[list[dict[str, object]]]:
    """The images of a dataset nearest to each picture, drawn beside it to ``out``; returns path, class and cosine.

    ``split`` is where to look: train, test or all.
    """
    parts = list(load_splits(on, split).values())
    side = int(parts[0].images.shape[-1])
    pictures = [read_picture(path, loaded.channels, side) for path in queries]
    asked = torch.cat([loaded(picture[None]) for picture in pictures])  # Q x D
    bank = [extract(loaded.backbone, part.images, loaded.preprocess, device=loaded.device) for part in parts]
    cosine, rows = (x.cpu() for x in nearest(torch.cat(bank), asked, k))
    needed = rows.unique()  # ascending
    found = picked(parts, needed)
    at = torch.searchsorted(needed, rows)  # the places of `rows` in `found`
    draw(pictures, [Path(path).name for path in queries], found, cosine, at, Path(out))
    return [
        [{"row": int(row)} | describe(found, int(i), float(value)) for row, i, value in zip(*told, strict=True)]
        for told in zip(rows, at, cosine, strict=True)
    ]


def describe(gallery: ImageSet, row: int, cosine: float) -> dict[str, object]:
    """An image of a gallery as a line of a table."""
    label = int(gallery.labels[row]) if gallery.labels is not None else -1
    return {
        "path": gallery.paths[row] if gallery.paths is not None else None,
        "class": gallery.classes[label] if 0 <= label < len(gallery.classes) else None,
        "cosine": round(cosine, 4),
    }


def read_picture(path: Path | str, channels: int, side: int) -> Tensor:
    """A picture file as the images of a gallery are read, so that a copy of one is one: uint8, C x side x side."""
    from prelax.data.decode import Plan, Unreadable, decode

    if not Path(path).exists():
        raise PrelaxError(f"no picture {path}")
    try:
        return torch.from_numpy(decode(str(path), Plan(side, channels)).copy())
    except Unreadable as error:
        raise PrelaxError(f"{path} is not a picture that can be read ({error})") from None


def draw(pictures: list[Tensor], names: list[str], gallery: ImageSet, cosine: Tensor, rows: Tensor, out: Path) -> None:
    """A row a query: the picture, then what was found, each with its class (or file name) and cosine."""
    from matplotlib.figure import Figure

    from prelax.whole import writing

    across = rows.shape[1] + 1
    figure = Figure(figsize=(1.1 * across, 1.35 * len(pictures)), layout="constrained")
    axes = figure.subplots(len(pictures), across, squeeze=False)
    for line, (picture, name) in enumerate(zip(pictures, names, strict=True)):
        _show(axes[line][0], picture, f"query\n{name if len(name) <= 14 else name[:13] + '…'}")
        for column in range(across - 1):
            told = describe(gallery, int(rows[line, column]), float(cosine[line, column]))
            name = str(told["class"] or Path(str(told["path"] or "")).name)
            title = f"{name[:12]}\n{told['cosine']:.2f}"
            _show(axes[line][column + 1], gallery.images[rows[line, column]], title)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            figure.savefig(out, dpi=130)
        except ValueError as error:
            raise PrelaxError(f"cannot draw to {out}: {error}") from None


def _show(axis: object, image: Tensor, title: str) -> None:
    pixels = image[0] if image.shape[0] != 3 else image.permute(1, 2, 0)
    axis.imshow(pixels.numpy(), cmap="gray" if image.shape[0] != 3 else None, vmin=0, vmax=255)  # type: ignore[attr-defined]
    axis.set_title(title, fontsize=6)  # type: ignore[attr-defined]
    axis.axis("off")  # type: ignore[attr-defined]
