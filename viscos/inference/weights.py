"""Importance weights, and how far they can be trusted.

Log-weights (K, B) are of K draws of each of B items, of any origin for all that is done here: NaN or −∞ is a weight of
zero, that of a draw that failed. An item is looked at by itself.

If w = p/q are weights of draws from q, of any scale, their law has as many finite moments as 1/k, where k is the shape
of the generalised Pareto law that their upper tail approaches (Pickands, 1975). Pareto-smoothed importance sampling
(PSIS: Vehtari, Simpson, Gelman, Yao and Gabry, 2024, J. Mach. Learn. Res. 25) fits that law to the largest weights, by
the empirical Bayes estimate of Zhang and Stephens (2009, Technometrics 51), puts its quantiles in their place, and
takes k̂ for a diagnosis.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LEAST = 5  # weights in a tail that can be fitted
_PRIOR = 10  # draws that a k of one half, the prior of PSIS, is worth (Vehtari et al., 2024, appendix C)


def without_failed(log_weight: Tensor) -> Tensor:
    """The same with −∞ for the draws that failed, in double precision."""
    return torch.where(log_weight.isnan(), -torch.inf, log_weight.double())


def shares(log_weight: Tensor) -> Tensor:
    """The weights of each item (K, B), of sum one, in double precision; zeros alone where none is above zero."""
    w = _relative(log_weight)
    return w / w.sum(0).clamp_min(torch.finfo(w.dtype).tiny)


def effective_size(log_weight: Tensor) -> Tensor:
    """Kish's effective sample size (Σ w)² / Σ w² (B,): how many equal weights would say as much; 0 where none is."""
    squares = shares(log_weight).square().sum(0)
    return torch.where(squares > 0, 1 / squares, 0)


def log_evidence(log_weight: Tensor) -> Tensor:
    """log of the mean weight (B,): of log p(y, y^O) − log q, an estimate of log p(y^O); −∞ where there is none."""
    return torch.logsumexp(without_failed(log_weight), 0) - math.log(len(log_weight))


def pareto_smoothed(log_weight: Tensor) -> tuple[Tensor, Tensor]:
    """Log-weights (K, B) whose tail is smoothed, −∞ where they were zero, and k̂ (B,), both in double precision.

    The tail is the min(K/5, 3√K) largest weights. k̂ is NaN, and the weights are as they were, where the tail would
    have fewer than five or there is no weight above zero beyond it. Where all of the tail are equal, as for a q that is
    exact, k̂ is 0: nothing is far from the rest.
    """
    log_weight = without_failed(log_weight)
    draws, tail = len(log_weight), math.ceil(min(len(log_weight) / 5, 3 * len(log_weight) ** 0.5))
    if tail < _LEAST or tail >= draws:
        return log_weight, log_weight.new_full(log_weight.shape[1:], float("nan"))
    sorted_, order = _over_largest(log_weight).sort(0)  # the largest has a logarithm of zero
    cut = sorted_[-tail - 1].exp()
    excess = (sorted_[-tail:].exp() - cut).clamp_min(0)
    k, scale = generalised_pareto(excess)
    flat = excess[-1] <= 10 * torch.finfo(excess.dtype).eps
    known = cut > 0
    place = (torch.arange(tail, device=k.device, dtype=k.dtype)[:, None] + 0.5) / tail
    smooth = (cut + pareto_quantile(place, k, scale)).log().clamp_max(0)  # none above the largest that there was
    sorted_[-tail:] = torch.where(known & ~flat, smooth, sorted_[-tail:])
    smoothed = torch.empty_like(sorted_).scatter(0, order, sorted_)
    k = torch.where(known, torch.where(flat, 0, k), float("nan"))
    return smoothed + _largest(log_weight), k


def generalised_pareto(excess: Tensor) -> tuple[Tensor, Tensor]:
    """Shape k and scale σ (B,) of the generalised Pareto laws of `excess` (n, B) ≥ 0, sorted, the least first.

    The estimate of Zhang and Stephens: with b = −k/σ, k(b) = mean log(1 − b x) maximises the likelihood for a given b,
    and b is averaged over the profile likelihood n (log(−b/k) − k − 1) on their grid, the prior of which the data
    scale. Their k has the other sign. The shape is then drawn towards one half as by ten more draws, for small n.
    """
    n = len(excess)
    x = excess.double().clamp_min(torch.finfo(torch.float64).tiny)
    points = 30 + math.isqrt(n)
    j = torch.arange(1, points + 1, dtype=x.dtype, device=x.device)[:, None]
    quartile = x[max(math.floor(n / 4 + 0.5) - 1, 0)].maximum(1e-10 * x[-1])
    b = 1 / x[-1] + (1 - (points / (j - 0.5)).sqrt()) / (3 * quartile)
    shape = torch.log1p(-b[:, None] * x).mean(1)
    profile = n * ((-b / shape).log() - shape - 1)
    weight = torch.softmax(profile, 0)
    mean = (weight * b).sum(0)
    k = torch.log1p(-mean * x).mean(0)
    scale = -k / mean
    return (n * k + _PRIOR * 0.5) / (n + _PRIOR), scale


def pareto_quantile(p: Tensor, k: Tensor, scale: Tensor) -> Tensor:
    """The value below which a generalised Pareto law has the probability p: σ ((1 − p)^−k − 1) / k."""
    log = torch.log1p(-p)
    near = k.abs() < 1e-8
    return scale * torch.where(near, -log, torch.expm1(-k * log) / torch.where(near, 1, k))


def _largest(log_weight: Tensor) -> Tensor:
    """The largest of each item (B,), 0 where there is none."""
    largest = log_weight.amax(0)
    return torch.where(largest.isfinite(), largest, 0)


def _over_largest(log_weight: Tensor) -> Tensor:
    return log_weight - _largest(log_weight)


def _relative(log_weight: Tensor) -> Tensor:
    """The weights over the largest of each item (K, B)."""
    return _over_largest(without_failed(log_weight)).exp()
