"""Trains flow, inference network and classifier together on incomplete data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from viscos.batch import Incomplete
from viscos.data.incomplete import IncompleteImages, epoch_order
from viscos.errors import InputError
from viscos.inference import Objective
from viscos.model import Model
from viscos.posteriors import Amortised
from viscos.posteriors.holdout import holdout_loss
from viscos.rng import generator

_HOPELESS = 20  # steps in a row without a single solved item after which a run is given up


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train."""

    epochs: int
    batch_size: int
    learning_rate: float
    schedule: str = "cosine"
    """`cosine`: a short warm-up, then down to zero; `halve`: half the rate each epoch, as in the paper."""
    max_steps: int | None = None
    warmup: int = 50
    clip: float = 100.0
    """Largest norm of the gradient of the mean over a batch, in nats; larger ones are scaled down."""
    noise: float | str = 0.05
    """Standard deviation of the noise on training values, or `uniform` for dequantisation of `levels` grey levels."""
    levels: int = 256
    pretrain: int = 0
    """Steps at the beginning in which the inference network alone learns, from held-out entries."""
    seed: int = 0

    def steps_per_epoch(self, items: int) -> int:
        """Steps in one pass over `items`."""
        return math.ceil(items / self.batch_size)

    def total(self, items: int) -> int:
        """Steps in all."""
        steps = self.epochs * self.steps_per_epoch(items)
        return steps if self.max_steps is None else min(steps, self.max_steps)

    def rate(self, step: int, items: int) -> float:
        """The learning rate of a step: a function of its number, so that resuming needs no state."""
        if self.schedule == "halve":
            return self.learning_rate * 0.5 ** (step // self.steps_per_epoch(items))
        warm = min(1.0, (step + 1) / self.warmup)
        return self.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * step / self.total(items)))


@dataclass(frozen=True)
class Report:
    """The figures of one step."""

    step: int
    epoch: int
    loss: dict[str, float]
    solver: dict[str, float]
    batch: Incomplete


class Trainer:
    """Runs a plan. Every random number is keyed by the step, so a resumed run continues exactly."""

    def __init__(self, model: Model, data: IncompleteImages, objective: Objective, plan: Plan) -> None:
        self.model, self.data, self.objective, self.plan = model, data, objective, plan
        self.device = next(model.parameters()).device
        self.optimizer = torch.optim.Adam(model.parameters(), plan.learning_rate, betas=(0.9, 0.99))
        self.step = 0
        self._wasted = 0

    @property
    def total(self) -> int:
        """Steps in the whole plan."""
        return self.plan.total(len(self.data))

    def run(self, after: Callable[[Report], None], epoch_end: Callable[[int], None]) -> None:
        """Trains from where it stands to the end; calls `epoch_end` after each epoch, and `after` each step.

        The step is whole when either is called: they may save the state, and end the run by an exception.
        """
        per_epoch = self.plan.steps_per_epoch(len(self.data))
        self.model.train()
        for batch in self._remaining():
            report = self._advance(batch)
            self.step += 1
            if self.step % per_epoch == 0 or self.step == self.total:
                self._check_lipschitz()
                epoch_end(self.step // per_epoch)
            after(report)

    def _remaining(self) -> Iterator[Incomplete]:
        per_epoch, size = self.plan.steps_per_epoch(len(self.data)), self.plan.batch_size
        while self.step < self.total:
            epoch, within = divmod(self.step, per_epoch)
            order = epoch_order(len(self.data), self.plan.seed, epoch)
            yield self.data.batch(order[within * size : (within + 1) * size])

    def _advance(self, batch: Incomplete) -> Report:
        rate = self.plan.rate(self.step, len(self.data))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        noisy = self._noisy(batch).to(self.device)
        self.optimizer.zero_grad(set_to_none=True)
        loss, figures, solver = self._loss(noisy)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip)
        if bool(torch.isfinite(norm)):
            self.optimizer.step()
            self.model.flow.renormalize()
        self._check_progress(bool(torch.isfinite(norm)) and solver().get("failed", 0.0) < 1)
        figures |= {"rate": rate, "gradient": float(norm), "skipped": float(not torch.isfinite(norm))}
        return Report(self.step, self.step // self.plan.steps_per_epoch(len(self.data)), figures, solver(), noisy)

    def _noisy(self, batch: Incomplete) -> Incomplete:
        g, noise = generator(self.plan.seed, "noise", self.step), self.plan.noise
        if noise == "uniform":
            values = dequantise(batch.values, self.plan.levels, g)
        else:
            values = batch.values + float(noise) * torch.randn(batch.values.shape, generator=g)
        return Incomplete(values, batch.observed, batch.index, batch.label)

    def _loss(self, batch: Incomplete) -> tuple[Tensor, dict[str, float], Callable[[], dict[str, float]]]:
        """The loss, its figures, and the solver's (read after the backward pass, which solves too)."""
        flow, probes = self.model.flow, generator(self.plan.seed, "probe", self.step)
        solver: Callable[[], dict[str, float]] = dict
        figures: dict[str, float] = {}
        loss = batch.filled().sum() * 0
        if isinstance(self.model.posterior, Amortised) and self.model.posterior.held_out:
            loss = holdout_loss(self.model.posterior, batch, generator(self.plan.seed, "holdout", self.step))
            figures["holdout"] = float(loss.detach())
            if self.step < self.plan.pretrain:
                return loss, figures, solver
        if self.model.posterior is None:
            x, surrogate = flow.to_latent_and_ladj_surrogate(batch.values, probes)
            loss, ok = -(flow.base_log_prob(x) + surrogate).mean(), torch.ones_like(surrogate, dtype=torch.bool)
            y = batch.values
        else:
            q = self.model.posterior(batch, flow)
            noise = torch.randn(batch.values.shape, generator=generator(self.plan.seed, "draw", self.step))
            step = self.objective.step(flow, batch, q, noise[None].to(self.device), probes)
            x, y, ok = step.x, step.y, step.ok
            loss = loss - step.surrogate.sum() / ok.sum().clamp_min(1)
            solver = step.figures

        if self.model.classifier is not None and batch.label is not None and int(ok.sum()) > 1:
            scores = self.model.classifier(x[ok], y[ok], batch.observed[ok])
            cross_entropy = F.cross_entropy(scores, batch.label[ok])
            loss = loss + cross_entropy
            figures["cross_entropy"] = float(cross_entropy.detach())
            figures["accuracy"] = float((scores.argmax(1) == batch.label[ok]).double().mean())
        return loss, figures, solver

    def _check_progress(self, useful: bool) -> None:
        """Ends a run in which no item gives a gradient any more."""
        self._wasted = 0 if useful else self._wasted + 1
        if self._wasted >= _HOPELESS:
            raise InputError(
                f"training diverged: no item could be solved in the last {_HOPELESS} steps before step {self.step}; "
                "lower learning_rate, or take solver=newton_krylov"
            )

    def _check_lipschitz(self) -> None:
        """Refuses to go on with a flow that is not certified to be invertible."""
        for attempt in (5, 50, 200):
            largest = max(self.model.flow.lipschitz(), default=0.0)
            if largest < 1:
                return
            self.model.flow.renormalize(attempt)
        largest = max(self.model.flow.lipschitz(), default=0.0)
        if largest >= 1:
            raise InputError(
                f"a residual branch has a certified Lipschitz bound of {largest:.3f}, so the flow may not be "
                "invertible; lower flow.coefficient"
            )

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs, in plain containers."""
        return {"step": self.step, "optimizer": self.optimizer.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave."""
        self.step = int(state["step"])
        self.optimizer.load_state_dict(state["optimizer"])


def dequantise(values: Tensor, levels: int, g: torch.Generator) -> Tensor:
    """Grey levels k/(levels − 1) as (k + u)/levels with u uniform in [0, 1)."""
    u = torch.rand(values.shape, generator=g).to(values.device)
    return (values * (levels - 1) + u) / levels
