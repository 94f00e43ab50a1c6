"""The restricted equation in its two forms.

Given y^O and x^H, find the completion:

    (G)  g^H(y^H; y^O) = x^H    unknown y^H, Jacobian G^HH, the paper's equation 4, `LatentEquation`
    (F)  f^O(x^O; x^H) = y^O    unknown x^O, Jacobian J^OO, the paper's equation 5, `DataEquation`

Unknowns are tensors of the shape of the data, zero outside their set, so that items with different masks share a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from viscos.core.iterate import Problem
from viscos.core.rng import rademacher
from viscos.core.solution import Solution, Status, item_max
from viscos.linear import Block, LinearOperator, LinearSolver
from viscos.roots.links import Links, Skeleton


class Invertible(Protocol):
    """What the equations need of a flow: it is a bijection."""

    @property
    def deep(self) -> bool: ...

    def __call__(self, y: Tensor) -> Tensor: ...

    def inverse(self, x: Tensor) -> Solution: ...

    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]: ...

    def skeleton(self, y: Tensor) -> Skeleton: ...

    def links(self, y: Tensor) -> Links | None: ...

    def select(self, index: Tensor) -> Invertible: ...


class Preconditioned(Problem, Protocol):
    """An equation whose Jacobian is known about."""

    def precondition(self, r: Tensor) -> Tensor:
        """About A⁻¹ r (B, …)."""
        ...


class Linearised(Problem, Protocol):
    """An equation whose Jacobian A can be solved with."""

    def residual_and_cost(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The residual (B, …) and the evaluations of the network that it took (B,)."""
        ...

    def newton_direction(self, z: Tensor, r: Tensor, solve: LinearSolver) -> Solution:
        """A⁻¹ r at z."""
        ...


@dataclass(frozen=True)
class LatentEquation:
    """(G): g^H(y^H; y^O) = x^H. Its error is the largest absolute entry of the residual, in latent units."""

    flow: Invertible
    y: Tensor
    """The data (B, …), zero where hidden."""
    hidden: Tensor
    """The mask of H (B, …)."""
    x: Tensor
    """The wanted latent (B, …); only its entries on H matter."""
    preconditioner: LinearOperator
    """Close to (G^HH)⁻¹."""
    skeleton: Skeleton | None = None
    """The flow's affine skeleton for the whole batch."""
    guess: Tensor | None = None
    """A guess of the completion (B, …), if there is one."""

    @staticmethod
    def build(flow: Invertible, y: Tensor, hidden: Tensor, x: Tensor, guess: Tensor | None = None) -> LatentEquation:
        """The equation for data `y` (anything finite where hidden), preconditioned by the flow's affine skeleton."""
        y = torch.where(hidden, 0, y)
        skeleton = flow.skeleton(y)
        return LatentEquation(flow, y, hidden, x, skeleton.inverse_block(hidden), skeleton, guess)

    def start(self) -> Tensor:
        """The guess (B, …), zero outside H; for want of one, the solution that the affine skeleton would have."""
        if self.guess is not None:
            return torch.where(self.hidden, self.guess, 0)
        skeleton = self.skeleton or self.flow.skeleton(self.y)
        defect = torch.where(self.hidden, self.x - skeleton.apply(self.y), 0)
        return torch.where(self.hidden, self.preconditioner.mv(defect), 0)

    def complete(self, z: Tensor) -> Tensor:
        """y with `z` in the holes (B, …)."""
        return torch.where(self.hidden, z, self.y)

    def latent(self, z: Tensor) -> Tensor:
        """g of the completion (B, …): one evaluation of the network."""
        return self.flow(self.complete(z))

    def defect(self, latent: Tensor) -> Tensor:
        """The residual at a completion whose latent is known (B, …)."""
        return torch.where(self.hidden, latent - self.x, 0)

    def residual(self, z: Tensor) -> Tensor:
        """g^H(z; y^O) − x^H (B, …)."""
        return self.defect(self.latent(z))

    def residual_and_cost(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The residual (B, …) and the evaluations of the network that it took (B,)."""
        return self.residual(z), z.new_ones(len(z))

    def error(self, r: Tensor) -> Tensor:
        """max |r| (B,)."""
        return item_max(r)

    def precondition(self, r: Tensor) -> Tensor:
        """About (G^HH)⁻¹ r (B, …)."""
        return torch.where(self.hidden, self.preconditioner.mv(r), 0)

    def newton_direction(self, z: Tensor, r: Tensor, solve: LinearSolver) -> Solution:
        """(G^HH)⁻¹ r at z."""
        _, G = self.flow.linearize(self.complete(z))
        return solve(Block(G, self.hidden), r, self.preconditioner)

    @torch.no_grad()
    def judged(self, found: Solution, tolerance: float) -> Solution:
        """`found`, with `IMPRECISE` for items whose residual is no more than rounding noise within the tolerance.

        And for those that stalled where the noise is larger. Where an item converged, and its largest entry involved
        times the unit roundoff ε is small against the tolerance, nothing is evaluated. Elsewhere the noise is measured:
        how far g^H moves when each entry of y moves by 4 ε of itself, twice what rounding does to it.
        """
        y, eps = self.complete(found.value), torch.finfo(self.y.dtype).eps
        largest = torch.maximum(item_max(y), item_max(torch.where(self.hidden, self.x, 0)))
        stalled = found.status == Status.STALLED
        rows = (stalled | found.converged & (16 * eps * largest > tolerance)).nonzero().flatten()
        if not len(rows):
            return found
        near, y = self.select(rows), y[rows]
        signs = rademacher(y[:1], torch.Generator().manual_seed(0))  # every item's, whoever else is looked at
        moved = near.flow(y + 4 * eps * y * signs) - near.flow(y)
        noise = item_max(torch.where(near.hidden, moved, 0)) / 2
        status = found.status.clone()
        imprecise = torch.where(stalled[rows], noise > tolerance, ~(noise <= tolerance))  # NaN says nothing of a stall
        status[rows] = torch.where(imprecise, int(Status.IMPRECISE), status[rows])
        evaluations = found.evaluations.clone()
        evaluations[rows] += 2
        return replace(found, status=status, evaluations=evaluations)

    def select(self, index: Tensor) -> LatentEquation:
        """The equations of the items at `index`."""
        picked = (self.y[index], self.hidden[index], self.x[index], self.preconditioner.select(index))
        guess = None if self.guess is None else self.guess[index]
        return LatentEquation(self.flow.select(index), *picked, guess=guess)


class RootFinder(Protocol):
    """Anything that solves the latent equation."""

    @property
    def tolerance(self) -> float: ...

    def solve(self, equation: LatentEquation, start: Tensor) -> Solution: ...


@dataclass(frozen=True)
class DataEquation:
    """(F): f^O(x^O; x^H) = y^O. Its error is the largest absolute entry of the residual, in data units.

    Evaluating it means inverting the flow, so it is the dearer form; the paper's Newton–Krylov works on it.
    """

    flow: Invertible
    y: Tensor
    hidden: Tensor
    x: Tensor

    def latent(self, z: Tensor) -> Tensor:
        """x with `z` as x^O (B, …)."""
        return torch.where(self.hidden, self.x, z)

    def residual(self, z: Tensor) -> Tensor:
        """f^O(z; x^H) − y^O (B, …)."""
        return self.residual_and_cost(z)[0]

    def residual_and_cost(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The residual (B, …) and the evaluations of the network that it took (B,): an inverse of the flow."""
        inverse = self.flow.inverse(self.latent(z))
        return torch.where(self.hidden, 0, inverse.value - self.y), inverse.evaluations

    def error(self, r: Tensor) -> Tensor:
        """max |r| (B,)."""
        return item_max(r)

    def newton_direction(self, z: Tensor, r: Tensor, solve: LinearSolver) -> Solution:
        """(J^OO)⁻¹ r at z: by the Schur complement when H is the smaller side, else with G^OO as preconditioner.

        Counts the inverse of the flow; a product with J or with the preconditioner counts as one with G at most.
        """
        few = self.hidden.flatten(1).sum(1) * 2 <= self.hidden.shape[1:].numel()
        if bool(few.any()) and not bool(few.all()):  # each item goes its own way, whatever its company
            rows = few.nonzero().flatten(), (~few).nonzero().flatten()
            parts = [self.select(some).newton_direction(z[some], r[some], solve) for some in rows]
            return Solution.joined(parts).select(torch.cat(rows).argsort())
        inverse = self.flow.inverse(self.latent(z))
        _, G = self.flow.linearize(inverse.value)
        if bool(few.all()):
            found, extra = self._schur(G, r, solve), 2
        else:
            found, extra = solve(Block(G.inverse(), ~self.hidden), r, Block(G, ~self.hidden)), 0
        return replace(found, evaluations=found.evaluations + inverse.evaluations + extra)

    def _schur(self, G: LinearOperator, r: Tensor, solve: LinearSolver) -> Solution:
        """(J^OO)⁻¹ r = G^OO r − G^OH (G^HH)⁻¹ G^HO r, the identity reciprocal to equation 2 (section 2.2)."""
        w = G.mv(torch.where(self.hidden, 0, r))
        inner = solve(Block(G, self.hidden), torch.where(self.hidden, w, 0))
        correction = G.mv(torch.where(self.hidden, inner.value, 0))
        return inner.with_value(torch.where(self.hidden, 0, w - correction))

    def select(self, index: Tensor) -> DataEquation:
        """The equations of the items at `index`."""
        return DataEquation(self.flow.select(index), self.y[index], self.hidden[index], self.x[index])
