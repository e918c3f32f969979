"""The exception and the warning that speak to the user."""


class PrelaxError(Exception):
    """A mistake the user can mend: one line that says what was wrong, where, and what to do.

    Raised at the door (settings, data, files), never deep inside. The command line prints the line and exits with 2;
    a traceback only appears with ``--debug``.
    """


class PrelaxWarning(UserWarning):
    """Something a run goes on without. The command line prints it as one line, once."""


def first_line(error: BaseException) -> str:
    """What an error of another library says first, or its name."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
