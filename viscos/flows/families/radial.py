"""Radial flows (Rezende and Mohamed, 2015, section 4.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from viscos.core.solution import Solution
from viscos.flows.families.stack import stack, whole
from viscos.flows.flow import Flow
from viscos.flows.layers.lowrank import LowRankLayer


class Radial(LowRankLayer):
    """x = y + β h (y − z), h = 1/(α + r), r = ‖y − z‖, with α > 0 and β = −α + softplus(β̂) > −α (appendix A.2 there).

    The radius of x, r (1 + β h), rises with r; its inverse is the positive root of a quadratic.
    """

    def __init__(self, d: int) -> None:
        super().__init__()
        self.center = nn.Parameter(torch.randn(d))
        self.raw_alpha = nn.Parameter(torch.tensor(1.0))
        self.raw_beta = nn.Parameter(torch.tensor(1.0) + 0.1 * torch.randn(()))

    def constrained(self) -> tuple[Tensor, Tensor]:
        """α and β."""
        alpha = F.softplus(self.raw_alpha)
        return alpha, F.softplus(self.raw_beta) - alpha

    def parts(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        alpha, beta = self.constrained()
        away = y - self.center
        r = (away.square().sum(1) + torch.finfo(y.dtype).tiny).sqrt()  # whose slope exists at the centre too
        h = 1 / (alpha + r)
        # ∂h/∂y = −h²/r (y − z), and β h′ (y − z) vanishes at the centre.
        U = -(beta * h.square() / r)[:, None, None] * away.unsqueeze(2)
        return y + (beta * h)[:, None] * away, 1 + beta * h, U, away.unsqueeze(2)

    @torch.no_grad()
    def inverse(self, x: Tensor) -> Solution:
        alpha, beta = self.constrained()
        away = x.flatten(1) - self.center
        s = away.norm(dim=1)
        # r (1 + β/(α + r)) = s, that is r² + p r − α s = 0; written so that nothing cancels.
        p = alpha + beta - s
        root = (p.square() + 4 * alpha * s).sqrt()
        r = torch.where(p > 0, 2 * alpha * s / (p + root), (root - p) / 2)
        return Solution.exact((self.center + away / (1 + beta / (alpha + r))[:, None]).view_as(x))


def radial(shape: int | Sequence[int], *, layers: int = 32, start: str = "standardise") -> Flow:
    """A stack of radial layers for items of any `shape`, behind a first layer (see `viscos.flows.layers.start`)."""
    shape = whole(shape, "shape")
    d = math.prod(shape)
    return stack([Radial(d) for _ in range(layers)], shape, start)
