"""The Gaussian conditional: what a flow has to beat to be worth its cost."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from viscos.core import labels
from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.core.labels import Kind
from viscos.core.rng import item_noise
from viscos.data.incomplete import IncompleteData
from viscos.imputers.imputer import Imputer, Progress, quiet
from viscos.inference import Completions
from viscos.linear.gaussian import Gaussian
from viscos.linear.gaussian_em import em_gaussian
from viscos.linear.principal import longest

_PASS = 16
"""Cost of reading an entry of a matrix (d, d) once more, in multiplications of a factorisation; measured on MNIST."""


class GaussianImputer(Imputer):
    """Draws hidden entries from p(y^H | y^O) of a Gaussian; its mean is exact.

    Fitted by expectation–maximisation to the observed entries, with no variance below `floor`; training values are
    taken to carry noise of standard deviation `noise`. `gaussian` is one that is known without a fit.
    """

    name, label = "gaussian", "Gaussian conditional"
    mean = labels.GAUSSIAN_MEAN
    draw = labels.GAUSSIAN_DRAW

    def __init__(self, gaussian: Gaussian | None = None, floor: float = 0.0025, noise: float = 0.0) -> None:
        self.gaussian, self.floor, self.noise = gaussian, floor, noise

    def fit(self, data: IncompleteData, seed: int = 0, progress: Progress = quiet) -> GaussianImputer:
        """Raises `InputError` as `em_gaussian` does."""
        self.gaussian = em_gaussian(
            data.values,
            data.observed,
            self.floor,
            self.noise,
            progress=progress,
        )
        return self

    def state(self) -> dict[str, Any]:
        fitted = self.gaussian
        return {} if fitted is None else {"mean": fitted.mean, "covariance": fitted.covariance}

    def load_state(self, state: dict[str, Any]) -> None:
        self.gaussian = Gaussian(state["mean"].cpu(), state["covariance"].cpu()) if state else None

    def impute(self, batch: Incomplete, draws: int = 1, seed: int = 0, purpose: str = "item") -> Completions:
        if self.gaussian is None:
            raise InputError("the Gaussian imputer has seen no data; call fit first")
        at = batch.to("cpu")
        mean = self.gaussian.conditional(at.values, at.observed)
        drawn = gaussian_draws(self.gaussian, at, seed, draws, purpose)
        device = batch.values.device
        return Completions.exact(drawn.to(device), mean.to(device))


class CompleteGaussianImputer(GaussianImputer):
    """The same, to be fitted to training data without their masks: how far a Gaussian gets that knows all, no rival."""

    name, label = "gaussian_complete", "Gaussian of complete training data"
    mean = Kind("gaussian_complete_mean", "Gaussian of complete training data, mean")
    draw = Kind("gaussian_complete_draw", "Gaussian of complete training data, one draw")


def gaussian_draws(gaussian: Gaussian, batch: Incomplete, seed: int, draws: int, purpose: str = "item") -> Tensor:
    """Independent draws (draws, B, …) of the Gaussian conditional of each item.

    Their noise is keyed by (seed, purpose, item, draw). Raises `InputError` as `Gaussian.conditional` does.
    """
    values, observed = batch.values, batch.observed
    noise = item_noise(seed, batch.index, draws, values.shape[1:], values, purpose=purpose)
    known = observed.flatten(1)
    block = min(longest(known), longest(~known))
    if (draws - 1) * block**3 <= _PASS * known.shape[1] ** 2:
        return torch.stack([gaussian.conditional_sample(values, observed, each) for each in noise])
    parts = []
    for item in range(len(values)):  # the draws of one item share a mask, and so one factor of its block
        y, there = (part[item : item + 1].expand(draws, *values.shape[1:]) for part in (values, observed))
        parts.append(gaussian.conditional_sample(y, there, noise[:, item]))
    return torch.stack(parts, 1)
