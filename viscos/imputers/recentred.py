"""Draws about the completions of an imputer that has none of its own."""

from __future__ import annotations

import torch

from viscos.core.batch import Incomplete
from viscos.imputers.gaussian import GaussianImputer
from viscos.imputers.imputer import Imputer
from viscos.inference import Completions


class RecentredImputer(Imputer):
    """Draws of the Gaussian conditional, moved so that their mean is what `centre` completes; both are fitted."""

    def __init__(self, centre: Imputer, spread: GaussianImputer) -> None:
        self.centre, self.spread = centre, spread
        self.name, self.label = centre.name, f"{centre.label}, with the spread of the Gaussian conditional"
        self.mean, self.draw = centre.mean, spread.draw

    def impute(self, batch: Incomplete, draws: int = 1, seed: int = 0, purpose: str = "item") -> Completions:
        spread = self.spread.impute(batch, draws, seed, purpose)
        centre = self.centre.impute(batch, 1, seed).mean()
        moved = torch.where(batch.observed, batch.values, spread.draws + (centre - spread.mean()))
        return Completions.exact(moved, centre)
