"""A ratio of sums over items, and how sure it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Ratio:
    """Σ a / Σ b over items, and its standard error by linearisation; NaN where there are too few items to tell."""

    value: float
    standard_error: float

    @classmethod
    def of(cls, a: Tensor, b: Tensor) -> Ratio:
        """The ratio of `a` and `b` (n,), float64; an item's entries need not be independent of each other."""
        n, total = int((b > 0).sum()), float(b.sum())
        if not total:
            return cls(math.nan, math.nan)
        value = float(a.sum()) / total
        spread = math.sqrt(n / (n - 1) * float((a - value * b).square().sum())) / total if n > 1 else math.nan
        return cls(value, spread)

    def sqrt(self) -> Ratio:
        """Its root."""
        root = math.sqrt(self.value) if self.value >= 0 else math.nan
        return Ratio(root, self.standard_error / (2 * root) if root else math.nan)
