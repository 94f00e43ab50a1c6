"""Newton–Krylov (Knoll and Keyes, 2004) with a backtracking line search for each item."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from viscos.core.iterate import iterate
from viscos.core.solution import Solution, per_item
from viscos.linear import GMRES, LinearSolver
from viscos.roots.equation import Linearised


@dataclass(frozen=True)
class NewtonKrylov:
    """z ← z − s A⁻¹ r(z), the direction by a Krylov solver at one linearisation, the step s halved until r shrinks."""

    tolerance: float = 1e-3
    """Largest absolute entry of the residual that counts as solved."""
    budget: float = 500
    """Evaluations of the network and products with its Jacobian an item."""
    linear_solver: LinearSolver = field(default_factory=lambda: GMRES(tolerance=1e-2, budget=60))
    """Solves for the direction; it need not be exact."""
    halvings: int = 8
    """How often a step may be halved."""
    patience: int = 6
    """Steps without progress after which an item is stalled."""

    @torch.no_grad()
    def solve(self, equation: Linearised, start: Tensor) -> Solution:
        """Solves the equation from `start` (B, …)."""
        r, cost = equation.residual_and_cost(start)
        left = self.budget - cost
        found = iterate(equation, self, start, tolerance=self.tolerance, budget=left, start_residual=r)
        return replace(found, evaluations=found.evaluations + cost)

    def init(self, problem: Any, z: Tensor, r: Tensor) -> None:
        """No state."""

    def select(self, state: Any, index: Tensor) -> None:
        """No state."""

    def step(self, problem: Linearised, z: Tensor, r: Tensor, state: None) -> tuple[Tensor, Tensor, Tensor, None]:
        """One Newton step; costs the linearisation, its products and the trial points."""
        direction = problem.newton_direction(z, r, self.linear_solver)
        cost = direction.evaluations + 1
        before = r.flatten(1).norm(dim=1)
        step = torch.ones_like(before)
        trial, residual = z, r
        pending = torch.ones_like(before, dtype=torch.bool)
        for _ in range(self.halvings + 1):
            candidate = z - per_item(step, z) * direction.value
            value, spent = problem.residual_and_cost(candidate)
            cost = cost + torch.where(pending, spent, 0)
            trial = torch.where(per_item(pending, z), candidate, trial)
            residual = torch.where(per_item(pending, z), value, residual)
            pending = pending & ~(residual.flatten(1).norm(dim=1) <= (1 - 1e-4 * step) * before)
            if not bool(pending.any()):
                break
            step = torch.where(pending, step / 2, step)
        return trial, residual, cost, None
