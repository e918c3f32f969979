"""Features of a whole dataset as a file that pandas, FiftyOne and Embedding Atlas open."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from prelax.collectives import rank
from prelax.config import DataSettings
from prelax.data import ImageSet, load_splits
from prelax.data.listing import scan
from prelax.errors import PrelaxError, PrelaxWarning, printable
from prelax.evaluate.features import extract
from prelax.evaluate.protocols import place
from prelax.loading import Loaded
from prelax.whole import replacing, writing

ENDINGS = (".parquet", ".npz", ".csv")


def embed(
    loaded: Loaded,
    on: DataSettings,
    out: Path | str,
    split: str = "test",
    thumbnails: bool = False,
    shared: bool = False,
) -> dict[str, Any]:
    """Writes a row an image (``path``, ``label``, ``label_id``, ``split``, ``embedding``) and says what it wrote.

    ``split`` is empty for a folder that the run was not trained on and that has no test images of its own. A ``path``
    is whole, and as the file system has it, line breaks and all; bytes that are no UTF-8 are written as ``\\xff``.
    Files that cannot be read have no row; a warning names the first.

    Args:
        out: a ``.parquet`` file (``embedding`` is a list of floats: `embedding-atlas FILE --vector embedding`, or
            ``fiftyone`` through pandas), ``.npz`` (one array a column, ``embedding`` is N x D), or ``.csv`` (a column
            a number, ``embedding_0`` and so on, for R and spreadsheets).
        split: train, test, or all.
        thumbnails: parquet only: an ``image`` column of PNG bytes, so that a viewer needs no files.
        shared: called by all processes of a job together: each computes a share of the vectors, the first writes.
    """
    out = Path(out)
    if out.suffix not in ENDINGS:
        raise PrelaxError(f"{out} must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    if thumbnails and out.suffix != ".parquet":
        raise PrelaxError("thumbnails go into a .parquet file")
    if out.suffix == ".parquet":
        _pyarrow()
    columns: dict[str, list[Any]] = {name: [] for name in ("path", "label", "label_id", "split")}
    vectors, pictures = [], []
    writes = not shared or rank() == 0
    elsewhere = place(on) != place(loaded.settings.data)
    if elsewhere and split == "all":
        on = on.model_copy(update={"test_fraction": 0.0})  # what would be held out there was not held out of training
    parts = load_splits(on, split)
    unsplit = elsewhere and split == "all" and len(parts) == 1
    skipped = dict(found for images in parts.values() for found in images.skipped)
    if skipped and writes:
        first = "{} ({})".format(*next(iter(skipped.items())))
        said = f"a file cannot be read and has no vector: {first}"
        if len(skipped) > 1:
            said = f"{len(skipped)} files cannot be read and have no vector; the first is {first}"
        warnings.warn(said, PrelaxWarning, stacklevel=2)
    for part, images in parts.items():
        features = extract(
            loaded.backbone, images.images, loaded.preprocess, device=loaded.device, keep="cpu", shared=shared
        )
        vectors.append(features.cpu().numpy())  # on a GPU where another process had all the rows
        for name, values in describe(images, "" if unsplit else part).items():
            columns[name] += values if name != "path" else as_on_disk(values, on)
        if thumbnails and writes:
            pictures += [png(image) for image in images.images]
    embedding = np.concatenate(vectors)  # N x D float32
    told = {"file": str(out), "images": len(embedding), "features": int(embedding.shape[1]), "dataset": on.source}
    if not writes:
        return told
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as temporary:
            if out.suffix == ".npz":
                write_npz(temporary, columns, embedding)
            elif out.suffix == ".csv":
                write_csv(temporary, columns, embedding)
            else:
                write_parquet(temporary, columns, embedding, pictures)
    return told


def describe(images: ImageSet, split: str) -> dict[str, list[Any]]:
    """The columns about a set's images; a set that was not read from files names its rows ``NAME/SPLIT/ROW``."""
    labels = images.labels.tolist() if images.labels is not None else [-1] * len(images)
    return {
        "path": images.paths or ["/".join(filter(None, (images.name, split, str(row)))) for row in range(len(images))],
        "label": [images.classes[label] if 0 <= label < len(images.classes) else None for label in labels],
        "label_id": labels,
        "split": [split] * len(images),
    }


def as_on_disk(paths: list[str], on: DataSettings) -> list[str]:
    """Paths that open their files from anywhere: those that are escaped for logs are looked up where they were read."""
    if on.root is None or not on.root.expanduser().is_dir():  # images in arrays
        return paths
    names: dict[str, str] = {}
    for root in (on.root, on.test_root) if any("\\" in path for path in paths) else ():
        for path in scan(root.expanduser()).paths() if root is not None else ():
            with contextlib.suppress(UnicodeEncodeError):  # no text: no table could hold it
                path.encode("utf-8")
                names[printable(path)] = path
    return [os.path.abspath(names.get(path, path)) for path in paths]


def write_npz(path: Path, columns: dict[str, list[Any]], embedding: np.ndarray) -> None:
    arrays = {name: np.array([v if v is not None else "" for v in values]) for name, values in columns.items()}
    with open(path, "wb") as file:  # a file object: numpy would add an ending to a name
        np.savez(file, embedding=embedding, **arrays)  # type: ignore[arg-type]


def write_csv(path: Path, columns: dict[str, list[Any]], embedding: np.ndarray) -> None:
    with open(path, "w", encoding="utf-8", newline="", errors="backslashreplace") as file:
        table = csv.writer(file)
        table.writerow([*columns, *(f"embedding_{place}" for place in range(embedding.shape[1]))])
        for *about, vector in zip(*columns.values(), embedding, strict=True):
            table.writerow([*about, *(f"{value:.7g}" for value in vector)])


def write_parquet(path: Path, columns: dict[str, list[Any]], embedding: np.ndarray, pictures: list[bytes]) -> None:
    pa = _pyarrow()
    import pyarrow.parquet as pq

    flat = pa.array(np.ascontiguousarray(embedding).reshape(-1))
    starts = pa.array(
        np.arange(len(embedding) + 1, dtype=np.int32 if flat.nbytes < 2**32 else np.int64) * embedding.shape[1]
    )
    lists = pa.ListArray if starts.type == pa.int32() else pa.LargeListArray
    table = pa.table(
        {
            "path": pa.array(columns["path"], pa.string()),
            "label": pa.array(columns["label"], pa.string()),
            "label_id": pa.array(columns["label_id"], pa.int64()),
            "split": pa.array(columns["split"], pa.string()),
            "embedding": lists.from_arrays(starts, flat),
        }
    )
    if pictures:  # the shape viewers know from the Hugging Face datasets
        told = [{"bytes": data, "path": None} for data in pictures]
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        table = table.append_column("image", pa.array(told, kind))
    pq.write_table(table, path)


def png(image: Tensor) -> bytes:
    """A picture of uint8 C x H x W as PNG; of other than 3 channels the first is shown."""
    from PIL import Image

    pixels = image.permute(1, 2, 0).numpy() if image.shape[0] == 3 else image[0].numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise PrelaxError("a .parquet file needs pyarrow: pip install 'prelax[tables]', or write .npz") from None
    return pyarrow
