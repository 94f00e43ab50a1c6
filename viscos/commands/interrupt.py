"""Ctrl-C between two steps of a loop, where nothing is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held() -> Iterator[Callable[[], bool]]:
    """Holds Ctrl-C back: the function that it gives tells whether it was pressed. A second one interrupts at once."""
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    # Signals can be handled in the main thread only; and who ignores Ctrl-C, as a job in the background, goes on to.
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: asked
        return
    signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
