"""Arrays in files, by their headers: NumPy's ``.npy`` and ``.npz``, and HDF5."""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from prelax.data.decode import reason
from prelax.data.memory import available_memory, gigabytes
from prelax.errors import PrelaxError

HDF5 = (".h5", ".hdf5")
ENDINGS = (".npy", ".npz", *HDF5)


@dataclass(frozen=True)
class Stored:
    """An array in a file; its numbers are read when asked for."""

    file: Path
    member: str | None  # of a file of several
    shape: tuple[int, ...]
    dtype: np.dtype

    def open(self) -> np.ndarray:
        """The array, to be indexed: mapped, in memory (``.npz``), or read when it is indexed (HDF5)."""
        if self.file.suffix.lower() in HDF5:
            found: np.ndarray = h5py().File(self.file, "r")[self.member]  # closed with the last that holds it
            return found
        if self.member is None:
            return np.asarray(np.load(self.file, mmap_mode="r", allow_pickle=False))
        need, have = int(np.prod(self.shape)) * self.dtype.itemsize, available_memory()
        if need > 0.8 * have:
            raise PrelaxError(
                f"{self} needs {gigabytes(need)} of memory and {gigabytes(have)} are free: save it as a .npy file of "
                "its own (numpy.save), which is read a part at a time"
            )
        with damage(self), np.load(self.file, allow_pickle=False) as arrays:
            return np.asarray(arrays[self.member])

    def __str__(self) -> str:
        return f"{self.file}" if self.member is None else f"{self.file}:{self.member}"


@contextlib.contextmanager
def damage(stored: Stored) -> Iterator[None]:
    """Says in a line that a part of an array could not be read."""
    try:
        yield
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise PrelaxError(f"{stored} cannot be read: {reason(error)}; the file may be damaged") from None


def h5py() -> Any:
    """The package that reads HDF5."""
    try:
        import h5py
    except ImportError:
        raise PrelaxError("HDF5 files need h5py: pip install 'prelax[hdf5]'") from None
    return h5py


def headers(file: Path) -> dict[str, Stored]:
    """The arrays of a file by name (of a ``.npy`` without one), in no number of theirs read."""
    kind = "an HDF5" if file.suffix.lower() in HDF5 else "a NumPy"
    try:
        if file.suffix.lower() in HDF5:
            return in_hdf5(file)
        if file.suffix.lower() == ".npz":
            return in_npz(file)
        with open(file, "rb") as handle:
            stored = Stored(file, None, *_header(handle))
        if min(stored.shape, default=0) < 0:
            raise ValueError(f"an array of {stored.shape}")
        if not stored.dtype.hasobject:  # which whoever wants it refuses in words of its own
            stored.open()  # a file that was cut short is refused now
        return {"": stored}
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, OverflowError, zipfile.BadZipFile) as error:
        raise PrelaxError(f"{file} cannot be read as {kind} file: {reason(error)}") from None


def _header(handle: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """The shape and type that a ``.npy`` file says it has."""
    read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    shape, _, dtype = read[np.lib.format.read_magic(handle)[0]](handle)
    return shape, dtype


def in_npz(file: Path) -> dict[str, Stored]:
    """The arrays of a ``.npz`` file."""
    found = {}
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if name.endswith(".npy"):
                member_name = name.removesuffix(".npy")
                with archive.open(name) as member:
                    found[member_name] = Stored(file, member_name, *_header(member))
    return found


def in_hdf5(file: Path) -> dict[str, Stored]:
    """The arrays of an HDF5 file, those in groups as ``group/name``."""
    package, found = h5py(), {}
    with package.File(file, "r") as opened:

        def note(name: str, item: Any) -> None:
            if isinstance(item, package.Dataset) and item.shape is not None:
                # Words of any length are objects in HDF5.
                words = package.check_string_dtype(item.dtype) is not None
                found[name] = Stored(file, name, item.shape, np.dtype("S1") if words else item.dtype)

        opened.visititems(note)
    return found
