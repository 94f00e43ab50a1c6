"""Held-out entries teach the inference network to predict; its predictions are the first completions."""

from __future__ import annotations

from viscos.train.loss import Scalars
from viscos.train.model import Model
from viscos.train.stages.stage import Stage
from viscos.train.trainer import Report
from viscos.train.validation import held_out_error


class Prediction(Stage):
    """The network alone, without a solve."""

    def step(self, within: int) -> Report:
        """One batch, some of whose observed entries are hidden for the occasion."""
        trainer = self.trainer
        batch = trainer.seen(self.data.batch(self._part(self.items, within))).to(trainer.devices.device)
        return trainer.descend(batch, lambda batch: trainer.gradients.held_out(batch, trainer.step))

    def validate(self, model: Model) -> Scalars:
        """How far predictions of held-out entries are off."""
        batch = self.data.batch(self.trainer.held_back).to(self.trainer.devices.device)
        return held_out_error(model, batch, self.plan.seed, self.data.groups)
