"""The inference network's own completion, which needs no flow."""

from __future__ import annotations

import torch

from viscos.core import labels
from viscos.core.batch import Incomplete
from viscos.imputers.imputer import Imputer
from viscos.inference import Completions
from viscos.posteriors import Posterior


class NetworkImputer(Imputer):
    """Completes items by the prediction of a posterior that has one, a point estimate."""

    name, label = "network", "viscos, its network"
    mean = labels.PREDICTION
    flow = True

    def __init__(self, posterior: Posterior) -> None:
        self.posterior = posterior

    @torch.no_grad()
    def impute(self, batch: Incomplete, draws: int = 1, seed: int = 0, purpose: str = "item") -> Completions:
        return Completions.checked(self.posterior.predict(batch)[None], batch)
