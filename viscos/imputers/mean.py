"""Mean imputation: what any other method has to beat."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from viscos.core import labels
from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.data.incomplete import IncompleteData
from viscos.imputers.imputer import Imputer, Progress, quiet
from viscos.inference import Completions
from viscos.linear.gaussian import observed_mean


class MeanImputer(Imputer):
    """Fills each hidden entry with the mean of that entry over the training items that observe it.

    An entry that no item observes gets the average of the other means. `means` (…) are those of an item's entries, if
    they are known without a fit.
    """

    name, label = "mean", "mean imputation"
    mean = labels.MEAN_IMPUTATION

    def __init__(self, means: Tensor | None = None) -> None:
        self.means = means

    def fit(self, data: IncompleteData, seed: int = 0, progress: Progress = quiet) -> MeanImputer:
        self.means = observed_mean(data.values, data.observed).view(data.shape)
        return self

    def state(self) -> dict[str, Any]:
        return {} if self.means is None else {"means": self.means}

    def load_state(self, state: dict[str, Any]) -> None:
        self.means = state.get("means")

    def impute(self, batch: Incomplete, draws: int = 1, seed: int = 0, purpose: str = "item") -> Completions:
        if self.means is None:
            raise InputError("the mean imputer has seen no data; call fit first")
        if batch.values.shape[1:] != self.means.shape:
            seen = tuple(batch.values.shape[1:])
            raise InputError(f"items have shape {seen}; this imputer was fitted to {tuple(self.means.shape)}")
        completed = batch.filled(self.means)
        return Completions.exact(completed[None], completed)
