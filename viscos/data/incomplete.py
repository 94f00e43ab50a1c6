"""A data set of partly observed items, which keeps no complete values to peek at."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from viscos.core.batch import Incomplete, incomplete
from viscos.core.errors import InputError
from viscos.core.rng import generator
from viscos.data.images import check_unit_range


class IncompleteData:
    """Items and masks (N, C, H, W), or (N, d) of vectors; hidden values are overwritten by NaN in a copy of its own.

    `observed` is bool, of the items' shape or of one item's; `labels` int64 (N,). Raises `InputError` if shapes or
    dtypes do not fit, or if an observed value is not finite, or of an image outside [0, 1].
    """

    values: Tensor
    """**y** (N, …), NaN where hidden."""
    observed: Tensor
    """The mask of O (N, …), bool."""
    labels: Tensor | None
    """Class of each item (N,), int64, if there is one."""
    groups: Tensor | None
    """Of each entry of a vector the number of its group (d,), int64: they are known together; None: each by itself."""

    def __init__(
        self, values: Tensor, observed: Tensor, labels: Tensor | None = None, groups: Sequence[int] | None = None
    ) -> None:
        if values.dim() not in (2, 4):
            raise InputError(f"items have shape {tuple(values.shape)}; give images (N, C, H, W) or vectors (N, d)")
        if labels is not None and labels.shape != values.shape[:1]:
            raise InputError(f"labels have shape {tuple(labels.shape)}; give one for each of {len(values)} items")
        whole = incomplete(values, observed)
        if values.dim() == 4:
            check_unit_range(whole.values, whole.observed)
        self.values, self.observed = whole.values, whole.observed.clone()
        self.labels = labels
        together = groups is not None and len(set(groups)) < len(groups)
        self.groups = torch.tensor(groups) if together else None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one item."""
        return tuple(self.values.shape[1:])

    def first(self, count: int) -> IncompleteData:
        """The first `count` items, or itself if there are no more."""
        if count >= len(self):
            return self
        labels = None if self.labels is None else self.labels[:count]
        groups = None if self.groups is None else self.groups.tolist()
        return IncompleteData(self.values[:count], self.observed[:count], labels, groups)

    def batch(self, index: Tensor) -> Incomplete:
        """The items at `index` (B,), int64; their numbers go with them and key their random numbers."""
        if index.dtype != torch.int64 or index.dim() != 1:
            raise InputError(f"index is {index.dtype} of shape {tuple(index.shape)}; give int64 of shape (B,)")
        if len(index) and (int(index.min()) < 0 or int(index.max()) >= len(self)):
            raise InputError(
                f"index runs from {int(index.min())} to {int(index.max())}; there are items 0 to {len(self) - 1}"
            )
        label = None if self.labels is None else self.labels[index]
        return Incomplete(self.values[index], self.observed[index], index, label)


def epoch_order(n: int, seed: int, epoch: int) -> Tensor:
    """The order (n,), int64, in which epoch number `epoch` visits `n` items; a function of the arguments alone."""
    return torch.randperm(n, generator=generator(seed, "order", epoch))
