"""Sets beyond one disk: WebDataset tar shards, local or remote, read in threads and decoded in worker processes.

A shard is read from its beginning to its end, so an epoch lays the shards in a drawn order one after another, cuts that
line into as many lanes as shards are to be mixed, and takes an equal part of every batch from each lane. Which image
comes when is a function of seed and epoch: a run that stopped after k steps goes on with ``walk[k:]``, which names the
shards and the places in them to go on from, and a process that has a part of every batch reads the lanes of that part.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from prelax.config import DataSettings
from prelax.data.ahead import ahead
from prelax.data.decode import Plan, decode_many
from prelax.data.folder import survey
from prelax.data.images import ImageSet, numbered, order
from prelax.data.listing import class_names
from prelax.data.memory import core_count
from prelax.data.pool import CHUNK, main_hidden, process_pool
from prelax.data.tars import count, cut_short, expand, samples, tried
from prelax.draws import Draws
from prelax.errors import PrelaxError, printable


class Changed(PrelaxError):
    """A shard does not hold what was counted in it."""


@dataclass
class ShardSet:
    """What is known of a set of shards without holding its pixels. An image's number is its place in all of them.

    Args:
        urls: the shards, in order.
        counts: images in each of them.
        plan: how its images are brought to one shape.
        labels: int64, N, -1 where unknown, from members called ``.cls``; None when there are none.
        mix: shards a batch is drawn from (`lanes`).
    """

    name: str
    urls: list[str]
    counts: list[int]
    plan: Plan
    labels: Tensor | None
    classes: list[str]
    notes: list[str] = field(default_factory=list)
    mix: int = 8
    digest: str = ""
    contents: str = ""
    counted: Path | None = None  # where the counts are kept
    paths: None = None
    skipped: tuple[()] = ()
    range: str | None = None

    def __len__(self) -> int:
        return sum(self.counts)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an image: C x H x W."""
        return self.plan.channels, self.plan.side, self.plan.side

    def lanes(self, batch: int) -> int:
        """Into how many equal parts a batch is cut, each from shards of its own: at most ``mix``, and it divides it.

        It goes by the batch over all processes, so that one process and several see the same batches.
        """
        return next(lanes for lanes in range(min(self.mix, batch), 0, -1) if batch % lanes == 0)

    def walk(self, seed: int, epoch: int, batch: int) -> Tensor:
        """The image numbers of an epoch's steps, N // batch x batch: no image twice, fewer than a batch left out."""
        drawn = order(seed, epoch, len(self.urls))  # shards
        place = torch.empty_like(drawn)
        place[drawn] = torch.arange(len(drawn))
        place = place.repeat_interleave(torch.tensor(self.counts))  # N: of each image's shard in the drawn order
        bits = Draws(seed, len(self)).at("shuffle", epoch, "shards").bits("order")[:, 0]
        line = torch.from_numpy(np.lexsort((bits.numpy(), place.numpy())))  # shard by shard, each in a drawn order
        lanes, steps = self.lanes(batch), len(self) // batch
        rows = line[: len(line) // lanes * lanes].view(lanes, -1).clone()
        # Two lanes that share a shard where they were cut come to it together: both begin or both end there.
        rows[1::2] = rows[1::2].flip(1)
        each = batch // lanes
        return rows[:, : steps * each].reshape(lanes, steps, each).transpose(0, 1).reshape(steps, batch)

    def first(self, rows: int) -> ImageSet:
        """The first images of the set, decoded: to try something on."""
        found: list[bytes] = []
        for url in self.urls:
            found += _first(url, rows - len(found))
            if len(found) >= rows:
                break
        block, _ = decode_many(found, self.plan)
        if not len(block):
            raise PrelaxError(f"none of the first {len(found)} images of {self.urls[0]} can be read")
        pixels = torch.from_numpy(block[np.arange(rows) % len(block)])
        return ImageSet(self.name, pixels, self.labels[:rows] if self.labels is not None else None, self.classes)


def open_shards(
    pattern: str,
    image_size: int | None = None,
    channels: int | None = None,
    cache: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    mix: int = 8,
    limit: int | None = None,
    levels: str | None = None,
) -> ShardSet:
    """The shards of a pattern, counted: the first time every shard is read once, later the count comes from the cache.

    The size and channels of the set, where not given, are chosen from the first images of the first shards.
    """
    urls = expand(pattern)
    counted, cut = count(urls, cache, progress), cut_short(urls)
    read, hashes, (beside, such) = counted.labels, counted.hashes, counted.beside
    left = limit if limit is not None else sum(map(len, read))
    for place, labels in enumerate(read):
        read[place] = labels[: max(left, 0)]
        left -= len(labels)
    urls, hashes = ([one for one, labels in zip(all_, read, strict=True) if labels] for all_ in (urls, hashes))
    read = [labels for labels in read if labels]
    named = [label for labels in read for label in labels]
    if not named:
        raise PrelaxError(f"no images in the shards of {pattern}")
    first: list[bytes] = []
    for url in urls[:4]:
        first += _first(url, 64)
    plan, notes, chosen = survey(first.__getitem__, len(first), image_size, channels, levels)
    classes = class_names(named)
    known = numbered(named, classes)
    notes.append(f"{len(named):,} images in {len(urls)} shard{'s' if len(urls) > 1 else ''}")
    if beside:
        notes.append(
            f"{beside:,} image{'s' if beside > 1 else ''} left out, {printable(such)} among them: files of one name up "
            "to its first dot are one sample, of which one image is taken"
        )
    if cut:
        more = f" and {len(cut) - 1} more" if cut[1:] else ""
        notes.append(
            f"{cut[0]}{more} does not end as a tar ends: it may have been cut short when it was made or copied"
        )
    # Wherever they lie: what they are labelled, and what they hold.
    digest, contents = (
        hashlib.blake2b(json.dumps(told).encode(), digest_size=16).hexdigest() for told in (read, hashes)
    )
    counts = [len(labels) for labels in read]
    where = counted.file
    return ShardSet("shards", urls, counts, plan, known, classes, notes, mix, digest, contents, where, range=chosen)


def _first(url: str, rows: int) -> list[bytes]:
    """The first images of a shard."""
    return tried(url, lambda: [image for image, _ in islice(samples(url), rows)])


def shards_of(settings: DataSettings, progress: Callable[[int, int], None] | None = None) -> ShardSet:
    """The training images that ``data.shards`` names."""
    assert settings.shards is not None
    size, channels = settings.image_size, settings.channels
    mix, limit, levels = settings.mix, settings.limit, settings.range
    return open_shards(settings.shards, size, channels, settings.cache, progress, mix, limit, levels)


def decode_shard(url: str, plan: Plan, count: int, pool: Executor | None = None) -> tuple[np.ndarray, list[str]]:
    """The pixels of a shard's first ``count`` images, count x C x side x side, and a line for each that is broken.

    The place of a broken image is kept, so that numbers stay what they are, and filled with the image before it (the
    next good one for the first).

    Args:
        pool: decodes, a few images at a time, while this thread reads on; without one this thread does both.
    """
    block = np.zeros((count, plan.channels, plan.side, plan.side), dtype=np.uint8)
    good = np.zeros(count, dtype=bool)
    broken: list[str] = []
    images = (image for image, _ in islice(samples(url), count))
    flying: list[tuple[int, Future[tuple[np.ndarray, list[str | None]]]]] = []

    def land(start: int, decoded: tuple[np.ndarray, list[str | None]]) -> None:
        rows, reasons = decoded
        fine = np.flatnonzero([why is None for why in reasons]) + start
        block[fine], good[fine] = rows, True
        broken.extend(f"{url}, image {start + i}: {why}" for i, why in enumerate(reasons) if why is not None)

    place = 0
    while chunk := list(islice(images, CHUNK)):
        if pool is None:
            land(place, decode_many(chunk, plan))
        else:
            with main_hidden():
                flying.append((place, pool.submit(decode_many, chunk, plan)))
            if len(flying) > 64:  # of contents waiting to be decoded
                start, first = flying.pop(0)
                land(start, first.result())
        place += len(chunk)
    for start, future in flying:
        land(start, future.result())
    if place != count:
        raise Changed(f"shard {url} has changed: it had {count} images and has {place}; bring back what it held")
    if not good.any():
        raise PrelaxError(f"none of the {count} images of shard {url} can be read; the first: {broken[0]}")
    sound = np.flatnonzero(good)
    for bad in np.flatnonzero(~good):
        before = int(np.searchsorted(sound, bad)) - 1
        block[bad] = block[sound[max(before, 0)]]
    return block, broken


class ShardStore:
    """Batches of a `ShardSet`, uint8 B x C x H x W on the device, in an order its `ShardSet.walk` gave.

    Host memory holds the decoded images of at most ``2 * lanes`` shards, or of as many as one batch needs. ``broken``
    lists the images that could not be read so far.

    Args:
        workers: processes that decode; None for one a core, 0 for a thread of this process.
        lanes: of a batch that this process has; None for all.
    """

    where = "shards"

    def __init__(
        self, shards: ShardSet, device: torch.device | str, workers: int | None = None, lanes: int | None = None
    ) -> None:
        self.shards, self.device = shards, torch.device(device)
        self.open_at_once = 2 * (shards.mix if lanes is None else lanes)
        self.shape = shards.shape
        self.broken: dict[str, None] = {}
        self._told: set[str] = set()
        self._starts = torch.tensor([0, *shards.counts]).cumsum(0)
        if workers is None:  # the cores, among the processes of this machine
            workers = max(1, core_count() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        self._pool: ProcessPoolExecutor | None = process_pool(workers) if workers else None
        self._readers = ThreadPoolExecutor(self.open_at_once if workers else 1, "prelax-shards")

    def __len__(self) -> int:
        return len(self.shards)

    def close(self) -> None:
        """Ends the threads and processes."""
        self._readers.shutdown(wait=True, cancel_futures=True)
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def read(self, shard: int) -> tuple[np.ndarray, list[str]]:
        """A shard's pixels; one that is remote is tried a few times."""
        url, images = self.shards.urls[shard], self.shards.counts[shard]
        try:
            return tried(url, lambda: decode_shard(url, self.shards.plan, images, self._pool))
        except BrokenProcessPool:
            raise PrelaxError("a decoding process died; set data.workers to a smaller number, or to 0") from None
        except Changed:
            if self.shards.counted is not None:  # of a remote shard nothing else tells that the count is out of date
                with contextlib.suppress(OSError):
                    self.shards.counted.unlink(missing_ok=True)
            raise

    def new_broken(self) -> list[str]:
        """Lines about broken images that were not given before."""
        fresh = [line for line in list(self.broken) if line not in self._told]
        self._told.update(fresh)
        return fresh

    def batch(self, indices: Tensor) -> Tensor:
        """The images of these numbers, B x C x H x W on the device; reads their shards for them alone."""
        return next(self.batches(indices, len(indices)))[1]

    def batches(self, order: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """(indices, images) in this order, both on the device; shards further on are decoded meanwhile."""
        ids = order.cpu()
        shard_of = torch.bucketize(ids, self._starts, right=True) - 1  # N
        queue = list(dict.fromkeys(shard_of.tolist()))  # shards by first use
        uses = dict(zip(*(part.tolist() for part in shard_of.unique(return_counts=True)), strict=True))
        open_now: dict[int, Future[tuple[np.ndarray, list[str]]]] = {}

        def start(shard: int) -> None:
            queue.remove(shard)
            open_now[shard] = self._readers.submit(self.read, shard)

        def gather(positions: Tensor, out: Tensor) -> Tensor:
            wanted = ids[positions]
            which = shard_of[positions]
            for shard in which.unique().tolist():
                if shard not in open_now:
                    start(shard)
            while queue and len(open_now) < self.open_at_once:
                start(queue[0])
            for shard in which.unique().tolist():
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
