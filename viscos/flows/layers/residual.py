"""Residual layers x = y + h(y) with a contraction h (Behrmann et al., 2019; Chen et al., 2019)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from viscos.core.rng import Generators
from viscos.core.solution import Solution, per_item
from viscos.flows.bijection import Bijection, inverse_tolerance
from viscos.flows.layers.branch import Branch
from viscos.flows.layers.inversion import Inversion
from viscos.flows.layers.series import Series
from viscos.linear import GMRES, IdentityPlus, Inverse, LinearOperator, Neumann
from viscos.roots import Anderson


class ResidualJacobian(IdentityPlus):
    """I + ∇h at one point."""

    def inverse(self, tolerance: float | None = None) -> LinearOperator:
        """(I + ∇h)⁻¹ by its Neumann series, and by GMRES where that is too slow.

        Without a `tolerance`, products that neither of them gets to full precision are NaN.
        """

        def solve(A: LinearOperator, b: Tensor) -> Solution:
            second = GMRES.tight(b, tolerance)
            found = Neumann(tolerance)(A, b).or_else(lambda rows: second(A.select(rows), b[rows]))
            if tolerance is None:
                found = found.with_value(torch.where(per_item(found.converged, b), found.value, float("nan")))
            return found

        return Inverse(self, solve)


class Residual(Bijection):
    """x = y + h(y), with its log-determinant by `series`, or exactly where an item has few entries."""

    near_affine = True
    network_layers = 1

    def __init__(self, branch: Branch, series: Series) -> None:
        super().__init__()
        self.branch, self.series = branch, series

    def forward(self, y: Tensor) -> Tensor:
        return y + self.branch(y)

    def tangent(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h, t = self.branch.tangent(y, v)
        return y + h, v + t

    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]:
        h, jacobian = self.branch.linearize(y)
        return y + h, ResidualJacobian(jacobian)

    def estimate(self, G: LinearOperator, like: Tensor, generator: Generators) -> Tensor:
        assert isinstance(G, IdentityPlus)
        return self.series.value(G.part, like, generator)

    def probes(self, G: LinearOperator, like: Tensor, generator: Generators) -> Iterator[tuple[Tensor, Tensor]]:
        assert isinstance(G, IdentityPlus)
        return self.series.probes(G.part, like, generator)

    @torch.no_grad()
    def inverse(self, x: Tensor) -> Solution:
        tolerance, problem = inverse_tolerance(x), Inversion(self, x)
        # z ← z − r(z), as Anderson's method without a memory is; it converges because h is a contraction.
        found = Anderson(tolerance, budget=400, memory=0, patience=50).solve(problem, x)
        second = Anderson(tolerance, budget=200)
        return found.or_else(lambda rows: second.solve(problem.select(rows), found.value[rows]))

    def renormalize(self, iterations: int = 1) -> None:
        for linear in self.branch.maps:
            linear.renormalize(iterations)

    def branches(self) -> list[Branch]:
        return [self.branch]
