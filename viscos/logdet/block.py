"""Solves with the restricted block at one completion, shared by the adjoint and by the estimators."""

from __future__ import annotations

import torch
from torch import Tensor

from viscos.core.solution import Solution, per_item
from viscos.linear import GMRES, Block, LinearOperator, LinearSolver, Product, solve_lifted


class BlockSolver:
    """(G^HH)⁻ᵀ at one completion, and a ledger: which items were solved, and how many products that took.

    An item that was not solved gets zero and is marked in `ok`. A probe that failed takes the item out of the
    surrogate; an adjoint that failed, in the backward pass, leaves out the item's part through the solution, and shows
    in the counts. With `deep`, solves are over the adjoints of the states between the layers that G is the product of;
    `preconditioner` is then to be close to the inverse of the block of the layers before the first residual one.
    """

    def __init__(
        self,
        G: LinearOperator,
        hidden: Tensor,
        preconditioner: LinearOperator | None = None,
        solver: LinearSolver | None = None,
        deep: bool = False,
    ) -> None:
        self.G, self.hidden = G, hidden
        self.block = Block(G, hidden)
        self.preconditioner = preconditioner
        self.solver, self.deep = solver or GMRES(), deep
        self.ok = torch.ones(len(hidden), dtype=torch.bool, device=hidden.device)
        self.products = torch.zeros(len(hidden), device=hidden.device)
        self._whole: tuple[BlockSolver, Tensor] | None = None

    def select(self, rows: Tensor) -> BlockSolver:
        """The solver for some rows (b,), which keeps this one's ledger too."""
        inner = None if self.preconditioner is None else self.preconditioner.select(rows)
        part = BlockSolver(self.G.select(rows), self.hidden[rows], inner, self.solver, self.deep)
        part._whole = self, rows
        return part

    def note(self, ok: Tensor, products: Tensor | float = 0.0) -> None:
        """Keeps the ledger: items that are not `ok` (B,) are taken out, and `products` (B,) add up."""
        self.ok &= ok
        self.products += products
        if self._whole is not None:
            whole, rows = self._whole
            spent = torch.zeros_like(whole.products)
            spent[rows] += products
            whole.note(torch.ones_like(whole.ok).index_put((rows,), ok), spent)

    @torch.no_grad()
    def transposed(self, a: Tensor) -> Tensor:
        """λ with (G^HH)ᵀ λ = a^H (B, …), zero on O."""
        found = self._solve(torch.where(self.hidden, a, 0))
        self.note(found.converged, found.evaluations)
        keep = self.hidden & per_item(found.converged, a)
        return torch.where(keep, found.value, 0)

    def _solve(self, a: Tensor) -> Solution:
        if self.deep and isinstance(self.G, Product) and isinstance(self.solver, GMRES):
            return solve_lifted(self.G, self.hidden, a, self.preconditioner, self.solver)
        return self.solver(self.block.T, a, None if self.preconditioner is None else self.preconditioner.T)
