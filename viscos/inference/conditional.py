"""The conditional distribution of a flow given a partial observation, as `viscos.condition` gives it."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.flows.flow import Flow
from viscos.inference.approximation import Approximation
from viscos.inference.diagnosis import DOUBTFUL, Diagnosis
from viscos.inference.elbo import Objective, lower_bound
from viscos.inference.fitting import Fitting, Progress
from viscos.inference.imputation import Completions
from viscos.inference.partition import PARTITIONS, conditioning, maxvol, refuse_singular
from viscos.inference.proposals import propose
from viscos.inference.refine import Refined, check, check_exact, refined
from viscos.posteriors import PerItem, Posterior


class Conditional(Approximation):
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
        super().__init__(flow, batch, posterior, objective, seed, noise)
        self.partition = partition
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
        progress: Progress | None = None,
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
        if steps < 0 or samples < 1 or learning_rate <= 0:
            raise InputError(
                f"fit needs steps ≥ 0, samples ≥ 1 and learning_rate > 0, got {steps}, {samples} and {learning_rate}"
            )
        refuse_singular(self.conditioning(), self.partition)
        lines = self._fitting.fit(steps, learning_rate, samples, decay, progress) if steps else []
        if lines:
            warnings.warn("; and ".join(lines), stacklevel=2)
        return self

    @torch.inference_mode(False)
    def conditioning(self) -> Tensor:
        """About the condition number of the block G^HH of each item (B,), at the guess or the datum of the latent zero.

        Exact up to 64 hidden entries, else a lower bound by 24 steps of Lanczos. `fit` refuses a partition for which
        it is above 1e6 (1e12 in double precision) for half of the items or more.
        """
        if self._condition is None:
            self._condition = conditioning(self.flow, self.batch.filled(), self.batch.hidden, self._point)
        return self._condition

    def sample(self, n: int = 1) -> Tensor:
        """n new draws (n, B, …); observed entries bit for bit, hidden ones NaN where the solve failed."""
        return self.completions(n).draws

    def completions(self, n: int = 1, *, antithetic: bool = False) -> Completions:
        """n new draws with their latents and the solver's verdicts."""
        if not isinstance(n, int) or n < 1:
            raise InputError(f"the number of draws must be a whole number, at least 1, got {n!r}")
        first, self._drawn = self._drawn, self._drawn + n
        return self.completed(n, "item", first, antithetic=antithetic)

    def mean(self, draws: int = 32) -> Tensor:
        """The posterior mean (B, …), from `draws` antithetic draws that do not count among those of `sample`."""
        return self.completed(draws, "mean", antithetic=True).mean()

    def bound(self, draws: int = 16, *, exact_below: int = 1024) -> Tensor:
        """A Monte-Carlo estimate of the lower bound of log p(y^O) in nats (B,); −∞ where no draw was solved.

        A draw that failed counts as one of weight zero (`viscos.inference.lower_bound`).

        Log-determinants are exact for items of up to `exact_below` entries (the flow's `dense_below`, if that is less),
        else estimated by Lanczos quadrature.
        """
        return lower_bound(self.log_weight(draws, "bound", exact_below))

    def diagnose(self, draws: int = 128, *, exact_below: int = 1024) -> Diagnosis:
        """How far q is from the flow's own conditional, for each item, by the importance weights of `draws` draws.

        These do not count among those of `sample`. Log-determinants are exact for items of up to `exact_below`
        entries (the flow's `dense_below`, if that is less), which costs a product with the Jacobian for each entry of
        each draw; beyond, the mean of two estimates, whose error the diagnosis says.
        """
        if draws < 1:
            raise InputError(f"a diagnosis needs draws ≥ 1, and some dozens to say anything, got {draws}")
        return propose(self, draws, exact_below).diagnosis()

    def refine(self, method: str = "imh", n: int = 1, *, proposals: int | None = None) -> Refined:
        """n draws (n, B, …) of the flow's exact conditional, of which q makes the `proposals` for each item.

        By `sir`, importance resampling, or `imh`, independence Metropolis–Hastings (`viscos.inference.refine`): the
        more proposals, the closer; by default 32 for each draw, and 256 at least. The same call gives the same draws.
        Warns of items for which the proposals do not serve. Raises `InputError` for items that are too large for
        exact weights.
        """
        count = max(256, 32 * n) if proposals is None else proposals
        check(method, n, count)
        check_exact(self.flow, self.batch.values[0].numel())
        found = refined(self, propose(self, count, self.flow.dense_below), method, n)
        if (first := found.diagnosis.first_doubtful()) is not None:
            of = f"{found.diagnosis.counts()[DOUBTFUL]} of {len(self.batch)} items"
            why = f"first: item {first[0]}, {first[1]}"
            warnings.warn(f"refined draws of {of} are doubtful ({why}): fit q, or take more proposals", stacklevel=2)
        return found


def check_partition(partition: str, posterior: Posterior) -> None:
    """Raises `InputError` for a partition that there is not, or that `posterior` was not trained with."""
    if partition not in PARTITIONS:
        raise InputError(f"partition is {partition!r}; choose {' or '.join(PARTITIONS)}")
    if partition != "same" and not isinstance(posterior, PerItem):
        raise InputError("an inference network knows the latent's own partition alone; take partition=same")
