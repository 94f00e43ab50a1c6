"""Batched conjugate gradients (Hestenes and Stiefel, 1952), for symmetric positive definite A."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from viscos.core.iterate import iterate
from viscos.core.solution import Solution, item_dot, per_item
from viscos.linear.operator import LinearOperator
from viscos.linear.problem import LinearProblem

_State = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class CG:
    """Preconditioned conjugate gradients; three vectors of memory and no orthogonalisation.

    The residual is carried by the recurrence, which agrees with the true one to rounding at the tolerances that are
    asked for here.
    """

    tolerance: float = 1e-3
    """Relative residual ‖A z − b‖ / ‖b‖."""
    budget: float = 100
    """Products an item."""
    patience: int = 20

    def __call__(self, A: LinearOperator, b: Tensor, preconditioner: LinearOperator | None = None) -> Solution:
        """Solves A z = b; b (B, …)."""
        problem = LinearProblem(A, b, preconditioner)
        return iterate(
            problem, self, torch.zeros_like(b), tolerance=self.tolerance, budget=self.budget, start_residual=-b
        )

    def init(self, problem: LinearProblem, z: Tensor, r: Tensor) -> _State:
        """The first direction, and rᵀ M r."""
        p = problem.precondition(-r)
        return p, item_dot(-r, p)

    def step(self, problem: LinearProblem, z: Tensor, r: Tensor, state: _State) -> tuple[Tensor, Tensor, float, _State]:
        """One product."""
        p, rho = state
        Ap = problem.A.mv(p)
        curvature = item_dot(p, Ap)
        alpha = torch.where(curvature > 0, rho / curvature, 0)
        z, r = z + per_item(alpha, p) * p, r + per_item(alpha, p) * Ap
        m = problem.precondition(-r)
        new = item_dot(-r, m)
        return z, r, 1.0, (m + per_item(torch.where(rho > 0, new / rho, 0), p) * p, new)

    def select(self, state: _State, index: Tensor) -> _State:
        """The state of the items at `index`."""
        return state[0][index], state[1][index]
