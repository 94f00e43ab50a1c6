"""Other completions of the latents that were drawn.

Where g^H folds, one x^H has several completions beside the same y^O. The flow's conditional is spread over all of them;
a solver finds one, and from the same start the same. Weights of what was found cannot tell: the branch that is never
found leaves no trace in them. Solving again from elsewhere can.
"""

from __future__ import annotations

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.rng import Generators, item_noise
from viscos.core.solution import item_max
from viscos.flows.flow import Flow
from viscos.inference.completion import Completion, complete, log_evidence_term
from viscos.roots import RootFinder, newton_krylov

LOOKED = 16
"""Draws of each item that are solved for again."""
_BETWEEN = 0.382  # of the way from one end to the other: halfway, two ends of an odd function have a root
_BUDGET = 200  # evaluations and products of a solve that may find nothing
_TOLERANCES = 10  # a residual above so many tolerances there says that the ends are not the same root


def starts(flow: Flow, batch: Incomplete, numbers: range, seed: int) -> Tensor:
    """Samples of the flow (k·B, …), one for each draw and item, draws in the outer axis; zero where none was found.

    Wherever the flow has mass, some begin there.
    """
    shape = batch.values.shape[1:]
    noise = item_noise(seed, batch.index, len(numbers), shape, batch.values, numbers.start, "elsewhere")
    found = flow.to_data(noise.flatten(0, 1))
    return torch.where(found.value.isfinite(), found.value, 0)


def log_ratio(
    flow: Flow,
    first: Completion,
    x: Tensor,
    solver: RootFinder,
    start: Tensor,
    rest: Tensor,
    probes: Generators,
    exact_below: int,
) -> Tensor:
    """log of the weight of another completion of each latent x (n, …) over that of the `first` (n,); −∞ without one.

    It is what `solver` or Newton's method finds from `start` (n, …), the heavier of the two: the one goes where draws
    come from, the other to a root with any sign of det G^HH. Both completions have the same x^H, so that their weights
    differ in `rest`, the `log_evidence_term` of the first (n,), alone.
    """
    found = torch.full_like(rest, -torch.inf)
    for each in (solver, newton_krylov(solver.tolerance, _BUDGET)):
        again = complete(flow, first.y, first.hidden, x, each, start)
        between = torch.lerp(first.y, again.y, _BETWEEN)
        gap = item_max(torch.where(first.hidden, flow.to_latent(between) - x, 0))
        other = first.solution.converged & again.solution.converged & (gap > _TOLERANCES * solver.tolerance)
        if bool(other.any()):
            ratio = log_evidence_term(flow, again.y, again.hidden, probes.clone_state(), exact_below) - rest
            found = torch.where(other & (ratio > found), ratio, found)
    return found


def share(weight: Tensor, ratio: Tensor) -> Tensor:
    """The share of p(y^H | y^O) on other completions than were found (B,), in [0, 1]; NaN where none was looked for.

    `weight` (K, B) are log w of what was found, and `ratio` (K, B) as `log_ratio` gives it; NaN in either is left out.
    No more than one other completion of a latent is looked for, so that the share is too small rather than too large.
    """
    looked = weight.isfinite() & ~ratio.isnan()
    found = torch.where(looked, weight, -torch.inf).double()
    other = torch.where(looked, weight + ratio, -torch.inf).double()
    both = torch.logaddexp(found.logsumexp(0), other.logsumexp(0))
    return torch.where(looked.any(0), (other.logsumexp(0) - both).exp(), torch.nan).to(weight.dtype)
