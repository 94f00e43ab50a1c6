"""The networks of MisGAN, and the loss of a critic."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

_TEMPERATURE = 0.66
"""Of the masks that are generated."""
_PENALTY = 10.0
"""Weight of the gradient penalty."""


def dense(*widths: int) -> nn.Sequential:
    """Fully connected layers with ReLU in between."""
    layers = list[nn.Module]()
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class MisGAN(nn.Module):
    """Generators of data and masks, an imputer, and the critics of the three, for rows of d entries.

    All are fully connected, the generators and critics of two hidden layers and the imputer of three. With `unit` data
    lie in [0, 1]; with `sees_mask` the imputer takes m beside what it completes.
    """

    def __init__(
        self, d: int, noise: int, widths: Sequence[int], imputer_width: int, unit: bool, sees_mask: bool
    ) -> None:
        super().__init__()
        self.noise, self.unit, self.sees_mask = noise, unit, sees_mask
        self.data, self.mask = dense(noise, *widths, d), dense(noise, *widths, d)
        self.imputer = dense(2 * d if sees_mask else d, *[imputer_width] * 3, d)
        self.critics = nn.ModuleDict({key: dense(d, *reversed(widths), 1) for key in ("data", "mask", "imputer")})

    def generators(self) -> list[nn.Parameter]:
        """Parameters of the two generators."""
        return [*self.data.parameters(), *self.mask.parameters()]

    def items(self, noise: Tensor) -> Tensor:
        """G_x: noise (B, k) → rows (B, d)."""
        return self._ranged(self.data(noise))

    def masks(self, noise: Tensor) -> Tensor:
        """G_m: noise (B, k) → masks (B, d) in (0, 1), σ(· / 0.66) (section 3 there)."""
        return torch.sigmoid(self.mask(noise) / _TEMPERATURE)

    def completed(self, x: Tensor, m: Tensor, noise: Tensor) -> Tensor:
        """G_i(x, m, ω) = x ⊙ m + Ĝ_i(x ⊙ m + ω ⊙ (1 − m)) ⊙ (1 − m), for ω (B, d) (section 4 there)."""
        omega = torch.special.ndtr(noise) if self.unit else noise
        holed = x * m + omega * (1 - m)
        given = torch.cat([holed, m], 1) if self.sees_mask else holed
        return x * m + self._ranged(self.imputer(given)) * (1 - m)

    def _ranged(self, raw: Tensor) -> Tensor:
        return torch.sigmoid(raw) if self.unit else raw


def masked(x: Tensor, m: Tensor) -> Tensor:
    """f_τ(x, m) = x ⊙ m + τ (1 − m) with τ = 0 (section 2 there)."""
    return x * m


def critic_loss(critic: nn.Module, real: Tensor, made: Tensor, mix: Tensor) -> Tensor:
    """E D(made) − E D(real) + λ E (‖∇D‖ − 1)², the gradient at points `mix` (B, 1) of the way from `made` to `real`.

    Of WGAN-GP (Gulrajani et al., 2017, equation 3), λ = 10.
    """
    between = (mix * real + (1 - mix) * made).detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    penalty = (slope.norm(dim=1) - 1).square().mean()
    loss: Tensor = critic(made).mean() - critic(real).mean() + _PENALTY * penalty
    return loss
