"""Share of items that are classified as their label says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from viscos.core.errors import InputError
from viscos.metrics.rmse import NORMAL_95, item_mask, known


@dataclass
class Accuracy:
    """Accumulates hits. An item whose completion failed is left out and counted, as in `RMSE`."""

    correct: int = 0
    count: int = 0
    failed: int = 0

    def update(self, predicted: Tensor, labels: Tensor, ok: Tensor | None = None) -> None:
        """Adds a batch: `predicted` classes (B,), or scores (B, classes) of which the highest counts; `labels` (B,).

        Raises `InputError` if shapes or dtypes do not fit, or if an item that is said to be ok has a score of NaN.
        """
        ok = item_mask(ok, len(labels), labels.device)
        if predicted.dim() == 2 and len(predicted) == len(labels):
            if (predicted.isnan().any(1) & ok).any():
                raise InputError("scores of an item are NaN; mark failed items as not ok")
            predicted = predicted.argmax(1)
        if predicted.shape != labels.shape or labels.dim() != 1 or predicted.is_floating_point():
            seen = f"{predicted.dtype} of shape {tuple(predicted.shape)}, labels {tuple(labels.shape)}"
            raise InputError(f"predictions are {seen}; give classes (B,) or scores (B, classes), and labels (B,)")
        self.correct += int(((predicted == labels) & ok).sum())
        self.count += int(ok.sum())
        self.failed += int((~ok).sum())

    @property
    def value(self) -> float:
        """Correct items / counted items; NaN without any."""
        return self.correct / self.count if self.count else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of Wilson (1927), sound near 0 and 1 too; NaN without any items."""
        if not self.count:
            return math.nan, math.nan
        z, n, p = NORMAL_95, self.count, self.value
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        # At the ends the formula gives 0 and 1 but for rounding.
        return middle - half if self.correct else 0.0, middle + half if self.correct < n else 1.0

    def record(self) -> dict[str, Any]:
        """The numbers and how they were computed; plain, and None for what is not known."""
        return {
            "metric": "accuracy",
            "unit": "share of items",
            "value": known(self.value),
            "interval_95": [known(bound) for bound in self.interval],
            "items": self.count,
            "failed_items_left_out": self.failed,
        }
