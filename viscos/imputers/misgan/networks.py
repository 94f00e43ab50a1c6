"""The networks of MisGAN, and the loss of a critic."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

_PENALTY = 10.0
"""Weight of the gradient penalty (Gulrajani et al., 2017)."""


def dense(widths: Sequence[int]) -> nn.Sequential:
    """Fully connected layers with ReLU in between."""
    layers = list[nn.Module]()
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class MaskGenerator(nn.Module):
    """G_m: noise (B, k) → masks (B, d) in (0, 1), by σ(· / temperature) (MisGAN, section 3)."""

    def __init__(self, noise: int, widths: Sequence[int], temperature: float = 0.66) -> None:
        super().__init__()
        self.network, self.temperature = dense([noise, *widths]), temperature

    def forward(self, noise: Tensor) -> Tensor:
        return torch.sigmoid(self.network(noise) / self.temperature)


def masked(x: Tensor, m: Tensor, tau: float = 0.0) -> Tensor:
    """f_τ(x, m) = x ⊙ m + τ (1 − m) (MisGAN, equation 2)."""
    return x * m + tau * (1 - m)


def critic_loss(critic: nn.Module, real: Tensor, made: Tensor, mix: Tensor) -> Tensor:
    """E D(made) − E D(real) + λ E (‖∇D‖ − 1)², the gradient at points between, `mix` (B, 1) of the way to `real`.

    Of WGAN-GP (Gulrajani et al., 2017, equation 3).
    """
    between = (mix * real + (1 - mix) * made).detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    penalty = (slope.norm(dim=1) - 1).square().mean()
    loss: Tensor = critic(made).mean() - critic(real).mean() + _PENALTY * penalty
    return loss
