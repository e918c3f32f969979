"""Decoded pixels kept on disk, so that a set is decoded once and the next start maps a file.

An entry is a folder named after everything its pixels depend on (the files, their sizes and times, the plan), with
``pixels.npy`` (uint8, N x C x side x side) and ``index.json``. It is written beside its place and renamed into it, so
it is there whole or not at all; a lock makes a second process wait for the first instead of decoding the files again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prelax.data.decode import Plan
from prelax.data.memory import available_memory, gigabytes
from prelax.errors import PrelaxError

VERSION = 3  # of the decoded pixels; raised when decoding changes
HEADER = 128  # bytes of pixels.npy before the pixels


@dataclass
class Decoded:
    """Pixels of the files that could be read, and (position, reason) of those that could not."""

    images: Tensor  # N x C x side x side
    skipped: list[tuple[int, str]]
    file: Path | None = None


def cache_folder(setting: Path | None) -> Path:
    """Where decoded pixels are kept: the setting, else ``$PRELAX_CACHE``, else ``~/.cache/prelax``."""
    try:
        return Path(setting or os.environ.get("PRELAX_CACHE") or "~/.cache/prelax").expanduser()
    except RuntimeError:  # a user without a home, as in a container that was given a number
        return Path(tempfile.gettempdir()) / f"prelax-{os.getuid()}"


def digest(root: Path, names: list[str], stats: np.ndarray, plan: Plan) -> str:
    """A name for the pixels of these files under this plan."""
    about = json.dumps([VERSION, str(root.resolve()), asdict(plan), len(names)])
    hashed = hashlib.blake2b(os.fsencode(about), digest_size=16)
    for start in range(0, len(names), 4096):
        hashed.update("\0".join(names[start : start + 4096]).encode("utf-8", "surrogateescape") + b"\0\0")
    hashed.update(np.ascontiguousarray(stats, dtype=np.int64).data)
    return hashed.hexdigest()


def _header(shape: tuple[int, ...]) -> bytes:
    """A .npy header of fixed length, so that it can be written again once the number of images is known."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", HEADER - 10) + text.ljust(HEADER - 11).encode() + b"\n"


def _readable(path: str) -> bool:
    try:
        with open(path, "rb"):
            return True
    except OSError:
        return False


def _open(entry: Path, paths: Callable[[int], str] | None) -> Decoded | None:
    """An entry of the cache, or None when it is missing, incomplete, or a file it had to skip can be read by now."""
    try:
        index: dict[str, Any] = json.loads((entry / "index.json").read_text(encoding="utf-8"))
        file = entry / "pixels.npy"
        shape = tuple(index["shape"])
        if file.stat().st_size != HEADER + int(np.prod(shape)):
            return None
        skipped = [(int(i), str(why)) for i, why in index["skipped"]]
        if paths and any(why == "permission denied" and _readable(paths(i)) for i, why in skipped):
            return None
        if shape[0] == 0:
            return Decoded(torch.empty(shape, dtype=torch.uint8), skipped)
        # Copy-on-write: torch wants writable memory, and the file must not change under another run.
        images = torch.from_numpy(np.load(file, mmap_mode="c"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Decoded(images, skipped, file)


class _Sink:
    """Takes decoded blocks in order: to a file while that works, to memory from the moment it does not."""

    def __init__(self, file: Path | None, shape: tuple[int, int, int, int], notes: list[str]) -> None:
        self.shape, self.notes, self.rows = shape, notes, 0
        self.file, self.memory = file, None if file else self._allocate()
        # Unbuffered: after a failed write nothing is left behind that a later seek would try to write again.
        self.handle = open(file, "wb+", buffering=0) if file else None  # noqa: SIM115  closed in finish and abandon
        if self.handle:
            try:
                self._write(_header(shape))
            except OSError:
                self.abandon()
                raise

    def _allocate(self) -> np.ndarray:
        need, have = int(np.prod(self.shape)), available_memory()
        if need > 0.8 * have:
            raise PrelaxError(
                f"the decoded images need {gigabytes(need)} and fit neither the cache nor memory "
                f"({gigabytes(have)} free); set data.cache to a disk with room, or a smaller data.image_size"
            )
        return np.empty(self.shape, dtype=np.uint8)

    def append(self, block: np.ndarray) -> None:
        if self.handle:
            try:
                self._write(np.ascontiguousarray(block).reshape(-1).data)
            except OSError as error:
                self._to_memory(error)
        if self.memory is not None:
            self.memory[self.rows : self.rows + len(block)] = block
        self.rows += len(block)

    def _write(self, data: bytes | memoryview) -> None:
        assert self.handle
        view = memoryview(data)
        while len(view):  # a disk that fills up takes a part first
            view = view[self.handle.write(view) :]

    def _to_memory(self, error: OSError) -> None:
        assert self.file
        assert self.handle
        self.notes.append(f"cache not written ({error.strerror}: {self.file.parent.parent}); images are kept in memory")
        self.memory = self._allocate()
        self.handle.seek(HEADER)
        view = self.memory[: self.rows].reshape(-1).data
        while len(view):
            got = self.handle.readinto(view)
            if not got:
                raise error
            view = view[got:]
        self.abandon()

    def abandon(self) -> None:
        if self.handle:
            with contextlib.suppress(OSError):
                self.handle.close()
            self.handle = None

    def finish(self) -> np.ndarray | None:
        """The pixels when they are in memory; None when they are in the file, which is then complete."""
        shape = (self.rows, *self.shape[1:])
        if self.handle:
            try:
                self.handle.seek(0)
                self._write(_header(shape))
                os.fsync(self.handle.fileno())  # or after a power cut the length alone may be right
                self.handle.close()
                self.handle = None
                return None
            except OSError as error:
                self._to_memory(error)
        assert self.memory is not None
        return self.memory[: self.rows]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock that ends with the process; file systems without locks do without."""
    with open(path, "w") as handle:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fill(
    sink: _Sink, blocks: Iterable[tuple[np.ndarray, list[str | None]]], progress: Callable[[int, int], None] | None
) -> list[tuple[int, str]]:
    done, total, skipped = 0, sink.shape[0], []
    for block, reasons in blocks:
        sink.append(block)
        skipped += [(done + i, why) for i, why in enumerate(reasons) if why is not None]
        done += len(reasons)
        if progress:
            progress(done, total)
    return skipped


def cached(
    key: str,
    folder: Path,
    count: int,
    plan: Plan,
    paths: Callable[[int], str],
    blocks: Callable[[], Iterable[tuple[np.ndarray, list[str | None]]]],
    progress: Callable[[int, int], None] | None,
    notes: list[str],
) -> Decoded:
    """The decoded images of an entry of the cache, decoding them first when it is not there.

    When the cache cannot be written (no permission, full disk) the images are kept in memory and a note says so.
    """
    entry = folder / key
    found = _open(entry, paths)
    if found:
        return found
    shape = (count, plan.channels, plan.side, plan.side)
    need = int(np.prod(shape))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder).free < need:
            raise OSError(28, f"{gigabytes(need)} needed, no room")
        lock = contextlib.ExitStack()
        lock.enter_context(locked(folder / f".{key}.lock"))
    except OSError as error:
        notes.append(f"cache not written ({error.strerror}: {folder}); images are kept in memory")
        sink = _Sink(None, shape, notes)
        skipped = _fill(sink, blocks(), progress)
        images = sink.finish()
        return Decoded(torch.from_numpy(images), skipped)
    with lock:
        found = _open(entry, paths)  # another process may have made it while this one waited
        if found:
            return found
        return _make(entry, shape, paths, blocks, progress, notes)


def _make(
    entry: Path,
    shape: tuple[int, int, int, int],
    paths: Callable[[int], str],
    blocks: Callable[[], Iterable[tuple[np.ndarray, list[str | None]]]],
    progress: Callable[[int, int], None] | None,
    notes: list[str],
) -> Decoded:
    for stale in entry.parent.glob(f".{entry.name}-*"):  # left by a process that was killed; the lock is ours
        shutil.rmtree(stale, ignore_errors=True)
    making = entry.parent / f".{entry.name}-{os.getpid()}"
    try:
        try:
            making.mkdir()
            sink = _Sink(making / "pixels.npy", shape, notes)
        except OSError as error:  # over one's quota: the disk itself has room
            notes.append(f"cache not written ({error.strerror}: {entry.parent}); images are kept in memory")
            sink = _Sink(None, shape, notes)
        try:
            skipped = _fill(sink, blocks(), progress)
            images = sink.finish()
        finally:
            sink.abandon()
        if images is None:
            try:
                index = {"version": VERSION, "shape": [sink.rows, *shape[1:]], "skipped": skipped}
                (making / "index.json").write_text(json.dumps(index), encoding="utf-8")
                shutil.rmtree(entry, ignore_errors=True)
                making.rename(entry)
            except OSError as error:
                notes.append(f"cache not written ({error.strerror}: {entry.parent}); images are kept in memory")
                images = np.load(making / "pixels.npy")
    finally:
        shutil.rmtree(making, ignore_errors=True)
    if images is not None:
        return Decoded(torch.from_numpy(images), skipped)
    made = _open(entry, None)
    if made is None:
        raise PrelaxError(f"the cache entry {entry} vanished while it was made; run again or set data.cache")
    return made
