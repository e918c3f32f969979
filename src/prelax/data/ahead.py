"""Batches made ready before they are asked for."""

from __future__ import annotations

import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

AHEAD = 3  # batches


def staging(rows: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """A buffer for some images, one a row; pinned when they go on to a GPU."""
    return torch.empty(rows, math.prod(shape), dtype=torch.uint8, pin_memory=device.type == "cuda")


def ahead(
    parts: Sequence[Tensor], gather: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...], device: torch.device
) -> Iterator[Tensor]:
    """The images of each part, B x C x H x W on the device, gathered by a thread while the caller works.

    Args:
        parts: positions of each batch.
        gather: fills a buffer B x CHW with the images at some positions, and returns it; called part by part.

    The thread calls nothing of CUDA: the caller may be capturing a graph, which such a call would break. Copies
    are started from the caller's thread, as soon as a batch is asked for and others lie ready.
    """
    cuda = device.type == "cuda"
    stream = torch.cuda.Stream(device) if cuda else None
    largest = max((len(part) for part in parts), default=0)
    free: queue.Queue[Tensor | None] = queue.Queue()  # buffers to fill; None: make one
    ready: queue.Queue[Tensor | BaseException] = queue.Queue()
    stop = threading.Event()
    for _ in range(2 * AHEAD):
        free.put(staging(largest, shape, device) if cuda else None)

    def work() -> None:
        try:
            for indices in parts:
                buffer = free.get()
                if stop.is_set():
                    return
                buffer = staging(len(indices), shape, device) if buffer is None else buffer
                ready.put(gather(indices, buffer[: len(indices)]))
        except BaseException as error:  # handed to the caller, who raises it
            ready.put(error)

    def take() -> Tensor:
        item = ready.get()
        if isinstance(item, BaseException):
            raise item
        return item

    thread = threading.Thread(target=work, name="prelax-ahead", daemon=True)
    thread.start()
    try:
        if not cuda:
            for _ in parts:
                rows = take()
                free.put(None)
                yield rows.view(-1, *shape)
            return
        flying: deque[tuple[Tensor, Tensor, torch.cuda.Event]] = deque()  # on the device, its buffer, copy done
        landed: deque[tuple[Tensor, torch.cuda.Event]] = deque()  # buffers to use again once their copy is done
        left = len(parts)
        for _ in parts:
            while landed and (not flying or landed[0][1].query()):
                landed[0][1].synchronize()
                buffer, _ = landed.popleft()
                free.put(buffer)
            while left and len(flying) < AHEAD and (not flying or not ready.empty()):
                rows, event = take(), torch.cuda.Event()
                with torch.cuda.stream(stream):
                    images = rows.to(device, non_blocking=True)
                    event.record()
                flying.append((images, rows, event))
                left -= 1
            images, rows, event = flying.popleft()
            current = torch.cuda.current_stream(device)
            current.wait_event(event)
            images.record_stream(current)  # made on the other stream; not to be reused before this one is done
            landed.append((rows._base if rows._base is not None else rows, event))
            yield images.view(-1, *shape)
    finally:
        stop.set()
        free.put(None)  # wakes the thread
        thread.join()
