"""The paper's tables: its own numbers as it prints them, and those of runs, a column for each rate.

Runs of another kind of flow, or of another family, have rows of their own. What needs no flow stands there once, unless
it differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from viscos.core.errors import InputError
from viscos.core.labels import MEASURES, Measure
from viscos.report import cells, kinds
from viscos.report.cells import Cell
from viscos.runs.records import Record, families

RowSpec = tuple[str, tuple[str, ...], bool]
"""The label of a row, the keys of its number in a record, and whether that is of the flow that is measured."""

_FLOW = "viscos"
"""What the label of a row begins with whose numbers are of a flow."""
_ALONG = f"{_FLOW}, classifier"
"""The label of the classifier that was trained along, before what it saw is said."""
_ON_LATENTS = (f"{_ALONG} on latents", ("accuracy_latents", "value"), True)
"""The row of the classifier that was trained on latents beside the other one; the paper has only such a one."""
_SAW = {
    "latents": "on latents",
    "draws": "on draws",
    "prediction": "on its network's completion, without the flow",
    None: "trained along",
}
"""What that classifier saw, in a label."""
_SHORT = 7
"""Digits of a commit, as the pages name it."""
_SAME = 1e-3
"""Share by which numbers that need no flow may differ between runs of several flows, by rounding, and be one."""


@dataclass(frozen=True)
class Row:
    """A method, and its number at each rate; None where there is none."""

    method: str
    of_paper: bool
    cells: tuple[Cell | None, ...]
    competes: bool = True
    """Whether it is a method at all, and not what is the best to hope for."""


@dataclass(frozen=True)
class Table:
    """Rows of methods under columns of rates, and the runs that are behind them."""

    spec: Measure
    rates: tuple[float, ...]
    rows: tuple[Row, ...]


def tables(records: list[Record]) -> tuple[Table, ...]:
    """The tables of `records`, which must agree (`records.read`); the paper's rows where the data are the paper's.

    A table without a number is left out, as one of FIDs is where the data have none.
    """
    paper = paper_numbers()
    of_paper = all(record.content["dataset"] == paper["dataset"] for record in records)
    rates = sorted({record.rate for record in records} | set(paper["rates"] if of_paper else ()))
    specs = (*MEASURES, *_own(records))
    found = [_table(_of(spec, records), tuple(rates), records, of_paper) for spec in specs]
    return tuple(table for table in found if any(any(row.cells) for row in table.rows))


def _own(records: list[Record]) -> Iterator[Measure]:
    """What metrics of one's own have told the records of their tables, each once."""
    found, usual = dict[str, Measure](), {measure.key for measure in MEASURES}
    for record in records:
        try:
            told = [Measure(**entry) for entry in record.content.get("measures", ())]
        except TypeError:  # edited, or of another version
            raise InputError(f"what {record.name} says of its measures cannot be tabulated") from None
        found |= {measure.key: measure for measure in told if measure.key not in usual}
    yield from found.values()


def _of(spec: Measure, records: list[Record]) -> Measure:
    """The table's description with what the records say of it: their unit where it is not the images', their level."""
    if spec.key == "coverage":
        level = _level(records)
        better = spec.better.format(nominal=f"{int(level) / 100:.2f}")
        spec = replace(spec, title=spec.title.format(percent=level), better=better)
    unit = next(filter(None, (record.unit for record in records)), "pixel")
    if "pixel" in unit:
        return spec
    if spec.key == "rmse":
        return replace(spec, title=f"RMSE on hidden entries, in {unit}, pooled")
    return replace(spec, title=spec.title.replace("hidden pixels", "hidden entries"))


def provenance(records: list[Record]) -> str:
    """What is behind the rows that are not the paper's, in a line."""
    seeds = sorted({record.seed for record in records})
    dataset, items = records[0].content["dataset"], records[0].content["items"]
    text = f"{len(records)} run{'s' * (len(records) > 1)} on {dataset}, {items} test items, "
    if len(flows := families(records)) > 1:
        article = {name: "" if those[0].imputer else "a " for name, those in flows.items()}
        text += ", ".join(f"{len(those)} of {article[name]}{name}" for name, those in flows.items()) + ", "
    text += f"seed{'s' * (len(seeds) > 1)} "
    text += ", ".join(map(str, seeds)) + _commits(records)
    return text + ("; mean ± standard deviation over the seeds, without ± of one seed" if len(seeds) > 1 else "")


def _commits(records: list[Record]) -> str:
    """The commits of the code that made the runs, in short, where records have them; with `+` if files differed."""
    each = dict.fromkeys(str(record.content["commit"]) for record in records if record.content.get("commit"))
    names = dict.fromkeys(name[:_SHORT] + "+" * name.endswith("+") for name in each)
    return f", at commit{'s' * (len(names) > 1)} {', '.join(names)}" if names else ""


@cache
def paper_numbers() -> dict[str, Any]:
    """The paper's numbers."""
    return yaml.safe_load(files("viscos.report").joinpath("paper.yaml").read_text(encoding="utf-8"))


def _level(records: list[Record]) -> str:
    """The highest nominal level of intervals in per cent: those of fewer draws are lower."""
    levels = [cells.nominal(record.entry("coverage", kind)) for record in records for kind in kinds.DRAWS]
    return max((level for level in levels if level is not None), key=int, default="90")


def _table(spec: Measure, rates: tuple[float, ...], records: list[Record], of_paper: bool) -> Table:
    """The paper's rows and those of runs, in which whatever does not compare is marked."""
    rows = (_paper_rows(spec, rates) if of_paper else []) + _run_rows(spec, rates, records)
    most = cells.most_items(each for row in rows for each in row.cells)
    marked = (replace(row, cells=tuple(cells.set_apart(spec, each, most) for each in row.cells)) for row in rows)
    return Table(spec, rates, tuple(marked))


def _paper_rows(spec: Measure, rates: tuple[float, ...]) -> list[Row]:
    paper, rows = paper_numbers(), []
    for method, printed in paper["tables"].get(spec.key, {}).items():
        texts = {rate: text for rate, text in zip(paper["rates"], printed, strict=True) if text}
        known = {rate: cells.printed(spec, text, paper["items"]) for rate, text in texts.items()}
        rows.append(Row(method, True, tuple(known.get(rate) for rate in rates)))
    return rows


def _run_rows(spec: Measure, rates: tuple[float, ...], records: list[Record]) -> list[Row]:
    level = _level(records) if spec.key == "coverage" else None
    rows = []
    for label, keys, those in _methods(spec, records):
        known: dict[float, list[cells.Entry]] = {rate: [] for rate in rates}
        for record in those:
            if (value := record.value(*keys)) is not None:
                known[record.rate].append((record.seed, value, record.entry(*keys[:-1])))
        items = int(records[0].content["items"])
        found = tuple(cells.cell(spec, known[rate], items, level) for rate in rates)
        rows.append(Row(label, False, found, not kinds.NO_RIVALS & set(keys)))
    return rows


def _row_specs(spec: Measure, records: list[Record]) -> list[RowSpec]:
    """A row for each kind of completion that has such a number."""
    if spec.of == "model":
        beside = spec.key == "accuracy" and any(record.entry("accuracy_latents") for record in records)
        return [(_ALONG, (spec.key, spec.value), True), *([_ON_LATENTS] if beside else [])]
    labels = kinds.labels(record.content for record in records)
    if spec.of == "draws":
        labels = {kind: kinds.of_draws(label) for kind, label in labels.items() if kinds.drawn(label)}
    labels = {kind: label for kind, label in labels.items() if kind != kinds.UNFITTED}
    labels |= kinds.REAL if spec.of_truth else {}
    return [(label, (spec.key, kind, spec.value), kind in kinds.OF_FLOW) for kind, label in labels.items()]


def _methods(spec: Measure, records: list[Record]) -> list[tuple[str, tuple[str, ...], list[Record]]]:
    """The label of each row that is not the paper's, the keys of its numbers, and the records that they are from."""
    flows, rows = families(records), _row_specs(spec, records)
    models = {name: those for name, those in flows.items() if those[0].imputer is None}
    rows = [row for row in rows if models or not row[2]]
    if len(flows) == 1:
        return [(_said(label, records), keys, records) for label, keys, _ in rows]
    methods = [
        (_said(label, those).replace(_FLOW, f"{_FLOW}, {flow}", 1), keys, those)
        for flow, those in models.items()
        for label, keys, of_flow in rows
        if of_flow
    ]
    for label, keys, of_flow in rows:
        if of_flow:
            continue
        if (shared := _shared(records, keys)) is not None:
            methods.append((label, keys, shared))
        else:
            having = {
                name: those for name, those in flows.items() if any(record.value(*keys) is not None for record in those)
            }
            methods += [(f"{label} ({_beside(those)})", keys, those) for those in having.values()]
    return methods


def _beside(records: list[Record]) -> str:
    """Whose a row is that differs between families."""
    family, imputer = records[0].family, records[0].imputer
    return family if imputer else f"beside the {family}"


def _said(label: str, records: list[Record]) -> str:
    """A label, with what the classifier saw if it is of the one that was trained along with the flow."""
    return f"{label} {_SAW[records[0].classified]}" if label == _ALONG else label


def _shared(records: list[Record], keys: tuple[str, ...]) -> list[Record] | None:
    """A record for each rate and seed, if all that have the number under `keys` agree about it; else None."""
    found: dict[tuple[float, int], Record] = {}
    for record in records:
        if (value := record.value(*keys)) is None:
            continue
        same = found.setdefault((record.rate, record.seed), record).value(*keys)
        if same is None or not math.isclose(value, same, rel_tol=_SAME):
            return None
    return list(found.values())
