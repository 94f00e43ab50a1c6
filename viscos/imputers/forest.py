"""Chained random forests, for tables."""

from __future__ import annotations

from typing import Any

from viscos.core.errors import InputError
from viscos.core.labels import Kind
from viscos.imputers.iterative import IterativeImputer


class ForestImputer(IterativeImputer):
    """Fills hidden entries by chained random forests (missForest, Stekhoven and Bühlmann, 2012); for tables."""

    name, label = "forest", "chained forests"
    mean = Kind("forest", "chained forests")

    def __init__(self, rounds: int = 5, trees: int = 50, features: int = 100, rows: int = 10_000) -> None:
        super().__init__(rounds, features, rows)
        if trees < 1:
            raise InputError(f"forest: trees is {trees}; give 1 or more")
        self.trees = trees

    def regressor(self) -> Any:
        from sklearn.ensemble import RandomForestRegressor

        return RandomForestRegressor(self.trees, min_samples_leaf=3, max_features=0.5, random_state=0, n_jobs=1)
