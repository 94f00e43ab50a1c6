"""Preconditioned Anderson acceleration (Anderson, 1965; Walker and Ni, 2011)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from viscos.core.iterate import iterate
from viscos.core.solution import Solution
from viscos.roots.equation import Preconditioned


@dataclass(frozen=True)
class History:
    """The last differences of iterates and of preconditioned residuals, (m, B, …) each, and the last pair itself."""

    z: Tensor
    r: Tensor
    dz: list[Tensor]
    dr: list[Tensor]

    def next(self) -> Tensor:
        """z − r mixed: the step that would be best if the map were linear over the differences (B, …)."""
        return self.z - (self.r - _mix(self) if self.dr else self.r)

    def extended(self, z: Tensor, r: Tensor, memory: int) -> History:
        """The history with another pair, and the last `memory` differences; with none, the iteration is a plain one."""
        last = slice(max(0, len(self.dz) + 1 - memory), None)
        return History(z, r, [*self.dz, z - self.z][last], [*self.dr, r - self.r][last])

    def select(self, index: Tensor) -> History:
        """The history of the items at `index`."""
        return History(self.z[index], self.r[index], [d[index] for d in self.dz], [d[index] for d in self.dr])


@dataclass(frozen=True)
class Anderson:
    """Anderson mixing of the iteration z ← z − M r(z), with M the inverse of the flow's affine skeleton.

    Without that preconditioner the iteration diverges on trained flows; with it the paper's Algorithm 1 is beaten by an
    order of magnitude, because no step inverts the flow.
    """

    tolerance: float = 1e-3
    """Largest absolute entry of g^H(y) − x^H that counts as solved, in latent units."""
    budget: float = 50
    """Evaluations of the network an item."""
    memory: int = 8
    """Differences kept."""
    patience: int = 15
    """Evaluations without progress after which an item is stalled."""

    def solve(self, equation: Preconditioned, start: Tensor) -> Solution:
        """Solves the equation from `start` (B, …)."""
        return iterate(equation, self, start, tolerance=self.tolerance, budget=self.budget)

    def init(self, problem: Preconditioned, z: Tensor, r: Tensor) -> History:
        """An empty history."""
        return History(z, problem.precondition(r), [], [])

    def step(
        self, problem: Preconditioned, z: Tensor, r: Tensor, state: History
    ) -> tuple[Tensor, Tensor, float, History]:
        """One evaluation: the mixed iterate, and its residual."""
        new = state.next()
        residual = problem.residual(new)
        return new, residual, 1.0, state.extended(new, problem.precondition(residual), self.memory)

    def select(self, state: History, index: Tensor) -> History:
        """The history of the items at `index`."""
        return state.select(index)


def _mix(state: History) -> Tensor:
    """(ΔR − ΔZ) γ, with γ the least-squares fit of r by the differences ΔR (B, …)."""
    R = torch.stack([d.flatten(1) for d in state.dr], 1)
    Z = torch.stack([d.flatten(1) for d in state.dz], 1)
    gram = R @ R.mT
    scale = gram.diagonal(dim1=1, dim2=2).sum(1).clamp_min(torch.finfo(R.dtype).tiny)
    ridge = 10 * torch.finfo(R.dtype).eps * scale
    gram = gram + torch.diag_embed(ridge[:, None].expand(-1, R.shape[1]))
    rhs = R @ state.r.flatten(1).unsqueeze(-1)
    gamma, info = torch.linalg.solve_ex(gram, rhs)
    gamma = torch.where((info == 0)[:, None, None], gamma, 0)
    return ((R - Z).mT @ gamma).view_as(state.r)
