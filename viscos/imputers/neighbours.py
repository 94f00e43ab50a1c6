"""Imputation by nearest neighbours."""

from __future__ import annotations

from typing import Any

from viscos.core.errors import InputError
from viscos.core.labels import Kind
from viscos.imputers.columnwise import ColumnwiseImputer


class NeighboursImputer(ColumnwiseImputer):
    """Fills each hidden entry with its mean over the nearest training items that observe it (Troyanskaya et al., 2001).

    Distances are over the entries that both items observe, scaled up to all.
    """

    name, label = "knn", "nearest neighbours"
    mean = Kind("knn", "nearest neighbours")

    def __init__(self, neighbours: int = 10, rows: int = 10_000) -> None:
        super().__init__(rows)
        if neighbours < 1:
            raise InputError(f"knn: neighbours is {neighbours}; give 1 or more")
        self.neighbours = neighbours

    def estimator(self) -> Any:
        from sklearn.impute import KNNImputer

        return KNNImputer(n_neighbors=self.neighbours, keep_empty_features=True)
