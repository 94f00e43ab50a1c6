"""The values that MCFlow begins with, before anything is learnt."""

from __future__ import annotations

import numpy as np
import torch
from scipy.ndimage import distance_transform_edt
from torch import Tensor

QUANTILES = 101


def quantiles(rows: Tensor, observed: Tensor) -> Tensor:
    """Quantiles (`QUANTILES`, d) of the observed entries of each column of rows (N, d); of an unobserved column, 0."""
    levels = torch.linspace(0, 1, QUANTILES, dtype=torch.float64, device=rows.device)
    columns = []
    for column, known in zip(rows.double().T, observed.T, strict=True):
        seen = column[known]
        columns.append(torch.quantile(seen, levels) if len(seen) else torch.zeros_like(levels))
    return torch.stack(columns, 1).to(rows)


def from_marginals(table: Tensor, u: Tensor) -> Tensor:
    """Draws (N, d) of each column's marginal, by the inverse of its distribution at u (N, d) in [0, 1]."""
    place = u * (QUANTILES - 1)
    below = place.floor().long().clamp(0, QUANTILES - 2)
    low, high = table.gather(0, below), table.gather(0, below + 1)
    return low + (place - below) * (high - low)


def from_nearest(values: Tensor, observed: Tensor) -> Tensor:
    """Images (N, C, H, W) with the nearest observed pixel of the same channel in each hole; NaN where there is none."""
    filled = torch.full_like(values, float("nan"), device="cpu")
    for image, known, out in zip(values.cpu().numpy(), observed.cpu().numpy(), filled.numpy(), strict=True):
        for channel, mask, target in zip(image, known, out, strict=True):
            if mask.any():
                rows, columns = distance_transform_edt(~mask, return_distances=False, return_indices=True)
                target[:] = channel[rows, columns]
    return filled.to(values)


def is_image(shape: torch.Size) -> bool:
    """Whether items have pixels that can be near each other."""
    return len(shape) == 3 and int(np.prod(shape[1:])) > 1
