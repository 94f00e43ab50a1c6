"""Chained equations: each entry is regressed on the others, round after round."""

from __future__ import annotations

import warnings
from typing import Any

from viscos.core.errors import InputError
from viscos.core.labels import Kind
from viscos.imputers.columnwise import ColumnwiseImputer


class IterativeImputer(ColumnwiseImputer):
    """Fills hidden entries by chained ridge regressions (van Buuren and Groothuis-Oudshoorn, 2011).

    Each entry is regressed on `features` others in `rounds` rounds: on all if there are no more, else on some that
    scikit-learn draws anew each time, the more likely the larger their correlation.
    """

    name, label = "iterative", "chained regressions"
    mean = Kind("iterative", "chained regressions")

    def __init__(self, rounds: int = 10, features: int = 100, rows: int = 10_000) -> None:
        super().__init__(rows)
        if rounds < 1 or features < 1:
            raise InputError(f"{self.name}: rounds is {rounds} and features {features}; give 1 or more of each")
        self.rounds, self.features = rounds, features

    def regressor(self) -> Any:
        """What predicts an entry from others."""
        from sklearn.linear_model import BayesianRidge

        return BayesianRidge()

    def estimator(self) -> Any:
        from sklearn.experimental import enable_iterative_imputer  # noqa: F401
        from sklearn.impute import IterativeImputer as Chained

        return Chained(
            self.regressor(),
            max_iter=self.rounds,
            n_nearest_features=self.features,
            keep_empty_features=True,
            random_state=0,
        )

    def _fit(self) -> None:
        from sklearn.exceptions import ConvergenceWarning

        with warnings.catch_warnings():  # rounds are a budget; a tolerance in data's own units means little
            warnings.simplefilter("ignore", ConvergenceWarning)
            super()._fit()
