"""Velocity networks of continuous flows: from a point and a time to a velocity."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from viscos.linear import Jacobian, LinearOperator

_FREQUENCIES = 8


class Velocity(nn.Module):
    """A velocity field; a subclass writes `forward`, and the others where it knows better than autograd."""

    def forward(self, z: Tensor, t: Tensor) -> Tensor:
        """The velocity (B, …) at points (B, …), and times in [0, 1] (B,) or one for all (1,)."""
        raise NotImplementedError

    @torch.no_grad()
    def linearize(self, z: Tensor, t: Tensor) -> tuple[Tensor, LinearOperator]:
        """The velocity (B, …) and its Jacobian in z as an operator, without a graph."""
        jacobian = Jacobian(lambda z: self(z, t), z)
        return jacobian.value, jacobian

    def tangent(self, z: Tensor, v: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """The velocity and the product of its Jacobian in z with v, both differentiable (B, …)."""
        F, product = torch.func.jvp(lambda z: self(z, t), (z,), (v,))  # type: ignore[misc]
        return F, product


class Clock(nn.Module):
    """Features of a time in [0, 1] (B,) -> (B, width): cosines and sines, and one layer on top."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * _FREQUENCIES, width)

    def forward(self, t: Tensor) -> Tensor:
        """(B,) -> (B, width)."""
        angles = 0.5 * math.pi * t[:, None] * torch.arange(1, _FREQUENCIES + 1, dtype=t.dtype, device=t.device)
        return F.silu(self.linear(torch.cat([angles.cos(), angles.sin()], 1)))


class DenseVelocity(Velocity):
    """A network for vectors (B, d): two hidden layers, whose units the time scales and shifts."""

    def __init__(self, d: int, width: int) -> None:
        super().__init__()
        self.clock = Clock(width)
        self.enter, self.refine, self.leave = nn.Linear(d, width), nn.Linear(width, width), nn.Linear(width, d)
        self.modulate = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(2))
        start_at_zero(self.leave)

    def forward(self, z: Tensor, t: Tensor) -> Tensor:
        features = self.clock(t)
        for linear, modulate in zip((self.enter, self.refine), self.modulate, strict=True):
            scale, shift = modulate(features).chunk(2, 1)
            z = F.silu(linear(z) * (1 + scale) + shift)
        velocity: Tensor = self.leave(z)
        return velocity


def start_at_zero(last: nn.Linear | nn.Conv2d) -> None:
    """Zero weights: the velocity is zero at first, and the flow its first layer."""
    nn.init.zeros_(last.weight)
    assert last.bias is not None
    nn.init.zeros_(last.bias)
