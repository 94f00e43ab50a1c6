"""What draws come to: mean, deviation and quantiles of every entry, and a table of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.quantiles import quantiles as of_draws
from viscos.core.quantiles import variance
from viscos.inference.imputation import Completions
from viscos.inference.terms import Returned, Terms

INTERVAL = (0.05, 0.95)
"""Quantiles between which nine of ten draws are."""
_LINES = 20  # of a table, at most


def deviation(done: Completions, observed: Tensor) -> Tensor:
    """The standard deviation over the draws that were solved (B, …); NaN where fewer than two were, 0 on `observed`."""
    return torch.where(observed, 0, variance(done.draws).sqrt())  # rounding of the mean is no deviation


def quantiles(done: Completions, q: float | Sequence[float]) -> Tensor:
    """Quantiles of the draws that were solved, (B, …), or (n, B, …) of several; NaN on H where none was.

    They are placed as in `viscos.core.quantiles`. Raises `InputError` for a share outside [0, 1].
    """
    shares = torch.as_tensor(q, dtype=done.draws.dtype, device=done.draws.device)
    if shares.dim() > 1 or not bool(((shares >= 0) & (shares <= 1)).all()):
        raise InputError(f"quantiles are of shares between 0 and 1, got {q}")
    return of_draws(done.draws, shares.view(-1)).view(*shares.shape, *done.draws.shape[1:])


@dataclass(frozen=True)
class Summary:
    """Mean, deviation and central 90 % interval of every entry; printed, a table of the hidden ones."""

    mean: Returned
    """(B, …), as every field in the caller's units."""
    std: Returned
    """(B, …), 0 where observed."""
    low: Returned
    """The 5 % quantile (B, …)."""
    high: Returned
    """The 95 % quantile (B, …)."""
    bound: Returned
    """A lower bound of log p(y^O) (B,), in nats."""
    failed: Returned
    """Share of the draws that were not solved (B,)."""
    hidden: np.ndarray
    """(B, …), bool."""
    columns: tuple[str, ...] = ()
    """Names of the entries of a vector."""

    def __str__(self) -> str:
        rows = list(self._entries() if self.hidden.ndim == 2 else self._items())
        more = [f"… and {len(rows) - _LINES} more"] if len(rows) > _LINES else []
        return "\n".join([*aligned([self._head(), *rows[:_LINES]]), *more])

    __repr__ = __str__

    def _head(self) -> tuple[str, ...]:
        if self.hidden.ndim == 2:
            return "item", "entry", "mean", "std", "5 %", "95 %"
        return "item", "hidden", "mean std", "bound", "failed"

    def _entries(self) -> Iterator[tuple[str, ...]]:
        """A row for each hidden entry of a vector."""
        numbers = [np.asarray(v) for v in (self.mean, self.std, self.low, self.high)]
        for i, j in np.argwhere(self.hidden):
            yield str(i), self.columns[j] if self.columns else str(j), *(f"{v[i, j]:.4g}" for v in numbers)

    def _items(self) -> Iterator[tuple[str, ...]]:
        """A row for each item."""
        std, bound, failed = (np.asarray(v) for v in (self.std, self.bound, self.failed))
        for i, hidden in enumerate(self.hidden):
            spread = f"{std[i][hidden].mean():.4g}" if hidden.any() else "-"
            yield str(i), f"{hidden.mean():.1%}", spread, f"{bound[i]:.4g}", f"{failed[i]:.1%}"


def summarised(done: Completions, mean: Returned, bound: Returned, terms: Terms) -> Summary:
    """The summary of draws whose mean and bound are known."""
    low, high = quantiles(done, INTERVAL)
    return Summary(
        mean,
        terms.spreads(deviation(done, terms.observed.to(done.draws.device))),
        terms.values(low),
        terms.values(high),
        bound,
        terms.plain((~done.ok).double().mean(0)),
        (~terms.observed).cpu().numpy(),
        terms.columns,
    )


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table whose columns stand under each other, all to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
