"""Tables with a header, CSV or Parquet: cells that are read as text, and stay as they were written."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from viscos.core import atomic
from viscos.core.errors import InputError
from viscos.core.typed import typed
from viscos.data.dialect import Dialect
from viscos.data.sources.room import cells_as, room_for

PARQUET = (".parquet", ".pq")
_INDEX = re.compile(r"__index_level_\d+__")
"""What pandas calls an index without a name in a Parquet file."""
Cells = Mapping[str, np.ndarray]
"""New text (N,) of some columns by name; None where a cell stays as it is."""


@dataclass(frozen=True)
class Sheet:
    """A table of text. Subclasses know the file that it is from, and write such a file with other cells."""

    path: Path
    header: tuple[str, ...]
    """A name for each column; empty where it has none, as that of an index often is."""
    columns: tuple[np.ndarray, ...]
    """Of each column its cells (N,), str, without spaces around them."""
    dialect: Dialect
    trailing: int
    """Empty rows at the end of the file, which are not among the cells."""

    def __len__(self) -> int:
        return len(self.columns[0])

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that have a name: the others are kept in the file, and left out of all else."""
        return tuple(name for name in self.header if name)

    def cells(self, name: str) -> np.ndarray:
        """The cells (N,) of a column."""
        return self.columns[self.header.index(name)]

    def head(self, limit: int | None) -> Sheet:
        """The first `limit` rows; what is written has no others."""
        if limit is None or limit >= len(self):
            return self
        return replace(self, columns=tuple(cells[:limit] for cells in self.columns), trailing=0)

    def labels(self, column: str | None) -> tuple[Tensor | None, int]:
        """The column as classes (N,), int64, numbered in the order of their numbers or names; and how many."""
        if column is None:
            return None, 0
        cells = self.cells(column)
        if (empty := self.dialect.empty(cells)).any():
            row = int(empty.argmax()) + 1
            raise InputError(f"{self.path}: the label in column {column!r}, row {row}, is missing")
        texts = np.unique(cells)
        order = np.lexsort((texts, np.nan_to_num(self.dialect.numbers(texts), nan=np.inf)))
        numbers = {name: number for number, name in enumerate(texts[order])}
        return torch.tensor([numbers[cell] for cell in cells]), len(texts)

    def with_room(self, cells: Mapping[str, Sequence[str]]) -> tuple[Sheet, tuple[str, ...]]:
        """The sheet with columns that hold these new cells too, by name, and a line on each that is of another type.

        Raises `InputError` for a column that no type would do for.
        """
        return self, ()

    def write(self, path: Path, cells: Cells) -> Path:
        """Writes a file of the same kind, with `cells` in the place of some, and every other one as it was."""
        raise NotImplementedError


@dataclass(frozen=True)
class TextSheet(Sheet):
    """A file of text with a delimiter between cells."""

    text: str
    spans: np.ndarray
    """Where a cell stands in `text` (N + 1, d, 2): the header's, then those of each row."""
    encoding: str
    mark: bytes
    """The byte-order mark at the beginning of the file, if there is one."""

    def write(self, path: Path, cells: Cells) -> Path:
        """Bytes between cells, and those of cells that stay, are those of the file that was read."""
        changed = []
        for name, new in cells.items():
            place = self.header.index(name)
            changed += [
                (*self.spans[row + 1, place], self._quoted(cell)) for row, cell in enumerate(new) if cell is not None
            ]
        pieces, at, end = [], 0, self._end()
        for first, last, cell in sorted(changed):
            pieces += [self.text[at:first], cell]
            at = int(last)
        try:
            data = self.mark + "".join([*pieces, self.text[at:end]]).encode(self.encoding)
        except UnicodeEncodeError as error:
            raise InputError(f"{self.path} is {self.encoding}, which has no {error.object[error.start]!r}") from None
        return atomic.write(path, lambda temporary: temporary.write_bytes(data))

    def _end(self) -> int:
        """Where the rows end that are kept: the file's end, unless it is cut."""
        if len(self) + self.trailing == len(self.spans) - 1:
            return len(self.text)
        last = int(self.spans[len(self), -1, 1])
        end = _LINE_END.match(self.text, last)
        return end.end() if end else last

    def _quoted(self, cell: str) -> str:
        assert self.dialect.delimiter is not None
        special = any(sign in cell for sign in (self.dialect.delimiter, '"', "\n", "\r"))
        return '"' + cell.replace('"', '""') + '"' if special else cell


@dataclass(frozen=True)
class ParquetSheet(Sheet):
    """A Parquet file, whose columns keep their types."""

    table: Any
    """Of pyarrow."""

    def with_room(self, cells: Mapping[str, Sequence[str]]) -> tuple[Sheet, tuple[str, ...]]:
        table, lines = self.table, []
        for name, new in cells.items():
            place = self.header.index(name)
            field, column = table.schema.field(place), table.column(place)
            if (kind := room_for(column, new)) is None:
                raise InputError(
                    f"{self.path}: column {name!r} is of type {field.type}, in which no cell such as {new[0]!r} can be "
                    "written; save it as text, or leave no holes in it"
                )
            if kind != field.type:
                table = table.set_column(place, field.with_type(kind), column.cast(kind))
                lines.append(f"column {name!r} is written as {kind}: {field.type} does not hold all of its completions")
        return replace(self, table=table), tuple(lines)

    def write(self, path: Path, cells: Cells) -> Path:
        """A new cell is of its column's type, in which a number is rounded; raises `InputError` for one of no type."""
        import pyarrow as arrow
        import pyarrow.parquet as parquet

        table = self.table.slice(0, len(self) + self.trailing)
        for name, new in cells.items():
            place = self.header.index(name)
            field = table.schema.field(place)
            there = arrow.array([*(cell is not None for cell in new), *[False] * self.trailing])
            try:
                fresh = cells_as(field.type, [*new, *[None] * self.trailing])
                table = table.set_column(place, field, arrow.compute.if_else(there, fresh, table.column(place)))
            except arrow.ArrowException as error:
                why = " ".join(str(error).split())[:200]
                raise InputError(f"{self.path}: a new cell of {name!r} is no {field.type}: {why}") from error
        return atomic.write(path, lambda temporary: parquet.write_table(table, temporary))


def read_sheet(path: Path, dialect: Dialect) -> Sheet:
    """A CSV or Parquet file. Empty rows at its end are left out and counted; blank lines are passed over.

    Raises `InputError` for a file that cannot be read, a header without names or with a name twice, or a row of another
    length.
    """
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}")
    return _read_parquet(path, dialect) if path.suffix.lower() in PARQUET else _read_text(path, dialect)


def _read_text(path: Path, dialect: Dialect) -> TextSheet:
    import pandas

    try:
        text, encoding, mark = dialect.decode(path.read_bytes(), str(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    if dialect.delimiter is None:
        dialect = replace(dialect, delimiter=_delimiter(path, text, dialect))
    assert dialect.delimiter is not None
    spans = _spans(text, dialect.delimiter)
    if not spans:
        raise InputError(f"{path} is empty; give a header with the columns' names, and rows below it")
    _check_lengths(path, spans)
    try:
        frame = pandas.read_csv(
            io.StringIO(text),
            sep=dialect.delimiter,
            header=None,
            dtype=str,
            na_filter=False,
            index_col=False,
            engine="c",
            skip_blank_lines=True,
        )
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError, ValueError) as error:
        raise InputError(f"{path} cannot be read as CSV: {' '.join(str(error).split())}") from error
    if frame.shape != (len(spans), len(spans[0])):
        raise InputError(f"{path} cannot be read as CSV: its quotes do not pair; a quote in a cell is written twice")
    every = [np.array([cell.strip() for cell in frame[k]], dtype=object) for k in range(frame.shape[1])]
    header = tuple(str(cells[0]) for cells in every)
    _check_header(path, header, dialect)
    columns, trailing = _without_trailing([cells[1:] for cells in every])
    return TextSheet(path, header, columns, dialect, trailing, text, np.array(spans), encoding, mark)


def _delimiter(path: Path, text: str, dialect: Dialect) -> str:
    """What the header has most of; raises `InputError` for a decimal sign that alone stands between its cells."""
    first = re.sub(r'"[^"]*"', "", text.lstrip().partition("\n")[0])
    best = max((sign for sign in ",;\t" if sign != dialect.decimal), key=first.count)
    if best not in first and dialect.decimal == "," and "," in first:
        point, other = typed(f"{dialect.prefix}decimal", "."), f"{dialect.prefix}delimiter"
        raise InputError(
            f"{path} has commas between its cells, where the decimal sign is a comma too; "
            f"say {point} if its numbers have points, else what separates cells, {other}=…"
        )
    return best


def _read_parquet(path: Path, dialect: Dialect) -> ParquetSheet:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ModuleNotFoundError:
        raise InputError(f"{path} needs pyarrow: pip install 'viscos[parquet]', or save it as CSV") from None
    dialect = replace(dialect, decimal=".", thousands=None)  # numbers are numbers there
    try:
        table = parquet.read_table(path)
        found = [_texts(table.column(k)) for k in range(table.num_columns)]
    except (arrow.ArrowException, ValueError, OverflowError, OSError) as error:  # of days after the year 9999
        raise InputError(f"{path} cannot be read as Parquet: {' '.join(str(error).split())[:200]}") from error
    if not found:
        raise InputError(f"{path} has no columns")
    header = tuple("" if _INDEX.fullmatch(name) else name for name in map(str, table.column_names))
    _check_header(path, header, dialect)
    columns, trailing = _without_trailing(found)
    return ParquetSheet(path, header, columns, dialect, trailing, table)


def _texts(column: Any) -> np.ndarray:
    """A column of Parquet as the cells of a CSV."""
    return np.array(["" if value is None else text_of(value) for value in column.to_pylist()], dtype=object)


def text_of(value: Any) -> str:
    """A value of a typed column as a cell of a CSV has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value).strip()


_BLANK = {"\t": re.compile(r" *(\r\n|\n|\r|$)")}
_BLANK_ELSE = re.compile(r"[ \t]*(\r\n|\n|\r|$)")
_LINE_END = re.compile(r"\r\n|\n|\r")


def _spans(text: str, delimiter: str) -> list[list[tuple[int, int]]]:
    """Where the cells of each line stand that is not blank; a quoted cell may hold line ends."""
    cell = re.compile(rf'(?:"(?:[^"]|"")*")?[^{re.escape(delimiter)}\r\n]*')
    blank, at, rows = _BLANK.get(delimiter, _BLANK_ELSE), 0, []
    while at < len(text):
        if passed := blank.match(text, at):
            at = passed.end()
            continue
        row = []
        while True:
            found = cell.match(text, at)
            assert found is not None  # of any text, if need be of none of it
            row.append(found.span())
            at = found.end()
            if not text.startswith(delimiter, at):
                break
            at += len(delimiter)
        end = _LINE_END.match(text, at)
        at = end.end() if end else at
        rows.append(row)
    return rows


def _check_lengths(path: Path, spans: list[list[tuple[int, int]]]) -> None:
    for number, row in enumerate(spans):
        if len(row) != len(spans[0]):
            raise InputError(f"{path}: row {number} has {len(row)} cells, and the header {len(spans[0])}")


def _check_header(path: Path, header: tuple[str, ...], dialect: Dialect) -> None:
    if not np.isnan(dialect.numbers(np.array(header))).any():
        raise InputError(f"{path} begins with numbers; give it a header, a line with the columns' names")
    if not any(header):
        raise InputError(f"{path} begins with an empty line; give it a header, a line with the columns' names")
    for place, name in enumerate(header):
        if name and name in header[:place]:
            raise InputError(f"{path} has two columns {name!r}; give each its own name")


def _without_trailing(columns: list[np.ndarray]) -> tuple[tuple[np.ndarray, ...], int]:
    """The columns without the rows at their end that are empty, and how many those are."""
    rows = kept = len(columns[0])
    while len(columns) > 1 and kept and all(columns[k][kept - 1] == "" for k in range(len(columns))):
        kept -= 1
    return tuple(cells[:kept] for cells in columns), rows - kept
