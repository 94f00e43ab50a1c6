"""Scores of several independent draws of each item, by imputer."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from viscos.core import labels
from viscos.data.items import Data
from viscos.imputers import Imputer
from viscos.inference import Completions
from viscos.metrics.calibration import FEWEST, HALVES, INDEPENDENT, Scores, varying
from viscos.metrics.metric import Metric, Truth


class DrawMetric(Metric):
    """Measures all draws of an item that are independent of each other; one draw alone has none of these scores."""

    def __init__(self, test: Data) -> None:
        self.units, self._varies = test.units, varying(test)
        self.scores: dict[str, Scores] = {}

    def update(self, imputer: Imputer | type[Imputer], done: Completions, truth: Truth) -> None:
        draws, ok = done.independent()
        if imputer.draw is None or len(draws) < 2:
            return
        drawn = HALVES if done.paired else INDEPENDENT
        mine = self.scores.setdefault(imputer.draw.key, Scores(self.units, self._varies, drawn))
        mine.update(draws.cpu(), truth.values, truth.hidden, ok.cpu())

    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = {}
        for kind, scores in self.scores.items():
            each = scores.records()
            for measure in self.measures:
                record.setdefault(measure.key, {})[kind] = each[measure.key]
        return record


class EnergyAndSpread(DrawMetric):
    """The energy score, and the spread of draws over the error of their mean.

    The record says by how much the energy score of each is above that of the first, item by item (`beside`).
    """

    measures = (
        labels.ENERGY,
        labels.SPREAD_SKILL,
    )

    def per_item(self) -> dict[str, Tensor]:
        return {f"{labels.ENERGY.key}_{kind}": scores.each_energy for kind, scores in self.scores.items()}

    def record(self) -> dict[str, Any]:
        record, first = super().record(), next(iter(self.scores), None)
        for kind, scores in self.scores.items():
            if first is not None and kind != first and len(scores) == len(self.scores[first]):
                record["energy"][kind]["beside"] = {"kind": first, **scores.energy_beside(self.scores[first])}
        return record


class Coverage(DrawMetric):
    """The coverage of central 90 % intervals, which need 19 draws."""

    measures = (labels.COVERAGE,)
    draws = FEWEST
