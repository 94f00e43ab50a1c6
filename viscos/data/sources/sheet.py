"""CSV files: a header, and rows of cells that stay as they were written."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from viscos.core import atomic
from viscos.core.errors import InputError
from viscos.core.typed import typed

HOLES = ("", "na", "n/a", "nan", "null", "none", "?")
"""What stands in a cell without a value, in capitals or not."""


@dataclass(frozen=True)
class Sheet:
    """A CSV file as text."""

    path: Path
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    delimiter: str

    @classmethod
    def read(cls, path: Path) -> Sheet:
        """Comma, semicolon or tab between cells, whichever the header has most of; blank lines are passed over.

        Raises `InputError` for a file that cannot be read, a header without names or with a name twice, or a row of
        another length.
        """
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                first = re.sub(r'"[^"]*"', "", file.readline())
                file.seek(0)
                delimiter = max(",;\t", key=first.count)
                lines = [tuple(line) for line in csv.reader(file, delimiter=delimiter, strict=True) if line]
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{path} cannot be read as CSV: {' '.join(str(error).split())}") from error
        if not lines:
            raise InputError(f"{path} is empty; give a header with the columns' names, and rows below it")
        header = tuple(name.strip() for name in lines[0])
        _check(path, header, lines[1:])
        return cls(path, header, tuple(lines[1:]), delimiter)

    def head(self, limit: int | None) -> Sheet:
        """The first `limit` rows."""
        return Sheet(self.path, self.header, self.rows[:limit], self.delimiter)

    def numbers(self, columns: Sequence[str]) -> Tensor:
        """The columns (N, d), float64, NaN in their holes. Raises `InputError` for text, naming its column and row."""
        places = [(name, self.header.index(name)) for name in columns]
        cells = [[self._number(row, name, place) for name, place in places] for row in range(len(self.rows))]
        return torch.tensor(cells, dtype=torch.float64).view(len(self.rows), len(places))

    def labels(self, column: str | None) -> tuple[Tensor | None, int]:
        """The column as classes (N,), int64, numbered in the order of their names or numbers; and how many."""
        if column is None:
            return None, 0
        place = self.header.index(column)
        cells = [row[place].strip() for row in self.rows]
        for row, cell in enumerate(cells):
            if cell.lower() in HOLES:
                raise InputError(f"{self.path}: the label in column {column!r}, row {row + 1}, is missing")
        names = sorted(set(cells), key=lambda cell: (_float(cell) is None, _float(cell) or 0.0, cell))
        numbers = {name: number for number, name in enumerate(names)}
        return torch.tensor([numbers[cell] for cell in cells]), len(names)

    def write(self, path: Path, columns: Sequence[str], values: Tensor, observed: Tensor) -> Path:
        """Writes the sheet with `values` (N, d) in those cells of `columns` that are not `observed` (N, d).

        All other cells keep their text. A value that is not finite leaves its cell empty.
        """
        places = [self.header.index(name) for name in columns]
        rows = [list(row) for row in self.rows]
        for item, entry in (~observed).nonzero().tolist():
            value = float(values[item, entry])
            rows[item][places[entry]] = f"{value:.12g}" if math.isfinite(value) else ""

        def writer(temporary: Path) -> None:
            with temporary.open("w", newline="", encoding="utf-8") as file:
                sheet = csv.writer(file, delimiter=self.delimiter, lineterminator="\n")
                sheet.writerows([self.header, *rows])

        return atomic.write(path, writer)

    def _number(self, row: int, name: str, place: int) -> float:
        cell = self.rows[row][place].strip()
        if cell.lower() in HOLES:
            return math.nan
        number = _float(cell)
        if number is None or not math.isfinite(number):
            what = f"holds {cell!r} in row {row + 1}, which is no finite number"
            raise InputError(
                f"{self.path}: column {name!r} {what}; leave the column out ({typed('dataset.drop', [name])} in "
                "training), "
                "or leave the cell empty where the value is missing"
            )
        return number


def _float(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _check(path: Path, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    if all(_float(name) is not None for name in header):
        raise InputError(f"{path} begins with numbers; give it a header, a line with the columns' names")
    for place, name in enumerate(header):
        if not name:
            raise InputError(f"{path}: column {place + 1} has no name in the header; name it, or leave it out")
        if name in header[:place]:
            raise InputError(f"{path} has two columns {name!r}; give each its own name")
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise InputError(f"{path}: row {number} has {len(row)} cells, and the header {len(header)}")
