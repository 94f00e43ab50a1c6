"""Completions of training items, which are predicted at first, and drawn anew later."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.solution import per_item
from viscos.data.incomplete import IncompleteData
from viscos.inference import Completions
from viscos.posteriors import Posterior
from viscos.train.noise import noisy

ROWS = 500
"""Items that are completed, or whose latents are found, together."""


class CompletedData:
    """Items with holes, and what these were filled with; observed entries are those of `data`.

    `noise` and `levels` are those of training (`viscos.train.Plan`); `clean` says that the flow takes the noise off its
    draws.
    """

    def __init__(self, data: IncompleteData, noise: float | str = 0.0, levels: int = 256, clean: bool = True) -> None:
        self.data, self.noise, self.levels, self.clean = data, noise, levels, clean
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

    def carries_noise(self, rows: Tensor) -> Tensor | None:
        """Which entries of items carry the noise of training, drawn by a flow that does not take it off (B, …)."""
        if self.clean or self.noise == 0 or not bool(self.drawn[rows].any()):
            return None
        hidden = ~self.data.observed[rows]
        return hidden & per_item(self.drawn[rows], hidden)

    def noisy(self, rows: Tensor, g: torch.Generator) -> Tensor:
        """Completions of items with the noise of training (n, …), which those that carry it already get no more of."""
        every = self.values[rows]
        whole = Incomplete(every, torch.ones_like(every, dtype=torch.bool), rows)
        values = noisy(whole, self.noise, self.levels, g).values
        noisy_already = self.carries_noise(rows)
        return values if noisy_already is None else torch.where(noisy_already, every, values)

    def state(self) -> dict[str, Any]:
        """What was drawn: all that a resumed run needs, for it predicts again what was predicted."""
        rows = (self.drawn & ~self.data.observed.flatten(1).all(1)).nonzero().flatten()
        return {"drawn": rows, "completions": self.values[rows]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave."""
        rows = state["drawn"].cpu()
        self.drawn[rows], self.values[rows] = True, state["completions"].cpu()


def _sane(values: Tensor) -> Tensor:
    """The values, those of images within the range that pixels have."""
    return values.clamp(0, 1) if values.dim() == 4 else values
