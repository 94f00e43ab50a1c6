"""Runs a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.core.precision import device_of
from viscos.core.rng import generator
from viscos.data.augment import augment
from viscos.data.incomplete import IncompleteData, epoch_order
from viscos.inference import Objective
from viscos.train.average import Average
from viscos.train.devices import Devices, OneDevice
from viscos.train.gradients import Gradients
from viscos.train.invertible import certified
from viscos.train.loss import Loss, Scalars
from viscos.train.model import Model
from viscos.train.noise import noisy
from viscos.train.phases import Phase
from viscos.train.plan import Plan
from viscos.train.validation import ITEMS, Validation, bound_loss, held_out_error, loss_of

_HOPELESS = 20  # steps in a row without a single solved item after which a run is given up
_LOSS = ("matching", "nll", "holdout", "cross_entropy", "accuracy", "accuracy_latents")
_SOLVER = ("evaluations", "residual", "fallback", "failed", "products")


@dataclass(frozen=True)
class Report:
    """The numbers of one step."""

    step: int
    epoch: int
    loss: dict[str, float]
    solver: dict[str, float]
    batch: Incomplete
    phase: Phase | None = None
    """What is being learnt, where the plan has phases."""
    within: int = 0
    """Number of the step in its phase."""
    validation: dict[str, float] = field(default_factory=dict)
    """What was measured after the step of items that are held back; the first number is the one that counts."""


class Trainer:
    """Runs a plan. Every random number is keyed by the step, so a resumed run continues exactly.

    A step's numbers are those of its whole batch, however many devices and micro-batches share it; so is its gradient,
    that of the mean over the items of the batch that were solved. The one difference is the classifier's batch
    normalisation and dropout, whose batch is what it sees at once.

    The last `held_back` items teach nothing: they are measured as the training goes, and it ends in the model that
    was best on them (`viscos.train.validation`).
    """

    def __init__(
        self,
        model: Model,
        data: IncompleteData,
        objective: Objective,
        plan: Plan,
        devices: Devices | None = None,
        held_back: int = 0,
    ) -> None:
        self.model, self.data, self.objective = model, data, objective
        self.items = len(data) - held_back
        """Those that are learnt from, the first of `data`."""
        self.validation = Validation(plan.patience) if held_back else None
        self.plan = plan if model.holds_out else replace(plan, pretrain=0)  # there is nothing to teach beforehand
        self.devices = devices or OneDevice(device_of(model))
        self.optimizer = torch.optim.Adam(model.parameters(), plan.learning_rate, betas=(0.9, 0.99))
        self.average = Average(model, plan.ema) if plan.ema else None
        model.flow.autocast(self.devices.low_precision)
        # The same module and optimiser, wrapped where there are several devices.
        self._loss: Any
        self._stepper: Any
        self._loss, self._stepper = self.devices.setup(Loss(model, objective), self.optimizer)
        self.gradients = Gradients(model, self._loss, self.plan, self.devices, data.groups)
        self.step = 0
        self.measured = 0
        """Batches that said something of the temperature, in the phase that corrects it."""
        self._wasted = 0

    @property
    def total(self) -> int:
        """Steps in the whole plan."""
        return self.plan.total(self.items)

    def run(self, after: Callable[[Report], None], epoch_end: Callable[[int], None]) -> None:
        """Trains from where it stands to the end; calls `epoch_end` after each epoch, and `after` each step.

        The step is whole when either is called: they may save the state, and end the run by an exception.
        """
        per_epoch = self.plan.steps_per_epoch(self.items)
        self.model.train()
        for batch in self._remaining():
            report = self.advance(batch)
            self.step += 1
            report = self._judged(report, self.step, self.total)
            if self.step % per_epoch == 0 or self.step == self.total:
                self.result()  # in every process: all end where it is refused
                epoch_end(self.step // per_epoch)
            after(report)

    def result(self) -> Model:
        """What the training has come to: the model, or with the averaged parameters; certified, if need be a copy.

        While it is trained a branch may for a while be no contraction. Raises `InputError` for a flow that cannot be
        certified: at the end of each epoch too, where it is asked for.
        """
        return certified(self._trained())

    def certified(self) -> Model:
        """The same without an average, of which every check costs a copy: the model itself, to be measured."""
        return certified(self.model)

    def _trained(self) -> Model:
        """What the training has come to, without a certificate."""
        return self.model if self.average is None else self.average.model(self.model)

    # -- validation ----------------------------------------------------------------------------------------------------

    def _judged(self, report: Report, within: int, steps: int) -> Report:
        """Measures what is held back, if it is time `within` a phase of so many steps, and ends that early or in time.

        The step has been counted.
        """
        if self.validation is not None and self.validation.due(within, steps):
            report = replace(report, validation=self._measure(report.phase, within))
        if within == steps or (self.validation is not None and self.validation.over):
            self.step += steps - within
            self._leave(report.phase, within)
        return report

    def _measure(self, phase: Phase | None, within: int) -> Scalars:
        assert self.validation is not None
        model = self._trained().eval()
        with torch.no_grad():
            scalars = self._validate(model)
        if not scalars:
            self.model.train()
            return {}
        # All processes measure the same, and must come to the same decision.
        loss = self.devices.gather_rows([loss_of(scalars)])[0][0]
        contracts = max(model.flow.lipschitz(), default=0.0) < 1
        if contracts and (phase is not None or within > self.plan.pretrain):  # before, the flow stands still
            self.validation.take(model, loss, within)
        self.model.train()
        return scalars

    def _validate(self, model: Model) -> Scalars:
        """What the items that are held back say of a model, without a gradient."""
        if self.step <= self.plan.pretrain:
            batch = self.data.batch(self.held_back).to(self.devices.device)
            return held_out_error(model, batch, self.plan.seed, self.data.groups)
        return self.bound_of(model)

    def bound_of(self, model: Model) -> Scalars:
        """The bound of the items that are held back, and how far predictions of their held-out entries are off."""
        batch, seed = self.data.batch(self.held_back), self.plan.seed
        blurred = noisy(batch, self.plan.noise, self.plan.levels, generator(seed, "validation noise"))
        scalars = bound_loss(model, self.objective, blurred.to(self.devices.device), seed)
        return scalars | held_out_error(model, batch.to(self.devices.device), seed, self.data.groups)

    @property
    def held_back(self) -> Tensor:
        """The items that are measured (n,)."""
        return torch.arange(self.items, len(self.data))[:ITEMS]

    def _leave(self, phase: Phase | None, within: int) -> None:
        """Goes on with the best model at the end of a phase, or of the training, after so many steps."""
        if self.validation is None:
            return
        self.validation.finish(self.model, None if phase is None else phase.title, within)
        if self.average is not None:
            self.average.restart(self.model)

    # -- a step --------------------------------------------------------------------------------------------------------

    def _remaining(self) -> Iterator[Incomplete]:
        per_epoch, size = self.plan.steps_per_epoch(self.items), self.plan.batch_size
        while self.step < self.total:
            epoch, within = divmod(self.step, per_epoch)
            order = epoch_order(self.items, self.plan.seed, epoch)
            yield self.data.batch(order[within * size : (within + 1) * size])

    def advance(self, batch: Incomplete) -> Report:
        batch = self.seen(batch).to(self.devices.device)
        return self.descend(batch, self._gradients)

    def _gradients(self, batch: Incomplete) -> Scalars:
        """Leaves the gradient of a step; returns its numbers."""
        scalars: Scalars = {}
        if self.step >= self.plan.pretrain:
            scalars = self.gradients.joint(batch, self.step)
        if self.model.holds_out:
            scalars |= self.gradients.held_out(batch, self.step)
        return scalars

    def descend(self, batch: Incomplete, gradients: Callable[[Incomplete], Scalars]) -> Report:
        """A step of the optimiser along what `gradients` leaves of a batch."""
        rate = self.plan.rate(self.step, self.items)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        # Dropout draws from torch's own generator, which a resumed run would find elsewhere.
        torch.manual_seed(generator(self.plan.seed, "dropout", self.step).initial_seed())
        scalars = gradients(batch)
        norm = self._clip_gradients()
        finite = bool(torch.isfinite(norm))
        if finite or self.devices.scaler is not None:  # which makes no step either, but lowers the scale
            self._stepper.step()
        if finite:
            if any(p.grad is not None for p in self.model.flow.parameters()):  # else it must stay, bit for bit
                self.model.flow.renormalize()
            if self.average is not None:
                self.average.update(self.model, self._averaged)
        self._check_progress(finite, scalars.get("failed", 0.0) < 1 and scalars.get("solved", 1) > 0)
        solver = {key: scalars[key] for key in _SOLVER if key in scalars}
        loss = {key: scalars[key] for key in _LOSS if not math.isnan(scalars.get(key, math.nan))}
        loss |= {"rate": rate, "gradient": float(norm), "skipped": float(not finite)}
        return Report(self.step, self.step // self.plan.steps_per_epoch(self.items), loss, solver, batch)

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

    def seen(self, batch: Incomplete, holes: bool | None = None) -> Incomplete:
        """The batch as this step sees it: moved about, and noisy; `holes` says whether there may be any."""
        plan = self.plan
        batch = self.moved(batch, self.model.posterior is not None if holes is None else holes)
        return noisy(batch, plan.noise, plan.levels, generator(plan.seed, "noise", self.step))

    def moved(self, batch: Incomplete, holes: bool) -> Incomplete:
        """The batch moved about, as this step moves it."""
        return augment(batch, self.plan.augment, generator(self.plan.seed, "augment", self.step), holes=holes)

    def _check_progress(self, finite: bool, solved: bool) -> None:
        """Ends a run in which no item gives a gradient any more."""
        self._wasted = 0 if finite and solved else self._wasted + 1
        if self._wasted >= _HOPELESS:
            what, or_else = ("no item could be solved", ", or take solver=newton_krylov")
            if solved:
                what, or_else = ("no gradient was finite", "")
            raise InputError(
                f"training diverged: {what} in the last {_HOPELESS} steps before step {self.step}; lower "
                f"learning_rate{or_else}"
            )

    def state(self, result: Model | None = None) -> dict[str, Any]:
        """All that a resumed run needs beside the parts of `result()`, in plain containers; if it is there, take it."""
        result = self.result() if result is None else result
        state: dict[str, Any] = {"step": self.step, "optimizer": self.optimizer.state_dict()}
        if result is not self.model:
            saved, mine = result.state_dict(), self.model.state_dict()
            state["trained"] = {name: value for name, value in mine.items() if not torch.equal(value, saved[name])}
        if self.devices.scaler is not None:
            state["scaler"] = self.devices.scaler.state_dict()
        if self.validation is not None:
            state["validation"] = self.validation.state()
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave. The model must have taken over the parts of that `result()` already."""
        self.step = int(state["step"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.restart(self.model)
        if self.average is not None or "trained" in state:  # else what was saved is what was trained
            self.model.load_state_dict(state["trained"], strict=False)
        if self.devices.scaler is not None and "scaler" in state:
            self.devices.scaler.load_state_dict(state["scaler"])
        if self.validation is not None:
            self.validation.load_state(state["validation"])
