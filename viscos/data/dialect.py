"""How the numbers and holes of a table of text are written."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from viscos.core.errors import InputError
from viscos.core.typed import typed

HOLES = ("", "na", "n/a", "nan", "null", "none", "?")
"""What stands in a cell without a value, in capitals or not."""
SIGNS = ("delimiter", "decimal", "thousands", "encoding", "holes")
"""The settings of a dialect."""
_WRITTEN_OUT = 1e22
"""Below this a whole number is written in full."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_FIRST_GROUP = re.compile(r"[+-]?[1-9]\d{0,2}")
"""Of digits, where a sign for thousands follows."""
_MARKS = {"utf-8-sig": b"\xef\xbb\xbf", "utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}
_WITHOUT_MARK = {"utf-8-sig": "utf-8", "utf-16": "utf-16-le", "utf16": "utf-16-le"}
"""Encodings that would write a mark of their own."""


@dataclass(frozen=True)
class Dialect:
    """The signs of a table: those that are None are found out, or are not there."""

    delimiter: str | None = None
    """Between cells; None: comma, semicolon or tab, whichever the header has most of."""
    decimal: str = "."
    thousands: str | None = None
    """Between groups of three digits."""
    encoding: str | None = None
    """None: UTF-8, or what a byte-order mark says."""
    holes: tuple[str, ...] = ()
    """What means a missing value beside `HOLES`: words, or numbers such as -999 however they are written."""
    prefix: str = "dataset."
    """What stands before the names of these settings, for messages."""

    def __post_init__(self) -> None:
        if self.delimiter == "tab":  # a shell has no word for it
            object.__setattr__(self, "delimiter", "\t")
        for other in ("thousands", "delimiter"):
            if getattr(self, other) == self.decimal:
                both = f"{self.prefix}decimal and {self.prefix}{other}"
                raise InputError(f"{both} are both {self.decimal!r}; give two signs")

    def decode(self, data: bytes, name: str) -> tuple[str, str, bytes]:
        """The text of a file, its encoding, and its byte-order mark; raises `InputError` for bytes that are no text."""
        mark, encoding = next(((mark, key) for key, mark in _MARKS.items() if data.startswith(mark)), (b"", "utf-8"))
        if not mark:
            encoding = self.encoding or encoding
        encoding = _WITHOUT_MARK.get(encoding.lower(), encoding)
        try:
            return data[len(mark) :].decode(encoding), encoding, mark
        except LookupError:
            raise InputError(
                f"{self.prefix}encoding={encoding}: there is no such encoding; common ones are utf-8, latin-1, cp1252, "
                "utf-16"
            ) from None
        except UnicodeDecodeError as error:
            other = typed(f"{self.prefix}encoding", "utf-16" if b"\0" in data[:100] else "latin-1")
            raise InputError(
                f"{name} is no {encoding} (byte {error.start}): save it as UTF-8, or say its encoding, e.g. {other}"
            ) from None

    def empty(self, cells: np.ndarray) -> np.ndarray:
        """Which cells (N,), text without spaces around it, hold no value: bool."""
        words = {word.lower() for word in (*HOLES, *self.holes)}
        plain = Dialect()  # a number that was typed has a point, whatever sign the table has
        read = (own if math.isfinite(own := self._number(word)) else plain._number(word) for word in self.holes)
        numbers = {number for number in read if math.isfinite(number)}
        return np.array([cell.lower() in words or (bool(numbers) and self._number(cell) in numbers) for cell in cells])

    def numbers(self, cells: np.ndarray) -> np.ndarray:
        """The cells (N,), text without spaces around it, as float64; NaN for what is no finite number."""
        return np.array([self._number(cell) for cell in cells], dtype=np.float64)

    def number(self, value: float, digits: int = 12) -> str:
        """A number as a cell, to so many digits; whole ones below 1e22 are written out."""
        if float(value).is_integer() and abs(value) < _WRITTEN_OUT:
            return f"{value:.0f}"
        whole = len(f"{abs(value):.0f}")
        return f"{value:.{max(digits, whole) if whole <= 17 else digits}g}".replace(".", self.decimal)

    def advice(self, cell: str) -> str:
        """What may be said of a cell that is no number here, and would be one with other signs; empty: nothing."""
        for signs in ({"decimal": ","}, {"decimal": ".", "thousands": ","}, {"decimal": ",", "thousands": "."}):
            other = Dialect(decimal=signs["decimal"], thousands=signs.get("thousands"))
            if not math.isnan(other._number(cell)):
                words = [
                    typed(f"{self.prefix}{key}", sign) for key, sign in signs.items() if sign != getattr(self, key)
                ]
                return f"if it is one, say {' '.join(words)}"
        return ""

    def with_holes(self, values: Iterable[float | str]) -> str:
        """The setting, as it can be typed, by which these numbers or words mean a missing value beside what does so."""
        found = [
            value if isinstance(value, str) else repr(value).removesuffix(".0").replace(".", self.decimal)
            for value in values
        ]
        return typed(f"{self.prefix}holes", list(dict.fromkeys((*self.holes, *found))))

    def _number(self, cell: str) -> float:
        if self.thousands:
            whole, point, rest = cell.partition(self.decimal)
            first, *groups = whole.split(self.thousands)
            if groups and not (_FIRST_GROUP.fullmatch(first) and all(len(group) == 3 for group in groups)):
                return math.nan
            cell = first + "".join(groups) + point + rest
        if self.decimal != ".":
            cell = math.nan if "." in cell else cell.replace(self.decimal, ".")  # type: ignore[assignment]
        value = float(cell) if isinstance(cell, str) and _NUMBER.fullmatch(cell) else math.nan
        return value if math.isfinite(value) else math.nan


PLAIN = Dialect()
"""Points, and no thousands."""


def dialect_of(prefix: str, *settings: Mapping[str, Any]) -> Dialect:
    """The dialect of several settings, of which the later ones count where they are not null."""
    given = {key: each[key] for each in settings for key in SIGNS if each.get(key) is not None}
    holes = tuple(map(str, given.pop("holes", ())))
    return Dialect(**given, holes=holes, prefix=prefix)
