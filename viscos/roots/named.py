"""The solvers that configs and `viscos.condition` know by name."""

from __future__ import annotations

from viscos.linear import GMRES
from viscos.roots.methods.anderson import Anderson
from viscos.roots.methods.fallback import ByFlow, Fallback, OnData
from viscos.roots.methods.fixed_point import AlternatingFixedPoint
from viscos.roots.methods.newton_krylov import NewtonKrylov
from viscos.roots.methods.path import Path


def auto(tolerance: float = 1e-3, budget: float = 60, memory: int = 8, newton_budget: float = 500) -> ByFlow:
    """The path solver for a continuous flow, Anderson and then Newton–Krylov for every other. The default."""
    return ByFlow(path(tolerance, budget, memory), anderson(tolerance, budget, memory, newton_budget))


def anderson(tolerance: float = 1e-3, budget: float = 50, memory: int = 8, newton_budget: float = 500) -> Fallback:
    """Preconditioned Anderson on (G), then Newton–Krylov for the items that remain."""
    return Fallback(Anderson(tolerance, budget, memory), newton_krylov(tolerance, newton_budget))


def newton_krylov(tolerance: float = 1e-3, budget: float = 500, restart: int = 30) -> NewtonKrylov:
    """Newton–Krylov on (G)."""
    return NewtonKrylov(tolerance, budget, GMRES(tolerance=1e-2, budget=2 * restart, restart=restart))


def paper(
    tolerance: float = 1e-3, budget: float = 2000, mixing: float = 0.5, decay: float = 0.95, newton_budget: float = 2000
) -> Fallback:
    """The paper's Algorithm 1 with its damping, then its Newton–Krylov on (F); from the start that the caller has.

    The paper starts at y^H = f^H(0, x^H): that is `AlternatingFixedPoint.solve(equation)` without a start.
    """
    first = AlternatingFixedPoint(tolerance, budget, mixing, decay)
    return Fallback(first, OnData(NewtonKrylov(tolerance, newton_budget)))


def path(tolerance: float = 1e-3, budget: float = 60, memory: int = 8, parallel: bool = True) -> Fallback:
    """Anderson-accelerated sweeps over the states between a flow's layers, for deep flows.

    What one form leaves, the other begins anew, without the guess, with twice the budget and the patience; where
    another draw will do, that is made first (`viscos.inference.impute`). On matched digits at 90 % missing (256,
    latents from the inference network) the parallel form leaves 1 %, after 22 evaluations in the mean. The sequential
    one takes 23, one small call of the network after another, and solves a third to a half of what is left; damping
    solves none of it, and as much patience for the parallel form no more. At 50 % missing and in a centre of 8 × 8 (64
    digits) nothing is left, after 18 and 17 evaluations (sequential: 16 and 13). Memories of 5 to 12 differ by one
    evaluation.
    """
    first = Path(tolerance, budget, memory, parallel)
    return Fallback(first, Path(tolerance, 2 * budget, memory, not parallel, 2 * first.patience), anew=True)
