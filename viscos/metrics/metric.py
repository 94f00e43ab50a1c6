"""The interface of everything that measures completions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from viscos.core.labels import TRUTH as TRUTH
from viscos.core.labels import Measure as Measure
from viscos.data.items import Data
from viscos.imputers import Imputer
from viscos.inference import Completions


@dataclass(frozen=True)
class Truth:
    """What is known of some test items, on the CPU."""

    values: Tensor
    """**y** (B, …)."""
    hidden: Tensor
    """Where the truth is known and was not used (B, …), bool: errors are measured there."""
    observed: Tensor
    """What the completions were made from (B, …), bool."""
    labels: Tensor | None = None
    """Class of each item (B,), int64, if there is one."""


class Metric:
    """Accumulates, batch by batch, what is measured of the completions of test items by several imputers."""

    measures: ClassVar[tuple[Measure, ...]] = ()
    """What of its record tables show."""
    draws: ClassVar[int] = 0
    """Independent draws of an item that it needs: with fewer, it is measured on more draws of the first items."""

    def update(self, imputer: Imputer | type[Imputer], done: Completions, truth: Truth) -> None:
        """Adds completions of the items of `truth`, on any device, by `imputer`."""
        raise NotImplementedError

    def update_truth(self, truth: Truth) -> None:
        """Adds the complete items themselves, where a metric says something of them."""

    def record(self) -> dict[str, Any]:
        """The numbers and how they were computed: plain, by metric and by kind of completion."""
        raise NotImplementedError

    def per_item(self) -> dict[str, Tensor]:
        """A number of every item that it was given (n,), by name, NaN where an item has none; for comparisons by item.

        Items that only a metric of many draws is given are the first.
        """
        return {}

    def so_far(self, kind: str) -> dict[str, float]:
        """Numbers of a kind of completion that progress shows, if there are any."""
        return {}


class PointMetric(Metric):
    """Measures one completion of an item at a time: an imputer's mean, and one of its draws."""

    def update(self, imputer: Imputer | type[Imputer], done: Completions, truth: Truth) -> None:
        ok = done.ok.cpu()
        if imputer.mean is not None:
            self.add(imputer.mean.key, done.mean().cpu(), truth, ok.any(0))
        if imputer.draw is not None:
            self.add(imputer.draw.key, done.draws[0].cpu(), truth, ok[0])

    def add(self, kind: str, completed: Tensor, truth: Truth, ok: Tensor | None) -> None:
        """Adds completions (B, …) of the kind `kind`, where they are `ok` (B,), by default everywhere."""
        raise NotImplementedError


def measured(data: Data, rows: Tensor, observed: Tensor) -> Truth:
    """The items `rows` (B,) of `data`, of which `observed` (B, …) was used."""
    labels = None if data.labels is None else data.labels[rows]
    return Truth(data.values[rows], ~observed & data.known[rows], observed, labels)
