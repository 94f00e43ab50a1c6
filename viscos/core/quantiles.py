"""Variance and quantiles over draws of which some failed."""

from __future__ import annotations

import torch
from torch import Tensor


def variance(draws: Tensor) -> Tensor:
    """The variance over draws (K, …), without those that are NaN: (…), NaN of fewer than two."""
    known = ~draws.isnan()
    count = known.sum(0)
    squares = torch.where(known, draws - draws.nanmean(0), 0).square().sum(0)
    return torch.where(count > 1, squares / (count - 1).clamp_min(1), float("nan"))


def quantiles(draws: Tensor, shares: Tensor) -> Tensor:
    """The quantiles of `shares` in [0, 1] (n,) of draws (K, …), NaN where there is none: (n, …), NaN where none is.

    That of q is at place q (K + 1) in the order of the draws, between two of them by a straight line: a further draw
    lies below it with probability q, whatever the law, where the place is a whole number (Hyndman and Fan, 1996, their
    sixth definition). For more extreme shares than 1/(K + 1) it is the least or the largest draw. Places q (K − 1) + 1,
    which torch and numpy take, lie further inside: of 64 draws the interval from 5 to 95 % covers 87 %.
    """
    ordered, count = draws.sort(0).values, (~draws.isnan()).sum(0)  # NaN comes last
    place = shares.view(-1, *[1] * count.dim()) * (count + 1) - 1
    place = torch.minimum(place, count - 1.0).clamp_min(0)
    below = place.floor().long()
    above = torch.minimum(below + 1, count - 1).clamp_min(0)
    low, high = ordered.gather(0, below), ordered.gather(0, above)
    part = (place - below).to(low.dtype)
    return torch.where(part == 0, low, torch.lerp(low, high, part))  # of an infinite draw, too
