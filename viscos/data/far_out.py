"""Values that stand far from all others of their column, as words for a missing value do."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from viscos.data.columns import Column, Scheme
from viscos.data.dialect import Dialect
from viscos.data.scaling import CONSTANT, Scaling

SENTINELS = (-1.0, -9.0, -99.0, -999.0, -9999.0, -99999.0, 99.0, 999.0, 9999.0, 99999.0, 999999.0)
"""Numbers by which a missing value is often written."""
DATES = (-719162.0, -25567.0, 0.0, 2932896.0)
"""The days by which a missing date is often written: 0001-01-01, 1900-01-01, 1970-01-01 and 9999-12-31."""
FAR, FAR_AS_SENTINEL = 50.0, 6.0
"""Standard deviations of the other values, from their mean."""
FAR_BEYOND_ALL = 1e6
"""Times the width of the middle half of the others: one that is not moved by a second value far out."""
LINES = 5
"""Columns of such rows that are named."""


def far_out(scheme: Scheme, numbers: Tensor, signs: Dialect) -> tuple[str, ...]:
    """Lines that name the `far_values` of the columns of numbers of a table (N, columns), NaN in holes.

    The last says the setting of `signs` by which all that were named are holes.
    """
    lines: list[str] = []
    every: list[float | str] = []
    for place, column in enumerate(scheme.columns):
        if column.categories:
            continue
        there = numbers[:, place][~numbers[:, place].isnan()].double()
        # Of numbers over several scales the largest are often many deviations out, and mean what they say.
        found = far_values(there, math.inf if column.log else FAR, DATES if column.format else SENTINELS)
        if found:
            cells = [_cell(column, value) for value in found]
            many = int(torch.isin(there, torch.tensor(found, dtype=there.dtype)).sum())
            rest = there[~torch.isin(there, torch.tensor(found, dtype=there.dtype))]
            least, most = (_cell(column, float(end), 6) for end in (rest.min(), rest.max()))
            lines.append(
                f"warning: column {column.name!r} has {' and '.join(cells)} in {many} row{'s' * (many > 1)}, far from "
                f"the others ({least} to {most})"
            )
            every += _holes(column, found)
    return _with_remedy(lines, every, signs)


def far_values(values: Tensor, far: float = FAR, sentinels: tuple[float, ...] = SENTINELS) -> list[float]:
    """The extreme values (n,) that lie far out, the farthest first; three at most.

    That is `far` deviations of the others from their mean, or fewer where it is one of `sentinels`, or
    `FAR_BEYOND_ALL`; a value may be there several times.
    """
    found: list[float] = []
    while len(found) < 3 and len(values) > 2:
        middle = values.median()
        extreme = values[(values - middle).abs().argmax()]
        rest = values[values != extreme]
        if len(rest) < 2 or not bool((rest != rest[0]).any()):
            break
        spread, away = rest.std(), (extreme - rest.mean()).abs()
        limit = FAR_AS_SENTINEL if float(extreme) in sentinels else far
        quarter = rest.quantile(0.75) - rest.quantile(0.25)
        if not bool(away > limit * spread) and not bool(away > FAR_BEYOND_ALL * quarter > 0):
            break
        found.append(float(extreme))
        values = rest
    return found


def far_from_training(scaling: Scaling, values: Tensor, signs: Dialect) -> tuple[str, ...]:
    """Lines that name what lies far from all of training in rows to complete, of entries (N, d), NaN in holes.

    That is what lies beyond what was observed there by more than the width of that range, of logarithms also in
    numbers, and of numbers what is below 0 where nothing was.
    The last line says the setting of `signs` by which all that were named are holes.
    """
    scheme, cells = scaling.scheme, scaling.scheme.decode(values)
    range_ = scheme.decode(scaling.span)
    away = _beyond(values, scaling.span, scaling.scale)[:, list(scheme.first)]
    logs = torch.tensor([column.log for column in scheme.columns])
    away = torch.where(logs, torch.maximum(away, _beyond(cells, range_, CONSTANT * range_[1])), away)
    dates = torch.tensor([bool(column.format) for column in scheme.columns])
    far = (away > 1) | ((scaling.low >= 0) & (cells < 0) & ~dates)
    lines: list[str] = []
    every: list[float | str] = []
    for place, column in enumerate(scheme.columns):
        rows = far[:, place].nonzero().flatten()
        if column.categories or not len(rows):
            continue
        found = list(dict.fromkeys(cells[rows[away[rows, place].argsort(descending=True)], place].tolist()))[:3]
        named = [_cell(column, value) for value in found]
        every += _holes(column, found) * (len(lines) < LINES)
        where = f"in {len(rows)} rows, first in row" if len(rows) > 1 else "in row"
        lines.append(
            f"warning: column {column.name!r} holds {' and '.join(named)} {where} {int(rows[0]) + 1}, far from all of "
            "training"
        )
    more = (f"warning: {len(lines) - LINES} other columns hold such values too",) if len(lines) > LINES else ()
    return _with_remedy([*lines[:LINES], *more], every, signs)


def _with_remedy(lines: list[str], values: list[float | str], signs: Dialect) -> tuple[str, ...]:
    remedy = f"if {'it means' if len(values) == 1 else 'they mean'} a missing value, say {signs.with_holes(values)}"
    return (*lines, remedy) if lines else ()


def _beyond(values: Tensor, span: Tensor, least_width: Tensor) -> Tensor:
    """How far values (N, n) lie beyond a span (2, n), in widths of it; less than 0 within it."""
    least, most = span
    return torch.maximum(least - values, values - most) / torch.maximum(most - least, least_width)


def _holes(column: Column, values: list[float]) -> list[float | str]:
    """The values as a setting of holes has them: numbers, and dates as they are written."""
    return [column.text(value) if column.format else value for value in values]


def _cell(column: Column, value: float, digits: int | None = None) -> str:
    """A number or a date for a line."""
    if column.format:
        return column.text(value)
    return repr(value).removesuffix(".0") if digits is None else f"{value:.{digits}g}"
