"""The paper's Algorithm 1: two equations iterated in turn, with damping."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from viscos.core.iterate import iterate
from viscos.core.solution import Solution
from viscos.roots.equation import LatentEquation


@dataclass(frozen=True)
class _State:
    x: Tensor
    """x̃^O, on O (B, …)."""
    mixing: float
    unpaid: float = 0.0
    """Evaluations that the next step has to account for."""


@dataclass(frozen=True)
class AlternatingFixedPoint:
    """Algorithm 1 of the paper (section 2.2), with its schedule α = β = 0.5 · 0.95^k (section 3).

    The paper's Theorem 1: it converges to the unique solution for any α and β in (0, 1] if L_a L_b < 1, the product of
    the global Lipschitz constants of f^H in x^O and of g^O in y^H, a contraction. Nothing holds a trained flow to that,
    so items may fail here.

    Two departures. ỹ^H, which the algorithm uses before setting it, starts at y^H. And the iteration stops on the
    residual of the equation: the damping shrinks every step, so a small step says nothing about convergence.
    """

    tolerance: float = 1e-3
    """Largest absolute entry of g^H(y) − x^H that counts as solved, in latent units."""
    budget: float = 2000
    """Evaluations of the network an item; each inverse counts what it took."""
    mixing: float = 0.5
    decay: float = 0.95
    patience: int = 30

    def solve(self, equation: LatentEquation, start: Tensor | None = None) -> Solution:
        """Solves the equation; without a `start` from y^H = f^H(0, x^H), as the paper does."""
        cost: Tensor | float = 0.0
        if start is None:
            inverse = equation.flow.inverse(torch.where(equation.hidden, equation.x, 0))
            start, cost = torch.where(equation.hidden, inverse.value, 0), inverse.evaluations
        solution = iterate(equation, self, start, tolerance=self.tolerance, budget=self.budget)
        return replace(solution, evaluations=solution.evaluations + cost)

    def init(self, problem: LatentEquation, z: Tensor, r: Tensor) -> _State:
        """x̃^O = x^O = g^O(y^O, y^H)."""
        return _State(torch.where(problem.hidden, 0, problem.latent(z)), self.mixing, unpaid=1.0)

    def step(
        self, problem: LatentEquation, z: Tensor, r: Tensor, state: _State
    ) -> tuple[Tensor, Tensor, Tensor, _State]:
        """One turn of the loop: an inverse for y^H, an evaluation for x^O, both mixed."""
        inverse = problem.flow.inverse(torch.where(problem.hidden, problem.x, state.x))
        z = torch.where(problem.hidden, torch.lerp(z, inverse.value, state.mixing), 0)
        latent = problem.latent(z)
        x = torch.where(problem.hidden, 0, torch.lerp(state.x, latent, state.mixing))
        cost = inverse.evaluations + 1 + state.unpaid
        return z, problem.defect(latent), cost, _State(x, state.mixing * self.decay)

    def select(self, state: _State, index: Tensor) -> _State:
        """The state of the items at `index`."""
        return _State(state.x[index], state.mixing, state.unpaid)
