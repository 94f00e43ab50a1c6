"""The paper's tables: its own figures as it prints them, and those of runs, a column for each rate.

Runs of another kind of flow have rows of their own. What needs no flow stands there once, unless it differs.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from viscos.metrics import Coverage, EnergyAndSpread, Errors, Recognition, TrainedAlong
from viscos.metrics.metric import Figure
from viscos.report import kinds
from viscos.runs.records import Record, families

Cell = tuple[str, str | None]
"""A mean and, of several seeds, their standard deviation; as they are printed."""
RowSpec = tuple[str, tuple[str, ...], bool]
"""The label of a row, the keys of its figure in a record, and whether that is of the flow that is measured."""

_FLOW = "viscos"
"""What the label of a row begins with whose figures are of a flow."""
_SAME = 1e-3
"""Share by which figures that need no flow may differ between runs of several flows, by rounding, and be one."""
FIGURES: tuple[Figure, ...] = tuple(
    figure for metric in (TrainedAlong, Recognition, Errors, EnergyAndSpread, Coverage) for figure in metric.figures
)
"""What there are tables of, in their order."""


@dataclass(frozen=True)
class Row:
    """A method, and its figure at each rate; None where there is none."""

    method: str
    of_paper: bool
    figures: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Table:
    """Rows of methods under columns of rates, and the runs that are behind them."""

    spec: Figure
    rates: tuple[float, ...]
    rows: tuple[Row, ...]


def tables(records: list[Record]) -> tuple[Table, ...]:
    """The tables of `records`, which must agree (`records.read`); the paper's rows where the data are the paper's."""
    paper = paper_figures()
    of_paper = all(record.figures["dataset"] == paper["dataset"] for record in records)
    rates = sorted({record.rate for record in records} | set(paper["rates"] if of_paper else ()))
    found = [Table(_of(spec, records), tuple(rates), _rows(spec, rates, records, of_paper)) for spec in FIGURES]
    return tuple(t for t in found if not t.spec.optional or any(any(row.figures) for row in t.rows))


def _of(spec: Figure, records: list[Record]) -> Figure:
    """The table's description with what the records say of it: their unit where it is not the images', their level."""
    if spec.key == "coverage":
        levels = [record.value("coverage", kind, "nominal") for record in records for kind in kinds.DRAWS]
        level = max((level for level in levels if level is not None), default=0.9)  # failed draws only lower it
        title = spec.title.format(percent=f"{100 * level:.0f}")
        spec = replace(spec, title=title, better=spec.better.format(nominal=f"{level:.2f}"))
    unit = records[0].figures.get("rmse", {}).get("mean", {}).get("unit", "pixel")
    if "pixel" in unit:
        return spec
    if spec.key == "rmse":
        return replace(spec, title=f"RMSE on hidden entries, in {unit}, pooled")
    return replace(spec, title=spec.title.replace("hidden pixels", "hidden entries"))


def provenance(records: list[Record]) -> str:
    """What is behind the rows that are not the paper's, in a line."""
    seeds = sorted({record.seed for record in records})
    dataset, items = records[0].figures["dataset"], records[0].figures["items"]
    text = f"{len(records)} run{'s' * (len(records) > 1)} on {dataset}, {items} test items, "
    if len(flows := families(records)) > 1:
        text += ", ".join(f"{len(those)} of a {name}" for name, those in flows.items()) + ", "
    text += f"seed{'s' * (len(seeds) > 1)} "
    text += ", ".join(map(str, seeds))
    return text + ("; mean ± standard deviation over the seeds" if len(seeds) > 1 else "")


@cache
def paper_figures() -> dict[str, Any]:
    """The paper's figures."""
    return yaml.safe_load(files("viscos.report").joinpath("paper.yaml").read_text(encoding="utf-8"))


def _rows(spec: Figure, rates: list[float], records: list[Record], of_paper: bool) -> tuple[Row, ...]:
    rows = []
    if of_paper:
        paper = paper_figures()
        for method, printed in paper["tables"].get(spec.key, {}).items():
            known = {rate: (text, None) for rate, text in zip(paper["rates"], printed, strict=True) if text}
            rows.append(Row(method, True, tuple(known.get(rate) for rate in rates)))
    for method, keys, those in _methods(spec, records):
        found = tuple(_cell([r.value(*keys) for r in those if r.rate == rate], spec.decimals) for rate in rates)
        rows.append(Row(method, False, found))
    return tuple(rows)


def _row_specs(spec: Figure, records: list[Record]) -> list[RowSpec]:
    """A row for each kind of completion that has such a figure."""
    if spec.of == "model":
        return [(_FLOW, (spec.key, spec.value), True)]
    labels = kinds.labels(record.figures for record in records)
    if spec.of == "draws":
        labels = {kind: kinds.of_draws(label) for kind, label in labels.items() if kinds.drawn(label)}
    labels = {kind: label for kind, label in labels.items() if kind != kinds.UNFITTED}
    labels |= kinds.REAL if spec.of_truth else {}
    return [(label, (spec.key, kind, spec.value), kind in kinds.OF_FLOW) for kind, label in labels.items()]


def _methods(spec: Figure, records: list[Record]) -> list[tuple[str, tuple[str, ...], list[Record]]]:
    """The label of each row that is not the paper's, the keys of its figures, and the records that they are from."""
    flows, rows = families(records), _row_specs(spec, records)
    if len(flows) == 1:
        return [(label, keys, records) for label, keys, _ in rows]
    methods = [
        (label.replace(_FLOW, f"{_FLOW}, {flow}", 1), keys, those)
        for flow, those in flows.items()
        for label, keys, of_flow in rows
        if of_flow
    ]
    for label, keys, of_flow in rows:
        if of_flow:
            continue
        if (shared := _shared(records, keys)) is not None:
            methods.append((label, keys, shared))
        else:
            methods += [(f"{label} (beside the {flow})", keys, those) for flow, those in flows.items()]
    return methods


def _shared(records: list[Record], keys: tuple[str, ...]) -> list[Record] | None:
    """A record for each rate and seed, if all that have the figure under `keys` agree about it; else None."""
    found: dict[tuple[float, int], Record] = {}
    for record in records:
        if (value := record.value(*keys)) is None:
            continue
        same = found.setdefault((record.rate, record.seed), record).value(*keys)
        if same is None or not math.isclose(value, same, rel_tol=_SAME):
            return None
    return list(found.values())


def _cell(values: list[float | None], decimals: int) -> Cell | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    spread = f"{statistics.stdev(known):.{decimals}f}" if len(known) > 1 else None
    return f"{statistics.fmean(known):.{decimals}f}", spread
