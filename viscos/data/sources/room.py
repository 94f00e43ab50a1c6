"""Columns of Parquet that hold new cells: which type has room for them, and the cells in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Any

_EXACT = Context(prec=400, rounding=ROUND_HALF_EVEN)
"""What numbers of double precision are rounded in: none of them has more digits."""
_DIGITS = 38, 76
"""Most digits of a decimal of 128 and of 256 bits."""


def room_for(column: Any, cells: Sequence[str]) -> Any | None:
    """The type nearest to that of a column of pyarrow that holds its values and these new cells; None: there is none.

    Whole numbers become doubles where a new one is not whole or too large, unless a double does not hold those that are
    there; decimals get digits before the point, since those behind it are rounded; and a column without a value takes
    any type.
    """
    import pyarrow as arrow

    for kind in _candidates(column, cells):
        try:
            column.cast(kind)
        except arrow.ArrowException:
            continue
        if _holds(kind, cells):
            return kind
    return column.type if arrow.types.is_integer(column.type) and _are_numbers(cells) else None


def cells_as(kind: Any, cells: Sequence[str | None]) -> Any:
    """Cells of text (n,) as an array of pyarrow of a type; empty where there is no text.

    Numbers are rounded to the nearest that the type has. Raises `pyarrow.ArrowException` for what is none of it.
    """
    import pyarrow as arrow

    full = [cell or None for cell in cells]
    if arrow.types.is_integer(kind):
        least, most = _range(kind)
        numbers = [None if cell is None else min(max(int(_rounded(cell, 0)), least), most) for cell in full]
        return arrow.array(numbers, kind)
    if arrow.types.is_decimal(kind):
        return arrow.array([None if cell is None else _rounded(cell, kind.scale) for cell in full], kind)
    return arrow.array(full, arrow.string()).cast(kind)


def _candidates(column: Any, cells: Sequence[str]) -> Iterator[Any]:
    import pyarrow as arrow

    types, kind = arrow.types, column.type
    if types.is_dictionary(kind) and (types.is_integer(kind.value_type) or types.is_decimal(kind.value_type)):
        kind = kind.value_type
    yield kind
    if types.is_integer(kind):
        yield arrow.float64()
    if types.is_decimal(kind) and _are_numbers(cells):
        digits = max(kind.precision, *(_rounded(cell, kind.scale).adjusted() + 1 + kind.scale for cell in cells))
        if digits <= _DIGITS[1]:
            yield (arrow.decimal128 if digits <= _DIGITS[0] else arrow.decimal256)(digits, kind.scale)
        yield arrow.float64()
    if types.is_timestamp(kind):
        yield arrow.timestamp("us", kind.tz)  # of nanoseconds there are no more than 584 years
    if column.null_count == len(column):
        yield arrow.float64()
        yield arrow.string()


def _holds(kind: Any, cells: Sequence[str]) -> bool:
    import pyarrow as arrow

    types = arrow.types
    if types.is_integer(kind):
        least, most = _range(kind)
        return _are_numbers(cells) and all(least <= Decimal(c) <= most and Decimal(c) % 1 == 0 for c in cells)
    if "binary" in str(kind):
        return False  # arrow would take the text for the bytes
    if types.is_decimal(kind) and not _are_numbers(cells):
        return False
    try:
        cells_as(kind, cells)
    except arrow.ArrowException:
        return False
    return True


def _are_numbers(cells: Sequence[str]) -> bool:
    try:
        return all(Decimal(cell).is_finite() for cell in cells)
    except InvalidOperation:
        return False


def _rounded(cell: str, scale: int) -> Decimal:
    return Decimal(cell).quantize(Decimal(1).scaleb(-scale), context=_EXACT)


def _range(kind: Any) -> tuple[int, int]:
    bits = kind.bit_width
    signed = str(kind).startswith("int")
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
