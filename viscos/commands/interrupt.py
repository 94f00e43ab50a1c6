"""Ctrl-C and SIGTERM between two steps of a loop, where nothing is half done; and how what they end goes on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from viscos.core.atomic import WriteError
from viscos.core.typed import typed


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


SAVED_EVERY = 300.0
"""Seconds after which what is learnt is saved, where nothing else has saved it."""
_USUAL = {signal.SIGINT: (signal.default_int_handler,), signal.SIGTERM: (signal.SIG_DFL, _interrupt)}


@contextmanager
def held(passed_on: Callable[[int], None] = lambda number: None) -> Iterator[Callable[[], bool]]:
    """Holds Ctrl-C and SIGTERM back: the function that it gives tells whether one of them came.

    A second Ctrl-C interrupts at once. A second SIGTERM does not: batch systems send it to a process and to its parent,
    which passes it on. `passed_on` gets the number of every signal.
    """
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        passed_on(number)
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked = True

    # Signals can be handled in the main thread only; and who ignores Ctrl-C, as a job in the background, goes on to.
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in _USUAL}
    mine = {number: handler for number, handler in before.items() if main and handler in _USUAL[number]}
    for number in mine:
        signal.signal(number, handle)
    try:
        yield lambda: asked
    finally:
        for number, usual in mine.items():
            signal.signal(number, usual)


@contextmanager
def resumable(command: str, run_dir: Path, begun: Callable[[], bool]) -> Iterator[None]:
    """Lets an interruption, and a write that failed, say with which command the run goes on, if it has `begun`."""
    goes_on = f"`viscos {command} {typed('resume', run_dir)}` goes on"
    try:
        with terminable():
            yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {goes_on}" if begun() else "interrupted") from None
    except WriteError as error:
        raise (WriteError(f"{error}; then {goes_on}") if begun() else error) from error.__cause__


@contextmanager
def terminable() -> Iterator[None]:
    """Lets SIGTERM interrupt as Ctrl-C does, where nothing holds it back: it would end the process without a word."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
