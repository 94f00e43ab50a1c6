"""Other completions of the latents that were drawn.

Where g^H folds, one x^H has several completions beside the same y^O. The flow's conditional is spread over all of them;
a solver finds one, and from the same start the same. Weights of what was found cannot tell: the branch that is never
found leaves no trace in them. Solving again from elsewhere can.
"""

from __future__ import annotations

import torch
from torch import Tensor

from viscos.core.rng import ItemGenerators
from viscos.core.solution import item_max
from viscos.flows.flow import Flow
from viscos.inference.approximation import Approximation
from viscos.inference.completion import complete, log_evidence_term
from viscos.inference.draws import repeat, repeated
from viscos.roots import newton_krylov

LOOKED = 16
"""Draws of each item that are solved for again."""
_BETWEEN = 0.382  # of the way from one end to the other: halfway, two ends of an odd function have a root
_BUDGET = 200  # evaluations and products of a solve that may find nothing
_TOLERANCES = 10  # a residual above so many tolerances there says that the ends are not the same root


def log_ratio(approximation: Approximation, y: Tensor, numbers: range) -> Tensor:
    """log of the weight of another completion of each latent over that of y (k, B, …), draws of these `numbers` (k, B).

    −∞ without one. It is what the draws' own solver or Newton's method finds from a sample of the flow, the heavier of
    the two: the one goes where draws come from, the other to a root with any sign of det G^HH. Both completions have
    the same x^H, so that their weights differ in the `log_evidence_term` alone.
    """
    batch, seed, solver = approximation.batch, approximation.seed, approximation.objective.solver
    if not numbers:
        return y.new_empty(0, len(batch))
    flow, hidden = repeated(approximation.flow, len(batch), len(numbers)), repeat(batch.hidden, len(numbers))
    y, found = y.flatten(0, 1), y.new_full((y.shape[0] * y.shape[1],), -torch.inf)
    x, start = flow.to_latent(y), _starts(flow, approximation, numbers)

    def rest(y: Tensor) -> Tensor:
        probes = ItemGenerators(seed, batch.index, len(numbers), -3, numbers.start)
        return log_evidence_term(flow, y, hidden, probes)

    for each in (solver, newton_krylov(solver.tolerance, _BUDGET)):
        again = complete(flow, y, hidden, x, each, start)
        between = torch.lerp(y, again.y, _BETWEEN)
        gap = item_max(torch.where(hidden, flow.to_latent(between) - x, 0))
        other = again.solution.converged & (gap > _TOLERANCES * solver.tolerance)
        if bool(other.any()):
            found = torch.where(other, torch.fmax(found, rest(again.y) - rest(y)), found)
    return found.view(len(numbers), len(batch))


def _starts(flow: Flow, approximation: Approximation, numbers: range) -> Tensor:
    """Samples of the flow (k·B, …), one for each draw and item; zero where none was found.

    Wherever the flow has mass, some begin there.
    """
    noise = approximation.epsilon(len(numbers), "elsewhere", numbers.start).flatten(0, 1)
    found = flow.to_data(noise).value
    return torch.where(found.isfinite(), found, 0)


def share(weight: Tensor, ratio: Tensor) -> Tensor:
    """The share of p(y^H | y^O) on other completions than were found (B,), in [0, 1]; NaN where none was looked for.

    `weight` (K, B) are log w of what was found, NaN where nothing was, and `ratio` (k, B) is `log_ratio` of the first k
    draws. At most one other completion of a latent counts: the share is too small rather than too large.
    """
    weight = weight[: len(ratio)]
    looked = weight.isfinite()
    found = torch.where(looked, weight, -torch.inf).double()
    other = torch.where(looked, weight + ratio, -torch.inf).double()
    both = torch.logaddexp(found.logsumexp(0), other.logsumexp(0))
    return torch.where(looked.any(0), (other.logsumexp(0) - both).exp(), torch.nan).to(weight.dtype)
