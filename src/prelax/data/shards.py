"""Sets beyond one disk: WebDataset tar shards, local or remote, decoded in worker processes.

A shard is read from its beginning to its end and decoded whole, so an epoch walks the shards in a drawn order, a few at
a time, and draws the order of the images within those few. That order is an ordinary list of image numbers: a run that
stopped after k images goes on with ``order[k:]``, which names the shard and the place in it to go on from.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prelax.data.ahead import ahead
from prelax.data.cache import cache_folder
from prelax.data.decode import EXTENSIONS, Plan, Unreadable, decode, reason
from prelax.data.folder import survey
from prelax.data.images import order
from prelax.data.listing import class_names
from prelax.data.pool import core_count, main_hidden, process_pool
from prelax.draws import Draws
from prelax.errors import PrelaxError

GROUP = 8  # shards whose images are mixed with one another


@dataclass
class ShardSet:
    """What is known of a set of shards without holding its pixels.

    Args:
        urls: the shards, in order.
        counts: images in each of them.
        plan: how its images are brought to one shape.
        labels: int64, N, -1 where unknown, from members called ``.cls``; None when there are none.
    """

    name: str
    urls: list[str]
    counts: list[int]
    plan: Plan
    labels: Tensor | None
    classes: list[str]
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(self.counts)

    def order(self, seed: int, epoch: int, group: int = GROUP) -> Tensor:
        """The permutation of range(N) an epoch walks in: shards in a drawn order, mixed ``group`` at a time."""
        starts = np.concatenate([[0], np.cumsum(self.counts)])
        drawn = order(seed, epoch, len(self.urls)).tolist()
        parts = []
        for first in range(0, len(drawn), group):
            ids = torch.cat([torch.arange(starts[s], starts[s + 1]) for s in drawn[first : first + group]])
            bits = Draws(seed, len(ids)).at("shuffle", epoch, "group", first).bits("order")[:, 0]
            parts.append(ids[bits.argsort(stable=True)])
        return torch.cat(parts)


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
        raise PrelaxError(f"shard {url} cannot be read: {reason(error)}") from None

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
    for url in expand_urls(pattern):
        if "*" in url or "?" in url:
            here = Path(url)
            found += sorted(str(path) for path in Path(here.anchor or ".").glob(str(here.relative_to(here.anchor))))
        else:
            found.append(url)
    missing = [url for url in found if "://" not in url and not url.startswith("pipe:") and not Path(url).is_file()]
    if missing or not found:
        raise PrelaxError(f"no shard {missing[0] if missing else pattern}; a pattern reads train-{{0000..0099}}.tar")
    return found


def _stamp(url: str) -> list[int]:
    """Size and time of a local shard, so that a changed one is counted again."""
    if "://" in url or url.startswith("pipe:"):
        return []
    status = os.stat(url)
    return [status.st_size, status.st_mtime_ns]


def open_shards(
    pattern: str,
    image_size: int | None = None,
    channels: int | None = None,
    cache: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ShardSet:
    """The shards of a pattern, counted: the first time every shard is read once, later the count comes from the cache.

    The size and channels of the set, where not given, are chosen from the first images of the first shards.
    """
    urls = expand(pattern)
    key = hashlib.blake2b(json.dumps([[url, _stamp(url)] for url in urls]).encode(), digest_size=16).hexdigest()
    file = cache_folder(cache) / "shards" / f"{key}.json"
    try:
        read: list[list[str | None]] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        read = []
        with ThreadPoolExecutor(core_count()) as threads:
            for labels in threads.map(lambda url: [label for _, label in samples(url)], urls):
                read.append(labels)
                if progress:
                    progress(len(read), len(urls))
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            making = file.with_suffix(f".{os.getpid()}")
            making.write_text(json.dumps(read), encoding="utf-8")
            making.rename(file)
        except OSError:
            pass  # counted again next time
    named = [label for labels in read for label in labels]
    if not named:
        raise PrelaxError(f"no images in the {len(urls)} shards of {pattern}")
    first: list[bytes] = []
    for url in urls:
        for image, _ in samples(url):
            first.append(image)
            if len(first) % 64 == 0:
                break
        if len(first) >= 256:
            break
    plan, notes = survey(first.__getitem__, len(first), image_size, channels)
    classes = class_names(named)
    number: dict[str | None, int] = {name: i for i, name in enumerate(classes)} | {None: -1}
    known = torch.tensor([number[label] for label in named]) if classes else None
    notes.append(f"{len(named):,} images in {len(urls)} shards")
    return ShardSet("shards", urls, [len(labels) for labels in read], plan, known, classes, notes)


def decode_shard(url: str, plan: Plan, count: int) -> tuple[np.ndarray, list[str]]:
    """The pixels of a shard, ``count`` x C x side x side, and a line for each image that cannot be read.

    The place of a broken image is kept, so that numbers stay what they are, and filled with the image before it (the
    next good one for the first).
    """
    block = np.zeros((count, plan.channels, plan.side, plan.side), dtype=np.uint8)
    source = np.arange(count)
    broken: list[str] = []
    place = -1
    for place, (data, _) in enumerate(samples(url)):
        if place >= count:
            break
        try:
            block[place] = decode(data, plan)
        except Unreadable as error:
            broken.append(f"{url}, image {place}: {error}")
            source[place] = -1
    if place + 1 != count:
        raise PrelaxError(f"shard {url} has changed while in use: it had {count} images; start again")
    good = np.flatnonzero(source >= 0)
    if not len(good):
        raise PrelaxError(f"none of the {count} images of shard {url} can be read; the first: {broken[0]}")
    for bad in np.flatnonzero(source < 0):
        before = int(np.searchsorted(good, bad)) - 1
        block[bad] = block[good[max(before, 0)]]
    return block, broken


class ShardStore:
    """Batches of a `ShardSet`, uint8 B x C x H x W on the device, in an order its `ShardSet.order` gave.

    Host memory holds the decoded images of at most two groups of shards. ``broken`` lists the images that could not be
    read so far.

    Args:
        workers: processes that decode; None for one a core, 0 for a thread of this process.
    """

    where = "shards"

    def __init__(
        self, shards: ShardSet, device: torch.device | str, workers: int | None = None, group: int = GROUP
    ) -> None:
        self.shards, self.device, self.group = shards, torch.device(device), group
        self.shape = (shards.plan.channels, shards.plan.side, shards.plan.side)
        self.broken: dict[str, None] = {}
        self._starts = torch.tensor([0, *shards.counts]).cumsum(0)
        count = core_count() if workers is None else workers
        self._pool: Executor = process_pool(count) if count else ThreadPoolExecutor(1, "prelax-decode")

    def __len__(self) -> int:
        return len(self.shards)

    def close(self) -> None:
        """Ends the processes."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def batches(self, order: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """(indices, images) in this order, both on the device; shards further on are decoded meanwhile."""
        ids = order.cpu()
        shard_of = torch.bucketize(ids, self._starts, right=True) - 1  # N
        queue = list(dict.fromkeys(shard_of.tolist()))  # shards by first use
        uses = dict(zip(*(part.tolist() for part in shard_of.unique(return_counts=True)), strict=True))
        open_now: dict[int, Future[tuple[np.ndarray, list[str]]]] = {}

        def start(shard: int) -> None:
            queue.remove(shard)
            with main_hidden():
                url, count = self.shards.urls[shard], self.shards.counts[shard]
                open_now[shard] = self._pool.submit(decode_shard, url, self.shards.plan, count)

        def gather(positions: Tensor, out: Tensor) -> Tensor:
            wanted = ids[positions]
            which = shard_of[positions]
            for shard in which.unique().tolist():
                if shard not in open_now:
                    start(shard)
                while queue and len(open_now) < 2 * self.group:
                    start(queue[0])
                rows = (which == shard).nonzero()[:, 0]
                block, broken = open_now[shard].result()
                self.broken |= dict.fromkeys(broken)
                picked = block[(wanted[rows] - self._starts[shard]).numpy()]
                out[rows] = torch.from_numpy(picked.reshape(len(rows), -1))
                uses[shard] -= len(rows)
                if uses[shard] == 0:
                    del open_now[shard]
            return out

        try:
            parts = torch.arange(len(ids)).split(batch_size)
            yield from zip(
                ids.to(self.device).split(batch_size), ahead(parts, gather, self.shape, self.device), strict=True
            )
        finally:
            for future in open_now.values():
                future.cancel()
