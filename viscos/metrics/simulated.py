"""Simulation-based calibration: the posterior of a flow on the flow's own samples (Talts et al., 2018).

A sample of the flow, of which a part is hidden, is an item whose hidden entries are a draw of the exact conditional. So
ranks of the truth among draws of q are uniform if q is exact, whatever the data are: what is off here is q's fault, and
what is off on test items alone is the flow's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from viscos.core.batch import incomplete
from viscos.core.rng import item_noise
from viscos.flows.flow import Flow
from viscos.imputers import Imputer
from viscos.metrics.ranks import DRAWS, Ranks


@torch.no_grad()
def simulated(flow: Flow, imputer: Imputer, observed: Tensor, seed: int, batch_size: int) -> dict[str, Any]:
    """A record of the ranks of samples of `flow` under the masks `observed` (N, …), one sample each.

    `imputer` completes by the same flow, without taking noise off its draws, which samples have too.
    """
    like = next(flow.parameters())
    ranks, unsolved = Ranks(torch.ones(observed.shape[1:], dtype=torch.bool), False), 0
    size = max(1, batch_size // 8)
    for rows in torch.arange(len(observed)).split(size):
        latent = item_noise(seed, rows, 1, observed.shape[1:], like, purpose="sample")[0]  # of no draw's noise
        found = flow.to_data(latent)
        good = found.converged.cpu()
        unsolved += int((~good).sum())
        mask = observed[rows][good]
        if len(mask):
            batch = incomplete(found.value.cpu()[good], mask, rows[good]).to(like.device)
            done = imputer.impute(batch, DRAWS, seed, purpose="simulation")
            ranks.update(done.draws.cpu(), found.value.cpu()[good], ~mask, done.ok.cpu())
    return ranks.record() | {"samples_not_solved": unsolved}
