"""Decoding with all cores."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

import numpy as np

from prelax.data.decode import Plan, Source, decode_many
from prelax.data.memory import core_count
from prelax.errors import PrelaxError

CHUNK = 32  # files a process takes at a time
FEW = 256  # with fewer files, starting processes costs more than it saves

Block = tuple[np.ndarray, list[str | None]]
_hiding = threading.Lock()  # two threads that hide and show would leave it hidden


@contextlib.contextmanager
def main_hidden() -> Iterator[None]:
    """Starts processes that do not import the caller's script, and do not hear Ctrl-C.

    They only run `decode_many`; without this, a script that loads data at its top level, with no
    ``if __name__ == "__main__":``, would be run again in every process. A terminal sends Ctrl-C to all of them, and
    each would print a traceback; what this thread does not hear, they do not hear from their first moment on.
    """
    main = sys.modules["__main__"]
    with _hiding:
        heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        hidden = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
        try:
            for name in hidden:
                setattr(main, name, None)
            yield
        finally:
            for name, value in hidden.items():
                setattr(main, name, value)
            signal.pthread_sigmask(signal.SIG_SETMASK, heard)


def process_pool(count: int) -> ProcessPoolExecutor:
    """Processes for decoding; submit to it inside `main_hidden`."""
    # Not fork: this process may hold CUDA and threads. A fork server imports once for all of its children.
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["prelax.data.decode"])
    return ProcessPoolExecutor(count, mp_context=context, initializer=end_with_parent)


def end_with_parent() -> None:
    """Ends this process when the one that started it is gone: killed, it could not end its workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where the fork server was there before, and hears Ctrl-C
    parent = multiprocessing.parent_process()

    def watch() -> None:
        parent.join()  # type: ignore[union-attr]
        os._exit(1)

    if parent is not None:
        threading.Thread(target=watch, name="prelax-parent", daemon=True).start()


def decode_all(paths: Sequence[Source], plan: Plan, workers: int | None) -> Iterator[Block]:
    """Decoded blocks in the order of ``paths``, each with None or a reason for each of its files.

    Args:
        paths: of files, or their contents.
        workers: processes; None for one a core, 0 to decode in this process.
    """
    chunks = (paths[start : start + CHUNK] for start in range(0, len(paths), CHUNK))
    count = core_count() if workers is None else workers
    if count == 0 or (workers is None and (len(paths) < FEW or count == 1)):
        yield from (decode_many(chunk, plan) for chunk in chunks)
        return
    waiting: deque[Future[Block]] = deque()
    pool = process_pool(count)
    try:
        with main_hidden():
            for chunk in islice(chunks, 3 * count):
                waiting.append(pool.submit(decode_many, chunk, plan))
        while waiting:
            yield waiting.popleft().result()
            for chunk in islice(chunks, 1):
                waiting.append(pool.submit(decode_many, chunk, plan))
    except BrokenProcessPool:
        raise PrelaxError(
            "a decoding process died (out of memory, or a file that crashes the decoder); set data.workers to a "
            "smaller number, or to 0 to decode in one process"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
