"""Images, as every data set of them gives them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.data.items import PIXELS, Data, Units

_ROUNDING = 1e-3


@dataclass(frozen=True)
class Images(Data):
    """Images: `values` (N, C, H, W), float32 in [0, 1], NaN in the holes of their own; `shape` is (C, H, W)."""

    units: Units = PIXELS

    def __post_init__(self) -> None:
        if self.values.dim() != 4 or self.values.dtype != torch.float32:
            seen = f"{self.values.dtype} of shape {tuple(self.values.shape)}"
            raise InputError(f"images of {self.name!r} are {seen}; give float32 of shape (N, C, H, W)")
        check_unit_range(self.values, self.known)
        super().__post_init__()

    @property
    def kind(self) -> str:
        return "images"


def check_unit_range(values: Tensor, known: Tensor | None = None) -> None:
    """Raises `InputError` unless `values` (those where `known`, bool of the same shape, is true) lie in [0, 1]."""
    inside = (values >= 0) & (values <= 1)
    bad = ~inside if known is None else ~inside & known
    if bad.any():
        item = int(bad.flatten(1).any(1).nonzero()[0]) if values.dim() > 1 else 0
        raise InputError(
            f"image values must lie in [0, 1], and item {item} (from 0) has {_named(values[item][bad[item]])}; "
            + _remedy(values if known is None else values[known])
        )


def _named(seen: Tensor) -> str:
    """Values outside [0, 1], with as many digits as show that they are."""
    low, high = (f"{float(value):.9g}" for value in (seen.min(), seen.max()))
    return low if low == high else f"{low} to {high}"


def _remedy(values: Tensor) -> str:
    """What brings values to [0, 1], by what they seem to be."""
    if bool(values.isinf().any()):
        return "give NaN where a value is missing, and finite ones elsewhere"
    if bool(values.isnan().any()):
        return "give finite values, or say that they are hidden"
    low, high = float(values.nan_to_num(0).min()), float(values.nan_to_num(0).max())
    if -_ROUNDING <= low and high <= 1 + _ROUNDING:
        return "these are off by rounding: clip them, values.clip(0, 1)"
    if low >= 0 and high <= 255:
        return "divide 0-255 values by 255, values / 255"
    if low >= -1 and high <= 1:
        return "shift [-1, 1] values, (values + 1) / 2"
    return "scale them by the least and the largest that there can be; logits want a sigmoid"
