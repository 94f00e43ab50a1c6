"""Runs a plan."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.core.rng import RowGenerator, generator
from viscos.data.augment import augment
from viscos.data.incomplete import IncompleteData, epoch_order
from viscos.flows import Flow
from viscos.inference import Objective
from viscos.posteriors.holdout import hold_out, holdout_errors
from viscos.train.average import Average
from viscos.train.devices import Devices, OneDevice
from viscos.train.loss import Figures, HeldOut, Loss, Pairs, Part, merged
from viscos.train.model import Model
from viscos.train.noise import noisy
from viscos.train.phases import Phase
from viscos.train.plan import Plan

_HOPELESS = 20  # steps in a row without a single solved item after which a run is given up
_LOSS = ("matching", "nll", "holdout", "cross_entropy", "accuracy", "accuracy_latents")
_SOLVER = ("evaluations", "residual", "fallback", "failed", "products")


@dataclass(frozen=True)
class Report:
    """The figures of one step."""

    step: int
    epoch: int
    loss: dict[str, float]
    solver: dict[str, float]
    batch: Incomplete
    phase: Phase | None = None
    """What is being learnt, where the plan has phases."""
    within: int = 0
    """Number of the step in its phase."""


class Trainer:
    """Runs a plan. Every random number is keyed by the step, so a resumed run continues exactly.

    A step's numbers are those of its whole batch, however many devices and micro-batches share it; so is its gradient,
    that of the mean over the items of the batch that were solved. The one difference is the classifier's batch
    normalisation and dropout, whose batch is what it sees at once.
    """

    def __init__(
        self, model: Model, data: IncompleteData, objective: Objective, plan: Plan, devices: Devices | None = None
    ) -> None:
        self.model, self.data, self.objective = model, data, objective
        self.plan = plan if model.holds_out else replace(plan, pretrain=0)  # there is nothing to teach beforehand
        self.devices = devices or OneDevice(next(model.parameters()).device)
        self.optimizer = torch.optim.Adam(model.parameters(), plan.learning_rate, betas=(0.9, 0.99))
        self.average = Average(model, plan.ema) if plan.ema else None
        model.flow.autocast(self.devices.low_precision)
        # The same module and optimiser, wrapped where there are several devices.
        self._loss: Any
        self._stepper: Any
        self._loss, self._stepper = self.devices.setup(Loss(model, objective), self.optimizer)
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
                self.certify()
                epoch_end(self.step // per_epoch)
            after(report)

    def result(self) -> Model:
        """What the training has come to: the model, or a copy with the averaged parameters."""
        return self.model if self.average is None else self.average.model(self.model)

    def certify(self, average: bool = True) -> None:
        """Raises `InputError` unless every residual branch is certified to be a contraction, after power iterations.

        Between two steps at which this was called a branch may for a while be none. It is called at the end of an
        epoch, and must be, in every process, before anything else that saves the flow, or measures it: then without
        the `average`, of which every check costs a copy.
        """
        check_invertible(self.model.flow)
        if average and self.average is not None and self.model.flow.branches():
            check_invertible(self.result().flow, attempts=())

    def anywhere(self, flag: bool) -> bool:
        """Whether `flag` is set in any of the processes; every one must ask."""
        return any(row[0] > 0 for row in self.devices.gather_rows([float(flag)]))

    def _remaining(self) -> Iterator[Incomplete]:
        per_epoch, size = self.plan.steps_per_epoch(len(self.data)), self.plan.batch_size
        while self.step < self.total:
            epoch, within = divmod(self.step, per_epoch)
            order = epoch_order(len(self.data), self.plan.seed, epoch)
            yield self.data.batch(order[within * size : (within + 1) * size])

    def _advance(self, batch: Incomplete) -> Report:
        batch = self._seen(batch).to(self.devices.device)
        return self._descend(batch, self._gradients)

    def _gradients(self, batch: Incomplete) -> Figures:
        """Leaves the gradient of a step; returns its figures."""
        figures: Figures = {}
        if self.step >= self.plan.pretrain:
            figures = self._gradient(batch)
        if self.model.holds_out:
            figures |= self._holdout_gradient(batch)
        return figures

    def _descend(self, batch: Incomplete, gradients: Callable[[Incomplete], Figures]) -> Report:
        """A step of the optimiser along what `gradients` leaves of a batch."""
        rate = self.plan.rate(self.step, len(self.data))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        # Dropout draws from torch's own generator, which a resumed run would find elsewhere.
        torch.manual_seed(generator(self.plan.seed, "dropout", self.step).initial_seed())
        figures = gradients(batch)
        norm = self._clip_gradients()
        finite = bool(torch.isfinite(norm))
        if finite or self.devices.scaler is not None:  # which makes no step either, but lowers the scale
            self._stepper.step()
        if finite:
            if any(p.grad is not None for p in self.model.flow.parameters()):  # else it must stay, bit for bit
                self.model.flow.renormalize()
            if self.average is not None:
                self.average.update(self.model, self._averaged)
        self._check_progress(finite and figures.get("failed", 0.0) < 1)
        solver = {key: figures[key] for key in _SOLVER if key in figures}
        loss = {key: figures[key] for key in _LOSS if not math.isnan(figures.get(key, math.nan))}
        loss |= {"rate": rate, "gradient": float(norm), "skipped": float(not finite)}
        return Report(self.step, self.step // self.plan.steps_per_epoch(len(self.data)), loss, solver, batch)

    def _clip_gradients(self) -> Tensor:
        """Scales down a gradient that is too long; returns the length that it had.

        Without that of the classifier that learns beside all else: nothing shall be slower for it.
        """
        beside = self.model.latent_classifier
        aside = [(p, p.grad) for p in (() if beside is None else beside.parameters())]
        for p, _ in aside:
            p.grad = None
        norm: Tensor = self.devices.clip_gradients(
            self._loss, self._stepper, max_norm=self._clip, error_if_nonfinite=False
        )
        scale = 1.0 if self.devices.scaler is None else self.devices.scaler.get_scale()
        for p, gradient in aside:
            p.grad = None if gradient is None else gradient / scale
        return norm

    @property
    def _clip(self) -> float:
        return self.plan.clip

    @property
    def _averaged(self) -> int:
        """Steps that the average has taken in."""
        return self.step

    def _seen(self, batch: Incomplete, holes: bool | None = None) -> Incomplete:
        """The batch as this step sees it: moved about, and noisy; `holes` says whether there may be any."""
        plan = self.plan
        batch = self._moved(batch, self.model.posterior is not None if holes is None else holes)
        return noisy(batch, plan.noise, plan.levels, generator(plan.seed, "noise", self.step))

    def _moved(self, batch: Incomplete, holes: bool) -> Incomplete:
        """The batch moved about, as this step moves it."""
        return augment(batch, self.plan.augment, generator(self.plan.seed, "augment", self.step), holes=holes)

    def _gradient(self, batch: Incomplete, complete: bool = False) -> Figures:
        """Leaves the gradient of the mean over the batch's solved items; returns the figures of the batch.

        With `complete`, of a batch without holes from which the flow alone learns.
        """
        mine = merged(self._backward(list(self._parts(batch, complete))))
        rows = self.devices.gather_rows(list(mine.values()))
        whole = merged([dict(zip(mine, row, strict=True)) for row in rows])
        if 0 < whole["solved"] < len(batch):  # the parts are weighted as if all were solved, which they cannot know
            for p in self.model.parameters():
                if p.grad is not None:
                    p.grad.mul_(len(batch) / whole["solved"])
        return whole

    def _backward(self, parts: Sequence[Part] | Sequence[HeldOut] | Sequence[Pairs]) -> list[Figures]:
        """Adds the gradient of the parts' losses, summed; returns their figures."""
        records = []
        for k, part in enumerate(parts):
            with self.devices.no_backward_sync(self._loss, enabled=k + 1 < len(parts)):
                loss, figures = self._loss(part)
                self.devices.backward(loss)
            records.append(figures())
        return records

    def _holdout_gradient(self, batch: Incomplete) -> Figures:
        """Adds the gradient of ½ |H| log MSE at held-out entries, the mean being over the whole batch.

        Returns that, and the figures of a classifier that sees what is predicted, over this process's items.
        """
        network = self.model.posterior
        assert network is not None
        sparser = hold_out(batch, network.held_out, generator(self.plan.seed, "holdout", self.step), self.data.groups)
        count = int((batch.observed & sparser.hidden).sum())
        if not count:
            return {"holdout": 0.0}
        scale = 0.5 * int(batch.hidden.sum()) / len(batch)
        shares = self._shares(len(batch))
        total = None
        if len(batch) > shares[0].stop - shares[0].start:  # a logarithm of a sum: its parts need to know the whole
            with torch.no_grad():
                mine = sum(float(holdout_errors(network, batch.select(r), sparser.select(r))[0]) for r in shares)
            total = sum(row[0] for row in self.devices.gather_rows([mine if self._has_share(len(batch)) else 0.0]))
        weight = self.devices.world_size if self._has_share(len(batch)) else 0.0
        item = weight / len(batch)
        records = self._backward(
            [HeldOut(batch.select(r), sparser.select(r), weight * scale, item, total) for r in shares]
        )
        errors = sum(record["errors"] for record in records) if total is None else total
        figures = {"holdout": scale * math.log(max(errors / count, 1e-12))}
        if all("hits" in record for record in records):
            items = sum(r.stop - r.start for r in shares)
            figures["cross_entropy"] = sum(record["cross_entropy"] for record in records) / items
            figures["accuracy"] = sum(record["hits"] for record in records) / items
        return figures

    def _has_share(self, size: int) -> bool:
        """Whether a batch of `size` has an item for this process."""
        return bool(_shares(size, self.devices.world_size, self.devices.global_rank, 1))

    def _shares(self, size: int) -> list[slice]:
        """The rows of this process's micro-batches; one that gets none takes part all the same, with no weight."""
        shares = _shares(size, self.devices.world_size, self.devices.global_rank, self.plan.accumulate)
        return shares or [slice(0, 1)]

    def _parts(self, batch: Incomplete, complete: bool) -> Iterator[Part]:
        """This process's share of a batch, in micro-batches."""
        size, seed = len(batch), self.plan.seed
        noise = torch.randn(batch.values.shape, generator=generator(seed, "draw", self.step), dtype=batch.values.dtype)
        weight = self.devices.world_size / size  # gradients are averaged over the processes, and should be added
        for rows in self._shares(size):
            probes = generator(seed, "probe", self.step)
            yield Part(
                batch.select(rows),
                noise[rows].to(batch.values.device),
                probes if rows == slice(0, size) else RowGenerator(probes, size, rows),
                weight if self._has_share(size) else 0.0,
                complete or self.model.posterior is None,
            )

    def _check_progress(self, useful: bool) -> None:
        """Ends a run in which no item gives a gradient any more."""
        self._wasted = 0 if useful else self._wasted + 1
        if self._wasted >= _HOPELESS:
            raise InputError(
                f"training diverged: no item could be solved in the last {_HOPELESS} steps before step {self.step}; "
                "lower learning_rate, or take solver=newton_krylov"
            )

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs beside the parts of `result()`, in plain containers."""
        state: dict[str, Any] = {"step": self.step, "optimizer": self.optimizer.state_dict()}
        if self.average is not None:
            saved, mine = self.result().state_dict(), self.model.state_dict()
            state["trained"] = {name: value for name, value in mine.items() if not torch.equal(value, saved[name])}
        if self.devices.scaler is not None:
            state["scaler"] = self.devices.scaler.state_dict()
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave. The model must have taken over the parts of that `result()` already."""
        self.step = int(state["step"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.restart(self.model)
            self.model.load_state_dict(state["trained"], strict=False)
        if self.devices.scaler is not None and "scaler" in state:
            self.devices.scaler.load_state_dict(state["scaler"])


def _shares(size: int, processes: int, rank: int, parts: int) -> list[slice]:
    """The rows of a batch that process number `rank` computes on, in `parts` parts or fewer."""
    first, last = size * rank // processes, size * (rank + 1) // processes
    bounds = [first + (last - first) * k // parts for k in range(parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(bounds) if a < b]


def check_invertible(flow: Flow, attempts: Sequence[int] = (5, 50, 200)) -> None:
    """Raises `InputError` for a flow that is not certified to be invertible after so many power iterations."""
    largest = max(flow.lipschitz(), default=0.0)
    for iterations in attempts:
        if largest < 1:
            return
        flow.renormalize(iterations)
        largest = max(flow.lipschitz(), default=0.0)
    if largest < 1:
        return
    raise InputError(
        f"a residual branch has a certified Lipschitz bound of {largest:.3f}, so the flow may not be "
        "invertible; lower flow.coefficient"
    )
