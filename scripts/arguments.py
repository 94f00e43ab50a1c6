"""What the options of the scripts may be; what is wrong with them, or with a run, is said in a line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from viscos.core.errors import InputError


def number(text: str) -> int:
    """A whole number, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return int(text)


def share(text: str) -> float:
    """A number above 0 and below 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share between 0 and 1")
    return value


def started(main: Callable[[], None]) -> None:
    """Runs a script to its end; bad input ends it with a line and exit status 2, Ctrl-C with 130."""
    try:
        main()
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
