"""Whether the files of a known dataset are there at all."""

from __future__ import annotations

from prelax.config import DataSettings
from prelax.data import known
from prelax.data.cache import cache_folder
from prelax.data.cifar import find, load_cifar
from prelax.errors import PrelaxError


def missing(data: DataSettings) -> str | None:
    """Why nothing can be read, found without reading an image; None where there may be something.

    >>> missing(DataSettings(source="digits")), missing(DataSettings(source="imagenette"))[:21]
    (None, 'data.root is not set;')
    """
    if data.shards is not None or data.download:
        return None
    try:
        if data.source in known.HOW:
            known.located(data)
        elif data.source in ("cifar10", "cifar100"):
            root = (data.root or cache_folder(data.cache) / data.source).expanduser()
            if find(data.source, root) is None:
                load_cifar(data, "train")  # says where it looked
    except PrelaxError as error:
        return str(error)
    return None
