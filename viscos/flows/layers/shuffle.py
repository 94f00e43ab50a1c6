"""Patches of pixels as channels, and back."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def unshuffled(y: Tensor, factor: int) -> Tensor:
    """(B, C, H, W) → (B, C factor², H/factor, W/factor); of no items too, which torch returns as they are."""
    B, C, H, W = y.shape
    return F.pixel_unshuffle(y, factor) if B else y.new_empty(0, C * factor**2, H // factor, W // factor)


def shuffled(y: Tensor, factor: int) -> Tensor:
    """The inverse of `unshuffled`."""
    B, C, H, W = y.shape
    return F.pixel_shuffle(y, factor) if B else y.new_empty(0, C // factor**2, H * factor, W * factor)
