"""Completions of training items, which are predicted at first, and drawn anew later."""

from __future__ import annotations

import torch
from torch import Tensor

from viscos.data.incomplete import IncompleteData
from viscos.inference import Completions
from viscos.posteriors import Posterior

ROWS = 500
"""Items that are completed, or whose latents are found, together."""


class CompletedData:
    """Items with holes, and what these were filled with; observed entries are those of `data`."""

    def __init__(self, data: IncompleteData) -> None:
        self.data = data
        self.values = data.values.clone()
        """Completions (N, …); NaN where there is none yet."""
        self.drawn = data.observed.flatten(1).all(1)
        """Which of them the flow has drawn, and complete items (N,), bool."""

    @torch.no_grad()
    def predict(self, rows: Tensor, network: Posterior | None, device: torch.device) -> None:
        """Completes those of `rows` that have no completion yet, by the inference network.

        Always in the same company, so that a run that was resumed has the same completions bit for bit.
        """
        needed = torch.zeros_like(self.drawn)
        needed[rows] = ~self.drawn[rows] & self.values[rows].isnan().flatten(1).any(1)
        for part in torch.arange(len(needed)).split(ROWS):
            if not bool(needed[part].any()):
                continue
            assert network is not None
            batch, left = self.data.batch(part), needed[part]
            predicted = network.predict(batch.to(device)).to(batch.values.device)
            completed = torch.where(batch.observed, batch.values, _sane(predicted))
            self.values[part[left]] = completed[left]

    def take(self, rows: Tensor, done: Completions) -> None:
        """Takes over the first draw of each of `rows` that was solved."""
        batch, ok = self.data.batch(rows), done.ok[0].to(rows.device)
        values = done.draws[0].to(batch.values.device)[ok]
        self.values[rows[ok]] = torch.where(batch.observed[ok], batch.values[ok], _sane(values))
        self.drawn[rows[ok]] = True


def _sane(values: Tensor) -> Tensor:
    """The values, those of images within the range that pixels have."""
    return values.clamp(0, 1) if values.dim() == 4 else values
