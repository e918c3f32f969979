"""What is in tar shards: the files a pattern names, the images and labels of each, and how many there are."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from prelax.data.cache import cache_folder, locked
from prelax.data.decode import EXTENSIONS, reason
from prelax.data.pool import core_count
from prelax.errors import PrelaxError

PATTERN = "train-{0000..0099}.tar"


def _webdataset() -> Any:
    try:
        import webdataset
    except ImportError:
        raise PrelaxError("shards need the webdataset package: pip install 'prelax[shards]'") from None
    return webdataset


def samples(url: str) -> Iterator[tuple[bytes, str | None]]:
    """(contents, label) of every image of a shard, in its order; the label is that of the ``.cls`` member."""
    from webdataset.tariterators import group_by_keys, tar_file_expander, url_opener

    def stop(error: Exception) -> bool:
        if isinstance(error, PrelaxError):  # said already, further in
            raise PrelaxError(error.args[0]) from None
        said = error.args[0] if len(error.args) > 1 and isinstance(error.args[0], str) else reason(error)
        if failed := re.search(r": exit (\d+)", str(error)):
            said = f"the command that fetches it failed (exit {failed[1]})"
        raise PrelaxError(f"shard {url} cannot be read: {said.partition(' @ <')[0]}") from None

    opened = url_opener([{"url": url}], handler=stop)
    for sample in group_by_keys(tar_file_expander(opened, handler=stop)):
        image = next(
            (sample[key] for key in sorted(sample) if f".{key.rpartition('.')[2].lower()}" in EXTENSIONS), None
        )
        if image is not None:
            label = sample.get("cls")
            yield image, label.decode("utf-8", "replace").strip() if label is not None else None


def expand(pattern: str) -> list[str]:
    """The shards a pattern names: ``train-{0000..0099}.tar``, with ``*`` for local ones, several joined by ``::``."""
    _webdataset()
    from webdataset.shardlists import expand_urls

    found: list[str] = []
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


def count(
    urls: list[str], cache: Path | None = None, progress: Callable[[int, int], None] | None = None
) -> tuple[list[list[str | None]], list[str]]:
    """The label of every image of every shard, and a hash of each shard's images in order.

    Every shard is read for it once; later it comes from the cache.
    """
    key = hashlib.blake2b(json.dumps([[url, _stamp(url)] for url in urls]).encode(), digest_size=16).hexdigest()
    file = cache_folder(cache) / "shards" / f"{key}.json"

    def known() -> tuple[list[list[str | None]], list[str]] | None:
        try:
            kept = json.loads(file.read_text(encoding="utf-8"))
            return kept["labels"], kept["hashes"]
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
        read: list[list[str | None]] = []
        hashes: list[str] = []
        with ThreadPoolExecutor(core_count()) as threads:
            for labels, told in threads.map(_look_through, urls):
                read.append(labels)
                hashes.append(told)
                if progress:
                    progress(len(read), len(urls))
        with contextlib.suppress(OSError):  # not to be written: counted again next time
            making = file.with_suffix(f".{os.getpid()}")
            making.write_text(json.dumps({"labels": read, "hashes": hashes}), encoding="utf-8")
            making.rename(file)
    return read, hashes


def _look_through(url: str) -> tuple[list[str | None], str]:
    """The labels of a shard, and a hash of its images in order."""
    labels, images = [], hashlib.blake2b(digest_size=16)
    for image, label in samples(url):
        labels.append(label)
        images.update(len(image).to_bytes(8, "little") + image)
    return labels, images.hexdigest()
