"""Pixels kept where they fit, and batches of them on the device."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from prelax.data.ahead import ahead, staging
from prelax.data.images import ImageSet
from prelax.data.memory import available_memory, gigabytes
from prelax.errors import PrelaxError
from prelax.whole import writing

Where = Literal["device", "host", "disk"]
READERS = 8  # threads that read one batch from a disk


def choose_store(need: int, device: torch.device, on_disk: bool) -> Where:
    """Where pixels stay when nobody said: the device if they take under half of its free memory, else the host if they
    take under half of what it has available, else the disk (when they are not on one already: the host)."""
    if device.type == "cuda" and need < 0.5 * torch.cuda.mem_get_info(device)[0]:
        return "device"
    return "disk" if on_disk and need >= 0.5 * available_memory() else "host"


class Store:
    """The pixels of a set, and any batch of them as uint8 B x C x H x W on the device.

    >>> images = torch.arange(12, dtype=torch.uint8).view(3, 1, 2, 2)
    >>> Store(images, "cpu").batch(torch.tensor([2, 0])).flatten(1).tolist()
    [[8, 9, 10, 11], [0, 1, 2, 3]]

    Args:
        images: a set, or its uint8 images N x C x H x W.
        device: where batches are wanted.
        where: "device", "host", "disk", or "auto" (`choose_store`). ``self.where`` says which it became. On the CPU
            "device" and "host" are one thing, plain indexing, and called "host".
    """

    def __init__(self, images: ImageSet | Tensor, device: torch.device | str, where: str = "auto") -> None:
        pixels = images.images if isinstance(images, ImageSet) else images
        file = images.file if isinstance(images, ImageSet) else None
        if pixels.dtype != torch.uint8 or pixels.ndim != 4:
            raise ValueError(f"a store holds uint8 images N x C x H x W, not {pixels.dtype} {tuple(pixels.shape)}")
        self.device = torch.device(device)
        self.shape = tuple(pixels.shape[1:])
        need = pixels.numel()
        chosen = choose_store(need, self.device, file is not None) if where == "auto" else where
        if chosen == "device" and self.device.type == "cpu":
            chosen = "host"
        if chosen not in ("device", "host", "disk"):
            raise PrelaxError(f"data.store={where}: valid: auto, device, host, disk")
        self.where: Where = chosen  # type: ignore[assignment]
        self._count = pixels.shape[0]
        self._rows = pixels.reshape(self._count, -1)  # N x CHW
        self._file: int | None = None
        self._readers: ThreadPoolExecutor | None = None
        if self.where == "device":
            try:
                self._rows = self._rows.to(self.device)
            except torch.OutOfMemoryError:
                raise PrelaxError(
                    f"data.store=device: {gigabytes(need)} of pixels do not fit {self.device}; use data.store=host"
                ) from None
        elif self.where == "disk":
            self._open(file)

    def __len__(self) -> int:
        return self._count

    def _open(self, file: os.PathLike[str] | None) -> None:
        """Reads rows from the file behind the set; one that has none is first written to a temporary file."""
        if file is not None:
            self._file = os.open(file, os.O_RDONLY)
            self._start = os.fstat(self._file).st_size - self._rows.numel()
        else:
            with writing(Path(tempfile.gettempdir())), tempfile.TemporaryFile() as handle:
                for part in self._rows.split(4096):
                    handle.write(part.contiguous().numpy().data)
                handle.flush()
                self._file, self._start = os.dup(handle.fileno()), 0
        self._width = self._rows.shape[1]
        self._rows = self._rows[:0]
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="prelax-read")

    def close(self) -> None:
        """Lets go of the file and the threads; called when the store is no longer used."""
        if self._readers is not None:
            self._readers.shutdown(wait=True)
            self._readers = None
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    # -- one batch ---------------------------------------------------------------------------------------------------

    def batch(self, indices: Tensor) -> Tensor:
        """The images at these positions, uint8, B x C x H x W on the device."""
        if self.where == "device":
            picked = self._rows.index_select(0, indices.to(self.device, non_blocking=True))
        else:
            picked = self._gather(indices.cpu(), staging(len(indices), self.shape, self.device))
            picked = picked.to(self.device, non_blocking=True) if self.device.type == "cuda" else picked
        return picked.view(-1, *self.shape)

    def _gather(self, indices: Tensor, out: Tensor) -> Tensor:
        """Rows of the host's or the disk's pixels into a buffer."""
        if self.where == "host":
            return torch.index_select(self._rows, 0, indices, out=out)
        assert self._readers is not None
        picked = indices.tolist()
        if picked and not (min(picked) >= 0 and max(picked) < self._count):
            raise IndexError(f"position out of range for a store of {self._count} images")
        target = out.numpy().data.cast("B")
        step = -(-len(picked) // READERS) or 1
        jobs = [
            self._readers.submit(self._read, picked, start, start + step, target)
            for start in range(0, len(picked), step)
        ]
        for job in jobs:
            job.result()
        return out

    def _read(self, picked: list[int], start: int, stop: int, target: memoryview) -> None:
        assert self._file is not None
        width = self._width
        for slot in range(start, min(stop, len(picked))):
            at, view = self._start + picked[slot] * width, target[slot * width : (slot + 1) * width]
            while len(view):
                got = os.preadv(self._file, [view], at)
                if got <= 0:
                    raise PrelaxError("the cached pixels were cut short while in use; delete the cache and run again")
                at, view = at + got, view[got:]

    # -- many batches ------------------------------------------------------------------------------------------------

    def batches(self, order: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """(indices, images) in this order, the last batch as short as it comes; the next ones are made ready meanwhile.

        Both are on the device. A thread gathers from the host or the disk into pinned memory, and a stream of its own
        copies from there, so a consumer on the device waits for neither.
        """
        on_device = order.to(self.device)
        if self.where == "device" or (self.where == "host" and self.device.type == "cpu"):
            for indices in on_device.split(batch_size):
                yield indices, self.batch(indices)
            return
        images = ahead(order.cpu().split(batch_size), self._gather, self.shape, self.device)
        yield from zip(on_device.split(batch_size), images, strict=True)
