"""The tables that `viscos impute` leaves: the input completed, each draw of it, and what the draws say of each cell."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from viscos.commands.lines import write_lines
from viscos.core.progress import say
from viscos.data.columns import Column, Scheme
from viscos.data.dialect import Dialect
from viscos.data.scaling import Scaling
from viscos.data.sources.sheet import Cells, Sheet
from viscos.data.sources.table import Rows
from viscos.metrics.calibration import TAIL

_DIGITS = 15
"""Of a cell that is filled: a column may vary in the last ones alone, as times in milliseconds do."""
COMPLETED, DRAWS, SUMMARY, LONG, MASKED = "completed", "draws", "summary.csv", "draws_long.csv", "masked"
LEFT = (f"{COMPLETED}.*", f"{MASKED}.*", DRAWS, SUMMARY, LONG)
"""What a table leaves in the folder of a run."""
_TALLIES = ("row", "column", "value", "mean", "deviation", "low", "high", "share", "draws", "was")


@dataclass(frozen=True)
class Filled:
    """The completions of the rows of a table, as numbers that its columns may have."""

    rows: Rows
    scheme: Scheme
    mean: Tensor
    """(N, columns), NaN where no draw was solved; what it says of categories counts for nothing."""
    draws: Tensor
    """(K, N, columns), NaN where a draw failed."""
    known: Tensor
    """Where the table has a value (N, columns), bool."""
    observed: Tensor
    """Where it was used (N, columns), bool."""

    def write(self, folder: Path) -> list[str]:
        """Writes all tables; returns their names."""
        sheet = self.rows.sheet
        if sheet is None:
            return []
        kind, one = sheet.path.suffix.lower(), self.best()
        sheet, lines = sheet.with_room(self._extremes(sheet, one))
        for line in lines:
            say(line)
        names = [f"{COMPLETED}{kind}"]
        sheet.write(folder / names[0], self._cells(one, ~self.known, sheet))
        if bool((self.known & ~self.observed).any()):
            names.append(f"{MASKED}{kind}")
            sheet.write(folder / names[-1], self._cells(one, ~self.observed, sheet))
        width = max(3, len(str(len(self.draws))))
        for number, draw in enumerate(self.draws, 1):
            sheet.write(folder / DRAWS / f"draw_{number:0{width}d}{kind}", self._cells(draw, ~self.known, sheet))
        write_lines(folder / LONG, ("draw", "row", "column", "value"), self._long(sheet), sheet.dialect)
        write_lines(folder / SUMMARY, _TALLIES, self._summary(sheet), sheet.dialect)
        return [*names, f"{DRAWS}/", LONG, SUMMARY]

    def _extremes(self, sheet: Sheet, one: Tensor) -> dict[str, tuple[str, ...]]:
        """The cells, in each column that completions go to, that its type is most likely not to hold."""
        found = {}
        for place, (name, column) in enumerate(zip(self.rows.names, self._columns, strict=True)):
            hidden = ~self.observed[:, place]
            values = torch.cat([one[hidden, place], self.draws[:, hidden, place].flatten()])
            values = values[values.isfinite()].double()
            if column.categories and bool(hidden.any()):
                found[name] = column.levels
            elif len(values):
                odd = values[(values - values.round()).abs().argmax()]  # the one that is least like a whole number
                found[name] = tuple(_text(column, float(v), sheet.dialect) for v in (values.min(), values.max(), odd))
        return found

    def best(self) -> Tensor:
        """The one value for each cell (N, columns), see `best`."""
        return best(self.scheme, self.mean, self.draws)

    @functools.cached_property
    def _columns(self) -> tuple[Column, ...]:
        """The columns, with their categories as the table writes them."""
        sheet, found = self.rows.sheet, []
        assert sheet is not None
        for place, (name, column) in enumerate(zip(self.rows.names, self.scheme.columns, strict=True)):
            cells = sheet.cells(name)[self.known[:, place].numpy()]
            found.append(column.spelt(cells, sheet.dialect) if column.categories else column)
        return tuple(found)

    def _cells(self, values: Tensor, where: Tensor, sheet: Sheet) -> Cells:
        """The text of `values` (N, columns) in some cells."""
        return {
            name: np.array(
                [
                    _text(column, v, sheet.dialect) if w else None
                    for v, w in zip(*_lists(values, where, place), strict=True)
                ],
                dtype=object,
            )
            for place, (name, column) in enumerate(zip(self.rows.names, self._columns, strict=True))
            if bool(where[:, place].any())
        }

    def _hidden(self) -> Iterator[tuple[int, int, Column]]:
        for row, place in (~self.observed).nonzero().tolist():
            yield row, place, self._columns[place]

    def _long(self, sheet: Sheet) -> Iterator[tuple[object, ...]]:
        """Each draw of each hidden cell, as in the table."""
        for number, draw in enumerate(self.draws, 1):
            for row, place, column in self._hidden():
                yield number, row + 1, self.rows.names[place], _text(column, float(draw[row, place]), sheet.dialect)

    def _summary(self, sheet: Sheet) -> Iterator[tuple[object, ...]]:
        """What the draws say of each hidden cell; numbers in the signs of the table."""
        one, signs = self.best(), sheet.dialect
        for row, place, column in self._hidden():
            values = self.draws[:, row, place]
            values = values[~values.isnan()].double()
            value, name = float(one[row, place]), self.rows.names[place]
            mean = deviation = low = high = share = ""
            if column.categories:
                share = signs.number(float((values == value).double().mean()), 6) if len(values) else ""
            elif len(values):
                mean = _text(column, float(self.mean[row, place]), signs)
                deviation = signs.number(float(values.std())) if len(values) > 1 else ""
                low, high = (_text(column, end, signs) for end in interval(values))
            was = str(sheet.cells(name)[row]) if bool(self.known[row, place]) else ""
            told = _text(column, value, signs), mean, deviation, low, high, share
            yield (row + 1, name, *told, len(values), was)


def interval(draws: Tensor) -> tuple[float, float]:
    """The i-th smallest and i-th largest of draws (K,), with the largest i for which they cover 90 % or more.

    A further draw lies between them with probability 1 − 2i/(K + 1), whatever its law; NaN for fewer than 19.
    """
    order = math.floor(TAIL * (len(draws) + 1))
    ordered = draws.sort().values.tolist()
    return (ordered[order - 1], ordered[-order]) if order else (math.nan, math.nan)


def best(scheme: Scheme, mean: Tensor, draws: Tensor) -> Tensor:
    """The one value for each cell (N, columns): of numbers the `mean`, of categories the most frequent of the `draws`.

    `mean` (N, columns) and `draws` (K, N, columns) are NaN where no draw, or this one, was solved.
    """
    found = mean.clone()
    for place, column in enumerate(scheme.columns):
        if column.categories:
            found[:, place] = _frequent(draws[..., place])
        elif column.whole:
            found[:, place] = found[:, place].round()
    return found


def clamped(scaling: Scaling, drawn: Tensor, observed: Tensor) -> str:
    """A line: in which columns draws (K, N, d) of the model were moved to a value that the column may have, if any.

    `observed` (N, columns) is bool.
    """
    moved = (scaling.cells(drawn)[1] & ~observed).flatten(0, 1).sum(0)
    total = (~observed).sum(0) * len(drawn)
    counts = zip(scaling.scheme.names, moved.tolist(), total.tolist(), strict=True)
    found = [f"{name} ({many} of {all})" for name, many, all in counts if many]
    return f"draws moved to the nearest value that the column may have: {', '.join(found)}" if found else ""


def _lists(values: Tensor, where: Tensor, place: int) -> tuple[list[float], list[bool]]:
    return values[:, place].tolist(), where[:, place].tolist()


def _text(column: Column, value: float, signs: Dialect) -> str:
    """A value as a cell of a table in these signs, empty if there is none."""
    if not math.isfinite(value):
        return ""
    if column.categories or column.format:
        return column.text(value)
    return signs.number(value + 0.0, _DIGITS)  # of −0 it makes 0


def _frequent(draws: Tensor) -> Tensor:
    """The most frequent number of (K, N) whole ones (N,); NaN where there is none, and the least of equals."""
    most = int(draws.nan_to_num(0).max()) + 1 if draws.numel() else 1
    counts = torch.stack([(draws == code).sum(0) for code in range(most)])
    return torch.where(counts.amax(0) > 0, counts.argmax(0).to(draws.dtype), math.nan)
