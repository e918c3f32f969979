"""What can be known to be wrong before any work starts: names that do not exist, files that are not there."""

from __future__ import annotations

from collections.abc import Iterable

from prelax.config import Settings, nearest
from prelax.errors import PrelaxError


def check(settings: Settings) -> Settings:
    """The settings themselves, once every name in them is one there is; refuses with the nearest valid name.

    >>> from prelax.config import resolve
    >>> check(resolve("digits/simsiam", ["method.name=simsam"]))
    Traceback (most recent call last):
    prelax.errors.PrelaxError: method.name: no 'simsam'; did you mean simsiam?
    """
    from prelax.augment import OPERATIONS, PRESETS, operation
    from prelax.data import SOURCES
    from prelax.data.tars import expand
    from prelax.nets import BACKBONES
    from prelax.objectives import METHODS, method

    if ":" in settings.method.name:
        method(settings.method.name)  # a user's own: refused here if it cannot be imported
    else:
        known(settings.method.name, METHODS, "method.name")
    if ":" in settings.method.relax:
        operation(settings.method.relax)  # a user's own: refused here if it cannot be imported
    else:
        known(settings.method.relax, [name for name in OPERATIONS if name != "normalise"], "method.relax")
    known(settings.data.source, SOURCES, "data.source")
    known(settings.augment.preset, [*PRESETS, "auto"], "augment.preset")
    if ":" not in settings.model.backbone:
        known(settings.model.backbone, BACKBONES, "model.backbone")
    root = settings.data.root
    if root is not None and not settings.data.download and not root.expanduser().exists():
        raise PrelaxError(f"data.root: there is no {root}; if it was moved, say where it is: data.root=FOLDER")
    if settings.data.shards is not None:
        expand(settings.data.shards)
    elif settings.data.source == "folder" and root is None:
        raise PrelaxError("data.root is not set: say where the images are, for example data.root=./photos")
    return settings


def known(name: str, valid: Iterable[str], key: str) -> None:
    valid = list(valid)
    if name not in valid:
        raise PrelaxError(f"{key}: no {name!r}{nearest(name, valid)}")
