"""How a terminal says how far off the completions of a table were where that could be seen."""

from __future__ import annotations

from typing import Any

from rich.table import Column, Table

from viscos.report.completions import text_of

_SHOWN = 20
"""Columns that have a line each."""


def check_lines(record: dict[str, Any]) -> list[str]:
    """Lines on known cells that were hidden and completed, a line a column; none of a record without."""
    found = record.get("check")
    if not found:
        return []
    columns = found["columns"]
    heads = ("cells", "error", "of the column's mean")
    table = Table("", *(Column(name, justify="right") for name in heads), box=None)
    for name, each in list(columns.items())[:_SHOWN]:
        failed = f" ({each['failed']} failed)" * bool(each["failed"])
        table.add_row(f"  {name}", f"{each['cells']}{failed}", _said(each, "error"), _said(each, "of_constant"))
    share = f"{100 * found['share']:.3g} % of the known cells of columns with holes"
    head = f"how far off: {share} ({found['cells']} in {found['rows']} rows), hidden and completed in a second pass:"
    more = [f"  {len(columns) - _SHOWN} more columns are in check.csv"] if len(columns) > _SHOWN else []
    if found["trained_on"]:
        of = f"{found['trained_on']} of these rows were trained on"
        more.append(f"  {of}, with what is hidden here: of other rows it may be further off")
    return [head, *text_of(table), *more]


def _said(each: dict[str, Any], key: str) -> str:
    """The root mean square of errors in the column's own units, or the share of categories that are wrong."""
    value = each[key]
    if value is None:
        return "none"
    return f"{100 * value:.3g} % wrong" if each["measure"] == "wrong" else f"{value:.4g} {each['unit'] or ''}".rstrip()
