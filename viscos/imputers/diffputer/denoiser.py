"""The denoiser of rows, with the preconditioning and the loss of EDM (Karras et al., 2022)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIGMA_DATA = 0.5
"""Standard deviation of the data that the denoiser takes."""
SIGMA_LEAST = 0.002
"""Least level of noise above none."""
_LOG_SIGMA = (-1.2, 1.2)
"""Mean and deviation of log σ in training (Karras et al., table 1)."""


class Denoiser(nn.Module):
    """D(z; σ) = c_skip z + c_out F(c_in z; ¼ log σ), an estimate of E[u | z] for z = u + σ ε (Karras et al., eq. 7)."""

    frequencies: Tensor

    def __init__(self, d: int, width: int) -> None:
        super().__init__()
        self.clock = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.enter = nn.Linear(d, width)
        self.layers = nn.Sequential(
            nn.Linear(width, 2 * width),
            nn.SiLU(),
            nn.Linear(2 * width, 2 * width),
            nn.SiLU(),
            nn.Linear(2 * width, width),
            nn.SiLU(),
            nn.Linear(width, d),
        )
        frequencies = torch.exp(torch.linspace(0, math.log(100), width // 2))
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, z: Tensor, sigma: Tensor) -> Tensor:
        """(B, d), (B,) or (1,) → (B, d)."""
        s = sigma[:, None]
        total = s.square() + SIGMA_DATA**2
        angles = 0.25 * s.log() * self.frequencies
        features = self.clock(F.pad(torch.cat([angles.cos(), angles.sin()], 1), (0, self.enter.out_features % 2)))
        inner: Tensor = self.layers(self.enter(z / total.sqrt()) + features)
        return (SIGMA_DATA**2 / total) * z + (s * SIGMA_DATA / total.sqrt()) * inner

    def loss(self, u: Tensor, generator: torch.Generator) -> Tensor:
        """E λ(σ) |D(u + σ ε; σ) − u|² an entry, for rows u (B, d), with λ = (σ² + σ_d²)/(σ σ_d)² (table 1)."""
        mean, deviation = _LOG_SIGMA
        sigma = torch.exp(mean + deviation * torch.randn(len(u), generator=generator)).to(u)
        noisy = u + sigma[:, None] * torch.randn(u.shape, generator=generator).to(u)
        weight = (sigma.square() + SIGMA_DATA**2) / (sigma * SIGMA_DATA).square()
        return (weight[:, None] * (self(noisy, sigma) - u).square()).mean()


def noise_levels(levels: int, largest: float) -> list[float]:
    """σ from `largest` to `SIGMA_LEAST`, and 0 (Karras et al., equation 5 there, with their ρ = 7)."""
    rho = 7.0
    a, b = largest ** (1 / rho), SIGMA_LEAST ** (1 / rho)
    return [*((a + k / max(1, levels - 1) * (b - a)) ** rho for k in range(levels)), 0.0]
