"""Preconditioned Anderson acceleration (Anderson, 1965; Walker and Ni, 2011)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from viscos.iterate import iterate
from viscos.roots.equation import LatentEquation
from viscos.solution import Solution


@dataclass(frozen=True)
class _History:
    """The last differences of iterates and of preconditioned residuals, (m, B, …) each, and the last pair itself."""

    z: Tensor
    r: Tensor
    dz: list[Tensor]
    dr: list[Tensor]


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

    def solve(self, equation: LatentEquation, start: Tensor) -> Solution:
        """Solves the equation from `start` (B, …)."""
        return iterate(equation, self, start, tolerance=self.tolerance, budget=self.budget)

    def init(self, problem: LatentEquation, z: Tensor, r: Tensor) -> _History:
        """An empty history."""
        return _History(z, problem.precondition(r), [], [])

    def step(
        self, problem: LatentEquation, z: Tensor, r: Tensor, state: _History
    ) -> tuple[Tensor, Tensor, float, _History]:
        """One evaluation: the mixed iterate, and its residual."""
        new = z - (state.r - _mix(state) if state.dr else state.r)
        residual = problem.residual(new)
        preconditioned = problem.precondition(residual)
        dz = [*state.dz, new - z][-self.memory :]
        dr = [*state.dr, preconditioned - state.r][-self.memory :]
        return new, residual, 1.0, _History(new, preconditioned, dz, dr)

    def select(self, state: _History, index: Tensor) -> _History:
        """The history of the items at `index`."""
        dz, dr = [d[index] for d in state.dz], [d[index] for d in state.dr]
        return _History(state.z[index], state.r[index], dz, dr)


def _mix(state: _History) -> Tensor:
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
