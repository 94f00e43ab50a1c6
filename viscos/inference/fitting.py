"""A fit: Adam on the bound, from a near start, and each item left with the best q that was seen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from viscos.core.counts import percent
from viscos.core.errors import InputError
from viscos.core.precision import full_precision
from viscos.core.progress import bar
from viscos.core.rng import ItemGenerators
from viscos.inference.approximation import Approximation
from viscos.inference.completion import complete
from viscos.inference.draws import repeat, repeated
from viscos.inference.elbo import WRITTEN
from viscos.inference.judging import Best, Looks
from viscos.inference.laplace import laplace
from viscos.linear import padded_blocks
from viscos.linear.principal import longest
from viscos.posteriors import LatentDistribution, PerItem
from viscos.posteriors.mixture import spread

Progress = Callable[[int, dict[str, float]], None]
"""Called after each step with its number and what it measured."""

_SHOWN = ("bound", "residual", "failed")
# Draws of each item, of each component, by which a fit is judged: where weights are exact, or not.
_JUDGED = {True: 16, False: 8}
_SIGNED = 64  # hidden entries up to which the sign of det G^HH is looked at


class Fitting:
    """Fits q to its bound, as often as it is asked to. `steps_done` keys the noise of the next step."""

    def __init__(self, q: Approximation) -> None:
        self.q, self.steps_done = q, 0

    def fit(self, steps: int, learning_rate: float, samples: int, decay: bool, progress: Progress | None) -> list[str]:
        """`steps` of Adam; returns what should not be overlooked, a line each. The flow's parameters stay fixed."""
        if any(p.is_inference() for p in self.q.flow.parameters()):
            raise InputError(
                "the flow was made under torch.inference_mode, where nothing can be fitted through it; make it outside"
            )
        with fixed(list(self.q.flow.parameters())), torch.inference_mode(False), torch.enable_grad(), full_precision():
            return self._fit(steps, learning_rate, samples, decay, progress)

    def _fit(self, steps: int, learning_rate: float, samples: int, decay: bool, progress: Progress | None) -> list[str]:
        parameters = list(self.q.posterior.parameters())
        if not parameters:
            raise InputError(f"a {type(self.q.posterior).__name__} has no parameters to fit; draw from it as it is")
        optimizer = torch.optim.Adam(parameters, learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if decay else None
        best, look = self._begin(parameters), Looks(steps)
        for step in range(steps):
            scalars = self._step(optimizer, samples)
            if schedule is not None:
                schedule.step()
            if step in look.steps:
                weight = self._judged()
                scalars |= look.take(weight)
                best.offer(weight)
            if progress is not None:
                progress(step, scalars)
        best.restore()
        lines = (look.rising(best, self.q.batch.hidden), look.failing(best), self._folded())
        return [line for line in lines if line]

    def _judged(self) -> Tensor:
        return self.q.log_weight(self._draws, "judge", WRITTEN)

    @property
    def _draws(self) -> int:
        """The number of draws of an item by which a fit is judged."""
        return _JUDGED[self._exact] * len(self.q.posterior(self.q.batch, self.q.flow).centers())

    @property
    def _exact(self) -> bool:
        """Whether log-determinants are written out where a fit is judged."""
        return self.q.batch.values.shape[1:].numel() <= min(WRITTEN, self.q.flow.dense_below)

    def _begin(self, parameters: list[nn.Parameter]) -> Best:
        """Where a fit begins: as q stands, or at a Laplace approximation, for each item at the better of them."""
        posterior, batch = self.q.posterior, self.q.batch
        weight = self._judged()
        each = isinstance(posterior, PerItem) and all(len(p) == len(batch) for p in parameters)
        best = Best(parameters, weight, each, self._exact)
        if isinstance(posterior, PerItem) and each and not self.steps_done:
            posterior.begin(self._laplace(posterior(batch, self.q.flow)))
            best.offer(self._judged())
            best.restore()
        return best

    def _laplace(self, q: LatentDistribution) -> LatentDistribution:
        """A Laplace approximation from each place around which q lies."""
        centers, batch, solver = q.centers().detach(), self.q.batch, self.q.objective.solver
        count = len(centers)
        flow, hidden = repeated(self.q.flow, len(batch), count), repeat(batch.hidden, count)
        start = None if q.start is None else repeat(q.start, count)
        done = complete(flow, repeat(batch.filled(), count), hidden, centers.flatten(0, 1), solver, start)
        probes = ItemGenerators(self.q.seed, batch.index, count, -1)
        found = laplace(flow, done.y, hidden, done.preconditioner, probes)
        if count == 1:
            return found
        mean, log_scale = (v.view_as(centers).transpose(0, 1) for v in (found.mean, found.log_scale))
        return spread(mean, log_scale, batch.hidden)

    def _step(self, optimizer: torch.optim.Optimizer, samples: int) -> dict[str, float]:
        flow, batch, key = self.q.flow, self.q.batch, self.steps_done
        self.steps_done += 1
        noise = self.q.epsilon(samples, "fit", key * samples)
        probes = ItemGenerators(self.q.seed, batch.index, samples, key)
        estimate = self.q.objective.step(flow, batch, self.q.posterior(batch, flow), noise, probes)
        optimizer.zero_grad(set_to_none=True)
        # The gradients of others are left alone, say of parameters that a function holds.
        own = [p for group in optimizer.param_groups for p in group["params"]]
        # Items are independent, so each gets the mean over its own draws and the sum over items is maximised.
        (-estimate.surrogate.sum() / samples).backward(inputs=own)
        optimizer.step()
        return estimate.scalars()

    @torch.no_grad()
    def _folded(self) -> str | None:
        """A line if det G^HH has both signs over the draws of an item: there are several completions of one latent."""
        batch, draws = self.q.batch, self._draws
        if longest(batch.hidden.flatten(1)) > _SIGNED or batch.values.shape[1:].numel() > self.q.flow.dense_below:
            return None
        found = self.q.completed(draws, "judge")
        flow, hidden = repeated(self.q.flow, len(batch), draws), repeat(batch.hidden, draws)
        y = torch.where(hidden & ~found.draws.flatten(0, 1).isfinite(), 0, found.draws.flatten(0, 1))
        blocks = padded_blocks(flow.linearize(y)[1], hidden, y)
        sign = torch.linalg.slogdet(torch.nan_to_num(blocks).double())[0].view(draws, -1)
        sign = torch.where(found.ok, sign, 0)
        fewer = torch.minimum((sign > 0).sum(0), (sign < 0).sum(0))
        if not bool(fewer.any()):
            return None
        return (
            f"the sign of det G^HH changes over the draws of {int((fewer > 0).sum())} of {len(batch)} items, and "
            f"{percent(float(fewer.sum() / found.ok.sum()))} of the draws have the rarer one: a latent has several "
            "completions there, of which the solver finds one; take partition=maxvol, or a flow of residual structure"
        )


_FIXED: dict[int, tuple[int, bool]] = {}  # of parameters, by identity: fits that hold it fixed, and what it was before
_FIXING = threading.Lock()


@contextmanager
def fixed(parameters: list[nn.Parameter]) -> Iterator[None]:
    """No gradients are taken in `parameters` meanwhile, by however many fits in other threads that share them."""
    with _FIXING:
        for p in parameters:
            fits, wanted = _FIXED.get(id(p), (0, p.requires_grad))
            _FIXED[id(p)] = (fits + 1, wanted)
            p.requires_grad_(False)
    try:
        yield
    finally:
        with _FIXING:
            for p in parameters:
                fits, wanted = _FIXED.pop(id(p))
                if fits > 1:
                    _FIXED[id(p)] = (fits - 1, wanted)
                else:
                    p.requires_grad_(wanted)


@contextmanager
def shown(progress: bool | Progress | None, steps: int) -> Iterator[Progress | None]:
    """What is called after each step: `progress` itself, or, if it is true, what moves a bar."""
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield None
    else:
        with bar("fitting", steps) as line:
            yield lambda step, scalars: line.update(step + 1, {k: v for k, v in scalars.items() if k in _SHOWN})
