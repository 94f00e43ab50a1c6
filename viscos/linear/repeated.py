"""Matrices that several items of a batch share, as the draws of an observation do, held once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Repeated:
    """A matrix (m, n) for each of B items, several of which may have the same."""

    matrices: Tensor
    """The different ones (b, m, n)."""
    which: Tensor
    """The number of each item's (B,), int64."""

    @classmethod
    def each(cls, matrices: Tensor) -> Repeated:
        """One for each item (B, m, n)."""
        return cls(matrices, torch.arange(len(matrices), device=matrices.device))

    def __getitem__(self, index: Tensor) -> Repeated:
        """Those of the items at `index`."""
        return Repeated(self.matrices, self.which[index])

    @property
    def mT(self) -> Repeated:
        """The transposed ones."""
        return Repeated(self.matrices.mT, self.which)

    def product(self, v: Tensor) -> Tensor:
        """Each item's matrix times its vector: (B, n) -> (B, m)."""
        order = self.which.argsort(stable=True)
        parts = v[order].split(self.which.bincount(minlength=len(self.matrices)).tolist())
        found = [part @ A.mT for A, part in zip(self.matrices, parts, strict=True) if len(part)]
        return torch.cat(found)[order.argsort()] if found else v.new_zeros(0, self.matrices.shape[1])
