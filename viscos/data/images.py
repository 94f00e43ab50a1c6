"""Complete images, as every data set of them gives them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.data.items import PIXELS, Data, Units


@dataclass(frozen=True)
class Images(Data):
    """Complete images: `values` (N, C, H, W), float32 in [0, 1]; `shape` is (C, H, W)."""

    units: Units = PIXELS

    def __post_init__(self) -> None:
        if self.values.dim() != 4 or self.values.dtype != torch.float32:
            seen = f"{self.values.dtype} of shape {tuple(self.values.shape)}"
            raise InputError(f"images of {self.name!r} are {seen}; give float32 of shape (N, C, H, W)")
        check_unit_range(self.values)
        super().__post_init__()

    @property
    def kind(self) -> str:
        return "images"


def check_unit_range(values: Tensor, known: Tensor | None = None) -> None:
    """Raises `InputError` unless `values` (those where `known`, bool of the same shape, is true) lie in [0, 1]."""
    inside = (values >= 0) & (values <= 1)
    bad = ~inside if known is None else ~inside & known
    if bad.any():
        seen = values[bad]
        raise InputError(
            f"image values must lie in [0, 1], saw {seen.min().item():.4g} to {seen.max().item():.4g} outside it; "
            "divide 0-255 values by 255, shift [-1, 1] values by (v + 1) / 2, undo logits with a sigmoid"
        )
