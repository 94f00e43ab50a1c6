"""The conditional distribution of a flow given a partial observation, as `viscos.condition` gives it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import cast

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.counts import count
from viscos.core.errors import InputError
from viscos.core.precision import full_precision
from viscos.flows.flow import Flow
from viscos.inference.approximation import Approximation
from viscos.inference.diagnosis import DOUBTFUL, Diagnosis
from viscos.inference.elbo import Objective, lower_bound
from viscos.inference.fitting import Fitting, Progress, shown
from viscos.inference.imputation import Completions
from viscos.inference.partition import PARTITIONS, condition_number, maxvol, refuse_singular
from viscos.inference.proposals import propose
from viscos.inference.refine import Refined, check, check_exact, proposals_for, refined
from viscos.inference.summary import Summary, deviation, quantiles, summarised
from viscos.inference.terms import Returned, Terms, Values
from viscos.posteriors import InferenceNetwork, PerItem, Posterior, usual


class Conditional(Approximation):
    """The conditional distribution p(y^H | y^O) of a flow, approximated by q.

    Made by `condition`. The flow's parameters are never changed. Values come back in the caller's terms: tensors for a
    tensor, numpy arrays for anything else, in the units that the observation had; `Returned` is either.
    """

    def __init__(
        self,
        flow: Flow,
        batch: Incomplete,
        posterior: Posterior,
        objective: Objective,
        seed: int,
        partition: str = "same",
        guess: Tensor | None = None,
        noise: float = 0.0,
        terms: Terms | None = None,
    ) -> None:
        super().__init__(flow, batch, posterior, objective, seed, noise)
        self.partition, self.terms = partition, terms or Terms(batch.values, batch.observed)
        check_partition(partition, posterior)
        self._point = None if guess is None else self._guessed(guess)
        if partition == "maxvol":
            self.flow = maxvol(flow, batch.filled(), batch.hidden, self._point)
        if self._point is not None:
            self._begin_at(self._point)
        self._condition: Tensor | None = None
        self._fitting = Fitting(self)
        self._drawn = 0

    def _guessed(self, guess: Tensor) -> Tensor:
        """The observation with the guess in its holes (B, …)."""
        if not isinstance(self.posterior, PerItem):
            raise InputError("an inference network has a guess of its own; leave guess out")
        values = self.batch.values
        if guess.shape != values.shape or guess.dtype != values.dtype:
            wanted = f"{values.dtype} of shape {tuple(values.shape)}"
            raise InputError(f"guess is {guess.dtype} of shape {tuple(guess.shape)}; give {wanted}")
        completed = torch.where(self.batch.hidden, guess.to(values.device), values)
        off = ~torch.isfinite(completed).flatten(1).all(1)
        if bool(off.any()):
            raise InputError(f"the guess of item {int(off.nonzero()[0])} is not finite where its values are hidden")
        return completed

    @torch.no_grad()
    def _begin_at(self, y: Tensor) -> None:
        assert isinstance(self.posterior, PerItem)  # else the guess was refused
        self.posterior.center(self.flow.to_latent(y))

    def fit(
        self,
        steps: int = 200,
        *,
        learning_rate: float = 2e-2,
        samples: int = 8,
        decay: bool = True,
        progress: bool | Progress = False,
        singular: bool = False,
    ) -> Conditional:
        """Maximises the bound by Adam: `samples` draws of each item a step (the paper: 500 steps, 1e-2, 8 draws).

        The first fit of a posterior for each item begins at a Laplace approximation, for the items for which that has
        the higher bound. The bound is estimated five times, with the same random numbers, and each item keeps the q
        with the highest estimate. Where two are equal but for chance, it keeps that whose weights vary less, or the
        later one where weights are estimated (beyond 32 entries). With `decay` the rate falls to zero along a cosine.
        With `progress` there is a bar, in terminals and notebooks; if it is a function, that is called after each step
        with its number and what it measured, `bound` too when it was estimated. Warns if the bound was still rising in
        the end, if more than a few per cent of the draws fail, and if the sign of det G^HH changes over the draws.
        `singular=True` skips the check of `condition_number`: draws that cannot be solved for then count as failed.
        Calling `fit` again goes on from the posterior as it stands. Returns itself.

        An inference network is one posterior for all items, and stays as it is: a Householder posterior for each item
        takes its place, and begins where the network has it.
        """
        steps, samples = count(steps, "steps", 0), count(samples, "samples")
        if not (isinstance(learning_rate, Real) and 0 < learning_rate < math.inf):
            raise InputError(f"fit needs learning_rate > 0, got {learning_rate!r}")
        if not singular:
            refuse_singular(self.condition_number(), self.partition)
        if steps == 0:
            return self
        if isinstance(self.posterior, InferenceNetwork):
            self.posterior = self._of_each_item(self.posterior)
        with shown(progress, steps) as after:
            lines = self._fitting.fit(steps, learning_rate, samples, decay, after)
        if lines:
            warnings.warn("; and ".join(lines), stacklevel=2)
        return self

    @full_precision()
    @torch.inference_mode(False)
    @torch.no_grad()
    def _of_each_item(self, network: InferenceNetwork) -> PerItem:
        each = usual(self.batch.filled())
        each.begin(network(self.batch, self.flow))
        return each

    @full_precision()
    @torch.inference_mode(False)
    def condition_number(self) -> Tensor:
        """About the condition number of the block G^HH of each item (B,), at the guess or the datum of the latent zero.

        Exact up to 64 hidden entries, else a lower bound by 24 steps of Lanczos. `fit` refuses a partition for which
        it is above 1e6 (1e12 in double precision) for half of the items or more.
        """
        if self._condition is None:
            self._condition = condition_number(self.flow, self.batch.filled(), self.batch.hidden, self._point)
        return self._condition.clone()

    def sample(self, n: int = 1) -> Returned:
        """n new draws (n, B, …); observed entries bit for bit, hidden ones NaN where the solve failed."""
        return self.terms.values(self.completions(n).draws)

    def completions(self, n: int = 1, *, antithetic: bool = False) -> Completions:
        """n new draws with their latents and the solver's verdicts: all as the model has them, tensors in its units."""
        n = count(n, "the number of draws")
        first, self._drawn = self._drawn, self._drawn + n
        return self.completed(n, "item", first, antithetic=antithetic)

    def mean(self, draws: int = 32) -> Returned:
        """The posterior mean (B, …), from `draws` antithetic draws that do not count among those of `sample`."""
        draws = count(draws, "the number of draws")
        return self.terms.values(self.completed(draws, "mean", antithetic=True).mean())

    def std(self, draws: int = 64) -> Returned:
        """The standard deviation of every entry (B, …), 0 where observed, from the draws of `quantile`, two or more."""
        return self.terms.spreads(deviation(self._spread(draws), self.batch.observed))

    def quantile(self, q: float | Sequence[float], draws: int = 64) -> Returned:
        """The quantile of every entry (B, …) for a share `q` in [0, 1], or (n, B, …) for n of them.

        From `draws` independent draws, the same at every call, that do not count among those of `sample`.
        """
        return self.terms.values(quantiles(self._spread(draws), q))

    def summary(self, draws: int = 64) -> Summary:
        """Mean, deviation, central 90 % interval, bound and share of failures; printed, a table."""
        return summarised(self._spread(draws), self.mean(), self.bound(), self.terms)

    def _spread(self, draws: int) -> Completions:
        return self.completed(count(draws, "the number of draws"), "spread")

    def log_prob(self, y: Values) -> Returned:
        """log q(y^H | y^O) of completions (B, …) or (K, B, …), in nats (B,) or (K, B): the density that `sample` has.

        q is normalised over y^H, and only hidden entries of `y` are read. It is log q(x^H) + log|det G^HH|,
        exact as in `bound`; before noise is taken off the draws, where a flow's is. Where a latent has several
        completions, which `diagnose` looks for, each of them has it, though draws are of one; and draws that fail are
        counted in: over y^H it does not integrate to one there. Of the flow's own conditional density
        log p(y^H | y^O) it is an approximation, neither above nor below everywhere; what is never below that, on
        average, is `flow.log_prob(y)` less `bound()`. Both are exact where q is. Raises `InputError` for another shape,
        or a hidden entry that is not finite.
        """
        values, wanted = self.terms.inside(y, self.batch.values), self.batch.values.shape
        if wanted not in (values.shape, values.shape[1:]):
            raise InputError(f"completions are {tuple(values.shape)}; give {tuple(wanted)}, or draws of them")
        if not bool((values.isfinite() | self.batch.observed).all()):
            raise InputError("a completion has an entry that is not finite where it is hidden; leave failed draws out")
        density = self.log_density(values.view(-1, *wanted))
        return self.terms.log_density(density.view(values.shape[: values.dim() - len(wanted) + 1]), self.batch.hidden)

    def bound(self, draws: int = 16) -> Returned:
        """A Monte-Carlo estimate of the lower bound of log p(y^O) in nats (B,); −∞ where no draw was solved.

        A draw that failed counts as one of weight zero (`viscos.inference.lower_bound`).

        Log-determinants are exact for items of up to `flow.dense_below` entries, else estimated by Lanczos quadrature.
        """
        bound = lower_bound(self.log_weight(count(draws, "the number of draws"), "bound"))
        return self.terms.log_density(bound, self.batch.observed)

    def __repr__(self) -> str:
        shape, steps = self.batch.values.shape, self._fitting.steps_done
        items = f"{len(self.batch)} item{'s' * (len(self.batch) != 1)} of {tuple(shape[1:])}"
        share = float(self.batch.hidden.double().mean()) if len(self.batch) else 0.0
        fitted = f"fitted in {steps} steps" if steps else "not fitted"
        return f"Conditional({items}, {share:.1%} hidden; {type(self.posterior).__name__}, {fitted}; seed {self.seed})"

    def diagnose(self, draws: int = 128) -> Diagnosis:
        """How far q is from the flow's own conditional, for each item, by the importance weights of `draws` draws.

        These do not count among those of `sample`. Log-determinants are exact for items of up to
        `flow.dense_below` entries, which costs a product with the Jacobian for each entry of each draw; beyond, the
        mean of two estimates, whose error the diagnosis says.
        """
        return self._in_units(propose(self, count(draws, "the number of draws")).diagnosis())

    def _in_units(self, found: Diagnosis) -> Diagnosis:
        bound, evidence = (self.terms.of_units(v, self.batch.observed) for v in (found.bound, found.evidence))
        return replace(found, bound=bound, evidence=evidence)

    def refine(self, method: str = "imh", n: int = 1, *, proposals: int | None = None) -> Refined:
        """n draws (n, B, …) of the flow's exact conditional, of which q makes the `proposals` for each item.

        Where a latent has several completions beside the same y^O, it is the conditional on those that the solver
        finds: the diagnosis says if there are others (`viscos.inference.elsewhere`).

        By `sir`, importance resampling, or `imh`, independence Metropolis–Hastings (`viscos.inference.refine`): the
        more proposals, the closer; by default 32 for each draw, and 256 at least. The same call gives the same draws.
        Warns of items for which the proposals do not serve. Raises `InputError` for items that are too large for
        exact weights.
        """
        n = count(n, "the number of draws")
        made = proposals_for(n) if proposals is None else count(proposals, "proposals")
        check(method, n, made)
        check_exact(self.flow, self.batch.values.shape[1:].numel())
        found = refined(self, propose(self, made), method, n)
        if (first := found.diagnosis.first_doubtful()) is not None:
            of = f"{found.diagnosis.counts()[DOUBTFUL]} of {len(self.batch)} items"
            why = f"first: item {first[0]}, {first[1]}"
            cure = "fit q, or take more proposals (neither reaches other completions of a latent)"
            warnings.warn(f"refined draws of {of} are doubtful ({why}): {cure}", stacklevel=2)
        # Arrays for a caller of arrays, where `Completions` says tensors.
        draws, mean = (cast(Tensor, self.terms.values(v)) for v in (found.draws, found.mean()))
        return replace(found, draws=draws, expected=mean, diagnosis=self._in_units(found.diagnosis))


def check_partition(partition: str, posterior: Posterior) -> None:
    """Raises `InputError` for a partition that there is not, or that `posterior` was not trained with."""
    if partition not in PARTITIONS:
        raise InputError(f"partition is {partition!r}; choose {' or '.join(PARTITIONS)}")
    if partition != "same" and not isinstance(posterior, PerItem):
        raise InputError("an inference network knows the latent's own partition alone; take partition=same")
