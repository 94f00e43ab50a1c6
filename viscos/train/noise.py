"""Noise on training values."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from viscos.core.batch import Incomplete


def noisy(batch: Incomplete, noise: float | str, levels: int, g: torch.Generator) -> Incomplete:
    """The batch with normal noise of a standard deviation of `noise`, or dequantised if that is `uniform`."""
    if noise == "uniform":
        return replace(batch, values=dequantise(batch.values, levels, g))
    each = torch.randn(batch.values.shape, generator=g, dtype=batch.values.dtype)
    return replace(batch, values=batch.values + float(noise) * each)


def deviation(noise: float | str) -> float:
    """The standard deviation of `noise`, 0 where that is `uniform`: no flow takes dequantisation off its draws."""
    return 0.0 if noise == "uniform" else float(noise)


def dequantise(values: Tensor, levels: int, g: torch.Generator) -> Tensor:
    """Grey levels v = k/(levels − 1), each spread over its cell: v + u/(levels − 1), u uniform in [−1/2, 1/2).

    So a value is the middle of its cell: what is observed needs no change before a flow that was trained on cells, and
    what the flow completes none after it.
    """
    u = torch.rand(values.shape, generator=g).to(values.device) - 0.5
    return values + u / (levels - 1)
