"""The exception and the warning that speak to the user, and names that can be shown."""

import re

NO_TEXT = re.compile("[\ud800-\udfff]")


class PrelaxError(Exception):
    """A mistake the user can mend: one line that says what was wrong, where, and what to do.

    Raised at the door (settings, data, files), never deep inside. The command line prints the line and exits with 2;
    a traceback only appears with ``--debug``.
    """


class PrelaxWarning(UserWarning):
    """Something a run goes on without. The command line prints it as one line, once."""


def first_line(error: BaseException) -> str:
    """What an error of another library says first, in one short line, or its name."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def readable(text: str) -> str:
    """Text that any file can hold: bytes that are no UTF-8, as file names may have them, are escaped.

    >>> print(readable("caf\\udce9.png"))
    caf\\xe9.png
    """
    return NO_TEXT.sub(lambda found: escaped(ord(found[0])), text)


def escaped(code: int) -> str:
    """A lone surrogate in letters; Python keeps a byte that is no text as one of 0xDC80 and above."""
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def printable(path: str) -> str:
    """A path that any log or table can hold: bytes that are no text and control characters are escaped."""
    if path.isprintable():
        return path
    text = readable(path)
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
