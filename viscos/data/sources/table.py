"""Tables of numbers: CSV with a header, or an array (N, d) in .npy or .npz; empty cells and NaN are holes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.typed import typed
from viscos.data.items import held_out
from viscos.data.sources.array import LABELS, find, read_arrays
from viscos.data.sources.sheet import Sheet
from viscos.data.vectors import Vectors

ARRAYS = ("values", "data", "x", "table")
"""Names under which an `.npz` may hold its table; one that holds a single array may call it anything."""
TABLES = (".csv", ".tsv", ".txt")
"""Endings of tables with a header."""
Name = str | int


def table(split: str, *, path: str | Path, label: Name | None = None, drop: Sequence[Name] | None = None) -> Vectors:
    """Rows of a table, in their columns' own units; a tenth of them, always the same, is for testing.

    `label` is a column with classes, `drop` are columns to leave out; those of an array are numbered from 0, and an
    `.npz` may have its classes in `labels` or `y`. Raises `InputError` for a file that cannot be read, a column that is
    not there, has text or has no value at all, and a table of fewer than two rows.
    """
    source = _read(Path(path).expanduser())
    left_out = [_there(source, name, "drop") for name in drop or ()]
    classes = None if label is None else _there(source, label, "label")
    columns = tuple(name for name in source.header if name != classes and name not in left_out)
    if not columns:
        raise InputError(f"{path} has no column left to learn from")
    values = source.numbers(columns)
    if len(values) < 2:
        many = f"{len(values)} row{'s' * (len(values) != 1)}"
        raise InputError(f"{path} has {many}; a training and a test split need at least 2")
    empty = values.isnan().all(0)
    if bool(empty.any()):
        name = columns[int(empty.nonzero()[0])]
        raise InputError(f"{path}: column {name!r} has no values; leave it out, {typed('dataset.drop', [name])}")
    labels, count = source.labels(classes)
    rows = held_out(len(values), split)
    return Vectors(source.path.stem, values[rows], None if labels is None else labels[rows], count, columns=columns)


def header(path: str | Path) -> tuple[str, ...]:
    """Names of a table's columns; numbers, where they have none."""
    return _read(Path(path).expanduser()).header


@dataclass(frozen=True)
class Rows:
    """Rows of a user's own, to be completed."""

    data: Vectors
    sheet: Sheet | None
    """The CSV that they are from, if they are from one."""
    names: tuple[str, ...]
    """Their columns in `sheet`."""


def read_rows(path: str | Path, columns: Sequence[str], d: int, limit: int | None = None) -> Rows:
    """The first `limit` rows of a file, for a flow of `d` entries that was trained on `columns`, if these had names.

    A CSV may have its columns in another order, and others beside them. Where the flow was trained without names, it
    has `d` columns in the order of training, as an array always does. Raises `InputError` as `table` does.
    """
    source = _read(Path(path).expanduser())
    nameless = all(name.isdigit() for name in columns)
    names = source.header if isinstance(source, _Array) or nameless else tuple(columns)
    for name in names:
        if name not in source.header:
            raise InputError(f"{path} lacks the column {name!r}; the flow was trained on {', '.join(columns)}")
    if len(names) != d:
        raise InputError(f"{path} has {len(names)} columns, the flow takes {d}")
    values = source.numbers(names)[:limit]
    if not len(values):
        raise InputError(f"{path} has no rows")
    sheet = source.head(limit) if isinstance(source, Sheet) else None
    return Rows(Vectors(source.path.stem, values, None, 0, columns=tuple(columns)), sheet, names)


@dataclass(frozen=True)
class _Array:
    """A table without names: its columns are called by their numbers."""

    path: Path
    values: Tensor
    """(N, d), float64."""
    classes: np.ndarray | None

    @property
    def header(self) -> tuple[str, ...]:
        return tuple(str(k) for k in range(self.values.shape[1]))

    def numbers(self, columns: Sequence[str]) -> Tensor:
        return self.values[:, [int(name) for name in columns]]

    def labels(self, column: str | None) -> tuple[Tensor | None, int]:
        found = self.classes if column is None else self.values[:, int(column)].numpy()
        if found is None:
            return None, 0
        if np.issubdtype(found.dtype, np.floating) and np.isnan(found).any():
            row = int(np.isnan(found).reshape(-1).argmax()) + 1
            raise InputError(f"{self.path}: the label of row {row} is missing")
        names, numbers = np.unique(found.reshape(-1), return_inverse=True)
        return torch.from_numpy(numbers.astype(np.int64)), len(names)


def _read(path: Path) -> Sheet | _Array:
    if path.suffix.lower() in TABLES:
        if not path.is_file():
            raise InputError(f"there is no file {str(path)!r}")
        return Sheet.read(path)
    if path.suffix.lower() not in (".npy", ".npz"):
        raise InputError(f"{str(path)!r} is no table; give .csv with a header, .npy or .npz")
    arrays = read_arrays(path)
    values = arrays[find(arrays, ARRAYS, path, "table")]
    if values.ndim != 2 or not values.shape[1] or not (np.issubdtype(values.dtype, np.number) or values.dtype == bool):
        raise InputError(f"{path} holds {values.dtype} of shape {values.shape}; give numbers of shape (rows, columns)")
    if np.iscomplexobj(values):
        raise InputError(f"{path} holds complex numbers; give real ones")
    classes = next((arrays[key] for key in LABELS if key in arrays and len(arrays) > 1), None)
    return _Array(path, torch.from_numpy(values.astype(np.float64)), classes)


def _there(source: Sheet | _Array, name: Name, key: str) -> str:
    """The column that a setting names; raises `InputError` if the table does not have it."""
    if str(name) not in source.header:
        raise InputError(f"dataset.{key}={name}: {source.path} has the columns {', '.join(source.header)}")
    return str(name)
