"""Principal blocks of one symmetric positive definite matrix, a different block for each item.

With P the projection on a mask, P A P + (I − P) has the inverse and the determinant of A[mask, mask], and one size for
all items, so one batched Cholesky factorisation serves them. Its rows outside the mask are those of the identity;
sorted to the end, all but the longest item's are dropped, which changes no result and, for small masks, nearly all of
the cost. Blocks are gathered, with such rows, from one matrix that A and an identity are the blocks of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from viscos.linear.operator import LinearOperator


@dataclass(frozen=True)
class PrincipalBlocks:
    """Cholesky factors of A[mask, mask] for b items, k the most entries that a mask has."""

    index: Tensor
    """Numbers of the entries in the mask (b, k), filled up with some that are not."""
    valid: Tensor
    """Which of `index` are in the mask (b, k)."""
    factor: Tensor
    """Cholesky factors (b, k, k), or (1, k, k) if all items share one mask."""

    @classmethod
    def of(cls, matrix: Tensor, mask: Tensor) -> PrincipalBlocks:
        """The factors of `matrix` (d, d), symmetric positive definite, for `mask` (b, d)."""
        k, few = longest(mask), int(mask.sum(1).min()) if len(mask) else 0
        index = mask.byte().argsort(dim=1, descending=True, stable=True)[:, :k]
        valid = mask.gather(1, index)
        spare = len(matrix) - few + torch.arange(k, device=mask.device)
        row = torch.where(valid, index, spare)[: 1 if len(mask) > 1 and bool((mask == mask[:1]).all()) else None]
        padded = torch.block_diag(matrix, torch.eye(k - few, dtype=matrix.dtype, device=matrix.device))
        blocks = padded[row[:, :, None], row[:, None, :]]
        return cls(index, valid, torch.linalg.cholesky(blocks))

    def gather(self, vector: Tensor) -> Tensor:
        """The masked entries of `vector` (b, d) -> (b, k), 0 where there are fewer than k."""
        return torch.where(self.valid, vector.gather(1, self.index), 0.0)

    def scatter(self, entries: Tensor, size: int) -> Tensor:
        """The entries (b, k) back in their places, 0 elsewhere (b, size)."""
        return entries.new_zeros(len(entries), size).scatter(1, self.index, entries)

    def solve(self, right: Tensor) -> Tensor:
        """A[mask, mask]⁻¹ right (b, k)."""
        if len(self.factor) == len(right):
            return torch.cholesky_solve(right[..., None], self.factor)[..., 0]
        return torch.cholesky_solve(right.T, self.factor[0]).T

    def solve_padded(self, right: Tensor) -> Tensor:
        """A[mask, mask]⁻¹ right for `right` (b, d), of which only masked entries matter; 0 elsewhere (b, d)."""
        return self.scatter(self.solve(self.gather(right)), right.shape[1])

    def log_det(self) -> Tensor:
        """log det A[mask, mask] (b,) or (1,)."""
        return 2 * self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def select(self, item: Tensor) -> PrincipalBlocks:
        """The blocks of the items at `item`."""
        factor = self.factor if len(self.factor) < len(self.index) else self.factor[item]
        return PrincipalBlocks(self.index[item], self.valid[item], factor)


class PrincipalInverse(LinearOperator):
    """(A^HH)⁻¹ of one symmetric positive definite A, for each item's own H; the identity outside of H.

    With V = A⁻¹ at hand, the smaller of H and its complement O is factorised:

        (A^HH)⁻¹ = V^HH − V^HO (V^OO)⁻¹ V^OH.
    """

    def __init__(self, matrix: Tensor, inverse: Tensor, mask: Tensor) -> None:
        flat = mask.flatten(1)
        self.mask, self.shape = mask, mask.shape
        self.through = None if longest(~flat) >= longest(flat) else inverse
        few = flat if self.through is None else ~flat
        self.blocks = PrincipalBlocks.of(matrix if self.through is None else inverse, few)

    def mv(self, v: Tensor) -> Tensor:
        inside = torch.where(self.mask, v, 0).flatten(1)
        if self.through is None:
            found = self.blocks.solve_padded(inside)
        else:
            wide = inside @ self.through
            found = wide - self.blocks.solve_padded(wide) @ self.through
        return torch.where(self.mask, found.view_as(v), v)

    def rmv(self, u: Tensor) -> Tensor:
        return self.mv(u)

    def select(self, index: Tensor) -> LinearOperator:
        picked = object.__new__(PrincipalInverse)
        picked.mask, picked.through = self.mask[index], self.through
        picked.shape, picked.blocks = picked.mask.shape, self.blocks.select(index)
        return picked


def by_size(mask: Tensor, most: int, few: Callable[[Tensor], Tensor], many: Callable[[Tensor], Tensor]) -> Tensor:
    """`few(rows)` of the items of `mask` (B, …) with at most `most` true entries, `many(rows)` of the others, in order.

    So an item's way is its own, whatever company it has. `rows` are the numbers of items (n,), the values (n, …).
    """
    small = mask.flatten(1).sum(1) <= most
    if bool(small.all()) or not bool(small.any()):
        return (few if bool(small.all()) else many)(torch.arange(len(mask), device=mask.device))
    rows = small.nonzero().flatten(), (~small).nonzero().flatten()
    return torch.cat([few(rows[0]), many(rows[1])])[torch.cat(rows).argsort()]


def longest(mask: Tensor) -> int:
    """The most true entries of an item of `mask` (b, d)."""
    return int(mask.sum(1).max()) if len(mask) else 0
