"""Completions are drawn anew, by the flow's own conditional: the E-step."""

from __future__ import annotations

import torch
from torch import Tensor

from viscos.core.rng import generator
from viscos.inference import Completions
from viscos.train.stages.drawing import Drawing
from viscos.train.trainer import Report


class Redrawing(Drawing):
    """Completes the items of a round by a draw each, and at first those that are held back."""

    @torch.no_grad()
    def step(self, within: int) -> Report:
        """One batch, of which items whose solve fails keep the completion that they had."""
        size = self.plan.batch_size
        if within == 0 and self.trainer.validation is not None:
            for part in self.trainer.held_back.split(size):
                self._draw(part)
        rows = self.items[within * size : (within + 1) * size]
        return self._solved(self._draw(rows), rows)

    def _taken(self) -> Tensor:
        return self._chosen(self.phase.round)

    def _draw(self, rows: Tensor) -> Completions:
        seed = generator(self.plan.seed, "redraw", self.phase.round).initial_seed()
        done = self._impute(self.data.batch(rows), seed)
        self.completions.take(rows, done)
        return done
