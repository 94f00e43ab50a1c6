"""Progress with the numbers that matter."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

VERBOSITIES = ("quiet", "normal", "verbose")
"""How much a command says: where its results are and what went wrong; what it finds, too; and every record of it."""
_said = ["normal"]
INTERVAL = 30.0
"""Seconds between two lines where there is no terminal."""
FORECAST = 60.0
"""Seconds after which a loop that has as many to go says, once, what it will take in all."""


def set_verbosity(word: str) -> None:
    """Sets how much this process says from now on, one of `VERBOSITIES`."""
    _said[0] = word


def says(least: str) -> bool:
    """Whether this process says what is for `least` and above."""
    return VERBOSITIES.index(_said[0]) >= VERBOSITIES.index(least)


def say(line: str, least: str = "normal") -> None:
    """Prints a line, or several, unless that is more than this process is to say."""
    if says(least):
        print(line, flush=True)


def note(lines: Iterable[str]) -> None:
    """Prints lines on what was found in the data; of a quiet process the warnings alone."""
    for line in lines:
        say(line, "quiet" if line.startswith("warning: ") else "normal")


class Bar:
    """How far a loop is, and what it measures; `update` takes both, and measurements that are not given stay."""

    def __init__(self, what: str, total: int, done: int) -> None:
        self.what, self.total, self.done = what, total, done
        self._scalars: dict[str, float] = {}
        self._first, self._began, self._told = done, time.monotonic(), False

    def update(self, done: int, scalars: dict[str, float] | None = None) -> None:
        """`done` of the total."""
        self.done = done
        self._scalars |= scalars or {}
        if not self._told and time.monotonic() - self._began >= FORECAST:
            self._told = True
            if self.left >= FORECAST:
                each = (time.monotonic() - self._began) / (done - self._first)
                self.say(f"{self.what}: about {_clock(each * self.total)} for all {self.total}, {each:.2g} s each")
        self.show()

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Goes on with another part of the work, of which `done` of `total` are behind."""
        self.what, self.total, self.done = what, total, done
        self._scalars = {}
        self._first, self._began, self._told = done, time.monotonic(), False

    @property
    def left(self) -> float:
        """Seconds to go at the pace so far; 0 while it is not known."""
        fresh = self.done - self._first
        return (time.monotonic() - self._began) / fresh * (self.total - self.done) if fresh else 0.0

    def say(self, line: str, least: str = "normal") -> None:
        """Prints a line that stays, unless that is more than this process is to say."""
        if says(least):
            self._print(line)

    def _print(self, line: str) -> None:
        """Nothing, where there is nothing to be seen."""

    @property
    def scalars(self) -> str:
        """The numbers in a line."""
        return "  ".join(f"{name} {value:.3g}" for name, value in self._scalars.items())

    def show(self) -> None:
        """Brings what is seen up to date."""


class _Drawn(Bar):
    """A bar that is drawn again and again, on a terminal."""

    def __init__(self, what: str, total: int, done: int, progress: Progress) -> None:
        super().__init__(what, total, done)
        self._progress = progress
        self._task: TaskID = progress.add_task(what, total=total, completed=done, scalars="")

    def begin(self, what: str, total: int, done: int = 0) -> None:
        super().begin(what, total, done)
        self._progress.reset(self._task, description=what, total=total, completed=done, scalars="")

    def show(self) -> None:
        self._progress.update(self._task, completed=self.done, scalars=self.scalars)

    def _print(self, line: str) -> None:
        self._progress.console.print(line, highlight=False, markup=False)


class _Lines(Bar):
    """A plain line now and then, in a log file."""

    def __init__(self, what: str, total: int, done: int, console: Console) -> None:
        super().__init__(what, total, done)
        self._console, self._last, self._shown = console, self._began, -1

    def begin(self, what: str, total: int, done: int = 0) -> None:
        if self.done > self._first:
            self.write()
        super().begin(what, total, done)
        self._last, self._shown = self._began, -1

    def show(self) -> None:
        if time.monotonic() - self._last >= INTERVAL:
            self.write()

    def write(self) -> None:
        """A line, unless this one stands there already."""
        if self.done == self._shown:
            return
        self._last, self._shown = time.monotonic(), self.done
        left = f", {_clock(self.left)} left" if self._first < self.done < self.total else ""
        self.say(f"{self.what} {self.done}/{self.total} in {_clock(self._last - self._began)}{left}  {self.scalars}")

    def _print(self, line: str) -> None:
        print(line.rstrip(), file=self._console.file, flush=True)


@contextmanager
def bar(what: str, total: int, done: int = 0, console: Console | None = None) -> Iterator[Bar]:
    """A bar on standard error, or in a notebook; elsewhere a line every half minute and one at the end.

    Nothing of a process that is quiet.
    """
    if not says("normal"):
        yield Bar(what, total, done)
        return
    console = console or Console(file=sys.stderr)
    notebook = console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None  # rich needs it there
    if not (console.is_terminal or notebook):
        lines = _Lines(what, total, done, console)
        try:
            yield lines
        finally:
            lines.write()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("left  {task.fields[scalars]}"),
    )
    with Progress(*columns, console=console, refresh_per_second=4) as progress:
        yield _Drawn(what, total, done, progress)


@contextmanager
def patient_bar(what: str, patience: float = 3.0) -> Iterator[Callable[[int, int, dict[str, float]], None]]:
    """What shows the progress of a loop: done, total, measurements; nothing if it is over in `patience` seconds."""
    with ExitStack() as shown:
        began, bars = time.monotonic(), list[Bar]()

        def progress(done: int, total: int, scalars: dict[str, float]) -> None:
            if not bars and time.monotonic() - began > patience:
                bars.append(shown.enter_context(bar(what, total, done)))
            for each in bars:
                each.update(done, scalars)

        yield progress


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
