"""Another partition of the latent than that of the data.

By assumption A0 the latent's observed set has the same coordinates as the data's. A coupling flow has no structure that
makes J^OO invertible then. `maxvol` chooses the latent set for which |det J^OO| is large at a reference point, and
pairs latent and data coordinates by a permutation; to everything else the flow with permuted latent is a flow like
any other, since a standard normal does not mind the order of its entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import qr
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.rng import Generators
from viscos.core.solution import Solution
from viscos.flows.bijection import ClosedForm
from viscos.flows.flow import Flow
from viscos.flows.skeleton import BlockSkeleton, inverse_or_pseudo
from viscos.linear import LinearOperator, block_of, condition_estimate, hidden_columns
from viscos.linear.principal import longest
from viscos.linear.repeated import Repeated
from viscos.roots import RootFinder
from viscos.roots.links import Skeleton

PARTITIONS = ("same", "maxvol")
"""Which latents go with the hidden entries: those of the same coordinates, or those that `maxvol` chooses."""
_SWAPS = 200  # exchanges of two rows after the factorisation
_GAIN = 1.05  # by which an exchange must enlarge the determinant
_LARGEST = 2**28  # numbers in the columns of G that are written out for one item


@dataclass(frozen=True)
class Partition:
    """Which latent coordinate stands in each place, for each item of a batch."""

    index: Tensor
    """(B, d), int64: place j of the flat latent holds coordinate index[j]."""
    reference: Tensor
    """The data at which it was chosen (B, …)."""
    latent: Tensor
    """Their latents in the new order (B, …)."""
    columns: Repeated
    """Columns of G there that belong to H, rows in the new order, (d, h) of each item, padded."""
    places: Tensor
    """The flat coordinates of these columns (B, h), int64."""
    inside: Tensor
    """True where a column is one of H (B, h), bool."""
    inverse: Repeated
    """That of the block of G on H there, or its pseudo-inverse, (h, h) of each item: one for all its draws."""

    def select(self, index: Tensor) -> Partition:
        """That of the items at `index`."""
        return Partition(*(value[index] for value in vars(self).values()))


class Reordered(ClosedForm):
    """The entries of each item of a batch in an order of its own: place j holds entry index[j] (B, d)."""

    def __init__(self, index: Tensor) -> None:
        super().__init__()
        self.index, self.back = index, index.argsort(1)

    def forward(self, y: Tensor) -> Tensor:
        return _permuted(y, self.index)

    def forward_and_ladj(self, y: Tensor, generator: Generators | None = None) -> tuple[Tensor, Tensor]:
        return self(y), y.new_zeros(len(y))

    def tangent(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self(y), self(v)

    @torch.no_grad()
    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]:
        return self(y), _Permutation(self.index, self.back, y.shape)

    @torch.no_grad()
    def inverse(self, x: Tensor) -> Solution:
        return Solution.exact(_permuted(x, self.back))


class Repartitioned(Flow):
    """A flow whose latents are permuted, item by item, as a `Partition` says."""

    def __init__(self, flow: Flow, partition: Partition) -> None:
        super().__init__([flow, Reordered(partition.index)], flow.shape)
        self.partition = partition
        self.deep = False  # since solves are for y^H alone, preconditioned by the columns of G

    @property
    def flow(self) -> Flow:
        """The flow before its latents are permuted."""
        inner = self.layers[0]
        assert isinstance(inner, Flow)
        return inner

    @torch.no_grad()
    def to_data(self, x: Tensor, solver: RootFinder | None = None) -> Solution:
        order = self.layers[1]
        assert isinstance(order, Reordered)
        return self.flow.to_data(_permuted(x, order.back), solver)

    def skeleton(self, y: Tensor) -> Skeleton:
        """The flow linearised at the partition's reference, in the directions of H."""
        p = self.partition
        return BlockSkeleton(p.columns, p.places, p.inside, p.latent, p.reference, p.inverse)

    def links(self, y: Tensor) -> None:
        """It is solved for y^H alone, as a flow of one piece."""

    def select(self, index: Tensor) -> Flow:
        picked = Repartitioned(self.flow, self.partition.select(index))
        picked.dense_below = self.dense_below  # as a caller may have set it
        return picked

    def check(self, y: Tensor) -> None:
        self.flow.check(y)


class _Permutation(LinearOperator):
    """Reorders the entries of each item."""

    def __init__(self, index: Tensor, back: Tensor, shape: torch.Size) -> None:
        self.index, self.back, self.shape = index, back, torch.Size(shape)

    def mv(self, v: Tensor) -> Tensor:
        return _permuted(v, self.index)

    def rmv(self, u: Tensor) -> Tensor:
        return _permuted(u, self.back)

    def inverse(self, tolerance: float | None = None) -> LinearOperator:
        return _Permutation(self.back, self.index, self.shape)

    def select(self, index: Tensor) -> LinearOperator:
        return _Permutation(self.index[index], self.back[index], torch.Size((len(index), *self.shape[1:])))


def _permuted(x: Tensor, index: Tensor) -> Tensor:
    return x.flatten(1).gather(1, index).view_as(x)


def reference(flow: Flow, y: Tensor, hidden: Tensor) -> Tensor:
    """The observation with the datum of the latent zero in its holes (B, …)."""
    if isinstance(flow, Repartitioned):
        return torch.where(hidden, flow.partition.reference, y)
    middle = flow.to_data(torch.zeros_like(y[:1]))
    value = torch.where(torch.isfinite(middle.value), middle.value, 0)
    return torch.where(hidden, value, y)


@torch.no_grad()
def maxvol(flow: Flow, y: Tensor, hidden: Tensor, point: Tensor | None = None) -> Repartitioned:
    """The flow with its latent parted so that |det J^OO| at `point` is large for each item.

    By the Schur identity log|det J^OO| = log|det G^HH| − log|det G|, so the rows of G that go with the hidden columns
    are chosen: by a QR factorisation with pivoting, then by exchanges of two rows while one of them enlarges the
    determinant by a twentieth (Goreinov et al., 2010). Costs as many products as the item with most holes has hidden
    entries. Of all pairings of the two sets the one with the largest product of entries is taken, which keeps a
    diagonal close to the block. `y` (B, …) with anything finite where `hidden`, bool (B, …); `point` (B, …) is a
    completion of it, by default the datum of the latent zero in the holes.
    """
    d, h = y.shape[1:].numel(), longest(hidden.flatten(1))
    if d * h > _LARGEST:
        raise InputError(
            f"partition=maxvol writes out {d} × {h} entries of the Jacobian of an item, which is too many; "
            "take partition=same with a flow of residual structure"
        )
    point = reference(flow, y, hidden) if point is None else point
    x, G = flow.linearize(point)
    columns, places, inside = hidden_columns(G, hidden, y)
    index = torch.stack([_order(c, p[i], i) for c, p, i in zip(columns, places, inside, strict=True)]).to(y.device)
    ordered = columns.gather(1, index.unsqueeze(2).expand_as(columns))
    ahead, back = map(Repeated.each, (ordered, inverse_or_pseudo(block_of(ordered, places, inside))))
    return Repartitioned(flow, Partition(index, point, _permuted(x, index), ahead, places, inside, back))


def _order(columns: Tensor, H: Tensor, inside: Tensor) -> Tensor:
    """The latent coordinate that goes with each data coordinate (d,), of which those in H (h,) are hidden."""
    A, H, d = columns[:, inside].double().cpu().numpy(), H.cpu(), len(columns)
    index = torch.arange(d)
    if not A.size or not np.isfinite(A).all():
        return index
    rows = _volume_rows(A)
    _, pairs = linear_sum_assignment(-np.log(np.abs(A[rows].T) + 1e-300))
    index[H] = torch.from_numpy(rows[pairs])
    free, hidden = torch.ones(d, dtype=torch.bool), torch.zeros(d, dtype=torch.bool)
    free[torch.from_numpy(rows)] = False
    hidden[H] = True
    index[~hidden & ~free] = (hidden & free).nonzero().flatten()  # of the rest, what may stay in its place stays
    return index


def _volume_rows(A: np.ndarray) -> np.ndarray:
    """Rows (h,) of A (d, h) whose square submatrix has a large determinant."""
    h = A.shape[1]
    rows = qr(A.T, mode="r", pivoting=True)[1][:h].astype(np.int64)
    for _ in range(_SWAPS):
        try:
            B = np.linalg.solve(A[rows].T, A.T).T
        except np.linalg.LinAlgError:
            break  # of deficient rank: no choice of rows is regular
        i, j = np.unravel_index(np.abs(B).argmax(), B.shape)
        if not abs(B[i, j]) > _GAIN:
            break
        rows[j] = i
    return rows


@torch.no_grad()
def condition_number(flow: Flow, y: Tensor, hidden: Tensor, point: Tensor | None = None) -> Tensor:
    """About the condition number of G^HH at `point` (B, …), as for `maxvol` (B,); at least it, where H is large."""
    point = reference(flow, y, hidden) if point is None else point
    return condition_estimate(flow.linearize(point)[1], hidden, y)


def refuse_singular(condition: Tensor, name: str) -> None:
    """Raises `InputError` if the block is nearly singular for half of the items or more."""
    limit = _limit(condition)
    bad = ~(condition <= limit)
    if len(bad) and int(bad.sum()) * 2 >= len(bad):
        remedy = (
            "take partition=maxvol"
            if name == "same"
            else "no partition of this flow's latent serves; take a flow of residual structure, or double precision"
        )
        raise InputError(
            f"with partition={name} the block G^HH is nearly singular for {int(bad.sum())} of {len(bad)} items "
            f"(condition about {float(condition.nan_to_num(float('inf')).max()):.1g}): the holes cannot be solved for; "
            f"{remedy}"
        )


def _limit(condition: Tensor) -> float:
    return 1e12 if condition.dtype == torch.float64 else 1e6
