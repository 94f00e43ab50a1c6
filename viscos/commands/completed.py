"""The items of `viscos impute`, completed, as they are written to files."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


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
