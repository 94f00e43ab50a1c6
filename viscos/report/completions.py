"""What was measured of each kind of completion, as a table of text."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from viscos.report import kinds

STANDARD = ("rmse", "fid", "accuracy_complete", "energy", "coverage", "spread_skill")
"""Metrics that have columns of their own here; a column of any other is headed by its key."""


def completions_table(record: dict[str, Any]) -> list[str]:
    """Lines of the table: a row for each kind, a column for each number that is known of any; none if nothing is."""
    rmse, fid, accuracy = record.get("rmse", {}), _values(record, "fid"), _values(record, "accuracy_complete")
    labels = kinds.labels([record]) | kinds.REAL
    columns = {
        "pooled": {kind: _number(row["pooled"]) for kind, row in rmse.items()},
        _each(rmse): {kind: _spread(row) for kind, row in rmse.items()},
        "95 % of the mean": {kind: _interval(row) for kind, row in rmse.items()},
        "left out, failed": {kind: _left_out(row) for kind, row in rmse.items()},
        f"FID of {record.get('items')}": fid,
        "accuracy": accuracy,
        **{key: cells for key, cells in _others(record, labels).items() if not _of_draws(cells, labels)},
    }
    lines = _layout(labels, columns)
    judged = "; FID and accuracy by a network trained on complete images" if any((fid | accuracy).values()) else ""
    return [f"RMSE on hidden {_unit(rmse)}{_against(record)}{judged}:", *lines] if lines else []


def scores_table(record: dict[str, Any]) -> list[str]:
    """Lines of the table of scores of independent draws, with their standard errors; none if there are none."""
    energy, coverage, ratio = (record.get(metric, {}) for metric in ("energy", "coverage", "spread_skill"))
    mine, covered = _first(energy) or _first(coverage), _first(coverage)
    nominal = covered.get("nominal")
    labels = kinds.labels([record])
    columns = {
        "energy score": {kind: _with_error(row) for kind, row in energy.items()},
        "paired difference": {kind: _signed(row.get("beside", {})) for kind, row in energy.items()},
        f"inside the {100 * (nominal or 0.9):.0f} % interval": {
            kind: _with_error(row) + _of_level(row, nominal) for kind, row in coverage.items()
        },
        "spread / skill": {kind: _with_error(row) for kind, row in ratio.items()},
        **{key: cells for key, cells in _others(record, labels).items() if _of_draws(cells, labels)},
    }
    lines = _layout({kind: kinds.of_draws(label) for kind, label in labels.items()}, columns)
    left = {"items": mine.get("failed_items_left_out"), "draws": mine.get("failed_draws_left_out")}
    without = " and ".join(f"{count} failed {what}" for what, count in left.items() if count)
    head = f"{_counted(mine)}{without and f', without {without}'}"
    said = [row["unit"] for row in record.get("rmse", {}).values() if "unit" in row]
    unit = "pixels" if "pixel" in (said[0] if said else mine.get("unit", "pixel")) else "entries"
    if not lines:
        return []
    head += f", on hidden {unit}{_against(record)}, ± standard error"
    beside = _beside(energy, mine, "scores", labels) + _beside(coverage, covered, "intervals", labels)
    return [f"scores of {head}:", *lines, *_of_more(covered, mine), *beside]


def _against(record: dict[str, Any]) -> str:
    """What was taken for the truth, where it may be none."""
    truth = record.get("measured_against")
    return f", against {truth}" if truth else ""


def _first(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The row of what is measured itself, before those beside it; of what failed throughout, the next."""
    return next((row for row in rows.values() if row.get("value") is not None), {})


def costs_table(record: dict[str, Any]) -> list[str]:
    """Lines of the table of what each imputer cost; none if the record does not say."""
    costs = record.get("cost", {})
    heads = ("passes", "seconds", *(("fitted in",) if any("fit_seconds" in cost for cost in costs.values()) else ()))
    table = Table("", *(Column(name, justify="right") for name in heads), box=None)
    for name, cost in costs.items():
        fit = cost.get("fit_seconds")
        gradients = " with gradients" if cost["with_gradients"] else ""
        passes = f"{cost['network_passes_an_item']:.4g}{gradients}"
        cells = passes, f"{cost['seconds_an_item']:.2g}", "" if fit is None else f"{fit:.3g} s"
        table.add_row(f"  {name}", *cells[: len(heads)])
    return ["cost of an item, all draws together:", *text_of(table)] if table.row_count else []


def _others(record: dict[str, Any], labels: dict[str, str]) -> dict[str, dict[str, str]]:
    """Cells by kind of every metric that is not `STANDARD`, by its key."""
    found = {}
    for key, rows in record.items():
        if key not in STANDARD and isinstance(rows, dict) and rows and set(rows) <= set(labels):
            if all(isinstance(row, dict) and "value" in row for row in rows.values()):
                found[key] = {kind: _with_error(row) for kind, row in rows.items()}
    return found


def _of_draws(cells: dict[str, str], labels: dict[str, str]) -> bool:
    return all(kinds.drawn(labels[kind]) for kind in cells)


def _of_more(covered: dict[str, Any], mine: dict[str, Any]) -> list[str]:
    """A line that says what the intervals are of, if not of the draws and items `mine` that the head counts."""
    return [] if not covered or _alike(covered, mine) else [f"  the intervals are of {_counted(covered)}"]


def _beside(rows: dict[str, Any], mine: dict[str, Any], what: str, labels: dict[str, str]) -> list[str]:
    """A line for each kind whose numbers are of other draws or items than `mine`."""
    others = {kind: row for kind, row in rows.items() if row.get("value") is not None and not _alike(row, mine)}
    return [f"  {kinds.of_draws(labels[kind])}: {what} of {_counted(row)}" for kind, row in others.items()]


def _alike(row: dict[str, Any], mine: dict[str, Any]) -> bool:
    return all(row.get(key) == mine.get(key) for key in ("draws", "items"))


def _counted(row: dict[str, Any]) -> str:
    draws, items = (int(row.get(key) or 0) for key in ("draws", "items"))
    return f"{draws} independent draw{'s' * (draws != 1)} of {items} item{'s' * (items != 1)}"


def _of_level(row: dict[str, Any], nominal: float | None) -> str:
    """What an interval should cover, if not what the head of its column says."""
    level = row.get("nominal")
    if row.get("value") is None or level is None or nominal is None or round(100 * level) == round(100 * nominal):
        return ""
    return f" of {100 * level:.0f} %"


def _layout(labels: dict[str, str], columns: dict[str, dict[str, str]]) -> list[str]:
    """Columns of cells by kind under their heads, without empty rows and columns; no line if there is no cell."""
    columns = {name: cells for name, cells in columns.items() if any(cells.values())}
    if not columns:
        return []
    heads = [Column(name, justify="right") for name in columns]
    table = Table("", *heads, box=None, padding=(0, 0, 0, 3), pad_edge=False)
    for kind, label in labels.items():
        row = [cells.get(kind, "") for cells in columns.values()]
        if any(row):
            table.add_row(f"  {label}", *row)
    return text_of(table)


def text_of(table: Table) -> list[str]:
    """The lines of a table as plain text, as wide as it is."""
    console = Console(file=io.StringIO(), width=1000, color_system=None, highlight=False, markup=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def _with_error(row: dict[str, Any]) -> str:
    value, error = _number(row.get("value")), _number(row.get("standard_error"))
    return f"{value} ± {error}" if error else value


def _signed(row: dict[str, Any]) -> str:
    """A difference and its standard error, where both are known."""
    value, error = row.get("value"), row.get("standard_error")
    return "" if value is None or error is None else f"{value:+.4f} ± {error:.4f}"


def _unit(rmse: dict[str, Any]) -> str:
    unit = next((row.get("unit", "pixels") for row in rmse.values()), "")
    return "pixels, in [0, 1]" if "pixel" in unit else f"entries, in {unit}"


def why_no_fid(record: dict[str, Any]) -> str | None:
    """The reason of the record, or of its first kind of completion."""
    fid = record.get("fid", {})
    return fid.get("reason") or fid.get("mean", {}).get("reason")


def _values(record: dict[str, Any], metric: str) -> dict[str, str]:
    rows = record.get(metric, {})
    return {} if "reason" in rows else {kind: _number(row["value"]) for kind, row in rows.items()}


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _each(rmse: dict[str, Any]) -> str:
    return "item ± std" if any("per_item_mean" in row for row in rmse.values()) else "image ± std"


def _per(row: dict[str, Any], name: str) -> Any:
    """A number of an image's, or of another item's, own error."""
    return row.get(f"per_image_{name}", row.get(f"per_item_{name}"))


def _spread(row: dict[str, Any]) -> str:
    mean, std = _number(_per(row, "mean")), _number(_per(row, "std"))
    return f"{mean} ± {std}" if std else mean


def _left_out(row: dict[str, Any]) -> str:
    """How many items none of whose draws were solved, of how many: the numbers beside it are of the others."""
    failed = int(row.get("failed_items_left_out") or 0)
    return f"{failed} of {failed + int(row.get('items') or 0)} items" if failed else ""


def _interval(row: dict[str, Any]) -> str:
    low, high = map(_number, _per(row, "mean_interval_95"))
    return f"{low} to {high}" if low else ""
