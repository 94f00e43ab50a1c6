"""An average of the parameters over the steps of training."""

from __future__ import annotations

import copy

import torch
from torch.optim.swa_utils import get_ema_multi_avg_fn

from viscos.train.model import Model


class Average:
    """θ̄ ← β θ̄ + (1 − β) θ after each step, with β = min(`decay`, (1 + t)/(10 + t)) at step t = 0, 1, …

    The smaller β of the first steps lets go of the untrained parameters, so that short runs have an average worth using
    (as in TensorFlow's ExponentialMovingAverage with `num_updates`).
    """

    def __init__(self, model: Model, decay: float) -> None:
        self.decay = decay
        self.values = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(self, model: Model, step: int) -> None:
        """Takes in the parameters after step number `step`."""
        keep = min(self.decay, (1 + step) / (10 + step))
        get_ema_multi_avg_fn(keep)(self.values, list(model.parameters()), 0)

    @torch.no_grad()
    def restart(self, model: Model) -> None:
        """Takes the parameters of `model` for the average."""
        for value, p in zip(self.values, model.parameters(), strict=True):
            value.copy_(p)

    @torch.no_grad()
    def model(self, trained: Model) -> Model:
        """A copy of the trained model with the averaged parameters.

        Its buffers are the trained model's, but for the power iterations, which go on until they know the norms of
        the averaged weights: an average of maps within a bound need not lie within it.
        """
        averaged = copy.deepcopy(trained)
        for p, value in zip(averaged.parameters(), self.values, strict=True):
            p.copy_(value)
        averaged.flow.renormalize(50)
        return averaged
