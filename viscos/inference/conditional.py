"""Conditioning a flow on a partial observation, from Python."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from viscos.core.batch import Incomplete, incomplete
from viscos.core.choices import choice
from viscos.core.errors import InputError
from viscos.core.rng import ItemGenerators, generator, item_noise
from viscos.flows.flow import Flow
from viscos.inference import Objective, impute
from viscos.inference.imputation import Completions
from viscos.inference.partition import PARTITIONS, conditioning, maxvol, refuse_singular
from viscos.logdet import LogDetEstimator
from viscos.posteriors import PerItem, Posterior
from viscos.roots import RootFinder


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
        learning_rate: float = 1e-2,
        samples: int = 8,
        decay: bool = True,
        progress: Callable[[int, dict[str, float]], None] | None = None,
    ) -> Conditional:
        """Maximises the bound by Adam: `samples` draws of each item a step (the paper: 500 steps, 1e-2, 8 draws).

        With `decay` the rate falls to zero along a cosine. `progress` is called after each step with its number and its
        figures. Calling `fit` again goes on from the posterior as it stands. Returns itself.
        """
        parameters = list(self.posterior.parameters())
        if steps < 0 or samples < 1 or learning_rate <= 0:
            raise InputError(
                f"fit needs steps ≥ 0, samples ≥ 1 and learning_rate > 0, got {steps}, {samples} and {learning_rate}"
            )
        optimizer = torch.optim.Adam(parameters, learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1)) if decay else None
        refuse_singular(self.conditioning(), self.partition)
        frozen = [(p, p.requires_grad) for p in self.flow.parameters()]
        try:
            for p, _ in frozen:
                p.requires_grad_(False)
            for step in range(steps):
                self._fit_step(optimizer, samples, step, progress)
                if schedule is not None:
                    schedule.step()
        finally:
            for p, wanted in frozen:
                p.requires_grad_(wanted)
        return self

    def conditioning(self) -> Tensor:
        """About the condition number of the block G^HH of each item (B,), at the guess or the datum of the latent zero.

        Exact up to 64 hidden entries, else a lower bound by 24 steps of Lanczos. `fit` refuses a partition for which
        it is above 1e6 (1e12 in double precision) for half of the items or more.
        """
        if self._condition is None:
            self._condition = conditioning(self.flow, self.batch.filled(), self.batch.hidden, self._point)
        return self._condition

    def _fit_step(
        self,
        optimizer: torch.optim.Optimizer,
        samples: int,
        step: int,
        progress: Callable[[int, dict[str, float]], None] | None,
    ) -> None:
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
        if progress is not None:
            progress(step, estimate.figures())

    def sample(self, n: int = 1) -> Tensor:
        """n new draws (n, B, …); observed entries bit for bit, hidden ones NaN where the solve failed."""
        return self.completions(n).draws

    def completions(self, n: int = 1, *, antithetic: bool = False) -> Completions:
        """n new draws with their latents and the solver's verdicts."""
        if n < 1:
            raise InputError(f"the number of draws must be at least 1, got {n}")
        first, self._drawn = self._drawn, self._drawn + n
        return self._impute(n, first, antithetic)

    def mean(self, draws: int = 32) -> Tensor:
        """The posterior mean (B, …), from `draws` antithetic draws that do not count among those of `sample`."""
        return self._impute(draws, 0, antithetic=True, purpose="mean").mean()

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
        """A Monte-Carlo estimate of the lower bound of log p(y^O) in nats (B,); NaN where no draw was solved.

        Log-determinants are exact for items of up to `exact_below` entries (the flow's `dense_below`, if that is less),
        else estimated by Lanczos quadrature.
        """
        noise = self._noise(draws, "bound")
        q = self.posterior(self.batch, self.flow)
        weight, _ = self.objective.log_weight(
            self.flow, self.batch, q, noise, generator(self.seed, "bound"), exact_below=exact_below
        )
        return weight.nanmean(0)

    def _noise(self, draws: int, purpose: str, first: int = 0) -> Tensor:
        like = self.batch.values
        return item_noise(self.seed, self.batch.index, draws, like.shape[1:], like, first, purpose)


def check_partition(partition: str, posterior: Posterior) -> None:
    """Raises `InputError` for a partition that there is not, or that `posterior` was not trained with."""
    if partition not in PARTITIONS:
        raise InputError(f"partition is {partition!r}; choose {' or '.join(PARTITIONS)}")
    if partition != "same" and not isinstance(posterior, PerItem):
        raise InputError("an inference network knows the latent's own partition alone; take partition=same")


def condition(
    flow: Flow,
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
