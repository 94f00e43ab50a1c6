"""Progress bars with the numbers that matter."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bar:
    """One bar; `update` sets how far it is and its figures."""

    def __init__(self, progress: Progress, task: int) -> None:
        self._progress, self._task = progress, task
        self._figures: dict[str, float] = {}

    def update(self, done: int, figures: dict[str, float] | None = None) -> None:
        """`done` of the total; figures that are not given stay."""
        self._figures |= figures or {}
        text = "  ".join(f"{name} {value:.4g}" for name, value in self._figures.items())
        self._progress.update(self._task, completed=done, figures=text)  # type: ignore[arg-type]


@contextmanager
def bar(what: str, total: int, done: int = 0) -> Iterator[Bar]:
    """A bar on standard error; where that is not a terminal, one line at the end."""
    console = Console(file=sys.stderr)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=console, refresh_per_second=4) as progress:
        task = progress.add_task(what, total=total, completed=done, figures="")
        yield Bar(progress, task)
