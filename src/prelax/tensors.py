"""Tensors that are kept in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

CHECKSUM = "blake2b"  # of all names and bytes, in the file's own header


class Damaged(ValueError):
    """A file that is not as it was written."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """What a safetensors file holds, once it agrees with its checksum, if it has one.

    Of one that may not be read the error says that, and not that it is missing.
    """
    path.open("rb").close()
    found = load_file(path)
    with safe_open(path, "pt") as file:
        wanted = (file.metadata() or {}).get(CHECKSUM)
    if wanted is not None and wanted != checksum(found):
        raise Damaged("it is damaged: its numbers are not those that were written")
    return found


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """A safetensors file that knows its checksum; with a second key its bytes would differ from time to time."""
    save_file(dict(tensors), path, {CHECKSUM: checksum(tensors)})


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """A hash of contiguous tensors on the CPU, and of their names."""
    hashed = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        hashed.update(f"{name}\0".encode())
        hashed.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()
