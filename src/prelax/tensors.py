"""Tensors that are kept in a file: weights as safetensors, checkpoints as torch writes them."""

from __future__ import annotations

import hashlib
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from prelax.errors import PrelaxError, first_line

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


def plain(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict as safetensors takes it: on the CPU, and weights that layers share once for each of them."""
    return {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}


def read_checkpoint(path: Path | str, device: torch.device | str = "cpu") -> dict[str, Any]:
    """A checkpoint's contents, once every byte agrees with its checksum; no code in it is run."""
    try:
        with zipfile.ZipFile(path) as archive:
            torn = archive.testzip()  # torch writes a CRC for every tensor
        if torn is not None:
            raise PrelaxError(f"{path} is damaged (checksum of {torn})")
        with warnings.catch_warnings(action="ignore"):  # of strange files; what matters is refused below
            state = torch.load(path, map_location=device, weights_only=True)
    except (torch.OutOfMemoryError, PrelaxError):
        raise  # of the device, not of the file; or said already
    except (zipfile.BadZipFile, EOFError, OSError, RuntimeError, ValueError, KeyError) as error:
        raise PrelaxError(f"{path} is damaged or not a checkpoint ({first_line(error)})") from None
    except Exception as error:  # weights_only refuses what would execute
        raise PrelaxError(f"{path} is not a prelax checkpoint and was not opened ({first_line(error)})") from None
    if not isinstance(state, dict):
        raise PrelaxError(f"{path} is not a prelax checkpoint")
    return state
