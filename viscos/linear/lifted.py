"""Transposed solves with a block of a long product of operators, over the adjoints of the states between its factors.

With A = A_K … A₁ and H the mask, (A^HH)ᵀ λ = a is, for multipliers μ₁ … μ_K of the links vₖ = Aₖ vₖ₋₁,

    on H:  (Aₖᵀ μₖ)^H − μₖ₋₁^H = a for k = 1, and 0 for k > 1;    on O:  μₖ^O − (Aₖ₊₁ᵀ μₖ₊₁)^O = 0, with μ_K^O = 0;

and λ = μ_K^H. Where each Aₖ is near the identity the whole is near two sums along k, one on H and one on O, and GMRES
with these as its preconditioner takes half the products that it takes on A^HH itself, whose preconditioner knows the
two ends alone. One product with the lifted system costs one with Aᵀ. It is the linear counterpart of the path solver
(`viscos.roots.methods.path`), and like it related to multiple shooting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from viscos.core.iterate import iterate
from viscos.core.solution import Solution
from viscos.linear.gmres import GMRES
from viscos.linear.operator import Block, IdentityPlus, LinearOperator, Product
from viscos.linear.problem import LinearProblem

_SHARE = 1 / 10  # of the tolerance to which multipliers are solved: residuals of all links add up in that of the block
_AGAIN = 1 / 3  # of that share, in each further round
_DEEPEST = 1e-4  # by which one round lowers a residual at most


def solve_lifted(A: Product, mask: Tensor, a: Tensor, inverse: LinearOperator | None, gmres: GMRES) -> Solution:
    """λ (B, …) with (A^HH)ᵀ λ = a^H, zero outside H = `mask` (B, …), as `gmres` would solve it, in fewer products.

    The last parts of A that are I + small are the links, and all parts before them are one link more, which is cheap;
    `inverse` is close to the inverse of its block on H (None: there are no such parts, or their block is the identity).
    The verdict is by the relative residual of the block; `evaluations` are products with Aᵀ.
    """
    first, links = links_of(A)
    lifted = _Multipliers(links if first is None else [first, *links], mask)
    near = _Sums(first, inverse, mask, lifted.shape)
    a = torch.where(mask, a, 0)
    problem = _Restricted(Block(A, mask).T, a, lifted=lifted, near=near)
    zero = torch.zeros_like(a)
    return iterate(problem, _Rounds(gmres), zero, tolerance=gmres.tolerance, budget=gmres.budget, start_residual=-a)


def links_of(A: Product) -> tuple[LinearOperator | None, list[LinearOperator]]:
    """What stands before the last parts that are I + small, as one operator, and those parts."""
    first = len(A.parts)
    while first and isinstance(A.parts[first - 1], IdentityPlus):
        first -= 1
    return (Product(A.parts[:first], A.shape) if first else None), A.parts[first:]


class _Multipliers(LinearOperator):
    """The lifted system, on multipliers (B, K, …)."""

    def __init__(self, links: Sequence[LinearOperator], mask: Tensor) -> None:
        self.links, self.mask = links, mask
        self.shape = torch.Size((len(mask), len(links), *mask.shape[1:]))

    def mv(self, v: Tensor) -> Tensor:
        products = torch.stack([link.rmv(m) for link, m in zip(self.links, v.unbind(1), strict=True)], 1)
        none = torch.zeros_like(v[:, :1])
        back, ahead = torch.cat([none, v[:, :-1]], 1), torch.cat([products[:, 1:], none], 1)
        return torch.where(self.mask.unsqueeze(1), products - back, v - ahead)

    def select(self, index: Tensor) -> _Multipliers:
        return _Multipliers([link.select(index) for link in self.links], self.mask[index])


class _Sums(LinearOperator):
    """The inverse of the lifted system if all links but the first were the identity."""

    def __init__(
        self, first: LinearOperator | None, inverse: LinearOperator | None, mask: Tensor, shape: torch.Size
    ) -> None:
        self.first, self.inverse_of_first, self.mask, self.shape = first, inverse, mask, shape

    def mv(self, v: Tensor) -> Tensor:
        mask = self.mask.unsqueeze(1)
        observed = torch.where(mask, 0, v).flip(1).cumsum(1).flip(1)
        hidden = torch.where(mask, v, 0)
        if self.first is not None:
            begun = torch.where(self.mask, v[:, 0] - self.first.rmv(observed[:, 0]), 0)
            begun = begun if self.inverse_of_first is None else self.inverse_of_first.rmv(begun)
            hidden = torch.cat([torch.where(mask, begun.unsqueeze(1), 0), hidden[:, 1:]], 1)
        return torch.where(mask, hidden.cumsum(1), observed)

    def select(self, index: Tensor) -> _Sums:
        first = None if self.first is None else self.first.select(index)
        inverse = None if self.inverse_of_first is None else self.inverse_of_first.select(index)
        return _Sums(first, inverse, self.mask[index], torch.Size((len(index), *self.shape[1:])))


@dataclass(frozen=True)
class _Multiplied(LinearProblem):
    """The lifted system for the residual of the block; its error is relative to a size of each item's own."""

    size: Tensor = field(kw_only=True)

    def error(self, r: Tensor) -> Tensor:
        """‖r‖ / size (B,)."""
        return r.flatten(1).norm(dim=1) / self.size

    def select(self, index: Tensor) -> _Multiplied:
        """The systems at `index`."""
        base = super().select(index)
        return _Multiplied(base.A, base.b, base.preconditioner, size=self.size[index])


@dataclass(frozen=True)
class _Restricted(LinearProblem):
    """The block's system, and the lifted one that stands for it."""

    lifted: _Multipliers = field(kw_only=True)
    near: _Sums = field(kw_only=True)

    def select(self, index: Tensor) -> _Restricted:
        """The systems at `index`."""
        lifted, near = self.lifted.select(index), self.near.select(index)
        return _Restricted(self.A.select(index), self.b[index], lifted=lifted, near=near)


@dataclass(frozen=True)
class _Rounds:
    """Iterative refinement, for `iterate`: a round solves the lifted system for what the block's residual still is.

    The state is what share of the tolerance the next round has. Each round has the whole budget, so that no item has
    less for its neighbours' sake; the loop around the rounds stops each at its own.
    """

    gmres: GMRES
    patience: int = 2

    def init(self, problem: _Restricted, z: Tensor, r: Tensor) -> float:
        """The first round's share."""
        return _SHARE

    def select(self, state: float, index: Tensor) -> float:
        """The same: all items at work have the same."""
        return state

    def step(self, problem: _Restricted, z: Tensor, r: Tensor, state: float) -> tuple[Tensor, Tensor, Tensor, float]:
        """One round, and the residual of the block."""
        b = r.new_zeros(problem.lifted.shape)
        b[:, 0] = -r
        wanted, now = problem.b.flatten(1).norm(dim=1), r.flatten(1).norm(dim=1)
        size = torch.maximum(state * wanted, _DEEPEST / self.gmres.tolerance * now)
        system = _Multiplied(problem.lifted, b, problem.near, size=torch.where(size > 0, size, 1))
        gmres = replace(self.gmres, budget=self.gmres.budget - 1)
        zero = torch.zeros_like(b)
        found = iterate(system, gmres, zero, tolerance=gmres.tolerance, budget=gmres.budget, start_residual=-b)
        z = z + torch.where(problem.lifted.mask, found.value[:, -1], 0)
        return z, problem.residual(z), found.evaluations + 1, state * _AGAIN
