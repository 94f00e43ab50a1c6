"""The exact conditional mean of a Gaussian fitted to incomplete data: what a flow has to beat to be worth its cost."""

from __future__ import annotations

from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.linear.gaussian import Gaussian


class GaussianImputer:
    """Fills hidden entries with E[y^H | y^O] under a Gaussian; `floor` and `noise` as in `Gaussian.from_incomplete`."""

    gaussian: Gaussian | None = None
    """The distribution, once fitted."""

    def __init__(self, floor: float = 0.01, noise: float = 0.0) -> None:
        self.floor, self.noise = floor, noise

    def fit(self, values: Tensor, observed: Tensor) -> GaussianImputer:
        """From observed entries only: `values` (N, *shape), `observed` bool (N, *shape) or (*shape).

        Raises `InputError` as `Gaussian.from_incomplete` does.
        """
        self.gaussian = Gaussian.from_incomplete(values, observed, self.floor, self.noise)
        return self

    def impute(self, batch: Incomplete) -> Tensor:
        """Completions (B, *shape); observed entries are returned as they are. Raises `InputError` before `fit`."""
        if self.gaussian is None:
            raise InputError("the Gaussian imputer has seen no data; call fit first")
        return self.gaussian.to(batch.values.device).conditional(batch.values, batch.observed)
