"""Layers of few directions, whose Jacobian is a multiple of the identity plus a matrix of low rank."""

from __future__ import annotations

import torch
from torch import Tensor

from viscos.core.rng import Generators
from viscos.flows.bijection import ClosedForm
from viscos.linear import LinearOperator, LowRank


class LowRankLayer(ClosedForm):
    """x = g(y) with ∂g/∂y = c I + U Vᵀ, for vectors and (flattened) images; a subclass says what c, U and V are."""

    def parts(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x (B, d), c (B,), U and V (B, d, m) of flat data (B, d), all differentiable."""
        raise NotImplementedError

    def _at(self, y: Tensor) -> tuple[Tensor, LowRank]:
        x, c, U, V = self.parts(y.flatten(1))
        return x.view_as(y), LowRank(c, U, V, y.shape)

    def forward(self, y: Tensor) -> Tensor:
        return self._at(y)[0]

    def tangent(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        x, G = self._at(y)
        return x, G.mv(v)

    @torch.no_grad()
    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]:
        return self._at(y)

    def forward_and_ladj(self, y: Tensor, generator: Generators | None = None) -> tuple[Tensor, Tensor]:
        x, G = self._at(y)
        return x, G.log_abs_det()


@torch.no_grad()
def monotone_root(s: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """t with t + c tanh(a t + b) = s, for a c > −1, all of one shape.

    The left side rises, and t lies within |c| of s: bisection to the last digits cannot fail, and two Newton steps
    take the rounding out.
    """
    low, high = s - c.abs(), s + c.abs()
    for _ in range(60 if s.dtype == torch.float64 else 30):
        t = (low + high) / 2
        above = t + c * torch.tanh(a * t + b) > s
        low, high = torch.where(above, low, t), torch.where(above, t, high)
    t = (low + high) / 2
    for _ in range(2):
        value = torch.tanh(a * t + b)
        slope = 1 + a * c * (1 - value.square())
        t = torch.clamp(t - (t + c * value - s) / slope.clamp_min(1e-3), low, high)
    return t
