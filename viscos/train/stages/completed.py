"""Phases that learn from completed items."""

from __future__ import annotations

import torch
from torch import Tensor

from viscos.train.completed import CompletedData
from viscos.train.phases import Phase
from viscos.train.stages.stage import Stage
from viscos.train.trainer import Trainer


class OnCompletions(Stage):
    """Completes by the inference network what has no completion yet."""

    def __init__(self, trainer: Trainer, completions: CompletedData, phase: Phase, number: int) -> None:
        super().__init__(trainer, completions, phase, number)
        rows = torch.cat([self.items, trainer.held_back])
        completions.predict(rows, trainer.model.posterior, trainer.devices.device)

    def _held_back(self) -> Tensor:
        """The items held back that have completions such as the phase learns from (n,)."""
        rows = self.trainer.held_back
        return rows[self.completions.drawn[rows]] if self.phase.round else rows
