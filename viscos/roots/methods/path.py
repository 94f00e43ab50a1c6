"""A path solver for flows of layers: the states between the layers are unknowns too.

A flow is a chain of links, z₀ = y, zₖ₊₁ = Fₖ(zₖ), z_K = x. Form (G) knows z₀^O = y^O at one end and z_K^H = x^H at the
other, and a deep flow bends y^H ↦ g^H(y) too much for a method that knows y^H alone. Lifted to the whole path, each
equation is nearly linear. One sweep is, with S the affine skeleton of a link (the identity of a residual one),

    backward, for k = K − 1 … 0:    zₖ^H ← zₖ^H + (S^HH)⁻¹ (zₖ₊₁ − Fₖ(zₖ))^H
    forward,  for k = 0 … K − 1:    zₖ₊₁^O ← Fₖ^O(zₖ)

and Anderson acceleration mixes whole paths, for each item alone. It is the paper's Algorithm 1 (section 2.2), which
alternates f^H and g^O at the two ends, taken to every layer, so that no step inverts the flow; it is related to
multiple shooting, and to the lifted Newton method (Albersmeyer and Diehl, 2010), whose lifted unknowns these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from viscos.core.iterate import iterate
from viscos.core.solution import Solution, Status, item_max, per_item
from viscos.linear import LinearOperator
from viscos.roots.equation import LatentEquation
from viscos.roots.links import Link, Links
from viscos.roots.methods.anderson import Anderson, History

_MORE = 16
"""Evaluations that an item gets whose path was solved to less than its completion needs."""


@dataclass(frozen=True)
class _Lifted:
    """The equations of all links, Fₖ(zₖ) = zₖ₊₁, with y^O and x^H given: what `iterate` solves for whole paths.

    A residual stands for a whole sweep: (B, 2, K + 1, …), first the step of the sweep, then what the links still lack.
    """

    links: Links
    hidden: Tensor
    inverses: Sequence[LinearOperator | None]
    """(S^HH)⁻¹ of each link; None for the identity."""
    parallel: bool

    def residual(self, path: Tensor) -> Tensor:
        """The residual of a sweep from `path`."""
        return self._parallel(path) if self.parallel else self._sequential(path)

    def _parallel(self, path: Tensor) -> Tensor:
        """All links at once, at the old path: Jacobi's iteration. What the links lack is that of the old path."""
        old, hidden = list(path.unbind(1)), self.hidden
        lack = [v - z for v, z in zip(self.links.values(path[:, :-1]).unbind(1), old[1:], strict=True)]
        new = list(old)
        for k in reversed(range(len(lack))):
            new[k] = torch.where(hidden, old[k] + self._back(k, new[k + 1] - old[k + 1] - lack[k]), old[k])
        for k, link in enumerate(self.links.each):
            moved = self._along(link, old[k], new[k])
            new[k + 1] = torch.where(hidden, new[k + 1], old[k + 1] + lack[k] + moved)
        return torch.stack([torch.stack(new, 1) - path, self._padded(lack)], 1)

    def _sequential(self, path: Tensor) -> Tensor:
        """Link by link, with what is newest: that of Gauss and Seidel. What the links lack is that of the new path."""
        old, hidden, links = list(path.unbind(1)), self.hidden, self.links.each
        new, lack = list(old), list[Tensor]()
        for k in reversed(range(len(links))):
            z = torch.where(hidden, old[k] + self._back(k, new[k + 1] - old[k + 1]), old[k])
            new[k] = torch.where(hidden, z + self._back(k, new[k + 1] - links[k].value(z)), old[k])
        for k, link in enumerate(links):
            value = link.value(new[k])
            lack.append(torch.where(hidden, value - new[k + 1], 0))
            new[k + 1] = torch.where(hidden, new[k + 1], value)
        return torch.stack([torch.stack(new, 1) - path, self._padded(lack)], 1)

    def _back(self, k: int, v: Tensor) -> Tensor:
        """(S^HH)⁻¹ v^H, of link number k."""
        inverse = self.inverses[k]
        return v if inverse is None else inverse.mv(torch.where(self.hidden, v, 0))

    def _along(self, link: Link, old: Tensor, new: Tensor) -> Tensor:
        """S (new − old)."""
        return new - old if link.skeleton is None else link.skeleton.apply(new) - link.skeleton.apply(old)

    def _padded(self, lack: list[Tensor]) -> Tensor:
        """One for each state, (B, K + 1, …)."""
        return torch.stack([torch.zeros_like(lack[0]), *lack], 1)

    def error(self, r: Tensor) -> Tensor:
        """What the links lack, carried to the latent end through the skeletons, on H: to first order, that of (G)."""
        carried = torch.zeros_like(r[:, 1, 0])
        for link, lack in zip(self.links.each, r[:, 1, 1:].unbind(1), strict=True):
            carried = lack + (carried if link.skeleton is None else self._along(link, torch.zeros_like(lack), carried))
        return item_max(torch.where(self.hidden, carried, 0))

    def select(self, index: Tensor) -> _Lifted:
        """The paths of the items at `index`."""
        inverses = [None if inverse is None else inverse.select(index) for inverse in self.inverses]
        return replace(self, hidden=self.hidden[index], inverses=inverses)


@dataclass(frozen=True)
class _Mixing:
    """Anderson acceleration of sweeps, for `iterate`."""

    memory: int
    patience: int
    parallel: bool

    @property
    def cost(self) -> float:
        """Evaluations of the network in a sweep."""
        return 1.0 if self.parallel else 2.0

    def init(self, problem: _Lifted, z: Tensor, r: Tensor) -> History:
        """An empty history, of the path that the sweep began with."""
        return History(z if self.parallel else z - r[:, 0], -r[:, 0], [], [])

    def step(self, problem: _Lifted, z: Tensor, r: Tensor, state: History) -> tuple[Tensor, Tensor, float, History]:
        """One sweep from the mixed path; the path that its residual is of: this one, or the one after it."""
        path = state.next()
        r = problem.residual(path)
        state = state.extended(path, -r[:, 0], self.memory)
        return path if self.parallel else path + r[:, 0], r, self.cost, state

    def select(self, state: History, index: Tensor) -> History:
        """The history of the items at `index`."""
        return state.select(index)


@dataclass(frozen=True)
class Path:
    """Sweeps over the whole path with Anderson acceleration; the verdict is the residual of (G) at the end.

    `parallel` evaluates all links of a sweep in one batched call (Jacobi), where the flow can; else a sweep evaluates
    the flow twice, link by link (Gauss–Seidel). The start that a caller has for y^H is taken where it is a guess of the
    completion; the flow's own otherwise.
    """

    tolerance: float = 1e-3
    """Largest absolute entry of g^H(y) − x^H that counts as solved, in latent units."""
    budget: float = 60
    """Evaluations of the network an item, till its path is solved; where that leaves its completion above the
    tolerance, up to 17 more in each further round."""
    memory: int = 8
    """Differences of paths kept."""
    parallel: bool = True
    patience: int = 20
    """Sweeps without progress after which an item is stalled."""
    rounds: int = 3
    """How often the end of a path is checked, and the path gone on with to a smaller tolerance."""

    @torch.no_grad()
    def solve(self, equation: LatentEquation, start: Tensor) -> Solution:
        """Solves the equation from the path that the flow lays through `start` (B, …), or through a better guess."""
        links = equation.flow.links(equation.y)
        if links is None:  # of one piece: its path has no states but the ends
            return Anderson(self.tolerance, self.budget, self.memory).solve(equation, start)
        if equation.guess is None and links.center is not None:
            start = links.center
        path = links.start(equation.complete(start), equation.x, equation.hidden)
        skeletons = [link.skeleton for link in links.each]
        inverses = [None if s is None else s.inverse_block(equation.hidden) for s in skeletons]
        problem = _Lifted(links, equation.hidden, inverses, self.parallel)
        found = self._round(problem, path, self.tolerance / 2, self.budget - 1)
        residual = equation.error(equation.residual(found.value[:, 0]))
        found = replace(found, residual=residual, evaluations=found.evaluations + 1)
        for k in range(1, self.rounds):
            found = self._again(equation, problem, found, self.tolerance * 0.1**k)
        return self._judged(equation, found)

    def _round(self, problem: _Lifted, path: Tensor, tolerance: float, budget: float) -> Solution:
        """Sweeps until what the links lack, carried to the end, is below `tolerance`."""
        method = _Mixing(self.memory, self.patience, self.parallel)
        r = problem.residual(path)
        path = path if self.parallel else path + r[:, 0]
        budget -= method.cost
        found = iterate(problem, method, path, tolerance=tolerance, budget=budget, start_residual=r)
        return replace(found, evaluations=found.evaluations + method.cost)

    def _again(self, equation: LatentEquation, problem: _Lifted, found: Solution, tolerance: float) -> Solution:
        """Goes on with the items whose path was solved and whose completion is not yet."""
        left = (found.converged & (found.residual > self.tolerance)).nonzero().flatten()
        if not len(left):
            return found
        more = self._round(problem.select(left), found.value[left], tolerance, _MORE)
        equation = equation.select(left)
        # Whatever its residual: it is of a path solved to less, from which the next round goes on.
        residual, steps = equation.error(equation.residual(more.value[:, 0])), found.steps[left] + more.steps
        more = replace(more, residual=residual, evaluations=more.evaluations + 1, steps=steps)
        return found.with_rows(left, more)

    def _judged(self, equation: LatentEquation, found: Solution) -> Solution:
        """The completions at the ends of the paths, judged by (G) alone."""
        finite = torch.isfinite(found.residual)
        failed = torch.where(found.status == Status.CONVERGED, int(Status.STALLED), found.status)
        failed = torch.where(finite, failed, int(Status.NON_FINITE))
        status = torch.where(found.residual <= self.tolerance, int(Status.CONVERGED), failed)
        y = found.value[:, 0]
        value = torch.where(equation.hidden & per_item(finite, y), y, 0)
        residual = torch.where(finite, found.residual, float("inf"))
        return Solution(value, status, residual, found.evaluations, steps=found.steps)
