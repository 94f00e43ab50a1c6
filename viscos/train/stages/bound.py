"""All parts learn together, from the bound, after having learnt apart."""

from __future__ import annotations

from viscos.train.loss import Scalars
from viscos.train.model import Model
from viscos.train.stages.stage import Stage
from viscos.train.trainer import Report


class Bound(Stage):
    """Steps as a trainer without phases makes them."""

    def step(self, within: int) -> Report:
        """One batch with its holes."""
        return self.trainer.advance(self.data.batch(self._part(self.items, within)))

    def validate(self, model: Model) -> Scalars:
        """The bound, and how far predictions are off."""
        return self.trainer.bound_of(model)
