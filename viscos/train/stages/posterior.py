"""The posterior learns by regression: from completed items, masked afresh, and their latents."""

from __future__ import annotations

import torch
from torch import Tensor

from viscos.core.batch import incomplete
from viscos.core.errors import InputError
from viscos.core.rng import generator
from viscos.data.masks import any_masks
from viscos.train.completed import ROWS, CompletedData
from viscos.train.loss import Scalars
from viscos.train.model import Model
from viscos.train.phases import Phase
from viscos.train.stages.completed import OnCompletions
from viscos.train.trainer import Report, Trainer
from viscos.train.validation import posterior_loss

_LATENTS = 10_000  # items whose latents teach the posterior in one phase


class Regression(OnCompletions):
    """Maximises log q(x^H | y^O) over pairs, which needs no solve, no adjoint and no log-determinant."""

    def __init__(self, trainer: Trainer, completions: CompletedData, phase: Phase, number: int) -> None:
        super().__init__(trainer, completions, phase, number)
        self._holed = (~self.data.observed[: trainer.items].flatten(1).all(1)).nonzero().flatten()
        self._latents = self._pairs(self.items)
        if not len(self._latents[0]):
            raise InputError(
                f"none of {len(self.items)} items has a latent to teach the posterior by: the flow is not finite, or a "
                "layer of it could not be solved, at any of them; lower learning_rate"
            )
        held_back = self._held_back()
        self._latents_held_back = self._pairs(held_back) if len(held_back) else None

    @property
    def clip(self) -> float:
        """The largest norm of a gradient, which of a mean over entries is of the order of one, not of nats an item."""
        return 1.0

    def step(self, within: int) -> Report:
        """One batch of pairs under fresh masks."""
        trainer = self.trainer
        rows = self._part(torch.arange(len(self._latents[0])), within)
        index, values, latents = (part[rows] for part in self._latents)
        labels = None if self.data.labels is None else self.data.labels[index]
        masks = self._masks(len(index), generator(self.plan.seed, "teach", trainer.step))
        batch = incomplete(values, masks, index, labels).to(trainer.devices.device)
        return trainer.descend(batch, lambda batch: trainer.gradients.regression(batch, latents))

    def validate(self, model: Model) -> Scalars:
        """−log q of items held back, if they have completions."""
        if self._latents_held_back is None or not len(self._latents_held_back[0]):
            return {}
        device = self.trainer.devices.device
        index, values, latents = self._latents_held_back
        masks = self._masks(len(index), generator(self.plan.seed, "validation masks"))
        return posterior_loss(model, incomplete(values, masks, index).to(device), latents.to(device))

    @torch.no_grad()
    def _pairs(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Items (n,), their noisy completions and the latents of these (n, …), of those that have finite ones.

        A latent that is not finite, as of a layer whose inverse was not found, would make the loss of its batch NaN.
        """
        g = generator(self.plan.seed, "pairs", self.number)
        rows = rows[torch.randperm(len(rows), generator=g)[:_LATENTS]]
        values = self.completions.noisy(rows, g)
        flow, device = self.trainer.model.flow, self.trainer.devices.device
        latents = torch.cat([flow.to_latent(part.to(device)).to(values.device) for part in values.split(ROWS)])
        known = latents.isfinite().flatten(1).all(1)
        return rows[known], values[known], latents[known]

    def _masks(self, count: int, g: torch.Generator) -> Tensor:
        """Fresh masks (count, …): those of items with holes, if there are any, of every kind, or by turns."""
        if self.plan.masks == "any" or not len(self._holed):
            return self._any(count, g)
        own = self.data.observed[self._holed[torch.randint(len(self._holed), (count,), generator=g)]]
        if self.plan.masks == "both":
            own[1::2] = self._any(count // 2, g)
        return own

    def _any(self, count: int, g: torch.Generator) -> Tensor:
        observed = any_masks(self.data.shape, count, g)
        return observed if self.data.groups is None else observed[:, self.data.groups]
