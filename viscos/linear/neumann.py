"""Solves (I + H) z = b by the Neumann series z = Σ_j (−H)^j b, for ‖H‖ < 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from viscos.core.iterate import iterate
from viscos.core.solution import Solution
from viscos.linear.operator import LinearOperator
from viscos.linear.problem import LinearProblem, tight_tolerance


@dataclass(frozen=True)
class Neumann:
    """The truncated Neumann series.

    Its partial sums are the iterates z ← z − ((I + H) z − b), and the residual of a partial sum is the next term of
    the series, so stopping on the residual is stopping on the size of the next term. (The paper's section 3 prints
    the terms as −H^j; the series has (−H)^j.)
    """

    tolerance: float | None = None
    """Relative residual at which the series is cut: by default the paper's, 1e-5, or 1e-10 in double precision."""
    budget: float = 200
    """Products an item."""
    patience: int = 5

    def __call__(self, A: LinearOperator, b: Tensor, preconditioner: LinearOperator | None = None) -> Solution:
        """Solves A z = b with A = I + H; b (B, …)."""
        problem = LinearProblem(A, b, preconditioner)
        tolerance = self.tolerance or tight_tolerance(b)
        return iterate(problem, self, torch.zeros_like(b), tolerance=tolerance, budget=self.budget, start_residual=-b)

    def init(self, problem: LinearProblem, z: Tensor, r: Tensor) -> None:
        """No state."""

    def step(self, problem: LinearProblem, z: Tensor, r: Tensor, state: None) -> tuple[Tensor, Tensor, float, None]:
        """One more term."""
        z = z - problem.precondition(r)
        return z, problem.residual(z), 1.0, None

    def select(self, state: Any, index: Tensor) -> None:
        """No state."""
