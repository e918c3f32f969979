"""A user's own class by name: an augmentation or a backbone given as MODULE:CLASS."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from prelax.errors import PrelaxError


def make_own(name: str, what: str, base: type = object, **options: Any) -> Any:
    """An object of the class ``MODULE:CLASS``, imported from where Python finds modules, this folder among them.

    Only a class is called: settings may come with somebody else's run folder.

    Args:
        name: the class, as the user gave it.
        what: it is, for the message when it cannot be made.
        base: what the class must be.
        options: it is made with.
    """
    module, _, attribute = name.partition(":")
    where = os.getcwd()
    if where not in sys.path:
        sys.path.insert(0, where)
    try:
        made = getattr(importlib.import_module(module), attribute)
        if not (isinstance(made, type) and issubclass(made, base)):
            raise TypeError(f"{attribute} is no {'class' if base is object else base.__name__}")
        return made(**options)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise PrelaxError(f"{what} {name}: {error}; it must be MODULE:CLASS, importable from here") from None
