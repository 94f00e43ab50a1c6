"""Phases that learn nothing by a gradient, but draw completions."""

from __future__ import annotations

from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.inference import Completions, impute
from viscos.train.loss import Scalars
from viscos.train.noise import deviation
from viscos.train.stages.stage import Stage
from viscos.train.trainer import Report

_VERDICTS = ("evaluations", "fallback", "failed")  # of solves, in a report


class Drawing(Stage):
    """Draws from the flow's own conditional, by the posterior."""

    def _impute(self, batch: Incomplete, seed: int, draws: int = 1) -> Completions:
        trainer, noise = self.trainer, deviation(self.plan.noise)
        posterior, solver = trainer.model.posterior, trainer.objective.solver
        assert posterior is not None
        at = batch.to(trainer.devices.device)
        return impute(trainer.model.flow, posterior, at, solver, draws=draws, seed=seed, noise=noise)

    def _solved(self, done: Completions, rows: Tensor, loss: Scalars | None = None) -> Report:
        """What a step came to."""
        step, record = self.trainer.step, done.solution.record().items()
        solver = {key: float(value) for key, value in record if key in _VERDICTS and value is not None}
        epoch = step // self.plan.steps_per_epoch(self.trainer.items)
        return Report(step, epoch, loss or {}, solver, self.data.batch(rows))
