"""Median imputation."""

from __future__ import annotations

from typing import Any

from viscos.core.labels import Kind
from viscos.imputers.columnwise import ColumnwiseImputer


class MedianImputer(ColumnwiseImputer):
    """Fills each hidden entry with the median of that entry over the training items that observe it."""

    name, label = "median", "median imputation"
    mean = Kind("median_imputation", "median imputation")

    def estimator(self) -> Any:
        from sklearn.impute import SimpleImputer

        return SimpleImputer(strategy="median", keep_empty_features=True)
