"""Training in phases: flow matching and regression on completions, which the flow then draws anew."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from viscos.core.batch import Incomplete, incomplete
from viscos.core.errors import InputError
from viscos.core.rng import generator
from viscos.data.incomplete import IncompleteData, epoch_order
from viscos.data.masks import any_masks
from viscos.inference import Completions, Objective, impute
from viscos.posteriors.holdout import hold_out
from viscos.train.completed import ROWS, CompletedData
from viscos.train.devices import Devices
from viscos.train.invertible import check_invertible
from viscos.train.loss import Scalars
from viscos.train.model import Model
from viscos.train.noise import noisy
from viscos.train.phases import Phase
from viscos.train.plan import Plan
from viscos.train.tempering import DRAWS, corrected, spread_over_skill
from viscos.train.trainer import Report, Trainer
from viscos.train.validation import flow_loss, held_out_error, posterior_loss

_FORMER = {"completing": "prediction"}  # names of phases in older checkpoints
_VERDICTS = ("evaluations", "fallback", "failed")  # of solves, in a report
_LATENTS = 10_000  # items whose latents teach the posterior in one phase


class PhasedTrainer(Trainer):
    """Runs a plan of phases. On data with holes that is Monte-Carlo expectation–maximisation.

    The M-step is flow matching (or maximum likelihood) on completed items, and the regression of the posterior on pairs
    of completed items, masked afresh, and their latents. The E-step draws completions from the flow's conditional, by
    that posterior. Neither step needs an adjoint, a log-determinant or its gradient. The first completions are the
    inference network's own, which held-out entries teach; they are means, and each round would keep as much of their
    error as there is missing. So a flow that is matched learns from imputed entries with a lower weight, and what
    draws are still too alike, a temperature corrects in the end (`viscos.train.tempering`). A hidden entry is never
    read: the data hold NaN there.

    Each phase has its own optimiser's moments, warm-up and average of the parameters, which the next phase begins with.
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
        super().__init__(model, data, objective, plan, devices, held_back)
        self.completions = CompletedData(data)
        self.completed, self.drawn = self.completions.values, self.completions.drawn
        self._items = torch.arange(0)
        self._shuffled: tuple[int, int, Tensor] | None = None
        self._entered = -1
        self._latents: tuple[Tensor, Tensor, Tensor] | None = None
        self._latents_held_back: tuple[Tensor, Tensor, Tensor] | None = None
        self._observed = int(data.observed.sum()) / data.observed.numel()

    @property
    def phase(self) -> Phase:
        """The present one, or the last."""
        return self.plan.phases[min(self.plan.place(self.step)[0], len(self.plan.phases) - 1)]

    @property
    def _averaged(self) -> int:
        return self.plan.place(self.step)[1]

    @property
    def _clip(self) -> float:
        """The largest norm of a gradient of means over entries, which are of the order of one, not of nats an item."""
        name = self.phase.name
        return (
            1.0 if name == "posterior" or (name == "flow" and self.model.flow.trained_by_matching) else self.plan.clip
        )

    def run(self, after: Callable[[Report], None], epoch_end: Callable[[int], None]) -> None:
        """Trains as a trainer does; what counts as an epoch is as many steps as one has, whatever the phase."""
        per_epoch = self.plan.steps_per_epoch(self.items)
        while self.step < self.total:
            number, within = self.plan.place(self.step)
            self._enter(number, within)
            phase = self.plan.phases[number]
            report = self._step_of(phase, number, within)
            report = replace(report, phase=phase, within=within)
            self.step += 1
            report = self._judged(report, within + 1, phase.steps)
            if self.step % per_epoch == 0 or self.step == self.total:
                self.result()  # in every process: all end where it is refused
                epoch_end(self.step // per_epoch)
            after(report)

    def _step_of(self, phase: Phase, number: int, within: int) -> Report:
        if phase.name == "tempering":
            return self._temper(number, within)
        return self._redraw(phase, within) if phase.name == "redrawing" else self._learn(number, within)

    def _enter(self, number: int, within: int) -> None:
        """Prepares a phase, at its beginning or in its middle."""
        if number == self._entered:
            return
        self._entered, self._latents, self._latents_held_back = number, None, None
        phase = self.plan.phases[number]
        if within == 0:
            self.optimizer.state.clear()
        self.model.train()
        self._items = self._rows(phase)
        if phase.name in ("flow", "posterior"):
            self._predict(torch.cat([self._items, self._held_back]))
        if phase.name == "posterior":
            self._latents = self._pairs(number, self._items)
            held_back = self._completed(phase)
            self._latents_held_back = self._pairs(number, held_back) if len(held_back) else None

    def _leave(self, phase: Phase | None, within: int) -> None:
        """Takes the averaged parameters over, or the best ones."""
        if self.average is not None:
            self.model.load_state_dict(self._trained().state_dict())
        super()._leave(phase, within)
        check_invertible(self.model.flow)

    def _validate(self, model: Model, phase: Phase | None) -> Scalars:
        """Measures what the phase is about; nothing while completions are drawn, or where no item held back has one."""
        assert phase is not None
        if phase.name == "bound":
            return super()._validate(model, phase)
        if phase.name == "prediction":
            batch = self.data.batch(self._held_back).to(self.devices.device)
            return held_out_error(model, batch, self.plan.seed, self.data.groups)
        if phase.name == "flow" and len(rows := self._completed(phase)):
            values = self._blurred(rows, generator(self.plan.seed, "validation noise"))
            counts = self._counts(self.data.observed[rows].to(self.devices.device))
            return flow_loss(model, values.to(self.devices.device), self.plan.seed, counts)
        if phase.name == "posterior" and self._latents_held_back is not None:
            index, values, latents = self._latents_held_back
            masks = self._masks(index, generator(self.plan.seed, "validation masks"))
            batch = incomplete(values, masks, index).to(self.devices.device)
            return posterior_loss(model, batch, latents.to(self.devices.device))
        return {}

    def _completed(self, phase: Phase) -> Tensor:
        """The items held back that have completions such as a phase learns from (n,)."""
        rows = self._held_back
        return rows[self.drawn[rows]] if phase.round else rows

    def _rows(self, phase: Phase) -> Tensor:
        """The items that a phase learns from (n,): all at first, and after a redrawing what has been drawn so far.

        An item whose solves have failed so far has a prediction only, a mean, which would teach the flow to blur.
        """
        if phase.name == "tempering" and self.validation is not None:
            return self._held_back
        if phase.round == 0:
            return torch.arange(self.items)
        rows = torch.cat([self._chosen(k) for k in range(1, phase.round + 1)]).unique()
        drawn = rows[self.drawn[rows]]
        if phase.name != "redrawing" and not len(drawn):
            raise InputError(
                f"none of {len(rows)} items could be completed by the flow; lower learning_rate, train longer before "
                "(max_steps), or take rounds=0"
            )
        return drawn

    def _chosen(self, round: int) -> Tensor:
        """The items that are completed anew in a round (n,)."""
        return epoch_order(self.items, self.plan.seed, -round)[: self.plan.redraw]

    # -- learning ------------------------------------------------------------------------------------------------------

    def _learn(self, number: int, within: int) -> Report:
        phase = self.plan.phases[number]
        if phase.name in ("prediction", "bound"):
            batch = self._seen(self.data.batch(self._order(self._items, number, within))).to(self.devices.device)
            if phase.name == "bound":
                return self._descend(batch, self._gradients)
            return self._descend(batch, lambda batch: self.gradients.held_out(batch, self.step))
        if phase.name == "flow":
            batch, counts = self._whole(self._order(self._items, number, within))
            gradients = partial(self.gradients.joint, step=self.step, complete=True, counts=counts)
            return self._descend(batch, gradients)
        assert self._latents is not None
        rows = self._order(torch.arange(len(self._latents[0])), number, within)
        index, values, latents = (part[rows] for part in self._latents)
        labels = None if self.data.labels is None else self.data.labels[index]
        batch = incomplete(values, self._masks(index, generator(self.plan.seed, "teach", self.step)), index, labels)
        return self._descend(batch.to(self.devices.device), lambda batch: self.gradients.regression(batch, latents))

    def _order(self, rows: Tensor, number: int, within: int) -> Tensor:
        """Those of `rows` that step `within` of phase `number` sees."""
        size = self.plan.batch_size
        epoch, k = divmod(within, math.ceil(len(rows) / size))
        if self._shuffled is None or self._shuffled[:2] != (number, epoch):
            order = epoch_order(len(rows), self.plan.seed, epoch + 1000 * number)
            self._shuffled = number, epoch, rows[order]
        return self._shuffled[2][k * size : (k + 1) * size]

    def _whole(self, rows: Tensor) -> tuple[Incomplete, Tensor | None]:
        """Completed items, as a step sees them: moved about, and noisy; and how much each of their entries counts."""
        labels = None if self.data.labels is None else self.data.labels[rows]
        batch = Incomplete(self.completed[rows], self.data.observed[rows], rows, labels)
        seen = self._seen(batch, holes=False)
        if (noisy_already := self._carry_noise(rows)) is not None:
            where = self._moved(replace(batch, values=noisy_already.to(seen.values.dtype)), holes=False).values > 0.5
            seen = replace(seen, values=torch.where(where, self._moved(batch, holes=False).values, seen.values))
        seen = seen.to(self.devices.device)
        return replace(seen, observed=torch.ones_like(seen.observed)), self._counts(seen.observed)

    def _counts(self, observed: Tensor) -> Tensor | None:
        """How much each entry of completed items counts for a flow that is matched to them (B, …); None: all alike.

        One on average over the data, and not over each item: an imputed entry counts as little wherever it stands.
        """
        weight = self.plan.imputed_weight
        if weight == 1 or not self.model.flow.trained_by_matching:
            return None
        return torch.where(observed, 1.0, weight) / (weight + (1 - weight) * self._observed)

    def _carry_noise(self, rows: Tensor) -> Tensor | None:
        """Which entries of items carry the noise of training, drawn by a flow that does not take it off (B, …)."""
        if self.model.flow.can_denoise or self.plan.noise == 0 or not bool(self.drawn[rows].any()):
            return None
        return ~self.data.observed[rows] & self.drawn[rows].view(-1, *[1] * len(self.data.shape))

    def _masks(self, rows: Tensor, g: torch.Generator) -> Tensor:
        """Fresh masks for items (B, …): those of other items, or of every kind."""
        if self.plan.masks == "any":
            observed = any_masks(self.data.shape, len(rows), g)
            return observed if self.data.groups is None else observed[:, self.data.groups]
        return self.data.observed[torch.randint(self.items, (len(rows),), generator=g)]

    # -- completions ---------------------------------------------------------------------------------------------------

    def _predict(self, rows: Tensor) -> None:
        """Completes those of `rows` that have no completion yet, by the inference network."""
        self.completions.predict(rows, self.model.posterior, self.devices.device)

    @torch.no_grad()
    def _pairs(self, number: int, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Items (n,), their noisy completions and the latents of these (n, …)."""
        g = generator(self.plan.seed, "pairs", number)
        rows = rows[torch.randperm(len(rows), generator=g)[:_LATENTS]]
        values = self._blurred(rows, g)
        device = self.devices.device
        latents = [self.model.flow.to_latent(part.to(device)).to(values.device) for part in values.split(ROWS)]
        return rows, values, torch.cat(latents)

    def _blurred(self, rows: Tensor, g: torch.Generator) -> Tensor:
        """Completions of items with the noise of training (n, …)."""
        every = self.completed[rows]
        whole = Incomplete(every, torch.ones_like(every, dtype=torch.bool), rows)
        values = noisy(whole, self.plan.noise, self.plan.levels, g).values
        noisy_already = self._carry_noise(rows)
        return values if noisy_already is None else torch.where(noisy_already, every, values)

    @torch.no_grad()
    def _redraw(self, phase: Phase, within: int) -> Report:
        """Draws completions of some items, and at first of those that are held back."""
        size = self.plan.batch_size
        rows = self._chosen(phase.round)[within * size : (within + 1) * size]
        if within == 0 and self.validation is not None:
            for part in self._held_back.split(size):
                self._draw(part, phase.round)
        return self._solved({}, self._draw(rows, phase.round), rows)

    def _draw(self, rows: Tensor, round: int) -> Completions:
        """Completes items by a draw of the flow each; those whose solve fails keep what they had."""
        done = self._impute(self.data.batch(rows), generator(self.plan.seed, "redraw", round).initial_seed())
        self.completions.take(rows, done)
        return done

    @torch.no_grad()
    def _temper(self, number: int, within: int) -> Report:
        """Corrects the width of the posterior by a batch, of which some observed entries are hidden."""
        network = self.model.posterior
        assert network is not None and network.tempers
        rows, g = self._order(self._items, number, within), generator(self.plan.seed, "tempering", self.step)
        batch = self.data.batch(rows).to(self.devices.device)  # where its draws are, which are compared with it
        sparser = hold_out(batch, network.held_out, g, self.data.groups)
        done = self._impute(sparser, g.initial_seed(), draws=DRAWS)
        ratio = spread_over_skill(done, batch, sparser)
        temperature = corrected(float(network.temperature), ratio, within)
        network.set_temperature(self.devices.gather_rows([temperature])[0][0])  # the same in all processes
        return self._solved({"spread_over_skill": ratio, "temperature": float(network.temperature)}, done, rows)

    def _impute(self, batch: Incomplete, seed: int, draws: int = 1) -> Completions:
        noise = 0.0 if self.plan.noise == "uniform" else float(self.plan.noise)
        flow, posterior = self.model.flow, self.model.posterior
        assert posterior is not None
        at = batch.to(self.devices.device)
        return impute(flow, posterior, at, self.objective.solver, draws=draws, seed=seed, noise=noise)

    def _solved(self, loss: dict[str, float], done: Completions, rows: Tensor) -> Report:
        """What a step without learning came to."""
        epoch = self.step // self.plan.steps_per_epoch(self.items)
        record = done.solution.record().items()
        solver = {key: float(value) for key, value in record if key in _VERDICTS and value is not None}
        return Report(self.step, epoch, loss, solver, self.data.batch(rows))

    # -- state ---------------------------------------------------------------------------------------------------------

    def state(self, result: Model | None = None) -> dict[str, Any]:
        """All that a resumed run needs beside the parts of `result()`; what was drawn is left out of the last one."""
        state = super().state(result) | {"phases": [[phase.name, phase.steps] for phase in self.plan.phases]}
        if self.step < self.total:
            rows = (self.drawn & ~self.data.observed.flatten(1).all(1)).nonzero().flatten()
            state |= {"drawn": rows, "completions": self.completed[rows]}
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave; raises `InputError` if that was of another plan.

        But a run that was to end without being tempered may be tempered.
        """
        saved = [[_FORMER.get(name, name), steps] for name, steps in state.get("phases", ())]
        planned = [[phase.name, phase.steps] for phase in self.plan.phases]
        if planned[: len(saved)] != saved or any(name != "tempering" for name, _ in planned[len(saved) :]):
            raise InputError(
                "this run is trained in phases, whose lengths are settled when it begins; leave out epochs, max_steps, "
                "temper"
            )
        super().load_state(state)
        if "drawn" in state:
            rows = state["drawn"].cpu()
            self.drawn[rows], self.completed[rows] = True, state["completions"].cpu()
