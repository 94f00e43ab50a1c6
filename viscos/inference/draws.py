"""A batch and a flow once for each of several draws, draws in the outer axis."""

from __future__ import annotations

import torch
from torch import Tensor

from viscos.flows.flow import Flow


def repeated(flow: Flow, items: int, draws: int) -> Flow:
    """The flow for a batch of `items`, as it acts on what `repeat` makes of it."""
    return flow if draws == 1 else flow.select(torch.arange(items).repeat(draws))


def repeat(v: Tensor, draws: int) -> Tensor:
    """The batch (B, …) once for each draw (K·B, …), draws in the outer axis."""
    return v.unsqueeze(0).expand(draws, *v.shape).flatten(0, 1)
