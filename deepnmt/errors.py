"""Expected errors: a one-sentence message for the user, and an exit status."""


class InputError(Exception):
    """Bad usage or bad input. The message names the file, line or setting and what to do; exit status 2."""

    status = 2


class RunError(Exception):
    """The input was valid, but the work failed (disk full, training diverged); exit status 1."""

    status = 1
