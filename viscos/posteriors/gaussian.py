"""Gaussian distributions over x^H."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from viscos.posteriors.latent import LatentDistribution


@dataclass(frozen=True)
class LatentGaussian(LatentDistribution):
    """x^H = μ + L ε. A subclass says what L is."""

    mean: Tensor
    """μ (B, …)."""
    hidden: Tensor
    start: Tensor | None = field(default=None, kw_only=True)

    def scaled(self, noise: Tensor) -> Tensor:
        """L ε (K, B, …)."""
        raise NotImplementedError

    def unscaled(self, v: Tensor) -> Tensor:
        """L⁻¹ v (K, B, …)."""
        raise NotImplementedError

    def unscaled_transposed(self, noise: Tensor) -> Tensor:
        """L⁻ᵀ ε (K, B, …)."""
        raise NotImplementedError

    def log_scale_sum(self) -> Tensor:
        """log|det L| over H (B,)."""
        raise NotImplementedError

    def centers(self) -> Tensor:
        return self.masked(self.mean)[None]

    def expectation(self) -> Tensor:
        return self.masked(self.mean)

    def sample(self, noise: Tensor) -> Tensor:
        """x^H (K, B, …), zero outside H, differentiable in the parameters."""
        return torch.where(self.hidden, self.mean + self.scaled(self.masked(noise)), 0)

    def log_prob_of_noise(self, noise: Tensor) -> Tensor:
        epsilon = self.masked(noise)
        size = self.hidden.flatten(1).sum(1).to(noise.dtype) * math.log(2 * math.pi)
        return -0.5 * (epsilon.square().flatten(2).sum(2) + size) - self.log_scale_sum()

    def log_prob(self, x: Tensor) -> Tensor:
        return self.log_prob_of_noise(self.unscaled(self.masked(x - self.mean)))

    def log_prob_path(self, noise: Tensor, x: Tensor) -> Tensor:
        score = -self.unscaled_transposed(self.masked(noise)).detach()
        value = self.log_prob_of_noise(noise).detach()
        return value + (score * (x - x.detach())).flatten(2).sum(2)


@dataclass(frozen=True)
class DiagonalGaussian(LatentGaussian):
    """L = diag(σ)."""

    log_scale: Tensor
    """log σ (B, …)."""

    def scaled(self, noise: Tensor) -> Tensor:
        return noise * self.log_scale.exp()

    def unscaled(self, v: Tensor) -> Tensor:
        return v * (-self.log_scale).exp()

    def unscaled_transposed(self, noise: Tensor) -> Tensor:
        return noise * (-self.log_scale).exp()

    def log_scale_sum(self) -> Tensor:
        return self.masked(self.log_scale).flatten(1).sum(1)


@dataclass(frozen=True)
class HouseholderGaussian(DiagonalGaussian):
    """L = H₁ … Hₙ diag(σ), with reflections Hᵢ = I − 2 vvᵀ/vᵀv (Tomczak and Welling, 2016; the paper's equation 13)."""

    vectors: Tensor
    """v (B, n, …)."""

    def scaled(self, noise: Tensor) -> Tensor:
        return self._reflected(super().scaled(noise))

    def unscaled(self, v: Tensor) -> Tensor:
        return super().unscaled(self._reflected(v, back=True))

    def unscaled_transposed(self, noise: Tensor) -> Tensor:
        # L⁻ᵀ = U diag(1/σ) since U is orthogonal.
        return self._reflected(super().unscaled_transposed(noise))

    def _reflected(self, v: Tensor, back: bool = False) -> Tensor:
        vectors = torch.where(self.hidden.unsqueeze(1), self.vectors, 0)
        sizes = vectors.square().flatten(2).sum(2).clamp_min(torch.finfo(v.dtype).tiny)
        for i in range(vectors.shape[1]) if back else reversed(range(vectors.shape[1])):
            w = vectors[:, i]
            along = 2 * (v * w).flatten(2).sum(2) / sizes[:, i]
            v = v - along.view(*along.shape, *[1] * (w.dim() - 1)) * w
        return v


@dataclass(frozen=True)
class FullGaussian(LatentGaussian):
    """L lower triangular with a positive diagonal, in the order of the flattened entries."""

    factor: Tensor
    """(B, d, d): the strict lower triangle of L, and the logarithm of its diagonal."""

    def _lower(self) -> Tensor:
        H = self.hidden.flatten(1)
        L = self.factor.tril(-1) + torch.diag_embed(self.factor.diagonal(dim1=1, dim2=2).exp())
        return torch.where(H[:, :, None] & H[:, None, :], L, torch.eye(H.shape[1], dtype=L.dtype, device=L.device))

    def scaled(self, noise: Tensor) -> Tensor:
        return (self._lower() @ noise.flatten(2).unsqueeze(-1)).view_as(noise)

    def unscaled(self, v: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self._lower(), v.flatten(2).unsqueeze(-1), upper=False).view_as(v)

    def unscaled_transposed(self, noise: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self._lower().mT, noise.flatten(2).unsqueeze(-1), upper=True).view_as(
            noise
        )

    def log_scale_sum(self) -> Tensor:
        return torch.where(self.hidden.flatten(1), self.factor.diagonal(dim1=1, dim2=2), 0).sum(1)
