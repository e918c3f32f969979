"""CIFAR-10 and CIFAR-100 from the original files, the ones torchvision fetches."""

from __future__ import annotations

import contextlib
import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prelax.config import DataSettings
from prelax.data.cache import cache_folder, locked
from prelax.data.images import ImageSet, fit
from prelax.errors import PrelaxError


def describe(name: str) -> Any:
    """torchvision's class of a data set, for its addresses and md5 sums (imported late: it takes seconds)."""
    from torchvision import datasets

    return {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]


class _Arrays(pickle.Unpickler):
    """Reads the pickles of CIFAR: builtin containers and NumPy arrays, nothing else can be named in them."""

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core", "numpy._core") if hasattr(np, "_core") else module
        if (module.split(".")[0], name) in {("numpy", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name}")


def _read(path: Path, md5: str) -> dict[str, Any]:
    """The contents of one original file; its bytes are checked before anything is unpickled from them."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PrelaxError(f"{path} cannot be read: {error.strerror}") from None
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if found != md5:
        raise PrelaxError(
            f"{path} is not the original file (md5 {found}, expected {md5}); delete it and set data.download=true"
        )
    contents: dict[str, Any] = _Arrays(io.BytesIO(data), encoding="latin1").load()
    return contents


def find(name: str, root: Path) -> Path | None:
    """The folder of the original files: ``root`` itself, or where torchvision or a folder per data set puts it."""
    kind = describe(name)
    for folder in (root / kind.base_folder, root / name / kind.base_folder, root):
        if (folder / kind.meta["filename"]).is_file():
            return folder
    return None


def _fetch(name: str, root: Path) -> Path:
    from torchvision.datasets.utils import download_and_extract_archive

    kind = describe(name)
    try:
        root.mkdir(parents=True, exist_ok=True)
        download_and_extract_archive(kind.url, str(root), filename=kind.filename, md5=kind.tgz_md5)
    except (OSError, RuntimeError) as error:  # URLError is an OSError; torchvision raises RuntimeError on a bad md5
        raise PrelaxError(
            f"could not fetch {kind.url} into {root}: {error}; "
            f"fetch it by other means, unpack it there and leave data.download=false"
        ) from None
    return root / kind.base_folder


def _fetched(name: str, root: Path) -> Path:
    """The folder of the original files, fetched unless all are there; a second process waits for the first."""
    kind = describe(name)
    files = [kind.meta["filename"], *(file for file, _ in (*kind.train_list, *kind.test_list))]
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # not to be written: they are there, or it is said below
            root.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(root / f".{name}.lock"))
        folder = find(name, root)
        if folder is not None and all((folder / file).is_file() for file in files):
            return folder
        return _fetch(name, root)


def load_cifar(settings: DataSettings, split: str) -> ImageSet:
    """CIFAR-10 or CIFAR-100 (by ``settings.source``), 50,000 or 10,000 images of 32 px."""
    name = settings.source
    kind = describe(name)
    root = (settings.root or cache_folder(settings.cache) / name).expanduser()
    folder = _fetched(name, root) if settings.download else find(name, root)
    if folder is None:
        raise PrelaxError(
            f"no {name} files: looked for {kind.base_folder}/{kind.meta['filename']} in {root} and {root / name}; "
            f"set data.root (of another run: --root) to the folder that holds {kind.base_folder}, or train with "
            f"data.download=true to fetch {kind.url}"
        )
    parts = [_read(folder / file, md5) for file, md5 in (kind.test_list if split == "test" else kind.train_list)]
    pixels = np.concatenate([part["data"] for part in parts]).reshape(-1, 3, 32, 32)
    labels = [label for part in parts for label in part["labels" if "labels" in part else "fine_labels"]]
    classes = _read(folder / kind.meta["filename"], kind.meta["md5"])[kind.meta["key"]]
    return ImageSet(
        name=name,
        images=fit(torch.from_numpy(pixels), settings.image_size or 32, settings.channels, name),
        labels=torch.tensor(labels, dtype=torch.int64),
        classes=[str(label) for label in classes],
    )
