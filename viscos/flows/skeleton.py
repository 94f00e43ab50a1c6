"""The affine skeleton of a flow: what remains when every residual branch is dropped.

It is what makes Anderson acceleration converge on a trained flow, and where a restricted solve starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from viscos.core.rng import rademacher
from viscos.core.solution import per_item
from viscos.linear import (
    CG,
    Block,
    Diagonal,
    Inverse,
    LinearOperator,
    Matrix,
    PrincipalInverse,
    Product,
    SharedSymmetric,
    dense,
    filled_up,
    grouped,
)
from viscos.linear.repeated import Repeated
from viscos.roots.links import Skeleton

_LARGEST = 1024  # entries of both H and O above which (W^HH)⁻¹ is iterative: an item's factors have its square
_ITERATIVE = 2
_PSEUDO = 1e-4  # singular values below this share of the largest one are left out of a pseudo-inverse
_INNER = 3e-2  # relative residual of those iterative solves; a preconditioner need not be exact


@dataclass(frozen=True)
class AffineSkeleton:
    """y ↦ scale · (W y) + shift, entrywise, with an optional dense symmetric W in front."""

    scale: Tensor
    """(1, …) or (B, …)."""
    shift: Tensor
    """(1, …) or (B, …)."""
    W: Tensor | None = None
    """(d, d), positive definite, or absent."""
    W_inverse: Tensor | None = None
    """(d, d), present where W is."""
    moved: int = 0
    """How many squeezes, less those that undo one, stand before: entries are not in the order of the data then."""

    @property
    def trivial(self) -> bool:
        """Whether it is the identity."""
        return self.W is None and bool((self.scale == 1).all()) and bool((self.shift == 0).all())

    def apply(self, y: Tensor) -> Tensor:
        """The map (B, …)."""
        product = y if self.W is None else (y.flatten(1) @ self.W).view_as(y)
        return self.scale * product + self.shift

    def inverse_block(self, hidden: Tensor) -> LinearOperator:
        """The inverse of the block on H, as an operator."""
        back = Diagonal(1 / self.scale, len(hidden))
        if self.W is None or self.W_inverse is None:
            return back
        parts, ways = [], _ways(hidden)
        for way in ways.unique().tolist():  # by an item's own H and O, whatever company it has
            rows = (ways == way).nonzero().flatten()
            own = hidden[rows]
            factors = None if way == _ITERATIVE else PrincipalInverse(self.W, self.W_inverse, own)
            parts.append((rows, factors or self._iterative_inverse(own)))
        return Product([back, grouped(parts)], hidden.shape)

    def _iterative_inverse(self, hidden: Tensor) -> LinearOperator:
        """(W^HH)⁻¹ by conjugate gradients, where factors do not fit."""
        assert self.W is not None
        jacobi = Diagonal((1 / self.W.diagonal()).view(1, *hidden.shape[1:]), len(hidden))
        block = Block(SharedSymmetric(self.W, hidden.shape), hidden)
        return Inverse(block, lambda A, b: CG(tolerance=_INNER)(A, b, jacobi))


def _ways(hidden: Tensor) -> Tensor:
    """How the block on H of each item is inverted (B,): by factors for H, by factors for O, or iteratively."""
    sizes = hidden.flatten(1).sum(1)
    rest = hidden.shape[1:].numel() - sizes
    return torch.where(sizes <= _LARGEST, 0, torch.where(rest <= _LARGEST, 1, _ITERATIVE))


@dataclass(frozen=True)
class DenseSkeleton:
    """y ↦ x₀ + G (y − y₀), with G written out for each item: a flow linearised at one point."""

    G: Tensor
    """(B, d, d)."""
    x: Tensor
    """(B, …)."""
    y: Tensor
    """(B, …)."""

    def apply(self, y: Tensor) -> Tensor:
        """The map (B, …)."""
        return self.x + (self.G @ (y - self.y).flatten(1).unsqueeze(-1)).view_as(y)

    def inverse_block(self, hidden: Tensor) -> LinearOperator:
        """The inverse of the block on H, as an operator; of a singular one, its pseudo-inverse."""
        return Matrix(inverse_or_pseudo(filled_up(self.G, hidden.flatten(1))), hidden.shape)


@dataclass(frozen=True)
class BlockSkeleton:
    """y ↦ x₀ + G (y − y₀) in the directions of H alone, of which the columns of G are written out."""

    columns: Repeated
    """(d, h) of each item."""
    places: Tensor
    """The flat coordinates of the columns (B, h)."""
    inside: Tensor
    """Which columns are real (B, h), bool."""
    x: Tensor
    """(B, …)."""
    y: Tensor
    """(B, …); where y₀ is observed, y must be the same."""
    inverse: Repeated
    """(h, h) of each item: that of the block on H."""

    def apply(self, y: Tensor) -> Tensor:
        """The map (B, …)."""
        moved = torch.where(self.inside, (y - self.y).flatten(1).gather(1, self.places), 0)
        return self.x + self.columns.product(moved).view_as(y)

    def inverse_block(self, hidden: Tensor) -> LinearOperator:
        """The inverse of the block on H, as an operator."""
        return _Scattered(self.inverse, self.places, hidden.shape)


class _Scattered(LinearOperator):
    """Small matrices (h, h) that act on each item's entries at `places` (B, h), and leave the others as they are."""

    def __init__(self, matrix: Repeated, places: Tensor, shape: torch.Size) -> None:
        self.matrix, self.places, self.shape = matrix, places, torch.Size(shape)

    def _product(self, matrix: Repeated, v: Tensor) -> Tensor:
        flat = v.flatten(1)
        return flat.scatter(1, self.places, matrix.product(flat.gather(1, self.places))).view_as(v)

    def mv(self, v: Tensor) -> Tensor:
        return self._product(self.matrix, v)

    def rmv(self, u: Tensor) -> Tensor:
        return self._product(self.matrix.mT, u)

    def select(self, index: Tensor) -> LinearOperator:
        return _Scattered(self.matrix[index], self.places[index], torch.Size((len(index), *self.shape[1:])))


def inverse_or_pseudo(blocks: Tensor) -> Tensor:
    """The inverses (B, h, h), and pseudo-inverses where there is none."""
    inverse, info = torch.linalg.inv_ex(blocks)
    sane = (info == 0) & torch.isfinite(inverse).flatten(1).all(1)
    for item in (~sane).nonzero().flatten().tolist():
        inverse[item] = torch.linalg.pinv(torch.nan_to_num(blocks[item]), rtol=_PSEUDO)
    return inverse


class Linearizable(Protocol):
    """What a skeleton is estimated from."""

    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]: ...


def estimated_skeleton(flow: Linearizable, y: Tensor, dense_below: int = 64) -> Skeleton:
    """The flow linearised at `y` (B, …): written out up to `dense_below` entries, else its diagonal alone.

    The diagonal is estimated by eight Hutchinson probes, E[v ⊙ G v]. Entries that come out small or of an unlikely sign
    are raised to a tenth of the median: a preconditioner must not be singular.
    """
    x, G = flow.linearize(y)
    if y.shape[1:].numel() <= dense_below:
        return DenseSkeleton(dense(G, y), x, y)
    generator = torch.Generator().manual_seed(0)
    diagonal = torch.zeros_like(y)
    for _ in range(8):
        v = rademacher(y[:1], generator).expand_as(y).contiguous()
        diagonal += v * G.mv(v) / 8
    size = per_item(diagonal.abs().flatten(1).median(1).values.clamp_min(1e-6), y)
    sign = torch.where(diagonal < 0, -1.0, 1.0).to(y.dtype)
    scale = sign * torch.maximum(diagonal.abs(), 0.1 * size)
    return AffineSkeleton(scale, x - scale * y)
