"""Observations with holes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from viscos.core.errors import InputError


@dataclass(frozen=True)
class Incomplete:
    """A batch of partly observed items.

    Hidden values are NaN, so that using one by mistake shows at once.
    """

    values: Tensor
    """**y** (B, …), NaN where hidden."""
    observed: Tensor
    """The mask of O (B, …), bool, true where the value is known."""
    index: Tensor
    """Each item's number in its data set (B,), int64; keys its random numbers."""
    label: Tensor | None = None
    """Class of each item (B,), int64, if there is one."""

    @property
    def hidden(self) -> Tensor:
        """The mask of H (B, …), bool."""
        return ~self.observed

    @property
    def empty(self) -> Tensor:
        """Which items have nothing observed (B,), bool: their conditional is the flow itself."""
        return ~self.observed.flatten(1).any(1)

    def __len__(self) -> int:
        return len(self.values)

    def filled(self, value: Tensor | float = 0.0) -> Tensor:
        """**y** with `value` (a number, or a tensor that broadcasts) in the holes (B, …)."""
        fill = torch.as_tensor(value, dtype=self.values.dtype, device=self.values.device)
        return torch.where(self.observed, self.values, fill)

    def select(self, index: Tensor | slice) -> Incomplete:
        """The items at `index`."""
        label = None if self.label is None else self.label[index]
        return Incomplete(self.values[index], self.observed[index], self.index[index], label)

    def to(self, device: torch.device | str) -> Incomplete:
        """The same batch on `device`."""
        label = None if self.label is None else self.label.to(device)
        return Incomplete(self.values.to(device), self.observed.to(device), self.index.to(device), label)


def mask_of(observed: Tensor, shape: torch.Size) -> Tensor:
    """A mask of items of a `shape` (B, …), as a new tensor of it.

    It has that shape, or that of one item; of images (B, C, H, W) it may be (H, W) too, and an axis of items or of
    channels may be 1. Raises `InputError` for another shape, and for (B, H, W) where that is (C, H, W) as well.
    """
    image, own = len(shape) == 4, tuple(observed.shape)
    if image and own == tuple(shape[1:]) and shape[0] == shape[1] > 1:
        raise InputError(
            f"observed has shape {own}, which may be a mask of each of {shape[0]} items, or of each of their channels; "
            "say which: mask[:, None] for items, mask[None] for channels"
        )
    alike = len(own) == len(shape) and all(n in (1, m) for n, m in zip(own[: 1 + image], shape, strict=False))
    rest = own[1 + image :] == tuple(shape[1 + image :])
    if not (alike and rest) and own not in (shape[1:], shape[2:] if image else None):
        more = ", or (B, 1, H, W) for all channels" if image else ""
        raise InputError(
            f"observed has shape {own}, values have {tuple(shape)}; give one mask for each item{more}, or one mask of "
            "the shape of an item"
        )
    return observed.expand(shape).clone()  # a caller may change its own afterwards


def incomplete(
    values: Tensor, observed: Tensor, index: Tensor | None = None, label: Tensor | None = None
) -> Incomplete:
    """Checks a batch and hides what is not observed.

    `values` (B, …) floating point; `observed` bool, of a shape that `mask_of` takes. Raises `InputError` if the shapes
    or dtypes do not fit, or if an observed value is not finite.
    """
    if not values.is_floating_point():
        raise InputError(f"values must be floating point, got {values.dtype}; convert with .float()")
    if observed.dtype != torch.bool:
        raise InputError(
            f"observed must be bool (true where a value is known), got {observed.dtype}; convert with .bool(), or an "
            "array with .astype(bool)"
        )
    if values.dim() < 2:
        raise InputError(
            f"values need a leading batch axis, got shape {tuple(values.shape)}; use values[None] for one item"
        )
    observed = mask_of(observed.to(values.device), values.shape)
    bad = ~torch.isfinite(values) & observed
    if bad.any():
        item = int(bad.flatten(1).any(1).nonzero()[0])
        raise InputError(
            f"item {item} has {int(bad[item].sum())} observed values that are not finite; mark them as hidden"
        )
    if index is None:
        index = torch.arange(len(values), device=values.device)
    label = None if label is None else label.clone()
    return Incomplete(values.masked_fill(~observed, float("nan")), observed, index.clone(), label)
