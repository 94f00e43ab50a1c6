"""The part of a training run that is one phase."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.data.incomplete import epoch_order
from viscos.train.completed import CompletedData
from viscos.train.loss import Scalars
from viscos.train.model import Model
from viscos.train.phases import Phase
from viscos.train.trainer import Report, Trainer


class Stage(ABC):
    """Which items a phase takes, what a step does with some of them, and what those held back say of the model.

    It is made when its phase begins, or in the middle of that where a run is resumed, and holds nothing that a
    checkpoint must: what it prepares is the same both times.
    """

    def __init__(self, trainer: Trainer, completions: CompletedData, phase: Phase, number: int) -> None:
        self.trainer, self.completions, self.phase, self.number = trainer, completions, phase, number
        self.plan, self.data = trainer.plan, trainer.data
        self.items = self._taken()
        """Those that the phase takes (n,)."""
        self._shuffled: tuple[int, Tensor] | None = None

    @property
    def clip(self) -> float:
        """The largest norm of a gradient."""
        return self.plan.clip

    @abstractmethod
    def step(self, within: int) -> Report:
        """Step number `within` of the phase."""

    def validate(self, model: Model) -> Scalars:
        """What the items that are held back say of a model, the first number being the one that counts; or nothing."""
        return {}

    def _taken(self) -> Tensor:
        """The items that the phase takes (n,): all at first, and after a redrawing what has been drawn so far.

        An item whose solves have failed so far has a prediction only, a mean, which would teach the flow to blur.
        """
        if self.phase.round == 0:
            return torch.arange(self.trainer.items)
        rows = torch.cat([self._chosen(k) for k in range(1, self.phase.round + 1)]).unique()
        drawn = rows[self.completions.drawn[rows]]
        if not len(drawn):
            raise InputError(
                f"none of {len(rows)} items could be completed by the flow; lower learning_rate, train longer before "
                "(max_steps), or take rounds=0"
            )
        return drawn

    def _chosen(self, round: int) -> Tensor:
        """The items that are completed anew in a round (n,)."""
        return epoch_order(self.trainer.items, self.plan.seed, -round)[: self.plan.redraw]

    def _part(self, rows: Tensor, within: int) -> Tensor:
        """Those of `rows` that step `within` sees: all of them once in an epoch, whose order is its own."""
        size = self.plan.batch_size
        epoch, k = divmod(within, math.ceil(len(rows) / size))
        if self._shuffled is None or self._shuffled[0] != epoch:
            order = epoch_order(len(rows), self.plan.seed, epoch + 1000 * self.number)
            self._shuffled = epoch, rows[order]
        return self._shuffled[1][k * size : (k + 1) * size]
