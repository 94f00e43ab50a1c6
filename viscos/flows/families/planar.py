"""Planar flows (Rezende and Mohamed, 2015, section 4.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from viscos.core.solution import Solution
from viscos.flows.families.stack import stack, whole
from viscos.flows.flow import Flow
from viscos.flows.layers.lowrank import LowRankLayer, monotone_root


class Planar(LowRankLayer):
    """x = y + û tanh(wᵀy + b), with û = u + (m(wᵀu) − wᵀu) w/‖w‖² and m(z) = softplus(z) − 1, so that wᵀû > −1.

    With a slope of tanh in (0, 1] the determinant 1 + tanh′ wᵀû is positive everywhere (appendix A.1 there). The
    inverse is that of one monotone function of the number wᵀy.
    """

    def __init__(self, d: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(d) / d**0.5)
        self.u = nn.Parameter(0.1 * torch.randn(d) / d**0.5)
        self.b = nn.Parameter(torch.randn(()))

    def constrained(self) -> Tensor:
        """û (d,)."""
        along = self.w @ self.u
        size = self.w.square().sum().clamp_min(torch.finfo(self.w.dtype).tiny)
        return self.u + (F.softplus(along) - 1 - along) * self.w / size

    def parts(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        u = self.constrained()
        value = torch.tanh(y @ self.w + self.b)
        U = (1 - value.square())[:, None, None] * u[:, None]
        return y + value[:, None] * u, y.new_ones(len(y)), U, self.w[:, None].expand_as(U)

    @torch.no_grad()
    def inverse(self, x: Tensor) -> Solution:
        u, flat = self.constrained(), x.flatten(1)
        along = flat @ self.w
        one = torch.ones_like(along)
        t = monotone_root(along, one, self.b * one, (self.w @ u) * one)
        return Solution.exact((flat - torch.tanh(t + self.b)[:, None] * u).view_as(x))


def planar(shape: int | Sequence[int], *, layers: int = 32, start: str = "standardise") -> Flow:
    """A stack of planar layers for items of any `shape`, behind a first layer (see `viscos.flows.layers.start`)."""
    shape = whole(shape, "shape")
    d = math.prod(shape)
    return stack([Planar(d) for _ in range(layers)], shape, start)
