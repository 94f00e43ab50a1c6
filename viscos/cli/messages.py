"""Errors as one line each."""

from __future__ import annotations

import sys
import traceback

from viscos.core.errors import InputError


def _bad_input(error: BaseException | None) -> InputError | None:
    """The `InputError` that `error` is or came from; builders wrap what a constructor raises."""
    while error is not None and not isinstance(error, InputError):
        error = error.__cause__
    return error


def report(label: str, error: Exception) -> int:
    """Prints what went wrong in a command, and returns the exit status: bad input is one line, the rest a traceback."""
    cause = _bad_input(error)
    if cause is None:
        traceback.print_exception(error)
        return 1
    print(f"{label}: {reason(error)}", file=sys.stderr)
    return 2


def reason(error: Exception) -> str:
    """What went wrong, in one line."""
    cause = _bad_input(error)
    return " ".join((str(cause) if cause else f"{type(error).__name__}: {error}").split())
