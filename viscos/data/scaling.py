"""Columns of a table, each moved and scaled so that a model sees them all alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.typed import typed
from viscos.data.columns import Column, Scheme
from viscos.data.dialect import Dialect
from viscos.data.items import Data, Units
from viscos.data.vectors import Vectors

CONSTANT = 0.01
"""Scale of a constant column, as a share of its value, so that nothing is divided by zero."""
_LARGEST = 3.5e38
"""Just above what single precision holds."""
UNITS = Units(
    "standard deviations of each column's observed training values",
    "columns less their mean, over their standard deviation, both of observed training values",
)


@dataclass(frozen=True)
class Scaling:
    """x ↦ (x − center) / scale for each entry, in float64: large numbers with small differences keep them.

    It also knows what the entries are of the columns of a table, and what values these may have.
    """

    scheme: Scheme
    center: Tensor
    """(d,), float64."""
    scale: Tensor
    """(d,), float64, positive."""
    constant: tuple[str, ...]
    """Those of `columns` that have one observed value alone."""
    low: Tensor
    """(columns,), float64: what a completion is never below."""
    high: Tensor
    """(columns,), float64: what a completion is never above."""
    span: Tensor
    """(2, d), float64: the least and the greatest that was observed."""

    @classmethod
    def fit(cls, data: Vectors, observed: Tensor) -> Scaling:
        """Takes mean and standard deviation of the entries that `observed` (bool, N, d) marks, some in each column.

        Raises `InputError`, naming the column, for values beyond single precision.
        """
        count, values = observed.sum(0), data.values.double()
        scheme = data.scheme or Scheme(tuple(map(Column, data.columns)))
        largest = torch.where(observed, values.abs(), 0).amax(0)
        for place in (largest > _LARGEST).nonzero().flatten().tolist():
            cell = f"{float(largest[place]):.3g}"
            raise InputError(
                f"{data.column(place)} holds values as large as {cell}, beyond single precision; divide the column, "
                f"leave such cells empty, or say that they are, {typed('dataset.holes', [cell])}"
            )
        center = torch.where(observed, values, 0).sum(0) / count
        scale = (torch.where(observed, values - center, 0).square().sum(0) / count).sqrt()
        # By the values themselves: the mean of equal numbers need not be that number, nor their deviation 0.
        low, high = (torch.where(observed, values, fill) for fill in (torch.inf, -torch.inf))
        low, high = low.amin(0), high.amax(0)
        constant = (low == high) | (scale == 0)
        size = torch.where(center == 0, 1.0, center.abs())
        names = tuple(name for name, same in zip(data.columns, constant.tolist(), strict=True) if same)
        groups = torch.tensor(scheme.groups)
        # One of several entries of a category: a level that was never seen, which a test cell may have all the same.
        level = (groups[:, None] == groups).sum(1) > 1
        scale = torch.where(constant, torch.where(level, 1.0, CONSTANT * size), scale)
        return cls(scheme, center, scale, names, *_bounds(scheme, low, high), torch.stack([low, high]))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the entries."""
        return self.scheme.entries

    @property
    def log_scale(self) -> float:
        """Σ log scale: a log-density per scaled unit, less this, is one in the columns' own units."""
        return float(self.scale.log().sum())

    def standardise(self, values: Tensor | np.ndarray) -> Tensor:
        """Values (…, d) in the columns' own units as the model takes them, float32; NaN stays.

        Raises `InputError` for a number that is too far out for single precision.
        """
        values = torch.as_tensor(values).double()
        scaled = ((values - self.center) / self.scale).float()
        lost = (scaled.isinf() & values.isfinite()).reshape(-1, scaled.shape[-1])
        if bool(lost.any()):
            row, place = lost.nonzero()[0].tolist()
            value = float(values.reshape(lost.shape)[row, place])
            raise InputError(
                f"column {self.columns[place]!r} has {value:g} in row {row + 1}, counted from 1, too far from the rows "
                "of training for single precision; leave such a cell empty"
            )
        return scaled

    def restore(self, values: Tensor | np.ndarray) -> Tensor:
        """Values (…, d) of the model in the columns' own units, float64."""
        return torch.as_tensor(values).double().cpu() * self.scale + self.center

    def cells(self, values: Tensor, rounded: bool = True) -> tuple[Tensor, Tensor]:
        """Values (…, d) of the model as numbers that the columns may have (…, columns), float64; and which were moved.

        Categories by their number and whole numbers are the nearest, and all are moved into the column's range, which
        of a constant one counts as no move. Means of whole numbers, which are none, are not to be `rounded`.
        """
        found = self.scheme.decode(self.restore(values))
        whole = torch.tensor([column.whole and rounded for column in self.scheme.columns])
        found = torch.where(whole, found.round(), found)
        kept = torch.minimum(torch.maximum(found, self.low), self.high)
        return kept, (kept != found) & (self.low < self.high) & ~found.isnan()

    def known(self, observed: Tensor) -> Tensor:
        """What is known of entries (…, d) as what is known of columns (…, columns)."""
        return observed[..., list(self.scheme.first)]

    def aligned(self, data: Vectors) -> Vectors:
        """The data with the entries and categories of training; raises `InputError` as `standardised` does."""
        same = data.scheme is None or data.scheme == self.scheme
        return data if same else _as_in_training(data, data.scheme, self.scheme)

    def standardised(self, data: Vectors) -> Vectors:
        """The data as the model takes them, with what is needed to report errors in the columns' own units.

        Raises `InputError` for a table with other columns or categories than this scaling was fitted to.
        """
        data = self.aligned(data)
        units = replace(UNITS, columns=self.columns, scales=tuple(self.scale.tolist()))
        return replace(data, values=self.standardise(data.values), units=units)

    def state(self) -> dict[str, Any]:
        """The scaling as plain containers and tensors."""
        numbers = {key: getattr(self, key) for key in ("center", "scale", "low", "high", "span")}
        return {"constant": list(self.constant), "scheme": self.scheme.state(), **numbers}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Scaling:
        """What `state` gave."""
        center, scale, *known = (state[key].cpu() for key in ("center", "scale", "low", "high", "span"))
        return cls(Scheme.from_state(state["scheme"]), center, scale, tuple(state["constant"]), *known)


def _bounds(scheme: Scheme, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The ranges of columns (columns,) by the observed ones of their entries (d,).

    Whole numbers, dates, and what is constant, are within what was observed; others of one sign are no nearer to 0 than
    those observed, and shares, all in [0, 1], no greater than 1. What is learnt by its logarithm is positive of itself.
    """
    lows, highs = [], []
    least_, most_ = (scheme.decode(bound).tolist() for bound in (low, high))
    for column, least, most in zip(scheme.columns, least_, most_, strict=True):
        if column.categories:
            least, most = -math.inf, math.inf
        elif not (column.whole or column.format) and least < most:
            most = 1.0 if least >= 0 and most <= 1 else most if most <= 0 else math.inf
            least = 0.0 if column.log else least if least >= 0 else -math.inf
        lows.append(least)
        highs.append(most)
    return torch.tensor(lows, dtype=torch.float64), torch.tensor(highs, dtype=torch.float64)


def _as_in_training(data: Vectors, theirs: Scheme | None, ours: Scheme) -> Vectors:
    """A table that is read anew, and may have changed, by the scheme of training.

    What a column that is as in training holds stays bit for bit, for by that a row of training is known again.
    """
    assert theirs is not None
    if sorted(theirs.names) != sorted(ours.names):
        raise InputError(
            f"{data.name!r} has the columns {', '.join(theirs.names)}, and the run was trained on "
            f"{', '.join(ours.names)}"
        )
    if theirs.names != ours.names:
        data = _in_order(data, theirs, ours.names)
        theirs = Scheme(tuple(theirs.columns[theirs.names.index(name)] for name in ours.names))
    numbers = theirs.decode(data.values)
    for place, (found, wanted) in enumerate(zip(theirs.columns, ours.columns, strict=True)):
        if found.levels == wanted.levels and found.format == wanted.format:
            continue  # numbers by their logarithm or not are the same numbers
        written = np.array([_text(found, value) for value in numbers[:, place].tolist()], dtype=object)
        fresh = wanted.numbers(written) if wanted.levels or wanted.format else Dialect().numbers(written)
        if (np.isnan(fresh) & ~numbers[:, place].isnan().numpy()).any():
            raise InputError(f"column {wanted.name!r} of {data.name!r} holds other kinds of values than in training")
        numbers[:, place] = torch.from_numpy(fresh)
    values = ours.encode(numbers)
    for number, (found, wanted) in enumerate(zip(theirs.columns, ours.columns, strict=True)):
        if (found.levels, found.format, found.log) == (wanted.levels, wanted.format, wanted.log):
            values[:, _of(ours, number)] = data.values[:, _of(theirs, number)]
    return replace(data, values=values, columns=ours.entries, scheme=ours)


def _of(scheme: Scheme, number: int) -> Tensor:
    """The entries of a column."""
    return torch.tensor(scheme.groups) == number


def _in_order(data: Vectors, scheme: Scheme, names: Sequence[str]) -> Vectors:
    """A table whose columns, of `scheme`, stand in the order of `names`."""
    order = [scheme.names.index(name) for name in names]
    entries = torch.cat([_of(scheme, number).nonzero().flatten() for number in order])
    return replace(data, values=data.values[:, entries])


def _text(column: Column, value: float) -> str:
    if value != value:
        return ""
    return column.text(value) if column.levels or column.format else repr(value)


def fit_scaling(data: Data, observed: Tensor) -> Scaling | None:
    """The scaling of a table by its observed training entries; None for images, and for points in a space.

    Raises `InputError` for an entry of a vector that is observed nowhere.
    """
    if not isinstance(data, Vectors):
        return None
    never = ~observed.any(0)
    if bool(never.any()):
        empty = data.column(int(never.nonzero()[0]))
        raise InputError(f"nothing of {empty} is observed in the training data, so there is nothing to learn of it")
    return Scaling.fit(data, observed) if data.columns else None


def standardised(data: Data, scaling: Scaling | None) -> Data:
    """The data as the model takes them."""
    if not isinstance(data, Vectors):
        return data
    return replace(data, values=data.values.float()) if scaling is None else scaling.standardised(data)
