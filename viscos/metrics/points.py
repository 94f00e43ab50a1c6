"""RMSE, FID and accuracy of each kind of completion."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from viscos.core import labels
from viscos.data.items import Data
from viscos.metrics.features import FeatureStatistics, Reference
from viscos.metrics.metric import TRUTH, PointMetric, Truth
from viscos.metrics.rmse import RMSE


class Errors(PointMetric):
    """RMSE over hidden entries."""

    measures = (labels.RMSE,)

    def __init__(self, test: Data) -> None:
        self.units = test.units
        self.rmse: dict[str, RMSE] = {}

    def add(self, kind: str, completed: Tensor, truth: Truth, ok: Tensor | None) -> None:
        self.rmse.setdefault(kind, RMSE(self.units)).update(completed, truth.values, truth.hidden, ok)

    def so_far(self, kind: str) -> dict[str, float]:
        pooled = self.rmse[kind].pooled if kind in self.rmse else math.nan
        return {} if math.isnan(pooled) else {"rmse": pooled}

    def per_item(self) -> dict[str, Tensor]:
        return {f"{labels.RMSE.key}_{kind}": rmse.each for kind, rmse in self.rmse.items()}

    def record(self) -> dict[str, Any]:
        return {"rmse": {kind: rmse.record() for kind, rmse in self.rmse.items()}}


class Recognition(PointMetric):
    """FID and accuracy by a network that was trained on complete images; `reference` may say why there is none."""

    measures = (
        labels.ACCURACY_COMPLETE,
        labels.FID,
    )

    def __init__(self, test: Data, reference: Reference | str) -> None:
        self.reference = reference
        self.seen: dict[str, FeatureStatistics] = {}
        known = not isinstance(reference, str) and reference.extractor.classifies == test.name
        self.classifies = known and test.labels is not None

    def add(self, kind: str, completed: Tensor, truth: Truth, ok: Tensor | None) -> None:
        if isinstance(self.reference, str):
            return
        labels = truth.labels if self.classifies else None
        self.seen.setdefault(kind, FeatureStatistics(self.reference)).update(completed, labels, ok)

    def update_truth(self, truth: Truth) -> None:
        self.add(TRUTH, truth.values, truth, ~truth.values.isnan().flatten(1).any(1))

    def record(self) -> dict[str, Any]:
        if isinstance(self.reference, str):
            return {"fid": {"reason": self.reference}}
        record = {"fid": {kind: seen.fid_record() for kind, seen in self.seen.items()}}
        if self.classifies:
            record["accuracy_complete"] = {kind: seen.accuracy_record() for kind, seen in self.seen.items()}
        return record
