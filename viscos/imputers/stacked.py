"""A mean that several imputers share, and draws about it as wide as held-out cells want them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.quantiles import quantiles
from viscos.core.rng import generator
from viscos.core.solution import Solution, Status
from viscos.data.incomplete import IncompleteData
from viscos.imputers.imputer import Imputer
from viscos.inference import Completions

LEVEL = 0.9
"""Of the central intervals that are made to cover as much."""
DRAWS = 32
"""Of which the mean is compared."""
LEAST = 20
"""Held-out cells below which nothing is fitted to them."""
_WIDTH_DRAWS, _ROWS = 64, 500
_ENOUGH = 2000, 200  # held-out cells in all, and of a column on average, beyond which no more are looked at
_NARROW, _WIDE = 0.1, 10.0  # least and most factor of the draws' spread
_VARIANCE = 0.1  # of a share among the columns, by which a column's own is held to that of all
_DOUBT = 1.0  # cells, with the error of all columns, by which the error that a column's shares may have is estimated
_WIDTH_CELLS = 30.0  # of a column, whose own width counts then as much as that of all


class StackedImputer(Imputer):
    """The mean is a convex combination of the imputers' means; a draw is one of the first imputer's, moved with the
    mean and `width` times as far from it.

    `weights` (d, imputers), or (imputers,) for all entries, are ≥ 0; what lacks of a sum of 1 is that of the columns'
    mean, 0 in standardised units. `width` is one to an entry (d,), or one.
    """

    name, label = "shares", "several imputers, in shares"

    def __init__(self, imputers: Sequence[Imputer], weights: Tensor, width: Tensor | float) -> None:
        self.imputers, self.weights, self.width = tuple(imputers), weights, torch.as_tensor(width)
        self.mean, self.draw, self.passes = self.imputers[0].mean, self.imputers[0].draw, self.imputers[0].passes

    def state(self) -> dict[str, Any]:
        parts = [imputer.state() for imputer in self.imputers]
        return {"weights": self.weights, "width": self.width, "imputers": parts}

    def about(self) -> dict[str, Any]:
        shares = zip(self.imputers, self.weights.unbind(-1), strict=True)
        return {"shares": {imputer.name: share.tolist() for imputer, share in shares}, "width": self.width.tolist()}

    def impute(self, batch: Incomplete, draws: int = 1, seed: int = 0, purpose: str = "item") -> Completions:
        done = self.imputers[0].impute(batch, draws, seed, purpose)
        centre = self.imputers[0].best_mean(batch, DRAWS, seed)
        mean, _ = self._combined(batch, DRAWS, seed, centre)
        moved = mean + self.width.to(mean) * (done.draws - centre.mean())
        moved = torch.where(batch.observed, batch.values, moved)
        return replace(done, draws=moved, latents=None, expected=mean, solution=_placed(done, centre, moved))

    def best_mean(self, batch: Incomplete, draws: int, seed: int = 0) -> Completions:
        mean, evaluations = self._combined(batch, draws, seed)
        done = Completions.exact(mean[None], mean)
        failed = mean.isnan().flatten(1).any(1)
        status = torch.where(failed, int(Status.STALLED), done.solution.status)
        return replace(done, solution=replace(done.solution, status=status, evaluations=evaluations))

    def _combined(
        self, batch: Incomplete, draws: int, seed: int, first: Completions | None = None
    ) -> tuple[Tensor, Tensor]:
        """The weighted mean (B, …), of imputers that have a share alone, and the evaluations of all (B,).

        `first` are the first one's completions, if they are known.
        """
        total, evaluations = torch.zeros_like(batch.values), batch.values.new_zeros(len(batch))
        for k, (imputer, weight) in enumerate(zip(self.imputers, self.weights.to(total).unbind(-1), strict=True)):
            if bool((weight > 0).any()):
                done = first if k == 0 and first is not None else imputer.best_mean(batch, draws, seed)
                total = total + torch.where(weight > 0, weight * done.mean(), 0)
                evaluations = evaluations + done.solution.evaluations.view(len(done.draws), -1).sum(0)
        return torch.where(batch.observed, batch.values, total), evaluations


def _placed(done: Completions, centre: Completions, moved: Tensor) -> Solution:
    """The verdicts on draws that were `moved`, with what the `centre` took of each item, shared among its draws.

    A draw may be solved where none of those were that the centre is the mean of: then it cannot be placed.
    """
    solution, draws = done.solution, len(done.draws)
    failed = solution.converged & moved.isnan().flatten(2).any(2).flatten()
    spent = centre.solution.evaluations.view(len(centre.draws), -1).sum(0) / draws
    status = torch.where(failed, int(Status.STALLED), solution.status)
    return replace(solution, status=status, evaluations=solution.evaluations + spent.repeat(draws))


@dataclass(frozen=True)
class HeldOut:
    """What imputers say of cells that they have not seen."""

    truth: Tensor
    """(cells,)."""
    means: Tensor
    """(cells, imputers)."""
    draws: Tensor
    """Of the first imputer (draws, cells)."""
    counts: Tensor
    """What each counts (cells,): one, or of a category that has several entries its share."""
    graded: Tensor
    """Whether the entry takes more than two values (cells,), so that an interval means something; bool."""
    entry: Tensor
    """The number of the entry (cells,)."""
    groups: Tensor
    """The number of the column of each entry (d,)."""

    @classmethod
    def of(
        cls,
        imputers: Sequence[Imputer],
        data: IncompleteData,
        sparser: IncompleteData,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> HeldOut:
        """Those that `data` (N, d) know and `sparser` hides; the imputers were fitted to the latter, on a device."""
        held, (counts, graded), groups = data.observed & ~sparser.observed, _kinds(data), _groups(data)
        found = []
        for rows in _enough(held, counts, seed).split(_ROWS):
            batch, cells = sparser.batch(rows).to(device), held[rows]
            means = [imputer.best_mean(batch, DRAWS, seed).mean().cpu()[cells] for imputer in imputers]
            drawn = imputers[0].impute(batch, _WIDTH_DRAWS, seed, "held out").draws.cpu()[:, cells]
            count, grade, entry = (of.expand_as(cells)[cells] for of in (counts, graded, torch.arange(len(groups))))
            truth = data.values[rows][cells]
            found.append(cls(truth, torch.stack(means, -1), drawn, count, grade, entry, groups)._finite())
        return cls.joined(found)

    @classmethod
    def joined(cls, parts: Sequence[HeldOut]) -> HeldOut:
        """The cells of all of them."""
        truth, means, counts, graded, entry = (
            torch.cat([getattr(part, name) for part in parts])
            for name in ("truth", "means", "counts", "graded", "entry")
        )
        draws = torch.cat([part.draws for part in parts], 1)
        return cls(truth, means, draws, counts, graded, entry, parts[0].groups)

    def _finite(self) -> HeldOut:
        return self._at(self.means.isfinite().all(1) & self.draws.isfinite().any(0))

    def _at(self, some: Tensor) -> HeldOut:
        parts = (self.truth, self.means, self.draws.T, self.counts, self.graded, self.entry)
        truth, means, draws, counts, graded, entry = (part[some] for part in parts)
        return HeldOut(truth, means, draws.T, counts, graded, entry, self.groups)

    @property
    def cells(self) -> int:
        """How many cells of a table they are."""
        return round(float(self.counts.sum()))

    def _shared(self, weights: Tensor) -> Tensor:
        """The mean (cells,) that the imputers share by weights (imputers,), or those of each entry (d, imputers)."""
        return (self.means * (weights[self.entry] if weights.dim() == 2 else weights)).sum(1)

    def error(self, weights: Tensor) -> float:
        """The RMSE of a mean that the imputers share by weights (imputers,) or (d, imputers)."""
        squares = (self._shared(weights) - self.truth).double().square()
        return float(((self.counts * squares).sum() / self.counts.sum()).sqrt())

    def weights(self) -> Tensor:
        """The convex combination of means, and of 0, with the least squared error in each column (d, imputers), as in
        stacked regression (Breiman, 1996), held to that of all columns.

        With w̄ the weights of least error in all cells and s² the error that a column may have, what is least in a
        column is Σ (error)² / s² + |w − w̄|² / `_VARIANCE`, as if the weights of columns were normal about w̄: they are
        w̄ where few cells say otherwise, or where they hardly matter, and the column's own where w̄ is far off.
        """
        if not len(self.truth):
            return torch.eye(self.means.shape[1])[0].expand(len(self.groups), -1)
        pooled = self._convex()
        error = self.error(pooled) ** 2
        found = {column: part._of_column(pooled, error) for column, part in self._columns()}
        return torch.stack([found.get(column, pooled) for column in self.groups.tolist()])

    def _columns(self) -> Iterator[tuple[int, HeldOut]]:
        """The columns that have cells, and these."""
        column = self.groups[self.entry]
        for number in column.unique().tolist():
            yield number, self._at(column == number)

    def _of_column(self, pooled: Tensor, error: float) -> Tensor:
        """The weights (imputers,) of a column, whose cells alone these are, held to `pooled` (imputers,).

        `error` is the mean square of that in all columns.
        """
        simple = torch.cat([torch.eye(len(pooled)), torch.zeros(1, len(pooled)), pooled[None]])
        cells, least = float(self.counts.sum()), min(self.error(weights) ** 2 for weights in simple)
        s2 = (cells * least + _DOUBT * error) / (cells + _DOUBT)
        return self._convex(pooled, math.sqrt(s2 / _VARIANCE))

    def _convex(self, centre: Tensor | None = None, strength: float = 0.0) -> Tensor:
        """The weights of least squared error (imputers,), and of strength² times the squared distance to `centre`."""
        from scipy.optimize import nnls

        cells, imputers = self.means.shape
        heavy = 1e3 * max(math.sqrt(cells), strength)  # that the weights, with that of 0, sum to 1
        count = self.counts.double().sqrt()
        whole = torch.zeros(imputers + 1) if centre is None else torch.cat([centre, 1 - centre.sum()[None]])
        seen = np.pad((count[:, None] * self.means).numpy(), ((0, 0), (0, 1)))
        A = np.concatenate([seen, np.full((1, imputers + 1), heavy), strength * np.eye(imputers + 1)])
        b = np.concatenate([(count * self.truth).numpy(), [heavy], strength * whole.double().numpy()])
        found, _ = nnls(A, b)
        return torch.from_numpy(found[:-1]).float()

    def width(self, weights: Tensor) -> Tensor:
        """The factor of the draws' spread by which their central intervals, moved to the combined mean, cover `LEVEL`,
        for each entry (d,).

        The rank is that of split-conformal prediction (Lei et al., 2018) with intervals that are scaled; the cells are
        those that the weights were fitted to, of which there are far more. The logarithm of a column's is a mean of its
        own and that of all, by its cells; of fewer than nine, whose rank there is not, that of all. Numbers alone count
        where there are any: an interval of a category's 0 and 1 says nothing, and is often of no width. 1 for too few
        cells in all.
        """
        if bool(self.graded.any()) and not bool(self.graded.all()):
            return self._at(self.graded).width(weights)
        together, columns = self._factor(weights), len(self.groups)
        if together is None:
            return torch.ones(columns)
        found = {}
        for column, part in self._columns():
            if (own := part._factor(weights)) is not None:
                share = len(part.truth) / (len(part.truth) + _WIDTH_CELLS)
                found[column] = own**share * together ** (1 - share)
        return torch.tensor([found.get(column, together) for column in self.groups.tolist()])

    def _factor(self, weights: Tensor) -> float | None:
        """That of these cells together; None for too few."""
        cells = len(self.truth)
        rank = math.ceil((cells + 1) * LEVEL)
        if rank > cells:
            return None
        away, centre = self.truth - self._shared(weights), self.means[:, 0]
        low, high = quantiles(self.draws, torch.tensor([1 - LEVEL, 1 + LEVEL]) / 2)
        reach = torch.where(away > 0, high - centre, centre - low).clamp_min(1e-6)
        return min(max(float((away.abs() / reach).sort().values[rank - 1]), _NARROW), _WIDE)


def cells_of(held: Tensor, data: IncompleteData) -> int:
    """How many cells of a table the entries are that `held` (N, d) marks; a category has several."""
    return round(float((held * _kinds(data)[0]).sum()))


def _enough(held: Tensor, counts: Tensor, seed: int) -> Tensor:
    """The rows (n,), ascending, of the held-out cells (N, d), bool, that are looked at: all, or a random part.

    `counts` (d,) is what one of each entry counts.
    """
    rows = held.any(1).nonzero().flatten()
    rows = rows[torch.randperm(len(rows), generator=generator(seed, "held-out rows"))]
    cells = held[rows].double() @ counts.double()
    return rows[cells.cumsum(0) - cells < max(_ENOUGH[0], _ENOUGH[1] * float(counts.sum()))].sort().values


def _kinds(data: IncompleteData) -> tuple[Tensor, Tensor]:
    """What a cell of each entry (d,) counts, and whether the entry takes more than two values (d,), bool."""
    d, groups = data.values.shape[1], _groups(data)
    counts = 1 / (groups[:, None] == groups).sum(1).float()
    seen = (data.values[data.observed[:, k], k] for k in range(d))
    return counts, torch.tensor([len(values.unique()) > 2 for values in seen])


def _groups(data: IncompleteData) -> Tensor:
    """The number of the column of each entry (d,)."""
    return torch.arange(data.values.shape[1]) if data.groups is None else data.groups


def folds(data: IncompleteData, share: float, seed: int) -> Iterator[IncompleteData]:
    """The data without a `share` of the known cells of each column, drawn at random; each cell is left out once.

    A column with one known cell keeps it.
    """
    count = round(1 / share)
    noise = torch.rand(data.observed.shape, generator=generator(seed, "folds")).masked_fill(~data.observed, torch.inf)
    order = noise.argsort(0).argsort(0)
    lasting = data.observed & (data.observed.sum(0) < 2)
    for k in range(count):
        observed = data.observed & ((order % count != k) | lasting)
        yield IncompleteData(data.values, observed)
