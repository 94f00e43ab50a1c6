"""Vectors: points in the plane, rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from viscos.core.errors import InputError
from viscos.data.columns import Scheme
from viscos.data.items import Data


@dataclass(frozen=True)
class Vectors(Data):
    """Vectors with holes: `values` (N, d), float32 or float64, NaN in the holes; `shape` is (d,)."""

    columns: tuple[str, ...] = ()
    """Names of the entries of a table, whose columns have units of their own; none for points in a space."""
    scheme: Scheme | None = None
    """How these entries came from the columns of a table, if they did."""

    def __post_init__(self) -> None:
        if self.values.dim() != 2 or self.values.dtype not in (torch.float32, torch.float64):
            seen = f"{self.values.dtype} of shape {tuple(self.values.shape)}"
            raise InputError(f"vectors of {self.name!r} are {seen}; give float32 or float64 of shape (N, d)")
        if self.columns and len(self.columns) != self.values.shape[1]:
            raise InputError(f"{self.name!r} has {self.values.shape[1]} columns and {len(self.columns)} names for them")
        if bool(self.values.isinf().any()):
            row, column = self.values.isinf().nonzero()[0].tolist()
            raise InputError(f"{self.name!r} has an infinite value, in row {row + 1}, {self.column(column)}")
        super().__post_init__()

    @property
    def kind(self) -> str:
        return "vectors"

    def column(self, position: int) -> str:
        """The entry at `position` as a message names it."""
        return f"column {self.columns[position]!r}" if self.columns else f"column {position}"

    def positions(self, wanted: Sequence[str | int]) -> list[int]:
        """The places of columns that are given by name, or number from 0. Raises `InputError` if one is not there.

        Of a table they are those of its columns, of which one may be several entries.
        """
        columns = self.columns if self.scheme is None else self.scheme.names
        return [self._position(name, columns) for name in wanted]

    @property
    def groups(self) -> tuple[int, ...]:
        """The number of the column of each entry (d,)."""
        return tuple(range(self.shape[0])) if self.scheme is None else self.scheme.groups

    def _position(self, name: str | int, columns: tuple[str, ...]) -> int:
        many = len(columns) or self.shape[0]
        if str(name) in columns:
            return columns.index(str(name))
        if isinstance(name, int) and 0 <= name < many:
            return name
        there = f"it has {', '.join(columns)}, or" if columns else "give"
        raise InputError(f"{self.name!r} has no column {name!r}; {there} numbers from 0 to {many - 1}")
