"""The one loop behind every iterative solver.

A *problem* says what is to be zero and how large a residual is; a *method* supplies a state and a step. The loop owns
the budget, the verdict on each item, the non-finite check and the count of evaluations. Items that are done leave the
batch, so a slow item costs its neighbours nothing and cannot change them.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from viscos.core.solution import Solution, Status, per_item


class Problem(Protocol):
    """An equation r(z) = 0 for a batch of items."""

    def residual(self, z: Tensor) -> Tensor:
        """r(z) (B, …)."""
        ...

    def error(self, r: Tensor) -> Tensor:
        """The norm of a residual that is compared with the tolerance (B,)."""
        ...

    def select(self, index: Tensor) -> Problem:
        """The same equation for the items at `index`."""
        ...


class Method(Protocol):
    """A method: `init` makes its state, `step` gives the next iterate, `select` drops items from the state.

    Its step returns (z, r(z), evaluations spent on each item (a number or (B,)), state). `patience` is how many steps
    without a new best residual mean that an item is stalled.
    """

    @property
    def patience(self) -> int: ...

    def init(self, problem: Any, z: Tensor, r: Tensor) -> Any: ...

    def step(self, problem: Any, z: Tensor, r: Tensor, state: Any) -> tuple[Tensor, Tensor, Tensor | float, Any]: ...

    def select(self, state: Any, index: Tensor) -> Any: ...


_PROGRESS = 0.95  # a residual counts as progress when it is below this share of the last one that did
_COMPACT = 0.75  # drop finished items from the batch when at most this share of it is still at work


class _Ledger:
    """The verdicts, best iterates and counts of the whole batch."""

    def __init__(self, z: Tensor, start_cost: float) -> None:
        self.best = z.clone()
        self.residual = torch.full((len(z),), float("inf"), dtype=z.dtype, device=z.device)
        self.status = torch.full((len(z),), int(Status.BUDGET), device=z.device)
        self.evaluations = torch.full_like(self.residual, start_cost)
        self.mark = self.residual.clone()
        self.first: Tensor | None = None
        self.steps = torch.full_like(self.residual, -1.0)
        self.waited = torch.zeros_like(self.status)

    def record(self, items: Tensor, z: Tensor, error: Tensor, tolerance: float, patience: int) -> None:
        """Takes in the new iterates of `items` and judges them."""
        self.first = error.clone() if self.first is None else self.first
        self.steps[items] += 1
        finite = torch.isfinite(error)
        better = finite & (error < self.residual[items])
        self.best[items] = torch.where(per_item(better, z), z, self.best[items])
        self.residual[items] = torch.where(better, error, self.residual[items])
        progress = finite & (error < _PROGRESS * self.mark[items])
        self.mark[items] = torch.where(progress, error, self.mark[items])
        self.waited[items] = waited = torch.where(progress, 0, self.waited[items] + 1)
        status = torch.where(waited >= patience, int(Status.STALLED), int(Status.BUDGET))
        status = torch.where(finite, status, int(Status.NON_FINITE))
        self.status[items] = torch.where(error <= tolerance, int(Status.CONVERGED), status)

    def solution(self) -> Solution:
        assert self.first is not None
        reduction = torch.where(self.first > 0, 1 - self.residual / self.first, float("nan"))
        return Solution(self.best, self.status, self.residual, self.evaluations, steps=self.steps, reduction=reduction)


@torch.no_grad()
def iterate(
    problem: Problem,
    method: Method,
    start: Tensor,
    *,
    tolerance: float,
    budget: float | Tensor,
    start_residual: Tensor | None = None,
) -> Solution:
    """Runs `method` on `problem` from `start` (B, …) until each item converged, stalled, broke or spent its budget.

    `tolerance` is compared with `problem.error` of the true residual, which belongs to the returned iterate. `budget`
    counts evaluations an item, of all alike or of each (B,). Where the residual of the start is known,
    `start_residual` saves evaluating it.
    """
    z, r = start, problem.residual(start) if start_residual is None else start_residual
    ledger = _Ledger(z, 1.0 if start_residual is None else 0.0)
    items = torch.arange(len(z), device=z.device)
    ledger.record(items, z, problem.error(r), tolerance, method.patience)
    live = ledger.status == Status.BUDGET
    limit = torch.as_tensor(budget, dtype=ledger.evaluations.dtype, device=z.device).expand(len(z))
    state: Any = None
    while bool((live := live & (ledger.evaluations[items] < limit[items])).any()):
        if int(live.sum()) <= _COMPACT * len(live):
            keep = live.nonzero().flatten()
            problem, z, r, items, live = problem.select(keep), z[keep], r[keep], items[keep], live[keep]
            state = None if state is None else method.select(state, keep)
        state = method.init(problem, z, r) if state is None else state
        z, r, cost, state = method.step(problem, z, r, state)
        ledger.evaluations[items] += torch.where(live, cost, torch.zeros_like(ledger.evaluations[items]))
        ledger.record(items[live], z[live], problem.error(r)[live], tolerance, method.patience)
        live = ledger.status[items] == Status.BUDGET
    return ledger.solution()
