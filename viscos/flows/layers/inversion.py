"""The inverse of a layer that is near the identity, as an equation for root finders."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from viscos.core.solution import Solution, item_max
from viscos.flows.bijection import Bijection
from viscos.linear import LinearSolver


@dataclass(frozen=True)
class Inversion:
    """y + h(y) = x. Its error is the largest absolute entry of the residual, beside 1 or the largest of x."""

    layer: Bijection
    """y ↦ y + h(y)."""
    x: Tensor

    def residual(self, z: Tensor) -> Tensor:
        """z + h(z) − x (B, …)."""
        return self.layer(z) - self.x

    def residual_and_cost(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The residual (B, …) and the evaluations of the network that it took (B,)."""
        return self.residual(z), z.new_ones(len(z))

    def error(self, r: Tensor) -> Tensor:
        """max |r| / max(1, max |x|) (B,)."""
        return item_max(r) / item_max(self.x).clamp_min(1.0)

    def precondition(self, r: Tensor) -> Tensor:
        """The residual: the layer is near the identity."""
        return r

    def newton_direction(self, z: Tensor, r: Tensor, solve: LinearSolver) -> Solution:
        """(I + ∇h)⁻¹ r at z."""
        return solve(self.layer.linearize(z)[1], r)

    def select(self, index: Tensor) -> Inversion:
        """The same for the items at `index`."""
        return Inversion(self.layer, self.x[index])
