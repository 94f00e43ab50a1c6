"""Residual layers turned round, and implicit flows made of them (Lu et al., 2021; the paper's appendix D)."""

from __future__ import annotations

import torch
from torch import Tensor

from viscos.core.rng import Generators
from viscos.core.solution import Solution, per_item
from viscos.flows.bijection import Bijection
from viscos.flows.layers.branch import Branch
from viscos.flows.layers.residual import Residual
from viscos.linear import LinearOperator
from viscos.roots import implicit


class Reversed(Bijection):
    """x = h⁻¹(y), that is x + h(x) = y with a contraction h: the inverse of a residual layer.

    Its Lipschitz constant is not bounded by 2 as that of a residual layer is. The value comes from a fixed-point
    iteration, its derivatives from the implicit function theorem with Neumann series; the tangent is differentiable
    once more, which is what NLADE and CLADE need. An item whose iteration does not converge has a value of NaN, so that
    no solve around it takes it for solved.
    """

    near_affine = True
    network_layers = 1

    def __init__(self, residual: Residual) -> None:
        super().__init__()
        self.residual = residual

    def _solve(self, y: Tensor) -> tuple[Tensor, LinearOperator, Tensor]:
        """The best iterate (B, …), (I + ∇h)⁻¹ there, neither with a graph, and where it is the root (B, …), bool."""
        found = self.residual.inverse(y.detach())
        x = torch.where(torch.isfinite(found.value), found.value, y.detach())
        return x, self.residual.linearize(x)[1].inverse(), per_item(found.converged, y)

    def forward(self, y: Tensor) -> Tensor:
        x, inverse, ok = self._solve(y)
        x = self._attached(y, x, inverse) if torch.is_grad_enabled() else x
        return torch.where(ok, x, float("nan"))

    def _attached(self, y: Tensor, x: Tensor, inverse: LinearOperator) -> Tensor:
        """The root with its gradient."""
        return implicit(x, self.residual(x) - y, inverse.rmv)

    def tangent(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        root, inverse, ok = self._solve(y)
        x = self._attached(y, root, inverse)
        t = inverse.mv(v.detach())
        # (I + ∇h(x)) t = v, once more an implicit function: of v, of x and of the parameters.
        product = self.residual.tangent(x, t)[1]
        return torch.where(ok, x, float("nan")), implicit(t, product - v, inverse.rmv)

    @torch.no_grad()
    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]:
        x, inverse, ok = self._solve(y)
        return torch.where(ok, x, float("nan")), inverse

    def forward_and_ladj(self, y: Tensor, generator: Generators | None = None) -> tuple[Tensor, Tensor]:
        x = self(y)
        return x, -self.residual.forward_and_ladj(x, generator)[1]

    def forward_and_ladj_surrogate(self, y: Tensor, generator: Generators | None = None) -> tuple[Tensor, Tensor]:
        x = self(y)
        return x, -self.residual.forward_and_ladj_surrogate(x, generator)[1]

    @torch.no_grad()
    def inverse(self, x: Tensor) -> Solution:
        return Solution.exact(self.residual(x), evaluations=1.0)

    def renormalize(self, iterations: int = 1) -> None:
        self.residual.renormalize(iterations)

    def branches(self) -> list[Branch]:
        return self.residual.branches()
