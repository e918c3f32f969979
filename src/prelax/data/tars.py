"""What is in tar shards: the files a pattern names, the images and labels of each, and how many there are."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from prelax.data.cache import cache_folder, locked
from prelax.data.decode import EXTENSIONS, reason
from prelax.data.memory import core_count
from prelax.errors import PrelaxError

PATTERN = "train-{0000..0099}.tar"
TRIES = 3  # of a remote shard, before a run ends
VERSION = 2  # of what is counted
MOST = 10_000_000  # shards that a pattern may name
MARK = 1024  # bytes of zeros that a tar ends with

Read = TypeVar("Read")


def _webdataset() -> Any:
    try:
        import webdataset
    except ImportError:
        raise PrelaxError("shards need the webdataset package: pip install 'prelax[shards]'") from None
    return webdataset


def samples(url: str) -> Iterator[tuple[bytes, str | None]]:
    """(contents, label) of every image of a shard, in its order; the label is that of the ``.cls`` member."""
    for sample in _samples(url):
        if images := _images(sample):
            yield sample[images[0]], _label(sample)


def _samples(url: str) -> Iterator[dict[str, Any]]:
    """The members of a shard, those of one name together, by what follows its first dot."""
    from webdataset.tariterators import group_by_keys, tar_file_expander, url_opener

    def stop(error: Exception) -> bool:
        if isinstance(error, PrelaxError):  # said already, further in
            raise PrelaxError(error.args[0]) from None
        said = error.args[0] if len(error.args) > 1 and isinstance(error.args[0], str) else reason(error)
        if url.startswith("pipe:") and said == "empty file":
            said = "the command that fetches it gave nothing: run it by itself to see why"
        if failed := re.search(r": exit (\d+)", str(error)):
            said = f"the command that fetches it failed (exit {failed[1]})"
        if twice := re.match(r"(.*): duplicate file name", said, re.DOTALL):
            said = f"it holds {twice[1]} twice, or in upper and lower case; give every image a name of its own"
        raise PrelaxError(f"shard {url} cannot be read: {said.partition(' @ <')[0]}") from None

    opened = url_opener([{"url": url}], handler=stop)
    yield from group_by_keys(tar_file_expander(opened, handler=stop, select_files=visible), handler=stop)


def visible(name: str) -> bool:
    """Whether a member is no hidden file, as those that macOS puts beside every other.

    >>> visible("./train/1.jpg"), visible("train/._1.jpg"), visible(".cache/1.jpg"), visible("__MACOSX/1.jpg")
    (True, False, False, False)
    """
    return not any((part[0] == "." and part != ".") or part == "__MACOSX" for part in name.split("/") if part)


def _images(sample: dict[str, Any]) -> list[str]:
    """The images among a sample's members, the one that is meant first: not a mask or an array beside it.

    >>> _images({"cls": b"", "mask.png": b"", "npy": b"", "png": b""})
    ['png', 'mask.png', 'npy']
    """
    found = [key for key in sample if f".{key.rpartition('.')[2].lower()}" in EXTENSIONS]
    return sorted(found, key=lambda key: (key.endswith("npy"), key.count("."), key))


def _label(sample: dict[str, Any]) -> str | None:
    label = sample.get("cls")
    return label.decode("utf-8", "replace").strip() if label is not None else None


def tried(url: str, read: Callable[[], Read]) -> Read:
    """What is read of a shard; where it is remote, after a few tries."""
    for pause in range(1, TRIES) if remote(url) else ():
        try:
            return read()
        except PrelaxError:
            time.sleep(pause)
    return read()


def expand(pattern: str) -> list[str]:
    """The shards a pattern names: ``train-{0000..0099}.tar``, with ``*`` for local ones, several joined by ``::``."""
    _webdataset()
    from webdataset.shardlists import expand_urls

    found: list[str] = []
    spans = [abs(int(end) - int(start)) + 1 for start, end in re.findall(r"\{(\d+)\.\.(\d+)\}", pattern)]
    if math.prod(spans) > MOST:
        raise PrelaxError(f"data.shards={pattern} names {math.prod(spans):,} shards; {MOST:,} are the most")
    try:
        urls = [url if remote(url) else os.path.expanduser(url) for url in expand_urls(pattern)]
    except ValueError:
        raise PrelaxError(f"data.shards={pattern} opens or closes a brace too many; write {PATTERN}") from None
    for url in urls:
        if "*" in url or "?" in url:
            here = Path(url)
            found += sorted(str(path) for path in Path(here.anchor or ".").glob(str(here.relative_to(here.anchor))))
        else:
            found.append(url)
    missing = [url for url in found if not remote(url) and not Path(url).is_file()]
    if missing or not found:
        raise PrelaxError(f"no shard {missing[0] if missing else pattern}; a pattern reads {PATTERN}")
    return found


def remote(url: str) -> bool:
    """Whether a shard comes from elsewhere, by a protocol or from a command."""
    return "://" in url or url.startswith("pipe:")


def _stamp(url: str) -> list[int]:
    """Size and time of a local shard, so that a changed one is counted again."""
    if remote(url):
        return []
    status = os.stat(url)
    return [status.st_size, status.st_mtime_ns]


@dataclass
class Counted:
    """What is known of shards once they have been read.

    Args:
        labels: of every image of every shard.
        hashes: of each shard's images in order.
        beside: how many images are left out, their sample having one already; and the name of one of them.
        file: where this is kept.
    """

    labels: list[list[str | None]]
    hashes: list[str]
    beside: tuple[int, str] = (0, "")
    file: Path | None = None


def count(urls: list[str], cache: Path | None = None, progress: Callable[[int, int], None] | None = None) -> Counted:
    """What is in the shards. Every one is read for it once; later it comes from the cache."""
    about = json.dumps([VERSION, [[url, _stamp(url)] for url in urls]])
    key = hashlib.blake2b(about.encode(), digest_size=16).hexdigest()
    file = cache_folder(cache) / "shards" / f"{key}.json"

    def known() -> Counted | None:
        try:
            kept = json.loads(file.read_text(encoding="utf-8"))
            return Counted(kept["labels"], kept["hashes"], tuple(kept["beside"]), file)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    if (found := known()) is not None:
        return found
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(file.with_suffix(".lock")))  # a second process waits instead of reading it all
            if (found := known()) is not None:
                return found
        found = Counted([], [])
        with ThreadPoolExecutor(core_count()) as threads:
            for labels, told, (more, such) in threads.map(lambda url: tried(url, lambda: _look_through(url)), urls):
                found.labels.append(labels)
                found.hashes.append(told)
                found.beside = found.beside[0] + more, found.beside[1] or such
                if progress:
                    progress(len(found.labels), len(urls))
        with contextlib.suppress(OSError):  # not to be written: counted again next time
            making = file.with_suffix(f".{os.getpid()}")
            making.write_text(json.dumps({k: v for k, v in asdict(found).items() if k != "file"}), encoding="utf-8")
            making.rename(file)
    found.file = file
    return found


def _look_through(url: str) -> tuple[list[str | None], str, tuple[int, str]]:
    """The labels of a shard, a hash of its images in order, and how many images beside another, with one's name."""
    labels, images, more, such = [], hashlib.blake2b(digest_size=16), 0, ""
    for sample in _samples(url):
        if names := _images(sample):
            image = sample[names[0]]
            labels.append(_label(sample))
            images.update(len(image).to_bytes(8, "little") + image)
            others = [name for name in names[1:] if not name.endswith("npy")]
            more, such = more + len(others), such or (f"{sample['__key__']}.{others[0]}" if others else "")
    return labels, images.hexdigest(), (more, such)


def cut_short(urls: list[str]) -> list[str]:
    """The local shards that lack the mark a tar ends with: half-written or half-copied ones, most likely."""
    found = []
    for url in urls:
        if not remote(url):
            with contextlib.suppress(OSError), open(url, "rb") as file:  # whoever reads it says what is wrong
                plain = file.read(MARK)[257:262] == b"ustar"  # a compressed one that is cut short cannot be read
                file.seek(-min(MARK, file.seek(0, os.SEEK_END)), os.SEEK_END)
                if plain and any(file.read()):
                    found.append(url)
    return found
