"""Draws of q and their importance weights: what `refine` makes exact draws of, and what `Diagnosis` judges q by."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from viscos.core.precision import full_precision
from viscos.core.rng import Generators, ItemGenerators, generator
from viscos.core.solution import Solution
from viscos.inference.approximation import Approximation
from viscos.inference.completion import Completion, log_evidence_term
from viscos.inference.diagnosis import Diagnosis
from viscos.inference.draws import repeated
from viscos.inference.elbo import lower_bound
from viscos.inference.elsewhere import LOOKED, log_ratio, share
from viscos.inference.weights import effective_size, log_evidence, pareto_smoothed

_ROWS = 1024  # proposals that are completed together
_NUMBERS = 2**25  # of Jacobians that are written out together


@dataclass(frozen=True)
class Proposals:
    """K draws of q for each of B items, and their weights."""

    y: Tensor
    """The completions (K, B, …), finite also where the solve failed."""
    weight: Tensor
    """log w (K, B), NaN where the solve failed, or ended at a singular Jacobian."""
    solution: Solution
    """The verdict on each of the K·B solves, draws in the outer axis."""
    clean: Tensor
    """The completions with the noise of training taken off, as `impute` does (K, B, …)."""
    error: Tensor
    """Standard deviation of the error of a log-weight in nats (B,), 0 where log-determinants are exact."""
    ratio: Tensor
    """Of the first draws (k, B): log of the weight of another completion of the same latent over `weight`, or −∞."""
    constant: Tensor
    """Whether all weights are the same whatever q is (B,), bool: nothing is hidden, or nothing observed."""

    def diagnosis(self, refined: int = 0) -> Diagnosis:
        """What the weights say, `refined` draws being made of the proposals."""
        residual = self.solution.residual.view(self.weight.shape)
        solved = ~self.weight.isnan()
        largest = torch.where(solved, residual, -torch.inf).amax(0)
        k = pareto_smoothed(self.weight)[1]
        return Diagnosis(
            lower_bound(self.weight),
            log_evidence(self.weight).to(self.weight.dtype),
            torch.where(self.constant, 0, k),
            effective_size(self.weight),
            1 - solved.double().mean(0),
            torch.where(largest >= 0, largest, float("nan")),
            self.error,
            len(self.weight),
            refined,
            elsewhere=share(self.weight, self.ratio),
        )


@full_precision()
@torch.inference_mode(False)
@torch.no_grad()
def propose(approximation: Approximation, draws: int) -> Proposals:
    """Draws from q, with random numbers keyed by (seed, item, draw), completes and weighs them.

    Log-determinants are exact for items of up to the flow's `dense_below` entries, else the mean of two estimates. An
    item of which nothing is observed is a sample of the flow itself, of weight one, as it is for `impute`.
    """
    batch = approximation.batch
    size, entries = len(batch), batch.values.shape[1:].numel()
    at_once = max(1, min(_ROWS, _NUMBERS // entries**2) // size)
    parts = [_some(approximation, range(first, min(first + at_once, draws))) for first in range(0, draws, at_once)]
    y, weight, clean, error, ratio = (torch.cat([getattr(part, name) for part in parts]) for name in _TENSORS)
    solution = Solution.joined([part.solution for part in parts])
    error = error.square().nanmean(0).nan_to_num(0).sqrt()
    whole = batch.observed.flatten(1).all(1)  # all draws are the same then, whatever estimates of their weight say
    weight, error = torch.where(whole, weight.nanmean(0), weight), torch.where(whole, error / draws**0.5, error)
    return Proposals(y, weight, solution, clean, error, ratio, parts[0].constant)


_TENSORS = "y", "weight", "clean", "error", "ratio"


def _some(approximation: Approximation, numbers: range) -> Proposals:
    """The proposals of these numbers, with the error of each weight (k, B)."""
    flow, batch, noise = approximation.flow, approximation.batch, approximation.noise
    like, shape = batch.values, (len(numbers), len(batch))
    epsilon, q = approximation.epsilon(len(numbers), "proposal", numbers.start), approximation.posterior(batch, flow)
    drawn = approximation.objective.drawn(flow, batch, q, epsilon)
    flow, completion = repeated(flow, len(batch), len(numbers)), drawn.completion
    rest = _rest(approximation, completion, numbers, -3)
    error = torch.zeros_like(rest)
    if _estimated(approximation):
        again = _rest(approximation, completion, numbers, -4)
        # The mean of two estimates has a quarter of the variance of their difference.
        rest, error = (rest + again) / 2, (rest - again) / 2
    weight, y, hidden = drawn.weight(rest), completion.y, completion.hidden
    clean = flow.cleaned(y, hidden, noise)
    y, looked = y.view(*shape, *like.shape[1:]), range(numbers.start, max(numbers.start, min(numbers.stop, LOOKED)))
    return Proposals(
        y,
        weight,
        completion.solution,
        clean.view(*shape, *like.shape[1:]),
        torch.where(weight.isnan() | drawn.empty, float("nan"), error.view(shape)),
        log_ratio(approximation, y[: len(looked)], looked),
        batch.observed.flatten(1).all(1) | batch.empty,
    )


def _estimated(approximation: Approximation) -> bool:
    """Whether log-determinants are estimated, and not written out."""
    return approximation.batch.values.shape[1:].numel() > approximation.flow.dense_below


def _rest(approximation: Approximation, completion: Completion, numbers: range, key: int) -> Tensor:
    """log p₀(x^O) − log|det J^OO| (k·B,); estimates are by probes of this key, and not by an item's company."""
    batch, seed = approximation.batch, approximation.seed
    flow = repeated(approximation.flow, len(batch), len(numbers))
    probes: Generators = generator(seed, "proposal")
    if _estimated(approximation):
        probes = ItemGenerators(seed, batch.index, len(numbers), key, numbers.start)
    return log_evidence_term(flow, completion.y, completion.hidden, probes)
