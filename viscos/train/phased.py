"""Training in phases: flow matching and regression on completions, which the flow then draws anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

from viscos.core.errors import InputError
from viscos.train.completed import CompletedData
from viscos.train.invertible import check_invertible
from viscos.train.loss import Scalars
from viscos.train.model import Model
from viscos.train.phases import Phase
from viscos.train.stages import Stage, stage_of
from viscos.train.trainer import Report, Trainer


class PhasedTrainer(Trainer):
    """Runs a plan of phases. On data with holes that is Monte-Carlo expectation–maximisation.

    The M-step is flow matching (or maximum likelihood) on completed items, and the regression of the posterior on pairs
    of completed items, masked afresh, and their latents. The E-step draws completions from the flow's conditional, by
    that posterior. Neither step needs an adjoint, a log-determinant or its gradient. The first completions are
    predictions of the inference network, that is, means, which spread too little; each round keeps a part of that
    error, a larger one where more is missing. So flow matching gives imputed entries a lower weight, and a temperature
    widens draws in the end. A hidden entry is never read: the data hold NaN there.

    Each phase has its own optimiser's moments, warm-up and average of the parameters, which the next phase begins with.
    What is done in it, `viscos.train.stages` has.
    """

    _stage: Stage | None = None

    @cached_property
    def completions(self) -> CompletedData:
        """The completions of the training items, none at first."""
        return CompletedData(self.data, self.plan.noise, self.plan.levels, self.model.flow.can_denoise)

    @property
    def stage(self) -> Stage:
        """What is done now; raises `AssertionError` before the first step."""
        assert self._stage is not None
        return self._stage

    @property
    def _averaged(self) -> int:
        return self.plan.place(self.step)[1]

    @property
    def _clip(self) -> float:
        return self.stage.clip

    def run(self, after: Callable[[Report], None], epoch_end: Callable[[int], None]) -> None:
        """Trains as a trainer does; what counts as an epoch is as many steps as one has, whatever the phase."""
        per_epoch = self.plan.steps_per_epoch(self.items)
        while self.step < self.total:
            number, within = self.plan.place(self.step)
            self._enter(number, within)
            phase = self.stage.phase
            report = replace(self.stage.step(within), phase=phase, within=within)
            self.step += 1
            report = self._judged(report, within + 1, phase.steps)
            if self.step % per_epoch == 0 or self.step == self.total:
                self.result()  # in every process: all end where it is refused
                epoch_end(self.step // per_epoch)
            after(report)

    def _enter(self, number: int, within: int) -> None:
        """Prepares a phase, at its beginning or in its middle."""
        if self._stage is not None and self._stage.number == number:
            return
        if within == 0:
            self.optimizer.state.clear()
        self.model.train()
        self._stage = None  # what it holds may be large
        self._stage = stage_of(self, self.completions, self.plan.phases[number], number)

    def _leave(self, phase: Phase | None, within: int) -> None:
        """Takes the averaged parameters over, or the best ones."""
        if self.average is not None:
            self.model.load_state_dict(self._trained().state_dict())
        super()._leave(phase, within)
        check_invertible(self.model.flow)

    def _validate(self, model: Model) -> Scalars:
        """Measures what the phase is about; nothing while completions are drawn, or where no item held back has one."""
        return self.stage.validate(model)

    def state(self, result: Model | None = None) -> dict[str, Any]:
        """All that a resumed run needs beside the parts of `result()`; what was drawn is left out of the last one."""
        phases = [[phase.name, phase.steps] for phase in self.plan.phases]
        state = super().state(result) | {"phases": phases, "measured": self.measured}
        return state | self.completions.state() if self.step < self.total else state

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave; raises `InputError` if that was of another plan.

        But a run that was to end without being tempered may be tempered.
        """
        saved = state.get("phases", [])  # none of a training without them
        planned = [[phase.name, phase.steps] for phase in self.plan.phases]
        if planned[: len(saved)] != saved or any(name != "tempering" for name, _ in planned[len(saved) :]):
            raise InputError(
                "this run is trained in phases, whose lengths are settled when it begins; leave out epochs, max_steps, "
                "temper"
            )
        super().load_state(state)
        self.measured = int(state["measured"])
        if "drawn" in state:
            self.completions.load_state(state)
