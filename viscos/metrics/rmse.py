"""Root mean squared error over hidden entries, in the units of the data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.data.items import PIXELS, Units

NORMAL_95 = 1.959963984540054
"""The 97.5 % point of the standard normal distribution: half-width of a 95 % interval in standard errors."""


@dataclass(frozen=True)
class Summary:
    """Mean of a number that each item has, and how sure it is. NaN where there are too few items to tell."""

    mean: float
    std: float
    """Standard deviation between items, with n − 1."""
    low: float
    high: float
    """The 95 % interval of the mean, mean ∓ 1.96 std / √n: of the mean, not of the items."""

    @classmethod
    def of(cls, numbers: Tensor) -> Summary:
        """The summary of `numbers` (n,)."""
        n = len(numbers)
        mean = numbers.mean().item() if n else math.nan
        std = numbers.std().item() if n > 1 else math.nan
        half = NORMAL_95 * std / math.sqrt(n) if n > 1 else math.nan
        return cls(mean, std, mean - half, mean + half)


@dataclass
class RMSE:
    """Accumulates the error of completions over hidden entries only; those of images are clamped to [0, 1] first."""

    units: Units = PIXELS
    failed: int = 0
    """Items left out because their completion failed."""
    nothing_hidden: int = 0
    """Items left out because nothing of them was hidden."""
    _squared: list[Tensor] = field(default_factory=list, repr=False)
    _entries: list[Tensor] = field(default_factory=list, repr=False)
    _counted: list[Tensor] = field(default_factory=list, repr=False)
    """Of every item that was given, whether it is counted (B,)."""
    _columns: Tensor | float = field(default=0.0, repr=False)
    """Sums of squares, and counts, of each entry (2, d)."""

    def update(self, completed: Tensor, truth: Tensor, hidden: Tensor, ok: Tensor | None = None) -> None:
        """Adds a batch: `completed` and `truth` (B, …), `hidden` (bool, B, …) and which completions are `ok` (bool, B).

        Raises `InputError` if shapes or dtypes do not fit, if a hidden truth is not finite or, of an image, outside
        [0, 1], or if an item that is said to be ok has a completion that is not finite.
        """
        check_batch(completed, truth, hidden, self.units)
        ok = item_mask(ok, len(truth), truth.device)
        hidden, truth, completed = hidden.flatten(1), truth.flatten(1), completed.flatten(1)
        broken = (~torch.isfinite(completed) & hidden).any(1) & ok
        if broken.any():
            item = int(broken.nonzero()[0])
            raise InputError(f"completion {item} of the batch is not finite; mark failed items as not ok")
        completed = completed.double().clamp(0, 1) if self.units.clamped else completed.double()
        squares = torch.where(hidden, completed - truth.double(), 0.0).square()
        squared = squares.sum(1)
        entries = hidden.sum(1)
        counted = ok & (entries > 0)
        self.failed += int((~ok).sum())
        self.nothing_hidden += int((ok & (entries == 0)).sum())
        if self.units.columns:
            sums = torch.stack([squares[counted].sum(0), hidden[counted].double().sum(0)])
            self._columns = self._columns + sums.cpu()
        self._squared.append(squared[counted].cpu())
        self._entries.append(entries[counted].cpu())
        self._counted.append(counted.cpu())

    @property
    def count(self) -> int:
        """Items counted."""
        return sum(len(part) for part in self._entries)

    @property
    def entries(self) -> int:
        """Hidden entries counted."""
        return sum(int(part.sum()) for part in self._entries)

    @property
    def pooled(self) -> float:
        """Root of the mean of squares over all hidden entries of all items; NaN if there are none."""
        total = sum(float(part.sum()) for part in self._squared)
        return math.sqrt(total / self.entries) if self.entries else math.nan

    @property
    def each(self) -> Tensor:
        """The root mean square of every item that was given (n,), float64, NaN where it is left out."""
        return placed(self._of_counted(), self._counted)

    @property
    def per_image(self) -> Summary:
        """Mean of the items' own root mean squares, which is never above `pooled` if all have equally many entries."""
        return Summary.of(self._of_counted())

    def _of_counted(self) -> Tensor:
        if not self._squared:
            return torch.empty(0)
        return (torch.cat(self._squared) / torch.cat(self._entries)).sqrt()

    @property
    def columns(self) -> dict[str, float | None]:
        """The error of each column alone, in its own units; None where nothing of it was hidden."""
        if not isinstance(self._columns, Tensor):
            return dict.fromkeys(self.units.columns)
        each = (self._columns[0] / self._columns[1]).sqrt() * torch.tensor(self.units.scales, dtype=torch.float64)
        return {name: known(value) for name, value in zip(self.units.columns, each.tolist(), strict=True)}

    def record(self) -> dict[str, Any]:
        """The numbers and how they were computed; plain, and None for what is not known."""
        each, name = self.per_image, "per_image" if self.units.clamped else "per_item"
        columns = {"columns_own_units": self.columns} if self.units.columns else {}
        return {
            "metric": "rmse",
            "unit": self.units.error,
            "over": "hidden entries only, completions clamped to [0, 1]"
            if self.units.clamped
            else "hidden entries only",
            "pooled": known(self.pooled),
            f"{name}_mean": known(each.mean),
            f"{name}_std": known(each.std),
            f"{name}_mean_interval_95": [known(max(each.low, 0.0)), known(each.high)],  # NaN stays NaN
            **columns,
            "items": self.count,
            "entries": self.entries,
            "failed_items_left_out": self.failed,
            "items_with_nothing_hidden_left_out": self.nothing_hidden,
        }


def placed(numbers: Tensor, counted: list[Tensor]) -> Tensor:
    """`numbers` of the items that are `counted` (bool, a part for each batch) among all (n,), NaN for the others."""
    where = torch.cat([torch.zeros(0, dtype=torch.bool), *counted])
    each = torch.full(where.shape, math.nan, dtype=torch.float64)
    each[where] = numbers.double()
    return each


def known(number: float) -> float | None:
    """The number, or None if it is NaN, which JSON does not have."""
    return None if math.isnan(number) else number


def item_mask(ok: Tensor | None, n: int, device: torch.device) -> Tensor:
    """Which of `n` items count (n,), bool; all by default. Raises `InputError` for another shape or dtype."""
    if ok is None:
        return torch.ones(n, dtype=torch.bool, device=device)
    if ok.dtype != torch.bool or ok.shape != (n,):
        raise InputError(f"ok is {ok.dtype} of shape {tuple(ok.shape)}; give one bool for each of {n} items")
    return ok.to(device)


def check_batch(completed: Tensor, truth: Tensor, hidden: Tensor, units: Units) -> None:
    """Refuses, by `InputError`, a batch whose shapes or dtypes do not fit, or a hidden truth that cannot be one."""
    if not completed.shape == truth.shape == hidden.shape or truth.dim() < 2:
        shapes = f"{tuple(completed.shape)}, {tuple(truth.shape)} and {tuple(hidden.shape)}"
        raise InputError(f"completed, truth and hidden have shapes {shapes}; give the same shape (B, …) to all three")
    if hidden.dtype != torch.bool:
        raise InputError(f"hidden must be bool (true where a value is missing), got {hidden.dtype}; give ~observed")
    outside = ~((truth >= 0) & (truth <= 1) if units.clamped else truth.isfinite()) & hidden
    if outside.any() and not units.clamped:
        raise InputError("a hidden true value is not finite; give as hidden only what is known")
    if outside.any():
        raise InputError(
            f"a hidden true value is {truth[outside][0].item():.4g}; the error is in [0, 1] units, scale it first"
        )
