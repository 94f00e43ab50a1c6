"""The tables that `viscos impute` leaves: the input completed, each draw of it, and what the draws say of each cell."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from viscos.core import atomic
from viscos.data.columns import Column, Scheme
from viscos.data.scaling import Scaling
from viscos.data.sources.sheet import Cells
from viscos.data.sources.table import Rows

SHARE = 0.9
"""Of the intervals in the summary."""
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
        kind, best = sheet.path.suffix.lower(), self.best()
        names = [f"{COMPLETED}{kind}"]
        sheet.write(folder / names[0], self._cells(best, ~self.known))
        if bool((self.known & ~self.observed).any()):
            names.append(f"{MASKED}{kind}")
            sheet.write(folder / names[-1], self._cells(best, ~self.observed))
        width = max(3, len(str(len(self.draws))))
        for number, draw in enumerate(self.draws, 1):
            sheet.write(folder / DRAWS / f"draw_{number:0{width}d}{kind}", self._cells(draw, ~self.known))
        _write_lines(folder / LONG, ("draw", "row", "column", "value"), self._long())
        _write_lines(folder / SUMMARY, _TALLIES, self._summary())
        return [*names, f"{DRAWS}/", LONG, SUMMARY]

    def best(self) -> Tensor:
        """The one value for each cell (N, columns): of numbers the mean, of categories the most frequent one."""
        best = self.mean.clone()
        for place, column in enumerate(self.scheme.columns):
            if column.categories:
                best[:, place] = _frequent(self.draws[..., place])
            elif column.whole:
                best[:, place] = best[:, place].round()
        return best

    def _cells(self, values: Tensor, where: Tensor) -> Cells:
        """The text of `values` (N, columns) in some cells."""
        return {
            name: np.array(
                [self._text(column, v) if w else None for v, w in zip(*_lists(values, where, place), strict=True)],
                dtype=object,
            )
            for place, (name, column) in enumerate(zip(self.rows.names, self.scheme.columns, strict=True))
            if bool(where[:, place].any())
        }

    def _text(self, column: Column, value: float) -> str:
        if not math.isfinite(value):
            return ""
        if column.categories or column.format:
            return column.text(value)
        assert self.rows.sheet is not None
        return self.rows.sheet.dialect.number(value + 0.0)  # of −0 it makes 0

    def _hidden(self) -> Iterator[tuple[int, int, Column]]:
        for row, place in (~self.observed).nonzero().tolist():
            yield row, place, self.scheme.columns[place]

    def _long(self) -> Iterator[tuple[object, ...]]:
        """Each draw of each hidden cell; numbers with a point, dates and categories as in the table."""
        for number, draw in enumerate(self.draws, 1):
            for row, place, column in self._hidden():
                yield number, row + 1, self.rows.names[place], _plain(column, float(draw[row, place]))

    def _summary(self) -> Iterator[tuple[object, ...]]:
        """What the draws say of each hidden cell."""
        best, tail = self.best(), (1 - SHARE) / 2
        for row, place, column in self._hidden():
            values = self.draws[:, row, place]
            values = values[~values.isnan()].double()
            value, number = float(best[row, place]), lambda x, column=column: _plain(column, float(x))
            mean = deviation = low = high = share = ""
            if column.categories:
                share = f"{float((values == value).double().mean()):.6g}" if len(values) else ""
            elif len(values):
                mean = number(self.mean[row, place]) if not column.whole else f"{float(self.mean[row, place]):.12g}"
                deviation = f"{float(values.std()):.12g}" if len(values) > 1 else ""
                low, high = (number(torch.quantile(values, q)) for q in (tail, 1 - tail))
            was = self._was(row, place)
            yield (
                row + 1,
                self.rows.names[place],
                _plain(column, value),
                mean,
                deviation,
                low,
                high,
                share,
                len(values),
                was,
            )

    def _was(self, row: int, place: int) -> str:
        """The cell of the table, if it has a value."""
        assert self.rows.sheet is not None
        return str(self.rows.sheet.cells(self.rows.names[place])[row]) if bool(self.known[row, place]) else ""


def clamped(scaling: Scaling, drawn: Tensor, observed: Tensor) -> str:
    """A line: in which columns draws (K, N, d) of the model were moved into the range of training, if any were.

    `observed` (N, columns) is bool.
    """
    moved = (scaling.cells(drawn)[1] & ~observed).flatten(0, 1).sum(0)
    total = (~observed).sum(0) * len(drawn)
    counts = zip(scaling.scheme.names, moved.tolist(), total.tolist(), strict=True)
    found = [f"{name} ({many} of {all})" for name, many, all in counts if many]
    return f"draws moved into the range of training: {', '.join(found)}" if found else ""


def _lists(values: Tensor, where: Tensor, place: int) -> tuple[list[float], list[bool]]:
    return values[:, place].tolist(), where[:, place].tolist()


def _plain(column: Column, value: float) -> str:
    if not math.isfinite(value):
        return ""
    return column.text(value) if column.categories or column.format else f"{value + 0.0:.12g}"


def _frequent(draws: Tensor) -> Tensor:
    """The most frequent number of (K, N) whole ones (N,); NaN where there is none, and the least of equals."""
    most = int(draws.nan_to_num(0).max()) + 1 if draws.numel() else 1
    counts = torch.stack([(draws == code).sum(0) for code in range(most)])
    return torch.where(counts.amax(0) > 0, counts.argmax(0).to(draws.dtype), math.nan)


def _write_lines(path: Path, header: tuple[str, ...], lines: Iterator[tuple[object, ...]]) -> None:
    def writer(temporary: Path) -> None:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            sheet = csv.writer(file, lineterminator="\n")
            sheet.writerow(header)
            sheet.writerows(lines)

    atomic.write(path, writer)
