"""The files that stand beside `completions.npz`, by what the items came from: a table, pictures, or arrays."""

from __future__ import annotations

import shutil
from pathlib import Path

from viscos.commands.assemble.imputing import Imputing
from viscos.commands.completing import pictures, tables
from viscos.commands.completing.completed import Completed

CHECKED = "check.csv"
"""How far off the completions of a table are, a line for each column."""
_LEFT = (*pictures.LEFT, *tables.LEFT, CHECKED, "completions.png", "draws.png")
"""What `viscos impute` may leave in a run folder besides what every run does, by name or pattern."""


def write(job: Imputing, done: Completed) -> list[str]:
    """Writes them into the run folder, where none of a run that is overwritten stay; returns their names."""
    for pattern in _LEFT:
        for path in job.run_dir.glob(pattern):
            _remove(path)
    if job.items.rows is not None:
        return _table(job, done)
    return pictures.save_pictures(job, done) if pictures.drawable(job) else []


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _table(job: Imputing, done: Completed) -> list[str]:
    """The tables of a file with a header."""
    rows = job.items.rows
    assert rows is not None
    return tables.Filled(rows, job.saved.scheme, done.mean, done.draws, done.known, done.observed).write(job.run_dir)
