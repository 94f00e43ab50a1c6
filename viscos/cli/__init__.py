"""The command line: `viscos train|impute|eval|bench|table|figure`.

This file imports neither torch nor Hydra, so that help and completion answer at once.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence

from viscos.cli import help, shell
from viscos.cli.outline import COMMANDS
from viscos.cli.output import lasting
from viscos.core.errors import InputError
from viscos.core.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (default: the process's own) and returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    first = arguments[0] if arguments else "--help"
    label = f"viscos {first}" if first in COMMANDS else "viscos"
    with lasting():
        try:
            return _dispatch(first, arguments[1:])
        except InputError as error:
            print(f"{label}: {' '.join(str(error).split())}", file=sys.stderr)
            return 2
        except KeyboardInterrupt as interrupt:
            print(f"{label}: {str(interrupt) or 'interrupted'}", file=sys.stderr)
            return 130


def _dispatch(first: str, rest: list[str]) -> int:
    if first in COMMANDS:
        return _command(first, rest)
    answers: dict[str, Callable[[], str]] = {
        "-h": help.overview,
        "--help": help.overview,
        "--version": lambda: f"viscos {__version__}",
        "--completion": lambda: shell.script(rest[0] if rest else "bash"),
        "--complete": lambda: "\n".join(shell.candidates(rest[0] if rest else "")),
    }
    if first not in answers:
        near = difflib.get_close_matches(first, [*COMMANDS, *answers], n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"commands are {', '.join(COMMANDS)}"
        raise InputError(f"there is no command {first!r}; {hint} (`viscos --help` explains them)")
    print(answers[first]())
    return 0


def _command(command: str, arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(help.command(command, arguments))
        return 0
    from viscos.cli import app, resume

    folder = resume.requested(command, arguments)
    return resume.run(command, folder, arguments) if folder else app.run(command, arguments)
