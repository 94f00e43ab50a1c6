"""Solvers made of others: by what the flow is, and a second one for the items that the first did not solve."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from viscos.core.solution import Solution, Status
from viscos.roots.equation import DataEquation, LatentEquation, RootFinder
from viscos.roots.methods.newton_krylov import NewtonKrylov


@dataclass(frozen=True)
class Fallback:
    """`first` for all, `second` for what remains, from the best iterate that there is."""

    first: RootFinder
    second: RootFinder
    anew: bool = False
    """Whether the second begins where it would without a guess, since the one that there was may be a bad one."""

    @property
    def tolerance(self) -> float:
        """The first solver's."""
        return self.first.tolerance

    @torch.no_grad()
    def solve(self, equation: LatentEquation, start: Tensor) -> Solution:
        """Solves the equation from `start` (B, …); `fallback` marks the items that the second solver got."""
        found = self.first.solve(equation, start)
        return found.or_else(lambda rows: self._second(equation.select(rows), found.value[rows]))

    def _second(self, rest: LatentEquation, begin: Tensor) -> Solution:
        if self.anew:
            rest = replace(rest, guess=None)
            begin = rest.start()
        again = self.second.solve(rest, begin)
        loose = again.converged & ~(again.residual <= self.tolerance)  # by a tolerance that is not this one's
        return replace(again, status=torch.where(loose, int(Status.STALLED), again.status))


@dataclass(frozen=True)
class ByFlow:
    """`deep` for a flow that is deep as it stands (`Bijection.deep`: a continuous one), `other` for every other.

    One prepared by its columns of G is so no more: they precondition solves for y^H alone.
    """

    deep: RootFinder
    other: RootFinder

    @property
    def tolerance(self) -> float:
        """That of both."""
        return self.other.tolerance

    def solve(self, equation: LatentEquation, start: Tensor) -> Solution:
        """Solves the equation from `start` (B, …)."""
        return (self.deep if equation.flow.deep else self.other).solve(equation, start)


def hasty(solver: RootFinder, deep: bool) -> RootFinder:
    """The solver, for a flow that is `deep` or not, without the second stage of a `Fallback` that begins anew.

    That stage costs several times as much as the first; where a draw can be made again with other noise, that is
    cheaper.
    """
    if isinstance(solver, ByFlow):
        return hasty(solver.deep if deep else solver.other, deep)
    return solver.first if isinstance(solver, Fallback) and solver.anew else solver


@dataclass(frozen=True)
class OnData:
    """Newton–Krylov on form (F), as in the paper, for a problem given in form (G).

    The two forms measure their residuals in different units, so the verdict is that of (G): the data equation is solved
    ten times tighter, and the latent residual of its completion is evaluated at the end.
    """

    newton: NewtonKrylov

    @property
    def tolerance(self) -> float:
        """That of the latent residual."""
        return self.newton.tolerance

    @torch.no_grad()
    def solve(self, equation: LatentEquation, start: Tensor) -> Solution:
        """Solves the equation from `start` (B, …)."""
        data = DataEquation(equation.flow, equation.y, equation.hidden, equation.x)
        x = torch.where(equation.hidden, 0, equation.latent(start))
        found = replace(self.newton, tolerance=self.tolerance / 10).solve(data, x)
        inverse = equation.flow.inverse(data.latent(found.value))
        z = torch.where(equation.hidden, inverse.value, 0)
        residual = equation.error(equation.residual(z))
        failed = torch.where(found.status == Status.CONVERGED, int(Status.STALLED), found.status)
        failed = torch.where(torch.isfinite(residual), failed, int(Status.NON_FINITE))
        status = torch.where(residual <= self.tolerance, int(Status.CONVERGED), failed)
        evaluations = found.evaluations + inverse.evaluations + 2
        return Solution(z, status, residual, evaluations, steps=found.steps)
