"""The flow learns from complete items or completions: by flow matching where it can, else by maximum likelihood."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.rng import generator
from viscos.train.completed import CompletedData
from viscos.train.loss import Scalars
from viscos.train.model import Model
from viscos.train.phases import Phase
from viscos.train.stages.completed import OnCompletions
from viscos.train.trainer import Report, Trainer
from viscos.train.validation import flow_loss


class FlowFit(OnCompletions):
    """The M-step of the flow."""

    def __init__(self, trainer: Trainer, completions: CompletedData, phase: Phase, number: int) -> None:
        super().__init__(trainer, completions, phase, number)
        self._matched = trainer.model.flow.trained_by_matching
        self._observed = int(self.data.observed.sum()) / self.data.observed.numel()

    @property
    def clip(self) -> float:
        """The largest norm of a gradient, which of a mean over entries is of the order of one, not of nats an item."""
        return 1.0 if self._matched else super().clip

    def step(self, within: int) -> Report:
        """One batch of completed items."""
        batch = self._whole(self._part(self.items, within))
        counts = self._counts(batch.observed)
        whole = replace(batch, observed=torch.ones_like(batch.observed))
        gradients = partial(self.trainer.gradients.joint, step=self.trainer.step, complete=True, counts=counts)
        return self.trainer.descend(whole, gradients)

    def validate(self, model: Model) -> Scalars:
        """The loss on completions of items held back, if there are any."""
        if not len(rows := self._held_back()):
            return {}
        device, seed = self.trainer.devices.device, self.plan.seed
        values = self.completions.noisy(rows, generator(seed, "validation noise")).to(device)
        return flow_loss(model, values, seed, self._counts(self.data.observed[rows].to(device)))

    def _whole(self, rows: Tensor) -> Incomplete:
        """Completed items, moved about and noisy as a step sees them, with what is observed of them."""
        trainer, completions = self.trainer, self.completions
        labels = None if self.data.labels is None else self.data.labels[rows]
        batch = Incomplete(completions.values[rows], self.data.observed[rows], rows, labels)
        seen = trainer.seen(batch, holes=False)
        if (noisy_already := completions.carries_noise(rows)) is not None:
            where = trainer.moved(replace(batch, values=noisy_already.to(seen.values.dtype)), holes=False).values > 0.5
            seen = replace(seen, values=torch.where(where, trainer.moved(batch, holes=False).values, seen.values))
        return seen.to(trainer.devices.device)

    def _counts(self, observed: Tensor) -> Tensor | None:
        """How much each entry of completed items counts for a flow that is matched to them (B, …); None: all alike.

        One on average over the data, and not over each item: an imputed entry counts as little wherever it stands.
        """
        weight = self.plan.imputed_weight
        if weight == 1 or not self._matched:
            return None
        return torch.where(observed, 1.0, weight) / (weight + (1 - weight) * self._observed)
