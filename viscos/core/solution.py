"""What an iterative solver returns."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from viscos.core.errors import InputError


class Status(enum.IntEnum):
    """The verdict on one item. Everything but `CONVERGED` is a failure."""

    CONVERGED = 0
    BUDGET = 1
    STALLED = 2
    NON_FINITE = 3
    IMPRECISE = 4

    @property
    def remedy(self) -> str:
        """What happened and what to try."""
        return _REMEDIES[self]


_REMEDIES = {
    Status.CONVERGED: "converged",
    Status.BUDGET: "the budget of evaluations ran out: raise solver.budget, loosen solver.tolerance, "
    "or take another solver (solver=path, solver=newton_krylov)",
    Status.STALLED: "no further progress: the restricted Jacobian may be singular here; loosen solver.tolerance, "
    "or take another solver (solver=path, solver=newton_krylov)",
    Status.IMPRECISE: "rounding errors of the flow's evaluation are larger than the tolerance here: take double "
    "precision (flow.double()), scale the data, or loosen solver.tolerance",
    Status.NON_FINITE: "the iterates left the range of the numbers: the start or the flow is not sane at this item",
}


@dataclass(frozen=True)
class Solution:
    """Value and verdict of an iterative solver, for each item of a batch."""

    value: Tensor
    """The best iterate (B, …). Only where `converged` is it a solution."""
    status: Tensor
    """`Status` of each item (B,), int64."""
    residual: Tensor
    """Norm of the true residual of `value` (B,), in the units of the tolerance."""
    evaluations: Tensor
    """Evaluations (of the network, or products with the operator) spent on each item (B,), float."""
    fallback: Tensor = field(default=None)  # type: ignore[assignment]
    """True where a second solver had to take over (B,), bool."""
    steps: Tensor = field(default=None)  # type: ignore[assignment]
    """Iterations of the solver that had the last word (B,), float."""
    reduction: Tensor = field(default=None)  # type: ignore[assignment]
    """Share of the residual at the start that the first solver took away (B,); NaN where it is not known."""
    attempts: Tensor = field(default=None)  # type: ignore[assignment]
    """How often the item was tried, each time with fresh noise, until it was solved (B,), int64; 1 as a rule."""

    def __post_init__(self) -> None:
        if self.fallback is None:
            object.__setattr__(self, "fallback", torch.zeros_like(self.status, dtype=torch.bool))
        if self.steps is None:
            object.__setattr__(self, "steps", torch.zeros_like(self.residual))
        if self.reduction is None:
            object.__setattr__(self, "reduction", torch.full_like(self.residual, float("nan")))
        if self.attempts is None:
            object.__setattr__(self, "attempts", torch.ones_like(self.status))

    @property
    def converged(self) -> Tensor:
        """True where the item was solved to the tolerance (B,), bool."""
        return self.status == Status.CONVERGED

    def raise_if_failed(self) -> Tensor:
        """The value if every item converged, else `InputError` that names the items and the remedy."""
        if bool(self.converged.all()):
            return self.value
        bad = (~self.converged).nonzero().flatten().tolist()
        first = Status(int(self.status[bad[0]]))
        raise InputError(
            f"{len(bad)} of {len(self.status)} items were not solved (first: item {bad[0]}, "
            f"residual {float(self.residual[bad[0]]):.3g}); {first.remedy}"
        )

    def with_value(self, value: Tensor) -> Solution:
        """The same verdict on another form of the value."""
        return replace(self, value=value)

    def select(self, rows: Tensor) -> Solution:
        """The value and verdict of the items at `rows` (b,)."""
        return Solution(*(getattr(self, f.name)[rows] for f in fields(self)))

    def or_else(self, solve: Callable[[Tensor], Solution], left: Tensor | None = None) -> Solution:
        """This solution, with the items that failed (or that `left` (B,) marks) solved again by `solve`.

        `solve` gets their numbers (b,), and is not called where there are none. Of both values that with the smaller
        residual is kept, and evaluations add up. The status is that of the second solve; `STALLED` where that
        converged, but the first value is kept.
        """
        rows = (~self.converged if left is None else left).nonzero().flatten()
        if not len(rows):
            return self
        other, own = solve(rows), self.residual[rows]
        better = other.residual.isfinite() & ~(own <= other.residual)  # NaN is worse than all
        kept = replace(
            other,
            value=torch.where(per_item(better, other.value), other.value, self.value[rows]),
            residual=torch.where(better, other.residual, own),
            status=torch.where(better | ~other.converged, other.status, int(Status.STALLED)),
        )
        return self.with_rows(rows, kept, fallback=self.fallback.index_fill(0, rows, True))

    def retried(self, rows: Tensor, other: Solution) -> Solution:
        """This solution with the results of `other`, a retry with fresh noise, at `rows` (b,); evaluations add up."""
        fallback = self.fallback.index_copy(0, rows, self.fallback[rows] | other.fallback)
        return self.with_rows(rows, other, fallback=fallback, attempts=self.attempts.index_add(0, rows, other.attempts))

    def with_rows(self, rows: Tensor, other: Solution, **changes: Tensor) -> Solution:
        """This solution with value and status of `other` at `rows` (b,); evaluations add up."""
        whole = {name: getattr(self, name).clone() for name in ("value", "status", "residual", "steps", "evaluations")}
        for name in ("value", "status", "residual", "steps"):
            whole[name][rows] = getattr(other, name)
        whole["evaluations"][rows] += other.evaluations
        return replace(self, **changes, **whole)

    def among(self, asked: Tensor) -> Solution:
        """The solution of the items that are `asked` for (B,), bool; of all, if none is."""
        return self.select((asked if bool(asked.any()) else ~asked).nonzero().flatten())

    def record(self) -> dict[str, float | int | None]:
        """What the solves cost and how they ended, as means over all items; plain."""
        solved, known = self.residual[self.converged], self.reduction[~self.reduction.isnan()]
        return {
            "evaluations": float(self.evaluations.double().mean()),
            "residual": float(solved.max()) if len(solved) else None,
            "fallback": float(self.fallback.double().mean()),
            "fallback_steps": float(self.steps[self.fallback].double().mean()) if bool(self.fallback.any()) else None,
            "reduction_by_first_solver": float(known.double().mean()) if len(known) else None,
            "failed": float((~self.converged).double().mean()),
            "drawn_anew": float((self.attempts > 1).double().mean()),
            "solves": len(self.status),
        }

    @staticmethod
    def joined(parts: Sequence[Solution], draws: int = 1) -> Solution:
        """The solutions of several batches as one; each stands draw by draw, and so does the whole."""
        columns = [
            torch.cat([getattr(p, f.name).unflatten(0, (draws, -1)) for p in parts], 1) for f in fields(parts[0])
        ]
        return Solution(*(column.flatten(0, 1) for column in columns))

    @staticmethod
    def exact(value: Tensor, evaluations: float = 0.0) -> Solution:
        """The verdict on a value found in closed form."""
        zero = value.new_zeros(len(value))
        return Solution(value, zero.long(), zero, zero + evaluations)


def item_max(r: Tensor) -> Tensor:
    """Largest absolute entry of each item (B,)."""
    return r.flatten(1).abs().amax(1) if r.shape[1:].numel() else r.new_zeros(len(r))


def item_dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of each pair of items (B,)."""
    return (a * b).flatten(1).sum(1)


def per_item(values: Tensor, like: Tensor) -> Tensor:
    """Reshapes (B,) so that it broadcasts against `like` (B, …)."""
    return values.view(-1, *[1] * (like.dim() - 1))
