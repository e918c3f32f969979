"""What a user brings by name: an augmentation or a backbone as MODULE:CLASS, a method or a preset as MODULE:NAME."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from prelax.errors import PrelaxError, first_line


def find_own(name: str, what: str, form: str = "MODULE:NAME") -> Any:
    """What ``MODULE:NAME`` names, imported from where Python finds modules, this folder among them.

    Args:
        name: as the user gave it.
        what: it is, for the message when it cannot be found.
        form: of a name, for the same message.
    """
    module, _, attribute = name.partition(":")
    where = os.getcwd()
    if where not in sys.path:
        sys.path.insert(0, where)
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise PrelaxError(f"{what} {name}: {error}; it must be {form}, importable from here") from None
    except PrelaxError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {first_line(error)}"
        raise PrelaxError(f"{what} {name}: importing {module} failed ({said}); mend {module}") from None


def make_own(name: str, what: str, base: type = object, **options: Any) -> Any:
    """An object of the class ``MODULE:CLASS``.

    Only a class is called: settings may come with somebody else's run folder.

    Args:
        name: the class, as the user gave it.
        what: it is, for the message when it cannot be made.
        base: what the class must be.
        options: it is made with.
    """
    made = find_own(name, what, "MODULE:CLASS")
    try:
        if not (isinstance(made, type) and issubclass(made, base)):
            attribute = name.partition(":")[2]
            raise TypeError(f"{attribute} is no {'class' if base is object else base.__name__}")
        return made(**options)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise PrelaxError(f"{what} {name}: {error}; it must be MODULE:CLASS, importable from here") from None
