"""Image representations learnt without labels, from augmentations that keep meaning and those that change it.

>>> import prelax
>>> prelax.augment.preset("simsiam-32").specs[0].name
'crop.y'
>>> dir(prelax)[1:4]  # what the Tab key offers
['augment', 'config', 'data']

``prelax.load(RUN)`` gives a trained backbone with its preprocessing. Parts are imported when they are first used:
``import prelax`` itself takes no time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from prelax import augment, config, data, evaluate, nets, objectives, report, theory, train
    from prelax.loading import load

PARTS = ("augment", "config", "data", "evaluate", "nets", "objectives", "report", "theory", "train")

__all__ = [
    "__version__",
    "augment",
    "config",
    "data",
    "evaluate",
    "load",
    "nets",
    "objectives",
    "report",
    "theory",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in PARTS:
        return importlib.import_module(f"prelax.{name}")
    if name == "load":
        return importlib.import_module("prelax.loading").load
    raise AttributeError(f"module 'prelax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
