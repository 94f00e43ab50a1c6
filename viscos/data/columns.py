"""Columns of a table: what their cells mean as numbers, and how a number is written in a cell."""

from __future__ import annotations

import datetime
import functools
import math
import re
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.data.dialect import PLAIN, Dialect

MOST = 50
"""Categories that a column may have."""
FORMATS = (
    *("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y"),
    *("%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%d.%m.%Y %H:%M"),
    *("%d.%m.%Y %H:%M:%S", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M"),
)
"""How dates may be written, for `datetime.strptime`: with the century, which nobody can guess of births."""
POSITIVE = "but is learnt by its logarithm, so its numbers are above 0"
"""Of a column that holds another number, for messages."""
_LIKE_DATE = re.compile(r"\d[-/. ](\d{1,2}|[^\W\d]{3,9})[-/., ]+\d|\d:\d\d")
_PADDED = re.compile(r"0\d+")
_DAY = 86400
_BEGIN = datetime.datetime(1970, 1, 1)
_FIRST, _LAST = datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59)


@dataclass(frozen=True)
class Column:
    """One column: real numbers, unless one of these says more."""

    name: str
    whole: bool = False
    """Whether all its numbers are whole."""
    levels: tuple[str, ...] = ()
    """Of a column of categories, which number k stands for the k-th."""
    format: str = ""
    """Of a column of dates, as days since 1970."""
    log: bool = False
    """Whether its entry is the logarithm of its numbers, which are positive."""

    @property
    def categories(self) -> bool:
        """Whether its numbers stand for categories."""
        return bool(self.levels)

    def numbers(self, cells: np.ndarray, signs: Dialect = PLAIN) -> np.ndarray:
        """Cells of text (N,) of categories or dates as numbers, float64; NaN for what is none.

        A number in these `signs` is the category of that number, however it is written: 1.0 is 1.
        """
        if self.format:
            return np.array([_days(cell, self.format) for cell in cells])
        codes = {level: float(code) for code, level in enumerate(self.levels)}
        alike = {value: codes[level] for level, value in zip(self.levels, self._values(signs), strict=True)}
        read = signs.numbers(cells).tolist()  # NaN equals nothing, so what is no number is nowhere in `alike`
        return np.array([codes.get(cell, alike.get(v, math.nan)) for cell, v in zip(cells, read, strict=True)])

    def _values(self, signs: Dialect) -> list[float]:
        """The levels as numbers: in these signs, else in those that the file of training may have had."""
        each = (signs.numbers(np.array(self.levels)) for signs in (signs, PLAIN, Dialect(decimal=",")))
        values: list[float] = functools.reduce(lambda a, b: np.where(np.isnan(a), b, a), each).tolist()
        return values

    def text(self, value: float) -> str:
        """A category or a date as a cell; of days before the year 1 or after 9999 the nearest date that there is."""
        if self.format:
            unit = 1 if "%S" in self.format else 60 if "%H" in self.format else _DAY
            least, most = ((end - _BEGIN).total_seconds() // unit for end in (_FIRST, _LAST))
            many = min(max(round(value * _DAY / unit), least), most)
            return self.date(_BEGIN + datetime.timedelta(seconds=many * unit))
        return self.levels[int(value)]

    def date(self, date: datetime.date) -> str:
        """A date, with a time or without, as a cell of a column of dates.

        The year has four digits, of which `strftime` leaves out leading zeros on some systems.
        """
        return date.strftime(self.format.replace("%Y", f"{date.year:04d}"))

    def spelt(self, cells: np.ndarray, signs: Dialect) -> Column:
        """The column with its categories written as most of the cells (n,) of a table in these `signs` write them.

        One that no cell has is written as in training; if all are numbers, with the decimal sign of `signs`.
        """
        codes, levels = self.numbers(cells, signs), np.array(self.levels, dtype=object)
        if not np.isnan(self._values(signs)).any():
            foreign = np.isnan(signs.numbers(levels))
            levels[foreign] = [v.replace("." if signs.decimal == "," else ",", signs.decimal) for v in levels[foreign]]
        return replace(self, levels=tuple(_most(cells[codes == k]) or level for k, level in enumerate(levels)))

    @property
    def about(self) -> str:
        """What it is, in words; empty of real numbers as they are."""
        kind = f"{len(self.levels)} categories" if self.levels else "dates" if self.format else ""
        kind = "whole numbers" if self.whole else kind
        return ", ".join(filter(None, (kind, "by logarithm" if self.log else "")))

    def state(self) -> dict[str, Any]:
        """The column as plain containers."""
        return asdict(self) | {"levels": list(self.levels)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Column:
        """What `state` gave."""
        return cls(**(state | {"levels": tuple(state["levels"])}))


def column_of_numbers(
    name: str, values: np.ndarray, cells: np.ndarray | None = None, categories: bool = False
) -> tuple[Column, np.ndarray]:
    """The column that the numbers (N,), NaN in holes, are of, and they as it has them.

    They are categories where they are 0 and 1 alone, or are few and some of their `cells` (N,), text, look like codes;
    with `categories` always. Each is written as in most of its cells. Raises `InputError` for too many of them.
    """
    known = ~np.isnan(values)
    there = values[known]
    found = np.unique(there)
    flags = len(found) == 2 and bool((found == [0, 1]).all())
    codes = cells is not None and _few(len(found), len(there)) and bool(padded(cells[known]))
    if categories or flags or codes:
        if len(found) > MOST:
            raise InputError(f"column {name!r} has {len(found)} different numbers; at most {MOST} can be categories")
        column = Column(name, levels=tuple(_written(value, values, cells) for value in found))
        return column, np.where(known, np.searchsorted(found, values).astype(np.float64), math.nan)
    return Column(name, whole=bool(len(there) and (there == np.round(there)).all())), values


def padded(cells: np.ndarray) -> str:
    """The first of the cells that looks like a code: digits of which the first is 0; empty if none does."""
    return next((cell for cell in cells if _PADDED.fullmatch(cell)), "")


def _written(value: float, values: np.ndarray, cells: np.ndarray | None) -> str:
    if cells is None:
        return level_of(value)
    return _most(cells[values == value])


def level_of(value: float) -> str:
    """A number as a category of a table without text: to 12 digits, or all if it needs more."""
    short = f"{value:.12g}"
    return short if float(short) == value else repr(float(value))


def _most(cells: np.ndarray) -> str:
    """The most frequent of the cells, the first of equals; empty of none."""
    return next((cell for cell, _ in Counter(cells.tolist()).most_common(1)), "")


def _few(different: int, rows: int) -> bool:
    return different <= min(MOST, max(2, rows // 2))


def column_of_text(name: str, cells: np.ndarray, categories: bool = False) -> Column:
    """The column that the cells (n,), none of them empty, are of: dates, or categories in the order of the alphabet.

    With `categories`, dates are categories too. Raises `InputError` for dates that can be read in two ways, and for
    more different texts than categories may be.
    """
    different = sorted(set(cells))
    fit = (each for each in FORMATS if not any(math.isnan(_days(cell, each)) for cell in different))
    formats = [] if categories else list(fit)
    if len(formats) > 1:
        raise InputError(
            f"column {name!r} has dates such as {different[0]!r}, whose day and month cannot be told apart; "
            "write them like 2024-12-31"
        )
    if formats:
        return Column(name, format=formats[0])
    if not _few(len(different), len(cells)):
        dates = bool(_LIKE_DATE.search(different[0]))
        raise InputError(
            f"column {name!r} holds {len(different)} different texts in {len(cells)} rows, such as {different[0]!r}, "
            "which is too many for categories"
            + "; dates are read if all are written alike, as 2024-12-31, 31.12.2024 or 2024-12-31 14:30"
            * dates
        )
    return Column(name, levels=tuple(different))


def _days(cell: str, format: str) -> float:
    try:
        return (datetime.datetime.strptime(cell, format) - _BEGIN).total_seconds() / _DAY
    except ValueError:
        return math.nan


@dataclass(frozen=True)
class Scheme:
    """The columns of a table as entries of a vector, and back.

    A column of numbers or dates is one entry, some numbers by their logarithm, and so is one of two categories, as 0
    and 1. One of C > 2 categories is C entries, of which that of its category is 1 and the others 0; they are known
    together or not at all.
    """

    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the entries (d,)."""
        return tuple(name for column in self.columns for name in _entries(column))

    @property
    def groups(self) -> tuple[int, ...]:
        """The number of the column that an entry is of (d,)."""
        return tuple(number for number, column in enumerate(self.columns) for _ in _entries(column))

    @property
    def first(self) -> tuple[int, ...]:
        """The number of the first entry of each column."""
        groups = self.groups
        return tuple(groups.index(number) for number in range(len(self.columns)))

    def about(self) -> tuple[str, ...]:
        """A line on the columns that are not of real numbers, if there are any."""
        found = [f"{column.name} ({column.about})" for column in self.columns if column.about]
        return (f"columns: {', '.join(found[:20])}{', …' * (len(found) > 20)}",) if found else ()

    def encode(self, numbers: Tensor | np.ndarray) -> Tensor:
        """Numbers (…, columns), NaN in holes, as entries (…, d), float64.

        Raises `InputError` for a number without a logarithm in a column that has them, and for one of no category in a
        column of several.
        """
        parts, numbers = [], torch.as_tensor(numbers)
        for number, column in enumerate(self.columns):
            values = numbers[..., number, None].double()
            if (many := len(_entries(column))) > 1:
                hot = values == torch.arange(many)
                if bool((strange := ~hot.any(-1, keepdim=True) & ~values.isnan()).any()):
                    raise InputError(
                        f"column {column.name!r} holds {float(values[strange][0]):.12g}, but its categories are "
                        f"numbered from 0 to {many - 1}"
                    )
                values = torch.where(values.isnan(), values, hot.double())
            if column.log:
                if bool((values <= 0).any()):
                    raise InputError(
                        f"column {column.name!r} holds {float(values.nan_to_num(1).min()):.12g}, {POSITIVE}"
                    )
                values = values.log()
            parts.append(values)
        return torch.cat(parts, -1)

    def decode(self, values: Tensor | np.ndarray) -> Tensor:
        """Entries (…, d) as numbers (…, columns), the nearest category of categories; NaN where an entry is NaN."""
        parts, at, values = [], 0, torch.as_tensor(values)
        for column in self.columns:
            many = len(_entries(column))
            own = values[..., at : at + many]
            at += many
            if many > 1:
                found = torch.where(own.isnan().any(-1), math.nan, own.nan_to_num().argmax(-1).to(own.dtype))
            else:
                found = own[..., 0]
                found = found.round().clamp(0, len(column.levels) - 1) if column.levels else found
                found = _exp(found) if column.log else found
            parts.append(found)
        return torch.stack(parts, -1)

    def state(self) -> list[dict[str, Any]]:
        """The scheme as plain containers."""
        return [column.state() for column in self.columns]

    @classmethod
    def from_state(cls, state: list[dict[str, Any]]) -> Scheme:
        """What `state` gave."""
        return cls(tuple(map(Column.from_state, state)))


def _entries(column: Column) -> tuple[str, ...]:
    if len(column.levels) <= 2:
        return (f"log {column.name}" if column.log else column.name,)
    return tuple(f"{column.name}={level}" for level in column.levels)


def _exp(logs: Tensor) -> Tensor:
    """e^x (…), to 13 digits: numbers of no more come back from their logarithms bit for bit."""
    written = [float(f"{value:.13g}") for value in logs.exp().flatten().tolist()]
    return torch.tensor(written, dtype=logs.dtype).view_as(logs)
