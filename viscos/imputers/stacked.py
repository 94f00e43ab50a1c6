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
_NARROW, _WIDE = 0.1, 10.0  # least and most factor of the draws' spread


class StackedImputer(Imputer):
    """The mean is a convex combination of the imputers' means; a draw is one of the first imputer's, moved with the
    mean and `width` times as far from it.

    `weights` (imputers,) are ≥ 0; what lacks of a sum of 1 is that of the columns' mean, 0 in standardised units.
    """

    name, label = "shares", "several imputers, in shares"

    def __init__(self, imputers: Sequence[Imputer], weights: Tensor, width: float) -> None:
        self.imputers, self.weights, self.width = tuple(imputers), weights, width
        self.mean, self.draw, self.passes = self.imputers[0].mean, self.imputers[0].draw, self.imputers[0].passes

    def state(self) -> dict[str, Any]:
        parts = [imputer.state() for imputer in self.imputers]
        return {"weights": self.weights, "width": self.width, "imputers": parts}

    def about(self) -> dict[str, Any]:
        names = [imputer.name for imputer in self.imputers]
        return {"shares": dict(zip(names, self.weights.tolist(), strict=True)), "width": self.width}

    def impute(self, batch: Incomplete, draws: int = 1, seed: int = 0, purpose: str = "item") -> Completions:
        done = self.imputers[0].impute(batch, draws, seed, purpose)
        centre = self.imputers[0].best_mean(batch, DRAWS, seed)
        mean, _ = self._combined(batch, DRAWS, seed, centre)
        moved = torch.where(batch.observed, batch.values, mean + self.width * (done.draws - centre.mean()))
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
        for k, (imputer, weight) in enumerate(zip(self.imputers, self.weights.tolist(), strict=True)):
            if weight > 0:
                done = first if k == 0 and first is not None else imputer.best_mean(batch, draws, seed)
                total = total + weight * done.mean()
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
        held, (counts, graded) = data.observed & ~sparser.observed, _kinds(data)
        found = []
        for rows in held.any(1).nonzero().flatten().split(_ROWS):
            batch, cells = sparser.batch(rows).to(device), held[rows]
            means = [imputer.best_mean(batch, DRAWS, seed).mean().cpu()[cells] for imputer in imputers]
            drawn = imputers[0].impute(batch, _WIDTH_DRAWS, seed, "held out").draws.cpu()[:, cells]
            kinds = (kind.expand_as(cells)[cells] for kind in (counts, graded))
            found.append(cls(data.values[rows][cells], torch.stack(means, -1), drawn, *kinds)._finite())
        return cls.joined(found)

    @classmethod
    def joined(cls, parts: Sequence[HeldOut]) -> HeldOut:
        """The cells of all of them."""
        truth, means, counts, graded = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("truth", "means", "counts", "graded")
        )
        return cls(truth, means, torch.cat([part.draws for part in parts], 1), counts, graded)

    def _finite(self) -> HeldOut:
        return self._at(self.means.isfinite().all(1) & self.draws.isfinite().any(0))

    def _at(self, some: Tensor) -> HeldOut:
        return HeldOut(self.truth[some], self.means[some], self.draws[:, some], self.counts[some], self.graded[some])

    @property
    def cells(self) -> int:
        """How many cells of a table they are."""
        return round(float(self.counts.sum()))

    def error(self, weights: Tensor) -> float:
        """The RMSE of a mean that the imputers share."""
        squares = (self.means @ weights - self.truth).double().square()
        return float(((self.counts * squares).sum() / self.counts.sum()).sqrt())

    def weights(self) -> Tensor:
        """The convex combination of means, and of 0, with the least squared error (imputers,), as in stacked regression
        (Breiman, 1996)."""
        from scipy.optimize import nnls

        cells, imputers = self.means.shape
        if not cells:
            return torch.eye(imputers)[0]
        heavy = 1e3 * math.sqrt(cells)  # of the equation that says that the weights, with that of 0, sum to 1
        A, share = np.zeros((cells + 1, imputers + 1)), self.counts.double().sqrt()
        A[:-1, :-1], A[-1] = (share[:, None] * self.means).numpy(), heavy
        found, _ = nnls(A, np.append((share * self.truth).numpy(), heavy))
        return torch.from_numpy(found[:-1]).float()

    def width(self, weights: Tensor) -> float:
        """The factor of the draws' spread by which their central intervals, moved to the combined mean, cover `LEVEL`.

        The rank is that of split-conformal prediction (Lei et al., 2018) with intervals that are scaled; the cells are
        those that the weights were fitted to, of which there are far more. Numbers alone count where there are any: an
        interval of a category's 0 and 1 says nothing, and is often of no width. 1 for too few cells.
        """
        if bool(self.graded.any()) and not bool(self.graded.all()):
            return self._at(self.graded).width(weights)
        cells = len(self.truth)
        rank = math.ceil((cells + 1) * LEVEL)
        if rank > cells:
            return 1.0
        away, centre = self.truth - self.means @ weights, self.means[:, 0]
        low, high = quantiles(self.draws, torch.tensor([1 - LEVEL, 1 + LEVEL]) / 2)
        reach = torch.where(away > 0, high - centre, centre - low).clamp_min(1e-6)
        return min(max(float((away.abs() / reach).sort().values[rank - 1]), _NARROW), _WIDE)


def cells_of(held: Tensor, data: IncompleteData) -> int:
    """How many cells of a table the entries are that `held` (N, d) marks; a category has several."""
    return round(float((held * _kinds(data)[0]).sum()))


def _kinds(data: IncompleteData) -> tuple[Tensor, Tensor]:
    """What a cell of each entry (d,) counts, and whether the entry takes more than two values (d,), bool."""
    d = data.values.shape[1]
    groups = torch.arange(d) if data.groups is None else data.groups
    counts = 1 / (groups[:, None] == groups).sum(1).float()
    seen = (data.values[data.observed[:, k], k] for k in range(d))
    return counts, torch.tensor([len(values.unique()) > 2 for values in seen])


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
