"""The one exception that speaks to the user."""


class PrelaxError(Exception):
    """A mistake the user can mend: one line that says what was wrong, where, and what to do.

    Raised at the door (settings, data, files), never deep inside. The command line prints the line and exits with 2;
    a traceback only appears with ``--debug``.
    """
