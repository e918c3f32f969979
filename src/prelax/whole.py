"""Files that are written whole or not at all, and a disk that will not have them, told in one line."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from prelax.errors import PrelaxError

UMASK = os.umask(0)  # can only be read by setting it
os.umask(UMASK)
# What torch and safetensors make of a full disk.
FULL = re.compile(r"No space left|os error (28|122)\b|file write failed|unexpected pos|enforce fail|iostream error")


class Unwritable(PrelaxError):
    """A file that may not be written, where one may choose another place."""

    def __init__(self, said: str) -> None:
        super().__init__(f"{said}; choose another --out")
        self.said = said


class NoSpace(PrelaxError):
    """A full disk, and what it had no room for."""

    def __init__(self, target: Path) -> None:
        super().__init__(f"no space left to write {target}; free some and try again")
        self.target = target


def check_writable(folder: Path) -> None:
    """Refuses a folder that could not be made or written to, before the work that would end in it."""
    there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    if not there.is_dir():
        raise Unwritable(f"cannot write {folder}: {there} is a file, not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise Unwritable(f"cannot write {folder}: {there} is read-only, or not yours to write to")


@contextlib.contextmanager
def replacing(target: Path, keep: Path | None = None) -> Iterator[Path]:
    """A temporary file that takes the target's place when it is whole and on disk.

    A target that is a device or a pipe is given itself: it is not to be replaced.
    """
    if target.exists() and not target.is_file() and not target.is_dir():
        yield target
        return
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~UMASK)  # safetensors writes for the owner alone
        if keep is not None and target.exists():
            set_aside(target, keep)
        os.replace(temporary, target)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name itself must survive a power cut
        finally:
            os.close(folder)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_whole(target: Path, text: str) -> None:
    """A text as a file, whole or not at all."""
    with replacing(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Removes the temporary files that killed processes left of these names.

    For one who alone may write them: whoever is writing one now would lose it.
    """
    kinds = "|".join(re.escape(name) for name in names)
    for path in folder.glob(".*.tmp"):
        if re.fullmatch(rf"\.({kinds})\.\d+\.tmp", path.name):
            with contextlib.suppress(OSError):
                path.unlink()


def set_aside(target: Path, keep: Path) -> None:
    """A second name for a file, in place of what had that name; the first stays, so that a kill loses neither."""
    link = keep.with_name(f".{keep.name}.{os.getpid()}.tmp")
    try:
        link.unlink(missing_ok=True)  # of a process of the same number that was killed
        os.link(target, link)
    except OSError:  # a file system without links
        os.replace(target, keep)
        return
    try:
        os.replace(link, keep)
    finally:
        link.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(target: Path) -> Iterator[None]:
    """A full disk or a folder that cannot be written, as one line that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(target) from None
        raise Unwritable(f"cannot write {target}: {error.strerror or error}") from None
    except PrelaxError:
        raise
    except Exception as error:
        if FULL.search(str(error)):
            raise NoSpace(target) from None
        raise


def numeric(value: Any) -> Any:
    """A value as strict JSON has it: None for a number that is none."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
