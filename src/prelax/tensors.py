"""Tensors that are kept in a file."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor


def read_tensors(path: Path) -> dict[str, Tensor]:
    """What a safetensors file holds; of one that may not be read the error says that, and not that it is missing."""
    path.open("rb").close()
    return load_file(path)
