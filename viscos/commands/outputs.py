"""The files that stand beside `completions.npz`, by what the items came from: a table, pictures, or arrays."""

from __future__ import annotations

from viscos.commands.assemble.imputing import Imputing
from viscos.commands.completed import Completed
from viscos.commands.pictures import save_pictures
from viscos.commands.tables import Filled


def write(job: Imputing, done: Completed) -> list[str]:
    """Writes them into the run folder; returns their names."""
    if job.items.rows is not None:
        return _table(job, done)
    return save_pictures(job, done) if job.items.pictures else []


def _table(job: Imputing, done: Completed) -> list[str]:
    """The tables of a file with a header."""
    rows = job.items.rows
    assert rows is not None
    return Filled(rows, job.saved.scheme, done.mean, done.draws, done.known, done.observed).write(job.run_dir)
