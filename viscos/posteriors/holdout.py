"""Held-out entries teach an inference network to complete, from observed entries alone.

Some of what is observed is hidden from the network, which predicts it from the rest. The bound alone, as long as the
flow is hardly more than the Gaussian that it begins with, teaches little more than that Gaussian's conditional mean;
held-out entries know better, and need no solve.
"""

from __future__ import annotations

import torch
from torch import Tensor

from viscos.batch import Incomplete
from viscos.posteriors.amortised import Amortised


def hold_out(batch: Incomplete, share: float, generator: torch.Generator) -> Incomplete:
    """The batch with a random `share` of its observed entries hidden too; labels and numbers go along."""
    kept = torch.rand(batch.observed.shape, generator=generator).to(batch.observed.device) >= share
    observed = batch.observed & kept
    return Incomplete(batch.values.masked_fill(~observed, float("nan")), observed, batch.index, batch.label)


def holdout_errors(network: Amortised, batch: Incomplete, sparser: Incomplete) -> tuple[Tensor, Tensor]:
    """The sum of squared errors (a number) at the entries that `batch` observes and `sparser`, made of it, hides.

    And the predicted completion of `sparser` (B, …), without a gradient.
    """
    held, completed = batch.observed & sparser.hidden, network.predict(sparser)
    return (completed[held] - batch.values[held]).square().sum(), completed.detach()


def holdout_loss(network: Amortised, batch: Incomplete, generator: torch.Generator) -> Tensor:
    """½ |H| log MSE, in nats an item (a number), with the mean square over the held-out entries of the batch.

    It is what a Gaussian of the best common variance pays for the hidden entries, up to a constant. Zero where nothing
    was held out.
    """
    sparser = hold_out(batch, network.held_out, generator)
    count = (batch.observed & sparser.hidden).sum()
    if not bool(count):
        return next(network.parameters()).sum() * 0
    error = holdout_errors(network, batch, sparser)[0] / count
    return 0.5 * batch.hidden.sum() / len(batch) * error.clamp_min(1e-12).log()
