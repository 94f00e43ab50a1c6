"""The same figures for several kinds of completions of the same items."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from viscos.data.items import Data
from viscos.metrics.calibration import INDEPENDENT, Scores, varying
from viscos.metrics.judge import Judge, Verdict
from viscos.metrics.rmse import RMSE

TRUTH = "real"
"""The kind that is no completion: the complete test images, whose figures by a judge are the best to hope for."""


class Tally:
    """RMSE, FID and accuracy of each kind of completion, by its name, and scores of draws, gathered batch by batch.

    `judge` may be the reason why there is none.
    """

    def __init__(self, test: Data, judge: Judge | str) -> None:
        self.test, self.judge = test, judge
        self.rmse: dict[str, RMSE] = {}
        self.verdicts: dict[str, Verdict] = {}
        self.scores: dict[str, Scores] = {}
        self.intervals: dict[str, Scores] = {}
        self._varies = varying(test)
        known = not isinstance(judge, str) and judge.extractor.classifies == test.name
        self._labels = test.labels if known else None

    def update(self, kind: str, completed: Tensor, hidden: Tensor, rows: Tensor, ok: Tensor | None = None) -> None:
        """Adds completions (B, …) of the test items `rows` (B,) with holes `hidden` (B, …), where they are `ok`."""
        self.rmse.setdefault(kind, RMSE(self.test.units)).update(completed, self.test.values[rows], hidden, ok)
        self._show(kind, completed, rows, ok)

    def update_draws(
        self, kind: str, draws: Tensor, hidden: Tensor, rows: Tensor, ok: Tensor | None = None, drawn: str = INDEPENDENT
    ) -> None:
        """Adds independent draws (K, B, …) of the test items `rows` (B,), where they are `ok` (K, B).

        One draw alone has no scores. `drawn` says in words where the draws are from.
        """
        if len(draws) > 1:
            mine = self.scores.setdefault(kind, Scores(self.test.units, self._varies, drawn))
            mine.update(draws, self.test.values[rows], hidden, ok)

    def update_intervals(
        self, kind: str, draws: Tensor, hidden: Tensor, rows: Tensor, ok: Tensor | None = None
    ) -> None:
        """Adds independent draws (K, B, …) of some items, enough for intervals: the coverage is of theirs alone."""
        mine = self.intervals.setdefault(kind, Scores(self.test.units, self._varies, INDEPENDENT))
        mine.update(draws, self.test.values[rows], hidden, ok)

    def update_truth(self, rows: Tensor) -> None:
        """Adds the complete test items `rows` (B,)."""
        self._show(TRUTH, self.test.values[rows], rows, None)

    def record(self) -> dict[str, Any]:
        """The figures and how they were computed; plain."""
        record: dict[str, Any] = {"rmse": {kind: rmse.record() for kind, rmse in self.rmse.items()}}
        for kind, scores in self.scores.items():
            for metric, figures in scores.records().items():
                record.setdefault(metric, {})[kind] = figures
        for kind, scores in self.intervals.items():
            record.setdefault("coverage", {})[kind] = scores.records()["coverage"]
        if isinstance(self.judge, str):
            return record | {"fid": {"reason": self.judge}}
        record["fid"] = {kind: verdict.fid_record() for kind, verdict in self.verdicts.items()}
        if self._labels is not None:
            record["accuracy_complete"] = {kind: verdict.accuracy_record() for kind, verdict in self.verdicts.items()}
        return record

    def _show(self, kind: str, images: Tensor, rows: Tensor, ok: Tensor | None) -> None:
        if not isinstance(self.judge, str):
            labels = None if self._labels is None else self._labels[rows]
            self.verdicts.setdefault(kind, Verdict(self.judge)).update(images, labels, ok)
