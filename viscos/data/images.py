"""Complete images, as every data set gives them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from viscos.errors import InputError

SPLITS = ("train", "test")
HELD_OUT = 0.1
"""Share of the images that are for testing, where a data set has no split of its own."""


@dataclass(frozen=True)
class Images:
    """One split of a data set of complete images. Raises `InputError` if a field is not as it says here."""

    name: str
    values: Tensor
    """**y** (N, C, H, W), float32 in [0, 1]."""
    labels: Tensor | None
    """Class of each image (N,), int64, if there is one."""
    classes: int
    """Number of classes; 0 without labels."""

    def __post_init__(self) -> None:
        if self.values.dim() != 4 or self.values.dtype != torch.float32:
            seen = f"{self.values.dtype} of shape {tuple(self.values.shape)}"
            raise InputError(f"images of {self.name!r} are {seen}; give float32 of shape (N, C, H, W)")
        check_unit_range(self.values)
        if self.labels is not None and (self.labels.dtype != torch.int64 or len(self.labels) != len(self.values)):
            seen = f"{self.labels.dtype} of shape {tuple(self.labels.shape)}"
            raise InputError(
                f"labels of {self.name!r} are {seen}; give one int64 for each of {len(self.values)} images"
            )

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image (C, H, W)."""
        return tuple(self.values.shape[1:])


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


def held_out(count: int, split: str) -> Tensor:
    """Which of `count` images belong to `split`, in ascending order: always the same, a share of `HELD_OUT` to test."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    tested = max(1, round(HELD_OUT * count))
    return (order[:tested] if split == "test" else order[tested:]).sort().values
