"""Completions of incomplete observations: draws, and their mean."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.rng import item_noise
from viscos.core.solution import Solution, Status, per_item
from viscos.flows.flow import Flow
from viscos.inference.completion import complete
from viscos.inference.draws import repeat, repeated
from viscos.posteriors import Posterior
from viscos.roots import RootFinder, hasty

ATTEMPTS = 4
"""How often a draw is made, from fresh noise each time, before it counts as failed."""


@dataclass(frozen=True)
class Completions:
    """Several completions of each item of a batch."""

    draws: Tensor
    """(K, B, …): observed entries bit for bit; hidden entries NaN where the solve failed."""
    latents: Tensor | None
    """(K, B, …), of a flow's draws."""
    solution: Solution
    """The verdict on each of the K·B solves, draws in the outer axis."""
    paired: bool = False
    """Whether the draws are in antithetic pairs ±ε, of which only the first are independent of each other."""
    expected: Tensor | None = None
    """The conditional mean (B, …), where it is known without draws."""
    notes: dict[str, Tensor] | None = None
    """Numbers of each item (B,), by name, on how its draws came about, as the acceptance rate of a chain."""

    @classmethod
    def exact(cls, draws: Tensor, expected: Tensor) -> Completions:
        """Draws (K, B, …) for which nothing had to be solved, and the conditional mean (B, …)."""
        return cls(draws, None, Solution.exact(draws.flatten(0, 1)), expected=expected)

    @classmethod
    def checked(
        cls, draws: Tensor, batch: Incomplete, evaluations: float = 0.0, notes: dict[str, Tensor] | None = None
    ) -> Completions:
        """Draws (K, B, …) for which nothing had to be solved, with what is observed put in its place.

        One that is not finite has failed, and is NaN wherever something is hidden.
        """
        completed = torch.where(batch.observed, batch.values, draws)
        whole = completed.isfinite().flatten(2).all(2)
        kept = whole.view(*whole.shape, *[1] * (draws.dim() - 2)) | batch.observed
        found = Solution.exact(completed.flatten(0, 1), evaluations)
        status = torch.where(whole.flatten(), found.status, int(Status.NON_FINITE))
        return cls(torch.where(kept, completed, torch.nan), None, replace(found, status=status), notes=notes)

    @property
    def ok(self) -> Tensor:
        """True where a draw was solved (K, B), bool."""
        return self.solution.converged.view(self.draws.shape[:2])

    def independent(self) -> tuple[Tensor, Tensor]:
        """The draws that are independent of each other (k, B, …), all or the first of each pair; and which are ok."""
        step = 2 if self.paired else 1
        return self.draws[::step], self.ok[::step]

    def asked(self, hidden: Tensor) -> Tensor:
        """Which of the K·B draws are of items with a `hidden` entry (B, …), bool: others have nothing to solve."""
        return hidden.flatten(1).any(1).to(self.solution.status.device).repeat(len(self.draws))

    def first(self, n: int) -> Completions:
        """The first n draws, of independent ones, as if no more had been made; all, if there are fewer."""
        step, (count, items) = 2 if self.paired else 1, self.draws.shape[:2]
        rows = torch.arange(count * items, device=self.solution.status.device).view(count, items)[::step][:n].flatten()
        latents = None if self.latents is None else self.latents[::step][:n]
        draws = self.draws[::step][:n]
        return replace(self, draws=draws, latents=latents, solution=self.solution.select(rows), paired=False)

    def mean(self) -> Tensor:
        """The conditional mean if it is known, else that of the draws that were solved (B, …); NaN on H if none was."""
        if self.expected is not None:
            return self.expected
        total = torch.where(self.draws.isnan(), 0, self.draws).sum(0)
        count = (~self.draws.isnan()).sum(0)
        mean = torch.where(count > 0, total / count, float("nan"))
        same = (self.draws == self.draws[:1]).all(0)  # observed entries stay as they are, bit for bit
        return torch.where(same, self.draws[0], mean)


@torch.no_grad()
def impute(
    flow: Flow,
    posterior: Posterior,
    batch: Incomplete,
    solver: RootFinder,
    *,
    draws: int = 1,
    seed: int = 0,
    first: int = 0,
    antithetic: bool = False,
    purpose: str = "item",
    noise: float = 0.0,
) -> Completions:
    """Draws completions of `batch` from q; the noise is keyed by (seed, purpose, item, draw), from draw `first` on.

    An item with nothing missing comes back unchanged, one with everything missing is a sample of the flow itself. With
    `antithetic`, draws come in pairs ±ε, which halves the noise of their mean (the draws of a pair are not
    independent). `noise` above zero is the standard deviation of the noise that the flow was trained with, which is
    taken off hidden entries where the flow can (`Flow.denoised`); latents and verdicts are of what the solver found.

    Not every x^H need be that of some y^H beside this y^O, and such x^H are no part of p(x^H | y^O). A draw that is not
    solved is made anew from fresh noise, `ATTEMPTS` times in all: draws are of q given that it can be solved, of which
    `lower_bound` is the bound. `Solution.attempts` counts. All attempts but the last are `hasty`: of a deep flow with
    90 % missing a second solver took four times as long, and solved a third of what the first had left. So they are of
    q given what the first one solves, which is less than can be solved.
    """
    shape, like = batch.values.shape[1:], batch.values
    q = posterior(batch, flow)
    empty = per_item(batch.empty, like)

    def latents(count: int, name: str) -> Tensor:
        epsilon = item_noise(seed, batch.index, count, shape, like, first, name)
        if antithetic and name == purpose:
            epsilon = torch.stack([epsilon, -epsilon], 1).flatten(0, 1)[:draws]
        return torch.where(empty, epsilon, q.sample(epsilon)).flatten(0, 1)

    flow, y, hidden = repeated(flow, len(batch), draws), repeat(batch.filled(), draws), repeat(batch.hidden, draws)
    start = None if q.start is None else repeat(q.start, draws)
    quick = hasty(solver, flow.deep)
    completion = complete(flow, y, hidden, latents((draws + 1) // 2 if antithetic else draws, purpose), quick, start)
    y, solution = completion.y, completion.solution
    for attempt in range(2, ATTEMPTS + 1):
        rows = (~solution.converged).nonzero().flatten()
        if not len(rows):
            break
        x = latents(draws, f"{purpose}, attempt {attempt}")[rows]
        method = quick if attempt < ATTEMPTS else solver
        again = complete(flow.select(rows), y[rows], hidden[rows], x, method, None if start is None else start[rows])
        y, solution = y.index_copy(0, rows, again.y), solution.retried(rows, again.solution)
    ok = per_item(solution.converged, y)
    latent = torch.where(ok, flow.to_latent(y), float("nan"))
    y = torch.where(ok | ~hidden, flow.cleaned(y, hidden, noise), float("nan"))
    return Completions(y.view(draws, *like.shape), latent.view(draws, *like.shape), solution, paired=antithetic)
