"""Held-out entries teach an inference network to complete, from observed entries alone.

Some of what is observed is hidden from the network, which predicts it from the rest. The bound alone, as long as the
flow is hardly more than the Gaussian that it begins with, teaches little more than that Gaussian's conditional mean;
held-out entries know better, and need no solve.
"""

from __future__ import annotations

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.posteriors.posterior import Posterior


def hold_out(
    batch: Incomplete, share: float, generator: torch.Generator, groups: torch.Tensor | None = None
) -> Incomplete:
    """The batch with a random `share` of its observed entries hidden too; labels and numbers go along.

    Entries of a vector whose number in `groups` (d,) is the same are hidden together.
    """
    kept = torch.rand(batch.observed.shape, generator=generator) >= share
    kept = (kept if groups is None else kept[:, groups]).to(batch.observed.device)
    observed = batch.observed & kept
    return Incomplete(batch.values.masked_fill(~observed, float("nan")), observed, batch.index, batch.label)


def holdout_errors(network: Posterior, batch: Incomplete, sparser: Incomplete) -> tuple[Tensor, Tensor]:
    """The sum of squared errors (a number) at the entries that `batch` observes and `sparser`, made of it, hides.

    And the predicted completion of `sparser` (B, …), without a gradient.
    """
    held, completed = batch.observed & sparser.hidden, network.predict(sparser)
    return (completed[held] - batch.values[held]).square().sum(), completed.detach()
