"""Batched restarted GMRES (Saad and Schultz, 1986).

Departures from the textbook, and why:
- every item of the batch has its own Hessenberg matrix, and its basis ends once it is solved: an item gets the same
  solution whatever batch it stands in;
- orthogonalisation is classical Gram–Schmidt done twice: two batched products instead of a loop over the basis, and as
  orthogonal as the modified form;
- the preconditioner stands on the right, so the residual that is minimised is that of the system itself, and each
  preconditioned vector is kept (FGMRES: Saad, 1993), so the preconditioner may itself be an iterative solve;
- a breakdown (the Krylov space is exhausted) ends the item's basis with a zero vector, which the least-squares problem
  then gives the coefficient zero;
- each restart is one step of the common loop, which recomputes the true residual: what the recurrence claims is only
  used to end a cycle early.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from viscos.core.iterate import iterate
from viscos.core.solution import Solution
from viscos.linear.operator import LinearOperator
from viscos.linear.problem import LinearProblem, tight_tolerance


@dataclass(frozen=True)
class GMRES:
    """GMRES(restart) for a batch of systems A z = b."""

    tolerance: float = 1e-3
    """Relative residual ‖A z − b‖ / ‖b‖."""
    budget: float = 100
    """Products an item, the recomputed residuals included."""
    restart: int = 30
    """Dimension of the Krylov space between restarts."""
    patience: int = 2
    """Restarts without progress after which an item counts as stalled."""

    @staticmethod
    def tight(b: Tensor, tolerance: float | None = None) -> GMRES:
        """The solver for a product with an inverse: to `tolerance`, by default 1e-5, or 1e-10 in double precision."""
        return GMRES(tolerance or tight_tolerance(b), budget=400, restart=60)

    def __call__(self, A: LinearOperator, b: Tensor, preconditioner: LinearOperator | None = None) -> Solution:
        """Solves A z = b; b (B, …); `preconditioner` is an operator close to A⁻¹."""
        problem = LinearProblem(A, b, preconditioner)
        return iterate(
            problem, self, torch.zeros_like(b), tolerance=self.tolerance, budget=self.budget, start_residual=-b
        )

    def init(self, problem: LinearProblem, z: Tensor, r: Tensor) -> Tensor:
        """The products spent so far on each item (B,); a cycle begins from the residual alone."""
        return torch.zeros(len(z), dtype=z.dtype, device=z.device)

    def select(self, state: Tensor, index: Tensor) -> Tensor:
        """Those of the items at `index`."""
        return state[index]

    def step(
        self, problem: LinearProblem, z: Tensor, r: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One cycle, as long as each item's budget allows; costs its products and one for the true residual."""
        room = (self.budget - state).floor() - 1
        krylov = _Krylov(-r, max(0, min(self.restart, z.shape[1:].numel(), int(room.max()))))
        target = 0.9 * self.tolerance * krylov.beta / problem.error(r).clamp_min(torch.finfo(z.dtype).tiny)
        products = torch.zeros_like(state)
        for _ in range(krylov.size):
            going = (krylov.residual() > target) & (products < room)
            if not bool(going.any()):
                break
            krylov.end(~going)
            direction = problem.precondition(krylov.last.view_as(z))
            krylov.extend(direction.flatten(1), problem.A.mv(direction).flatten(1))
            products = products + going
        z = z + krylov.minimiser().view_as(z)
        return z, problem.residual(z), products + 1, state + products + 1


class _Krylov:
    """An orthonormal Krylov basis and the QR factors of its Hessenberg matrix, by Givens rotations."""

    def __init__(self, r: Tensor, size: int) -> None:
        r = r.flatten(1)
        batch, d = r.shape
        self.size, self.k = size, 0
        self.tiny = 10 * torch.finfo(r.dtype).eps
        self.beta = r.norm(dim=1)
        self.V = r.new_zeros(size + 1, batch, d)
        self.Z: list[Tensor] = []
        self.V[0] = r / torch.where(self.beta > 0, self.beta, 1).unsqueeze(1)
        self.R = torch.eye(size, dtype=r.dtype, device=r.device).repeat(batch, 1, 1)
        self.g = r.new_zeros(batch, size + 1)
        self.g[:, 0] = self.beta
        self.rotations: list[tuple[Tensor, Tensor]] = []

    @property
    def last(self) -> Tensor:
        """The newest basis vector (B, d)."""
        return self.V[self.k]

    def residual(self) -> Tensor:
        """What the recurrence claims for the norm of the residual (B,)."""
        return self.g[:, self.k].abs()

    def end(self, done: Tensor) -> None:
        """Ends the basis of the items in `done` (B,), as a breakdown does: what they get is then their own alone."""
        self.V[self.k] = torch.where(done.unsqueeze(1), 0, self.last)

    def extend(self, z: Tensor, w: Tensor) -> None:
        """Takes in z = M v for the last basis vector v, and w = A z."""
        self.Z.append(z)
        k, V = self.k, self.V[: self.k + 1]
        size = w.norm(dim=1)
        h = w.new_zeros(len(w), k + 1)
        for _ in range(2):
            c = torch.einsum("kbd,bd->bk", V, w)
            w = w - torch.einsum("kbd,bk->bd", V, c)
            h = h + c
        below = w.norm(dim=1)
        below = torch.where(below > self.tiny * size, below, torch.zeros_like(below))
        self.V[k + 1] = torch.where(below.unsqueeze(1) > 0, w / torch.where(below > 0, below, 1).unsqueeze(1), 0)
        self._rotate(h, below)
        self.k += 1

    def _rotate(self, h: Tensor, below: Tensor) -> None:
        k = self.k
        for i, (c, s) in enumerate(self.rotations):
            upper, lower = h[:, i].clone(), h[:, i + 1].clone()
            h[:, i], h[:, i + 1] = c * upper + s * lower, c * lower - s * upper
        length = torch.hypot(h[:, k], below)
        dead = length == 0  # the basis of this item ended earlier: its further coefficients are zero
        c = torch.where(dead, 1, h[:, k] / torch.where(dead, 1, length))
        s = torch.where(dead, 0, below / torch.where(dead, 1, length))
        self.rotations.append((c, s))
        h[:, k] = torch.where(dead, 1, length)
        self.R[:, : k + 1, k] = h
        g = self.g[:, k].clone()
        self.g[:, k], self.g[:, k + 1] = torch.where(dead, 0, c * g), torch.where(dead, g, -s * g)

    def minimiser(self) -> Tensor:
        """The combination of preconditioned vectors with the smallest residual (B, d)."""
        k = self.k
        if k == 0:
            return torch.zeros_like(self.V[0])
        y = torch.linalg.solve_triangular(self.R[:, :k, :k], self.g[:, :k, None], upper=True)
        return torch.einsum("kbd,bk->bd", torch.stack(self.Z), y.squeeze(-1))
