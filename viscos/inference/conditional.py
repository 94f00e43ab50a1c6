"""Conditioning a flow on a partial observation, from Python."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from viscos.core.batch import Incomplete, incomplete
from viscos.core.choices import choice
from viscos.core.errors import InputError
from viscos.core.rng import Generators, ItemGenerators, generator, item_noise
from viscos.flows.flow import Flow
from viscos.flows.foreign.wrap import wrap
from viscos.inference import Objective, complete, impute, lower_bound
from viscos.inference.elbo import repeat, repeated
from viscos.inference.imputation import Completions
from viscos.inference.judging import Best, Looks
from viscos.inference.laplace import laplace
from viscos.inference.partition import PARTITIONS, conditioning, maxvol, refuse_singular
from viscos.linear import padded_blocks
from viscos.linear.principal import longest
from viscos.logdet import LogDetEstimator
from viscos.posteriors import LatentGaussian, PerItem, Posterior
from viscos.roots import RootFinder

_JUDGED = 8  # draws of each item by which a fit is judged
_WRITTEN = 32  # entries up to which log-determinants are then written out, instead of estimated
_SIGNED = 64  # hidden entries up to which the sign of det G^HH is looked at


class Conditional:
    """The conditional distribution p(y^H | y^O) of a flow, approximated by q.

    Made by `condition`. The flow's parameters are never changed.
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
    ) -> None:
        self.noise = noise
        self.flow, self.batch, self.posterior, self.objective, self.seed = flow, batch, posterior, objective, seed
        self.partition = partition
        check_partition(partition, posterior)
        self._point = None if guess is None else self._completed(guess)
        if partition == "maxvol":
            self.flow = maxvol(flow, batch.filled(), batch.hidden, self._point)
        if self._point is not None:
            self._begin_at(self._point)
        self._condition: Tensor | None = None
        self._fitted = 0
        self._drawn = 0

    def _completed(self, guess: Tensor) -> Tensor:
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
        progress: Callable[[int, dict[str, float]], None] | None = None,
    ) -> Conditional:
        """Maximises the bound by Adam: `samples` draws of each item a step (the paper: 500 steps, 1e-2, 8 draws).

        The first fit of a posterior for each item begins at a Laplace approximation, for the items for which that has
        the higher bound. The bound is looked at five times, with the same random numbers, and each item ends with the
        best q that was seen: by that bound or, where eight draws cannot tell, by weights that vary less. With `decay`
        the rate falls to zero along a cosine. `progress` is called after each step with its number and its figures,
        `bound` among them when it was looked at. Warns if the bound was still rising in the end, if more than a few per
        cent of the draws fail, and if the sign of det G^HH changes over the draws. Calling `fit` again goes on from the
        posterior as it stands. Returns itself.
        """
        parameters = list(self.posterior.parameters())
        if steps < 0 or samples < 1 or learning_rate <= 0:
            raise InputError(
                f"fit needs steps ≥ 0, samples ≥ 1 and learning_rate > 0, got {steps}, {samples} and {learning_rate}"
            )
        refuse_singular(self.conditioning(), self.partition)
        if steps == 0:
            return self
        frozen = [(p, p.requires_grad) for p in self.flow.parameters()]
        try:
            for p, _ in frozen:
                p.requires_grad_(False)
            with torch.inference_mode(False), torch.enable_grad():
                lines = self._fit(parameters, steps, learning_rate, samples, decay, progress)
        finally:
            for p, wanted in frozen:
                p.requires_grad_(wanted)
        if lines:
            warnings.warn("; and ".join(lines), stacklevel=2)
        return self

    def _fit(
        self,
        parameters: list[torch.nn.Parameter],
        steps: int,
        learning_rate: float,
        samples: int,
        decay: bool,
        progress: Callable[[int, dict[str, float]], None] | None,
    ) -> list[str]:
        """The steps of a fit; returns what should not be overlooked, a line each."""
        optimizer = torch.optim.Adam(parameters, learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if decay else None
        best, look = self._begin(parameters), Looks(steps)
        for step in range(steps):
            figures = self._fit_step(optimizer, samples)
            if schedule is not None:
                schedule.step()
            if step in look.steps:
                weight = self._weight(_JUDGED, "judge", _WRITTEN)
                figures |= look.take(weight)
                best.offer(weight)
            if progress is not None:
                progress(step, figures)
        best.restore()
        return [line for line in (look.rising(best, self.batch.hidden), look.failing(best), self._folded()) if line]

    def _begin(self, parameters: list[torch.nn.Parameter]) -> Best:
        """Where a fit begins: as q stands, or at a Laplace approximation, for each item at the better of them."""
        weight = self._weight(_JUDGED, "judge", _WRITTEN)
        each = isinstance(self.posterior, PerItem) and all(len(p) == len(self.batch) for p in parameters)
        best = Best(parameters, weight, each)
        if isinstance(self.posterior, PerItem) and each and not self._fitted:
            self.posterior.begin(self._laplace(self.posterior(self.batch, self.flow)))
            best.offer(self._weight(_JUDGED, "judge", _WRITTEN))
            best.restore()
        return best

    def _laplace(self, q: LatentGaussian) -> LatentGaussian:
        batch = self.batch
        done = complete(self.flow, batch.filled(), batch.hidden, q.mean.detach(), self.objective.solver, q.start)
        probes = ItemGenerators(self.seed, batch.index, 1, -1)
        return laplace(self.flow, done.y, batch.hidden, done.preconditioner, probes)

    @torch.no_grad()
    def _folded(self) -> str | None:
        """A line if det G^HH has both signs over the draws of an item: there are several completions of one latent."""
        batch, draws = self.batch, _JUDGED
        if longest(batch.hidden.flatten(1)) > _SIGNED or batch.values[0].numel() > self.flow.dense_below:
            return None
        found = self._impute(draws, 0, False, "judge")
        flow, hidden = repeated(self.flow, len(batch), draws), repeat(batch.hidden, draws)
        y = torch.where(hidden & ~found.draws.flatten(0, 1).isfinite(), 0, found.draws.flatten(0, 1))
        blocks = padded_blocks(flow.linearize(y)[1], hidden, y)
        sign = torch.linalg.slogdet(torch.nan_to_num(blocks).double())[0].view(draws, -1)
        sign = torch.where(found.ok, sign, 0)
        fewer = torch.minimum((sign > 0).sum(0), (sign < 0).sum(0))
        if not bool(fewer.any()):
            return None
        return (
            f"the sign of det G^HH changes over the draws of {int((fewer > 0).sum())} of {len(batch)} items, and "
            f"{100 * float(fewer.sum() / found.ok.sum()):.2g} % of the draws have the rarer one: a latent has several "
            "completions there, of which the solver finds one; take partition=maxvol, or a flow of residual structure"
        )

    @torch.inference_mode(False)
    def conditioning(self) -> Tensor:
        """About the condition number of the block G^HH of each item (B,), at the guess or the datum of the latent zero.

        Exact up to 64 hidden entries, else a lower bound by 24 steps of Lanczos. `fit` refuses a partition for which
        it is above 1e6 (1e12 in double precision) for half of the items or more.
        """
        if self._condition is None:
            self._condition = conditioning(self.flow, self.batch.filled(), self.batch.hidden, self._point)
        return self._condition

    def _fit_step(self, optimizer: torch.optim.Optimizer, samples: int) -> dict[str, float]:
        key = self._fitted
        self._fitted += 1
        noise = self._noise(samples, "fit", key * samples)
        q = self.posterior(self.batch, self.flow)
        estimate = self.objective.step(
            self.flow, self.batch, q, noise, ItemGenerators(self.seed, self.batch.index, samples, key)
        )
        optimizer.zero_grad(set_to_none=True)
        # Items are independent, so each gets the mean over its own draws and the sum over items is maximised.
        (-estimate.surrogate.sum() / samples).backward()
        optimizer.step()
        return estimate.figures()

    def sample(self, n: int = 1) -> Tensor:
        """n new draws (n, B, …); observed entries bit for bit, hidden ones NaN where the solve failed."""
        return self.completions(n).draws

    def completions(self, n: int = 1, *, antithetic: bool = False) -> Completions:
        """n new draws with their latents and the solver's verdicts."""
        if not isinstance(n, int) or n < 1:
            raise InputError(f"the number of draws must be a whole number, at least 1, got {n!r}")
        first, self._drawn = self._drawn, self._drawn + n
        return self._impute(n, first, antithetic)

    def mean(self, draws: int = 32) -> Tensor:
        """The posterior mean (B, …), from `draws` antithetic draws that do not count among those of `sample`."""
        return self._impute(draws, 0, antithetic=True, purpose="mean").mean()

    @torch.inference_mode(False)
    def _impute(self, n: int, first: int, antithetic: bool, purpose: str = "item") -> Completions:
        flow, solver = self.flow, self.objective.solver
        return impute(
            flow,
            self.posterior,
            self.batch,
            solver,
            draws=n,
            seed=self.seed,
            first=first,
            antithetic=antithetic,
            purpose=purpose,
            noise=self.noise,
        )

    @torch.no_grad()
    def bound(self, draws: int = 16, *, exact_below: int = 1024) -> Tensor:
        """A Monte-Carlo estimate of the lower bound of log p(y^O) in nats (B,); −∞ where no draw was solved.

        A draw that failed counts as one of weight zero (`viscos.inference.lower_bound`).

        Log-determinants are exact for items of up to `exact_below` entries (the flow's `dense_below`, if that is less),
        else estimated by Lanczos quadrature.
        """
        return lower_bound(self._weight(draws, "bound", exact_below))

    @torch.inference_mode(False)
    @torch.no_grad()
    def _weight(self, draws: int, purpose: str, exact_below: int) -> Tensor:
        """The log-weights of draws (K, B) whose noise is the same at every call."""
        q, noise = self.posterior(self.batch, self.flow), self._noise(draws, purpose)
        probes: Generators = generator(self.seed, purpose)
        if purpose == "judge":  # an item's verdict must not depend on its company
            probes = ItemGenerators(self.seed, self.batch.index, draws, -2)
        return self.objective.log_weight(self.flow, self.batch, q, noise, probes, exact_below=exact_below)[0]

    def _noise(self, draws: int, purpose: str, first: int = 0) -> Tensor:
        like = self.batch.values
        return item_noise(self.seed, self.batch.index, draws, like.shape[1:], like, first, purpose)


def check_partition(partition: str, posterior: Posterior) -> None:
    """Raises `InputError` for a partition that there is not, or that `posterior` was not trained with."""
    if partition not in PARTITIONS:
        raise InputError(f"partition is {partition!r}; choose {' or '.join(PARTITIONS)}")
    if partition != "same" and not isinstance(posterior, PerItem):
        raise InputError("an inference network knows the latent's own partition alone; take partition=same")


@torch.inference_mode(False)
def condition(
    flow: Flow | Any,
    y: Tensor,
    observed: Tensor,
    *,
    posterior: str | Posterior = "householder",
    solver: str | RootFinder = "auto",
    lad: str | LogDetEstimator = "auto",
    partition: str = "same",
    guess: Tensor | None = None,
    index: Tensor | None = None,
    seed: int = 0,
    noise: float = 0.0,
) -> Conditional:
    """The flow's conditional distribution given a partial observation.

    `flow` is a flow of viscos, or what `viscos.flows.wrap` makes one of.
    `y` (B, …) with anything where hidden; `observed` bool, (B, …) or of the shape of one item. `posterior`, `solver`
    and `lad` are names (`diagonal`, `householder`, `full`; `auto`, `anderson`, `newton_krylov`, `path`, `paper`;
    `auto`, `exact`, `clade`, `nlade`) or objects. `partition` says which latents go with the hidden entries: those of
    the `same` coordinates, or for flows without residual structure (couplings, autoregressive flows) `maxvol`, see
    `viscos.inference.partition`. `guess` (B, …) holds a first completion where `y` has holes; the posterior's mean
    begins at its latent, instead of at the prior's, zero, and there the latents of `maxvol` are chosen. `index`
    (B,) numbers the items; with `seed` it keys their random numbers. `noise` is the standard deviation of the noise
    that the flow was trained with, which a continuous flow takes off its draws. Raises `InputError` if the
    observation does not fit the flow.

    Example:

        >>> flow = viscos.flows.iresnet((2,), start="none")
        >>> y, observed = torch.tensor([[0.5, 0.0]]), torch.tensor([[True, False]])
        >>> posterior = viscos.condition(flow, y, observed).fit(steps=20)
        >>> posterior.sample(16).shape
        torch.Size([16, 1, 2])
    """
    if not isinstance(y, Tensor) or not isinstance(observed, Tensor):
        raise InputError(f"y and observed must be tensors, got {type(y).__name__} and {type(observed).__name__}")
    if not isinstance(flow, Flow):
        flow = wrap(flow, y.shape[1:])
    if y.dtype in (torch.float16, torch.bfloat16):
        raise InputError(f"y is {y.dtype}, in which no solve can be trusted; take y.float() and flow.float()")
    flow.check(y)
    if index is not None and (index.shape != y.shape[:1] or index.dtype != torch.int64):
        raise InputError(
            f"index must be int64, one number for each of {len(y)} items, got {index.dtype} {tuple(index.shape)}"
        )
    batch = incomplete(y, observed, index)
    objective = Objective(
        choice("solver", solver, RootFinder) if isinstance(solver, str) else solver,
        choice("lad", lad, LogDetEstimator) if isinstance(lad, str) else lad,
    )
    if isinstance(posterior, str):
        posterior = choice("posterior", posterior, PerItem, batch.filled())
    posterior.check(y.shape[1:])
    return Conditional(flow, batch, posterior, objective, seed, partition, guess, noise)
