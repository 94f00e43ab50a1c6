"""Which columns of numbers are learnt by their logarithm, where nothing is said."""

from __future__ import annotations

import numpy as np
import torch

from viscos.data.far_out import far_values

_RATIO = 20
"""Of the largest number to the least, above which a column may be learnt by its logarithm."""
_LEAST = 20
"""Of whole numbers: lesser ones count something, so that 0, which has no logarithm, may come where none was seen."""


def spans_scales(values: np.ndarray) -> bool:
    """Whether numbers (N,), NaN in holes, are such as a model learns better by their logarithm.

    That is if all are positive and, without those that are far out and may mean a missing value, the largest is more
    than 20 times the least and the logarithms are less skewed; and if they are not whole numbers from below 20 on.
    """
    there = values[~np.isnan(values)]
    if not there.min() > 0:
        return False
    there = there[~np.isin(there, far_values(torch.from_numpy(there)))]
    if there.min() < _LEAST and (there == there.round()).all():
        return False
    return bool(there.max() > _RATIO * there.min() and _skewness(np.log(there)) < _skewness(there))


def _skewness(values: np.ndarray) -> float:
    away = values / np.abs(values).max()  # of large numbers the third power is none
    away = away - away.mean()
    return float(abs((away**3).mean()) / (away**2).mean() ** 1.5)
