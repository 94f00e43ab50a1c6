"""The items of `viscos impute`, completed, as they are written to files."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from viscos.inference.diagnosis import WORDS


@dataclass(frozen=True)
class Completed:
    """The items of a job, completed: in the data's own units, of a table by its columns, on the CPU.

    What is observed is as it was given.
    """

    values: Tensor
    """As they were given (N, …)."""
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
    before: Tensor | None = None
    """A draw of before a fit (N, …), if there was one."""
    verdicts: tuple[tuple[str, str], ...] = ()
    """How far each item is to be trusted, a word and its reason, if draws were weighed."""

    def worst(self, items: range) -> tuple[str, str] | None:
        """The worst verdict on some items; None if there is none."""
        return max((self.verdicts[i] for i in items if self.verdicts), key=lambda v: WORDS.index(v[0]), default=None)
