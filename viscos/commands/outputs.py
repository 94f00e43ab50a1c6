"""The files that stand beside `completions.npz`, by what the items came from: a table, pictures, or arrays."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from viscos.commands.assemble.imputing import Imputing
from viscos.commands.tables import Filled


@dataclass(frozen=True)
class Completed:
    """The items of a job, completed: in the data's own units, of a table by its columns, on the CPU.

    What is observed is as it was given.
    """

    draws: Tensor
    """(K, N, …); NaN where the solve failed."""
    mean: Tensor
    """Of the draws that were solved (N, …)."""
    known: Tensor
    """(N, …), bool, true where there is a value."""
    observed: Tensor
    """(N, …), bool, true where a value was known and used."""
    solved: Tensor
    """(K, N), bool."""
    paired: bool
    """Whether the draws are in antithetic pairs."""


def write(job: Imputing, done: Completed) -> list[str]:
    """Writes them into the run folder; returns their names."""
    if job.items.rows is not None:
        return _table(job, done)
    return []


def _table(job: Imputing, done: Completed) -> list[str]:
    """The tables of a file with a header."""
    rows = job.items.rows
    assert rows is not None
    return Filled(rows, job.saved.scheme, done.mean, done.draws, done.known, done.observed).write(job.run_dir)
