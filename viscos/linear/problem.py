"""A linear system as a problem for the common loop, and what solves one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from viscos.core.solution import Solution
from viscos.linear.operator import LinearOperator


class LinearSolver(Protocol):
    """Anything that solves a batch of systems A z = b, with a verdict on each item."""

    def __call__(self, A: LinearOperator, b: Tensor, preconditioner: LinearOperator | None = None, /) -> Solution:
        """z (B, …) for b (B, …); `preconditioner` is an operator close to A⁻¹."""
        ...


def tight_tolerance(b: Tensor) -> float:
    """The relative residual of a product with an inverse, by the precision of b."""
    return 1e-10 if b.dtype == torch.float64 else 1e-5


@dataclass(frozen=True)
class LinearProblem:
    """A z = b; the error of an item is ‖A z − b‖₂ / ‖b‖₂."""

    A: LinearOperator
    b: Tensor
    preconditioner: LinearOperator | None = None
    """An operator close to A⁻¹."""

    def residual(self, z: Tensor) -> Tensor:
        """A z − b (B, …)."""
        return self.A.mv(z) - self.b

    def error(self, r: Tensor) -> Tensor:
        """‖r‖ / ‖b‖ (B,); where b = 0, ‖r‖."""
        size = self.b.flatten(1).norm(dim=1)
        return r.flatten(1).norm(dim=1) / torch.where(size > 0, size, torch.ones_like(size))

    def precondition(self, v: Tensor) -> Tensor:
        """The preconditioner's product (B, …)."""
        return v if self.preconditioner is None else self.preconditioner.mv(v)

    def select(self, index: Tensor) -> LinearProblem:
        """The systems at `index`."""
        M = None if self.preconditioner is None else self.preconditioner.select(index)
        return LinearProblem(self.A.select(index), self.b[index], M)
