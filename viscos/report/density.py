"""A density over the plane, and what it says of one coordinate when the other is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from viscos.core.errors import InputError


@dataclass(frozen=True)
class Plane:
    """log p(y) over the plane, and points that are drawn into it."""

    log_prob: Callable[[Tensor], Tensor]
    """(n, 2) -> (n,), in nats."""
    points: Tensor
    """(N, 2)."""
    names: tuple[str, ...]
    """Of the two coordinates."""
    encode: Callable[[Tensor], Tensor] = lambda numbers: numbers
    """Numbers of a table's columns (…, 2), NaN in holes, as coordinates; elsewhere they are these themselves."""

    def grid(self, size: int = 200, margin: float = 0.15) -> tuple[Tensor, Tensor, Tensor]:
        """The coordinates (size,) of a grid around the points, and the density at each (size, size), second ones down.

        Raises `InputError` if there is no point.
        """
        first, second = (self.span(axis, size, margin) for axis in (0, 1))
        places = torch.stack(torch.meshgrid(first, second, indexing="xy"), -1).flatten(0, 1)
        return first, second, self.log_prob(places).exp().view(size, size)

    def span(self, axis: int, size: int, margin: float, more: Tensor | None = None) -> Tensor:
        """Numbers (size,) from below the points, and `more` numbers (n,), to above them along an axis."""
        along = self.points[:, axis] if more is None else torch.cat([self.points[:, axis], more])
        if not len(along):
            raise InputError("there is no test point without holes to draw")
        low, high = float(along.min()), float(along.max())
        wide = (high - low) or 1.0
        return torch.linspace(low - margin * wide, high + margin * wide, size)


@dataclass(frozen=True)
class Slice:
    """One item of which a coordinate is hidden, and draws of that coordinate from a posterior."""

    item: int
    known: float
    """The other coordinate."""
    hidden: int
    """Which coordinate is hidden, 0 or 1."""
    truth: float
    """NaN if nobody knows it."""
    draws: Tensor
    """Those that were solved (K,)."""
    failed: int = 0
    """How many were not."""


def conditional_density(log_prob: Callable[[Tensor], Tensor], known: float, hidden: int, grid: Tensor) -> Tensor:
    """p(y^H | y^O) at the numbers `grid` (n,), ascending, for one hidden coordinate of two.

    The joint density along the line, divided by its integral over the grid by the trapezium rule: exact as the grid
    grows finer and wider.
    """
    places = torch.full((len(grid), 2), known, dtype=grid.dtype)
    places[:, hidden] = grid
    log = log_prob(places).double()
    density = (log - log.max()).exp()
    return density / torch.trapezoid(density, grid.double())


def first_slice(values: Tensor, truth: Tensor, observed: Tensor, draws: Tensor) -> Slice | None:
    """The first of N items (N, 2) with one hidden coordinate whose `draws` (K, N, 2) include one that was solved."""
    solved = draws.isfinite().all(2)
    usable = (observed.sum(1) == 1) & solved.any(0)
    if not bool(usable.any()):
        return None
    item = int(usable.nonzero()[0])
    hidden = int((~observed[item]).nonzero()[0])
    mine, failed = draws[solved[:, item], item, hidden], int((~solved[:, item]).sum())
    return Slice(item, float(values[item, 1 - hidden]), hidden, float(truth[item, hidden]), mine, failed)
