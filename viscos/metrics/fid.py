"""FID (Heusel et al. 2017): the Fréchet distance of Gaussians that are fitted to features of two sets of images."""

from __future__ import annotations

import torch
from torch import Tensor

from viscos.core.errors import InputError


class Moments:
    """Mean and covariance of features, gathered batch by batch.

    Squares are summed about the running mean (Chan, Golub and LeVeque 1983), in float64, so that a mean that is large
    beside the spread costs no digits.
    """

    count: int
    """Items so far."""
    mean: Tensor
    """μ (size,), float64."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self.mean = torch.zeros(size, dtype=torch.float64)
        self._scatter = torch.zeros(size, size, dtype=torch.float64)

    def update(self, features: Tensor) -> None:
        """Adds `features` (B, size), floating, on any device.

        Raises `InputError` if the shape does not fit, or a feature is not finite.
        """
        size = len(self.mean)
        if features.dim() != 2 or features.shape[1] != size:
            raise InputError(f"features have shape {tuple(features.shape)}; give (B, {size})")
        if not bool(features.isfinite().all()):
            raise InputError("a feature is not finite; leave failed items out")
        if not len(features):
            return
        features = features.detach().cpu().double()
        n, total = len(features), self.count + len(features)
        shift = features.mean(0) - self.mean
        centred = features - features.mean(0)
        self._scatter += centred.T @ centred + torch.outer(shift, shift) * (self.count * n / total)
        self.mean = self.mean + shift * (n / total)
        self.count = total

    @property
    def covariance(self) -> Tensor:
        """Σ (size, size), float64, with n − 1. Raises `InputError` unless there are more items than features.

        With fewer it is singular, and a distance from it says more about the number of items than about them.
        """
        if self.count <= len(self.mean):
            raise InputError(f"{self.count} items are too few for a covariance of {len(self.mean)} features")
        return self._scatter / (self.count - 1)


def frechet_distance(mu: Tensor, sigma: Tensor, nu: Tensor, omega: Tensor) -> float:
    """‖μ − ν‖² + tr Σ + tr Ω − 2 tr (Σ^½ Ω Σ^½)^½, of N(μ, Σ) and N(ν, Ω) (Dowson and Landau 1982).

    With any A Aᵀ = Σ and B Bᵀ = Ω, the last trace is the sum of the singular values of AᵀB: no root of a product is
    taken, so nothing becomes complex, and both may be singular. Means (d,), covariances (d, d); computed in float64.
    Raises `InputError` if shapes do not fit or an entry is not finite.
    """
    d = len(mu)
    if not mu.shape == nu.shape == (d,) or not sigma.shape == omega.shape == (d, d):
        shapes = ", ".join(str(tuple(t.shape)) for t in (mu, sigma, nu, omega))
        raise InputError(f"means and covariances have shapes {shapes}; give (d,), (d, d), (d,), (d, d)")
    if not all(bool(t.isfinite().all()) for t in (mu, sigma, nu, omega)):
        raise InputError("an entry of a mean or a covariance is not finite")
    overlap = torch.linalg.svdvals(_factor(sigma).T @ _factor(omega)).sum()
    distance = (mu.double() - nu.double()).square().sum() + sigma.double().trace() + omega.double().trace()
    return max(float(distance - 2 * overlap), 0.0)  # rounding takes the distance of equals a hair below zero


def _factor(sigma: Tensor) -> Tensor:
    """A with A Aᵀ = Σ; eigenvalues that rounding has made negative count as zero."""
    values, vectors = torch.linalg.eigh(sigma.double())
    return vectors * values.clamp(min=0).sqrt()
