"""Mean imputation: what any other method has to beat."""

from __future__ import annotations

from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.linear.gaussian import observed_mean


class MeanImputer:
    """Fills each hidden entry with the mean of that entry over the training items that observe it."""

    mean: Tensor | None = None
    """The means, of the shape of an item, once fitted; float64."""

    def fit(self, values: Tensor, observed: Tensor) -> MeanImputer:
        """From observed entries only: `values` (N, *shape), `observed` bool (N, *shape) or (*shape).

        An entry that no item observes gets the average of the other means. Raises `InputError` as `observed_mean` does.
        """
        self.mean = observed_mean(values, observed).view(values.shape[1:])
        return self

    def impute(self, batch: Incomplete) -> Tensor:
        """Completions (B, *shape); observed entries are returned as they are. Raises `InputError` before `fit`."""
        if self.mean is None:
            raise InputError("the mean imputer has seen no data; call fit first")
        if batch.values.shape[1:] != self.mean.shape:
            seen = tuple(batch.values.shape[1:])
            raise InputError(f"items have shape {seen}; this imputer was fitted to {tuple(self.mean.shape)}")
        return batch.filled(self.mean)
