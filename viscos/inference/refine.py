"""Draws of the flow's exact conditional, with q as the proposal.

Draws of q have weights w = p(y) / q(y^H), both densities over data, and so q serves as the proposal of

- sampling–importance–resampling (Rubin, 1988): of K proposals, n are drawn with replacement in proportion to w, after
  Pareto smoothing; the law of the draws tends to p(y^H | y^O) with K (`resampled`);
- independence Metropolis–Hastings (Hastings, 1970; Tierney, 1994): a chain steps to the next proposal with probability
  min(1, w'/w), else it stays. p(y^H | y^O) is stationary, and after K steps the total variation is at most
  (1 − 1/M)^K, with M the largest weight over the mean one (Mengersen and Tweedie, 1996) (`chained`).

**Failed draws** are proposals of weight zero: never drawn, never stepped to. Where no proposal was solved there is no
draw. So what is drawn from is the conditional on the completions that the solver finds; where G^HH is never singular,
as for flows of residual structure, and no draws fail, these are all.

**Log-determinants must be exact.** An estimate of log w without bias makes one of w that has a bias, by E[exp(error)],
which is different at different y. A chain that keeps the estimate of the state that it is in ("pseudo-marginal",
Andrieu and Roberts, 2009) has p(y) E[exp(error) | y] for its stationary law, not p(y), and with errors of some nats it
sticks at the luckiest estimate. So items whose Jacobian is too large to be written out are refused (`check_exact`);
`propose` weighs their draws all the same, by two estimates each, whose difference tells the error.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.core.precision import full_precision
from viscos.core.rng import item_uniform
from viscos.core.solution import Status, per_item
from viscos.flows.flow import Flow
from viscos.inference.approximation import Approximation
from viscos.inference.diagnosis import Diagnosis
from viscos.inference.draws import repeat, repeated
from viscos.inference.imputation import Completions
from viscos.inference.proposals import Proposals
from viscos.inference.weights import pareto_smoothed, shares, without_failed

METHODS = ("sir", "imh")
"""Importance resampling, and independence Metropolis–Hastings."""


@dataclass(frozen=True)
class Refined(Completions):
    """Draws of the exact conditional, made of proposals. The mean is that of all proposals by their weights."""

    method: str = field(kw_only=True)
    """`sir` or `imh`."""
    diagnosis: Diagnosis = field(kw_only=True)
    """What the proposals' weights say of each item, how many different ones were drawn, and how a chain went."""


def proposals_for(draws: int) -> int:
    """How many proposals are made for so many draws, unless somebody says."""
    return max(256, 32 * draws)


def check(method: str, draws: int, proposals: int) -> None:
    """Raises `InputError` for a method that there is not, or for fewer proposals than draws."""
    if method not in METHODS:
        raise InputError(f"refine is {method!r}; choose {' or '.join(METHODS)}")
    if draws < 1 or proposals < draws:
        raise InputError(f"{draws} draws cannot be made of {proposals} proposals; raise proposals, 32 a draw or more")


def check_exact(flow: Flow, entries: int) -> None:
    """Raises `InputError` for items of so many entries that log-determinants would be estimated."""
    if entries > flow.dense_below:
        raise InputError(
            f"refine needs exact weights, which this flow has for items of up to {flow.dense_below} entries, and these "
            f"have {entries}; in Python, posterior.flow.dense_below = {entries} writes the Jacobian of every proposal "
            "out, with as many products"
        )


def resampled(log_weight: Tensor, uniform: Tensor) -> Tensor:
    """The proposals (n, B), int64, that importance resampling draws by uniform numbers (n, B): −1 where there are none.

    With replacement, by weights (K, B) whose tail is smoothed.
    """
    steps = shares(pareto_smoothed(log_weight)[0]).cumsum(0)
    total = steps[-1].clone()
    # The last steps are of no width where weights are zero, so the first place beyond u has a weight.
    index = torch.searchsorted(steps.T.contiguous(), (uniform.to(total) * total).T.contiguous(), right=True).T
    return torch.where(total > 0, index.clamp_max(len(log_weight) - 1), -1)


def chained(log_weight: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """The state of a chain after each of K proposals (K, B), int64, and the acceptance rate (B,).

    A state is the number of a proposal. The chain begins at the first that has a weight above zero, which stands also
    for the states before it; −1 where there is none. `uniform` (K, B) decides on the steps to later ones, of which
    the rate is.
    """
    w = without_failed(log_weight)
    there = w.isfinite()
    begin = there.to(torch.uint8).argmax(0)
    state, at = torch.where(there.any(0), begin, -1), w.gather(0, begin[None])[0]
    log_u, states, steps = uniform.to(w).log(), [], torch.zeros_like(at)
    for k in range(len(w)):
        accept = (k > begin) & (log_u[k] < w[k] - at)  # never where w is −∞: −∞ − (−∞) is NaN
        state, at = torch.where(accept, k, state), torch.where(accept, w[k], at)
        steps += accept
        states.append(state)
    return torch.stack(states), steps / (len(w) - 1 - begin).clamp_min(1)


@full_precision()
@torch.no_grad()
def refined(approximation: Approximation, proposals: Proposals, method: str, draws: int) -> Refined:
    """`draws` draws of the exact conditional by `method`: `sir`, or `imh`, whose chain is looked at at equal distances.

    Random numbers are keyed by (seed, item). Where no proposal has a weight, hidden entries are NaN, and the verdict is
    that on the first proposal. The evaluations of all proposals are shared out among the draws. Raises `InputError`
    for another method, or for fewer proposals than draws.
    """
    batch, seed, acceptance = approximation.batch, approximation.seed, None
    count, size = proposals.weight.shape
    check(method, draws, count)
    if method == "sir":
        index = resampled(proposals.weight, item_uniform(seed, batch.index, draws, "resample"))
    else:
        states, acceptance = chained(proposals.weight, item_uniform(seed, batch.index, count, "accept"))
        index = states[count // draws - 1 :: count // draws][:draws]
    rows = (index.clamp_min(0) * size + torch.arange(size, device=index.device)).flatten()
    ok, hidden, y = (index >= 0).flatten(), repeat(batch.hidden, draws), proposals.y.flatten(0, 1)[rows]
    shown = torch.where(per_item(ok, y) | ~hidden, proposals.clean.flatten(0, 1)[rows], float("nan"))
    latents = torch.where(per_item(ok, y), repeated(approximation.flow, size, draws).to_latent(y), float("nan"))
    verdicts = proposals.solution
    solution = verdicts.select(rows)
    status = torch.where(solution.converged & ~ok, int(Status.NON_FINITE), solution.status)  # solved, without a weight
    spent = verdicts.evaluations.view(count, size).sum(0) / draws
    distinct = torch.tensor([len(set(each) - {-1}) for each in index.T.tolist()], device=index.device)
    return Refined(
        shown.view(draws, *batch.values.shape),
        latents.view(draws, *batch.values.shape),
        replace(solution, status=status, evaluations=spent.repeat(draws)),
        expected=_mean(proposals, batch),
        method=method,
        diagnosis=replace(proposals.diagnosis(draws), distinct=distinct, acceptance=acceptance),
    )


def _mean(proposals: Proposals, batch: Incomplete) -> Tensor:
    """The mean of all proposals by their smoothed weights (B, …); NaN on H where none was solved."""
    share = shares(pareto_smoothed(proposals.weight)[0]).to(proposals.clean.dtype)
    known = (share > 0).view(*share.shape, *[1] * (batch.values.dim() - 1))
    mean = (share.view_as(known) * torch.where(known, proposals.clean, 0)).sum(0)
    return torch.where(batch.observed, batch.values, torch.where(known.any(0), mean, float("nan")))
