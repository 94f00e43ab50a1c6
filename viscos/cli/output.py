"""Output that outlasts whoever reads it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any


class _Lasting:
    """A stream whose reader may leave, as `head` does: what comes after that goes nowhere, and the work goes on."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes the text, if anybody reads it."""
        try:
            self._stream.write(text)
        except BrokenPipeError:
            self._leave()
        return len(text)

    def flush(self) -> None:
        """Hands on what was written, if anybody reads it."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._leave()

    def _leave(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())  # also for what Python flushes at its end
        os.close(nowhere)


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Standard output and error outlast their readers meanwhile; in the end what was written is handed on."""
    with contextlib.ExitStack() as stack:
        # Either may be None, as where it was closed.
        if sys.stdout is not None:
            stack.callback(stack.enter_context(contextlib.redirect_stdout(_Lasting(sys.stdout))).flush)
        if sys.stderr is not None:
            stack.callback(stack.enter_context(contextlib.redirect_stderr(_Lasting(sys.stderr))).flush)
        yield
