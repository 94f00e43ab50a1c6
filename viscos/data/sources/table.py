"""Tables: CSV or Parquet with a header, or an array (N, d) in .npy or .npz; empty cells and NaN are holes."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.typed import typed
from viscos.data.columns import POSITIVE, Column, Scheme, column_of_numbers, column_of_text, level_of, padded
from viscos.data.dialect import HOLES, PLAIN, Dialect
from viscos.data.far_out import far_out
from viscos.data.items import split_rows
from viscos.data.logarithms import spans_scales
from viscos.data.sources.array import LABELS, find, read_arrays
from viscos.data.sources.sheet import PARQUET, Sheet, read_sheet
from viscos.data.vectors import Vectors

ARRAYS = ("values", "data", "x", "table")
"""Names under which an `.npz` may hold its table; one that holds a single array may call it anything."""
TABLES = (".csv", ".tsv", ".txt", *PARQUET)
"""Endings of tables with a header."""
Name = str | int


def table(
    split: str,
    *,
    path: str | Path,
    label: Name | None = None,
    drop: Sequence[Name] | None = None,
    categories: Sequence[Name] | None = None,
    log: Sequence[Name] | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    thousands: str | None = None,
    encoding: str | None = None,
    holes: Sequence[str | float] | None = None,
) -> Vectors:
    """Rows of a table, in their columns' own units; a tenth of them, always the same, is for testing.

    `label` is a column with classes, `drop` are columns to leave out, `categories` those whose numbers are none; those
    of an array are numbered from 0, and an `.npz` may have its classes in `labels` or `y`. `log` are columns to learn
    by their logarithm, or with None those for which `spans_scales`. The other settings are those of `Dialect`. Raises
    `InputError` for a file that cannot be read, a column that is not there, that mixes text and numbers, has no value
    at all, or no logarithm where it is to have one, and a table of fewer than two rows.
    """
    dialect = Dialect(delimiter, decimal or ".", thousands, encoding, tuple(map(str, holes or ())))
    source = _read(Path(path).expanduser(), dialect)
    left_out = [_there(source, name, "drop") for name in drop or ()]
    named = [_there(source, name, "categories") for name in categories or ()]
    classes = None if label is None else _there(source, label, "label")
    names = tuple(name for name in source.names if name != classes and name not in left_out)
    if not names:
        raise InputError(f"{path} has no column left to learn from")
    if len(source) < 2:
        many = f"{len(source)} row{'s' * (len(source) != 1)}"
        raise InputError(f"{path} has {many}; a training and a test split need at least 2")
    columns, numbers = zip(*(_learnt(source, name, name in named) for name in names), strict=True)
    logs = None if log is None else [_there(source, name, "log") for name in log]
    scheme = Scheme(tuple(_by_logarithm(source, *each, logs) for each in zip(columns, numbers, strict=True)))
    _check_positive(source, scheme, numbers, dialect)
    read = torch.from_numpy(np.stack(numbers, 1))
    values = scheme.encode(read)
    labels, count = source.labels(classes)
    rows = split_rows(len(values), split)
    picked = None if labels is None else labels[rows]
    notes = (*_notes(source), *scheme.about(), *_words(source, scheme), *_codes(source, scheme))
    notes += tuple(far_out(scheme, read, dialect))
    return Vectors(source.path.stem, values[rows], picked, count, notes=notes, columns=scheme.entries, scheme=scheme)


def header(path: str | Path) -> tuple[str, ...]:
    """Names of a table's columns; numbers, where it has none."""
    return _read(Path(path).expanduser(), Dialect()).names


@dataclass(frozen=True)
class Rows:
    """Rows of a user's own, to be completed."""

    data: Vectors
    sheet: Sheet | None
    """The table of text that they are from, if they are from one."""
    names: tuple[str, ...]
    """Their columns in `sheet`."""
    numbers: Tensor
    """The numbers in these columns (N, columns), float64, NaN in holes: of logarithms they do not all come back."""

    def check(self, scheme: Scheme, holes: Tensor) -> None:
        """Raises `InputError` where the table has no room for completions of a column with `holes` (columns,), bool."""
        if self.sheet is not None:
            each = zip(self.names, scheme.columns, holes.tolist(), strict=True)
            self.sheet.with_room({name: _samples(self.sheet, name, column) for name, column, there in each if there})


def _samples(sheet: Sheet, name: str, column: Column) -> tuple[str, ...]:
    """Some cells that completions of a column may be; all of its categories."""
    if column.categories:
        return column.spelt(sheet.cells(name), sheet.dialect).levels
    return (column.text(0.0) if column.format else "0",)


def read_rows(path: str | Path, scheme: Scheme, limit: int | None = None, dialect: Dialect | None = None) -> Rows:
    """The first `limit` rows of a file, for a flow that was trained on the columns of `scheme`.

    A table with a header may have its columns in another order, and others beside them. Where the flow was trained
    without names, or the file has none, they stand in the order of training. Raises `InputError` as `table` does, and
    for a category that was not among those of training.
    """
    dialect = dialect or Dialect(prefix="")
    source = _read(Path(path).expanduser(), dialect)
    names = _matching(source, scheme.names)
    source = source.head(limit)
    if not len(source):
        raise InputError(f"{path} has no rows")
    numbers = [_read_as(source, name, column) for name, column in zip(names, scheme.columns, strict=True)]
    _check_positive(source, scheme, numbers, dialect)
    read = torch.from_numpy(np.stack(numbers, 1))
    sheet = source if isinstance(source, Sheet) else None
    values = scheme.encode(read)
    data = Vectors(source.path.stem, values, None, 0, notes=_notes(source), columns=scheme.entries, scheme=scheme)
    return Rows(data, sheet, names, read)


def _matching(source: Sheet | _Array, names: tuple[str, ...]) -> tuple[str, ...]:
    """The columns of a file that are those of training, in the order of these `names`.

    They are taken by name wherever both have names: numbers from 0 are those of a training on an array without any, and
    years or codes are names. Raises `InputError` for a column that is not there, or for too many.
    """
    there = [name for name in names if name in source.names]
    unnamed = names == tuple(map(str, range(len(names))))
    if isinstance(source, _Array):
        by_place = unnamed or len(there) < len(names)  # else an array of which columns were left out
    else:
        by_place = unnamed and not there
    if by_place:
        if len(source.names) != len(names):
            raise InputError(f"{source.path} has {len(source.names)} columns, the flow takes {len(names)}")
        return source.names
    for name in names:
        if name not in there:
            near = difflib.get_close_matches(name, source.names, 1)
            raise InputError(
                f"{source.path} lacks the column {name!r}; the flow was trained on {', '.join(names)}, and the file "
                f"has {', '.join(source.names)}" + (f" (is it {near[0]!r}?)" if near else "")
            )
    return names


@dataclass(frozen=True)
class _Array:
    """A table without names: its columns are called by their numbers."""

    path: Path
    values: np.ndarray
    """(N, d), float64."""
    classes: np.ndarray | None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(str(k) for k in range(self.values.shape[1]))

    def column(self, name: str) -> np.ndarray:
        return self.values[:, int(name)]

    def head(self, limit: int | None) -> _Array:
        return _Array(self.path, self.values[:limit], self.classes)

    def labels(self, column: str | None) -> tuple[Tensor | None, int]:
        found = self.classes if column is None else self.column(column)
        if found is None:
            return None, 0
        if found.size != len(self):
            raise InputError(f"{self.path} has {found.size} labels for {len(self)} rows; give one a row")
        if np.issubdtype(found.dtype, np.floating) and np.isnan(found).any():
            row = int(np.isnan(found).reshape(-1).argmax()) + 1
            raise InputError(f"{self.path}: the label of row {row} is missing")
        names, numbers = np.unique(found.reshape(-1), return_inverse=True)
        return torch.from_numpy(numbers.astype(np.int64)), len(names)


def _read(path: Path, dialect: Dialect) -> Sheet | _Array:
    if path.suffix.lower() in TABLES:
        return read_sheet(path, dialect)
    if path.suffix.lower() not in (".npy", ".npz"):
        raise InputError(f"{str(path)!r} is no table; give .csv with a header, .parquet, .npy or .npz")
    arrays = read_arrays(path)
    values = arrays[find(arrays, ARRAYS, path, "table")]
    if values.ndim != 2 or not values.shape[1] or not (np.issubdtype(values.dtype, np.number) or values.dtype == bool):
        raise InputError(f"{path} holds {values.dtype} of shape {values.shape}; give numbers of shape (rows, columns)")
    if np.iscomplexobj(values):
        raise InputError(f"{path} holds complex numbers; give real ones")
    values = values.astype(np.float64)
    holes = [number for number in map(float, map(_or_nan, dialect.holes)) if number == number]
    if np.isinf(values).any():
        row, column = np.argwhere(np.isinf(values))[0]
        raise InputError(f"{path} has an infinite value, in row {row + 1}, column '{column}'; give NaN for a hole")
    values = np.where(np.isin(values, holes), np.nan, values)
    classes = next((arrays[key] for key in LABELS if key in arrays and len(arrays) > 1), None)
    return _Array(path, values, classes)


def _or_nan(word: str) -> float:
    return float(Dialect().numbers(np.array([word]))[0])


def _learnt(source: Sheet | _Array, name: str, categories: bool) -> tuple[Column, np.ndarray]:
    """What a column of training data is, and its numbers (N,), NaN in holes."""
    if isinstance(source, _Array):
        there = source.column(name)
        empty, cells = np.isnan(there), None
    else:
        cells, dialect = source.cells(name), source.dialect
        empty = dialect.empty(cells)
        there = dialect.numbers(cells)
        there[empty] = np.nan
    if empty.all():
        raise InputError(f"{source.path}: column {name!r} has no values; leave it out, {typed('dataset.drop', [name])}")
    try:
        odd = ~empty & np.isnan(there)
        if not odd.any():
            return column_of_numbers(name, there, cells, categories)
        assert isinstance(source, Sheet) and cells is not None
        if not categories and (not (odd | empty).all() or _like_numbers(cells[odd], dialect)):
            _refuse(source, name, int(odd.argmax()))
        column = column_of_text(name, cells[~empty], categories)
        return column, np.where(empty, np.nan, column.numbers(cells))  # a hole may look like a date
    except InputError as error:
        if str(source.path) in str(error):
            raise
        raise InputError(f"{source.path}: {error}; leave the column out, {typed('dataset.drop', [name])}") from None


def _by_logarithm(source: Sheet | _Array, column: Column, numbers: np.ndarray, names: Sequence[str] | None) -> Column:
    """The column, by its logarithm if `names` say so, or of itself; raises `InputError` if it has no numbers."""
    if names is None:
        return replace(column, log=not (column.categories or column.format) and spans_scales(numbers))
    if column.name not in names:
        return column
    if column.categories or column.format:
        raise InputError(f"{source.path}: column {column.name!r} has {column.about}; leave it out of dataset.log")
    return replace(column, log=True)


def _check_positive(source: Sheet | _Array, scheme: Scheme, numbers: Sequence[np.ndarray], dialect: Dialect) -> None:
    """Raises `InputError` if a column by its logarithm holds a number that has none."""
    low = {column: each[each <= 0] for column, each in zip(scheme.columns, numbers, strict=True) if column.log}
    for column, each in zip(scheme.columns, numbers, strict=True):
        if column.log and len(low[column]):
            cell, row = PLAIN.number(low[column][0]), int((each <= 0).argmax()) + 1
            others = [other.name for other in low if other != column]
            found = list(dict.fromkeys(np.concatenate(list(low.values())).tolist()))[:5]
            raise InputError(
                f"{source.path}: column {column.name!r} holds {cell} in row {row}, {POSITIVE}; empty the cell, train "
                f"with {typed('dataset.log', others)}, or if such numbers mean a missing value, say "
                f"{dialect.with_holes(found)}"
            )


def _read_as(source: Sheet | _Array, name: str, column: Column) -> np.ndarray:
    """The numbers (N,) of a column that is known from training, NaN in holes."""
    if isinstance(source, _Array):
        there, dialect = source.column(name), Dialect()
        if not column.categories:
            return there
        cells = np.array([level_of(value) for value in there], dtype=object)
        empty = np.isnan(there)
    else:
        cells, dialect = source.cells(name), source.dialect
        empty, there = dialect.empty(cells), dialect.numbers(cells)
    found = column.numbers(cells, dialect) if column.categories or column.format else there
    odd = ~empty & np.isnan(found)
    if odd.any():
        row = int(odd.argmax())
        if column.categories:
            known = ", ".join(map(repr, column.levels[:8])) + (", …" if len(column.levels) > 8 else "")
            what = f"{cells[row]!r} in row {row + 1}, which is no category of the training data ({known})"
            raise InputError(f"{source.path}: column {name!r} holds {what}; empty the cell, or write it as there")
        assert isinstance(source, Sheet)
        _refuse(source, name, row, column.format)
    return np.where(empty, np.nan, found)


def _notes(source: Sheet | _Array) -> tuple[str, ...]:
    if not isinstance(source, Sheet):
        return ()
    nameless = [str(place + 1) for place, name in enumerate(source.header) if not name]
    many = source.trailing
    notes = [f"column {place} has no name, as an index that was written along, and is" for place in nameless]
    notes += [f"{many} empty row{'s' * (many > 1)} at the end"] * bool(many)
    return tuple(f"{source.path}: {what} left out" for what in notes)


def _words(source: Sheet | _Array, scheme: Scheme) -> Iterator[str]:
    """Lines on words for a missing value in columns of categories, where they may be one."""
    for column in scheme.columns:
        if isinstance(source, Sheet) and column.categories:
            words = Counter(cell for cell in source.cells(column.name) if cell and cell.lower() in HOLES)
            for word, many in words.items():
                cells = f"{many} cell{'s' * (many > 1)} of column {column.name!r}"
                yield f"{word!r} means a missing value in {cells}; if it is a category there, write another word"


def _codes(source: Sheet | _Array, scheme: Scheme) -> Iterator[str]:
    """Lines on columns that look like codes, and are too many for categories."""
    for column in scheme.columns:
        if isinstance(source, Sheet) and not column.categories and (code := padded(source.cells(column.name))):
            yield (
                f"warning: column {column.name!r} holds {code!r}, which looks like a code; too many for categories, "
                f"they are learnt as numbers; to leave it out, say {typed('dataset.drop', [column.name])}"
            )


def _like_numbers(cells: np.ndarray, dialect: Dialect) -> bool:
    """Whether all would be numbers if they were written otherwise, or are infinite."""
    words = ("inf", "infinity")
    return all(dialect.advice(cell) or cell.lower().lstrip("+-") in words for cell in cells)


def _refuse(source: Sheet, name: str, row: int, format: str = "") -> None:
    cell = str(source.cells(name)[row])
    what = f"no date like {format}" if format else "no finite number"
    hole = f"if it means a missing value, say {source.dialect.with_holes([cell])}"
    category = "" if format else f"if it is a category, say {typed('dataset.categories', [name])}, "
    advice = ("" if format else source.dialect.advice(cell)) or category + hole
    raise InputError(
        f"{source.path}: column {name!r} holds {cell!r} in row {row + 1}, which is {what}; {advice}, "
        f"or leave the column out ({typed('dataset.drop', [name])} in training)"
    )


def _there(source: Sheet | _Array, name: Name, key: str) -> str:
    """The column that a setting names; raises `InputError` if the table does not have it."""
    if str(name) not in source.names:
        raise InputError(f"dataset.{key}={name}: {source.path} has the columns {', '.join(source.names)}")
    return str(name)
