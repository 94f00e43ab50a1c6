"""The paper's tables: its own figures as it prints them, and those of runs, a column for each rate."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from viscos.report.records import Record

Figure = tuple[str, str | None]
"""A mean and, of several seeds, their standard deviation; as they are printed."""

_KINDS = (
    ("mean", "viscos, posterior mean"),
    ("draw", "viscos, one draw"),
    ("prediction", "viscos, its network's own prediction"),
    ("gaussian_mean", "Gaussian conditional, mean"),
    ("gaussian_draw", "Gaussian conditional, one draw"),
    ("mean_imputation", "mean imputation"),
)
_REAL = (("real", "the complete test images"),)


@dataclass(frozen=True)
class Spec:
    """What a table shows of a record."""

    key: str
    title: str
    better: str
    decimals: int
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    """Label, and the keys of the figure in a record."""
    note: str = ""


@dataclass(frozen=True)
class Row:
    """A method, and its figure at each rate; None where there is none."""

    method: str
    of_paper: bool
    figures: tuple[Figure | None, ...]


@dataclass(frozen=True)
class Table:
    """Rows of methods under columns of rates, and the runs that are behind them."""

    spec: Spec
    rates: tuple[float, ...]
    rows: tuple[Row, ...]


SPECS = (
    Spec(
        "accuracy",
        "Top-1 accuracy of a classifier that was trained along, on incomplete images",
        "higher",
        4,
        (("viscos", ("accuracy", "value")),),
    ),
    Spec(
        "accuracy_complete",
        "Top-1 accuracy of a classifier that was trained on complete images, on the completions",
        "higher",
        4,
        tuple((label, ("accuracy_complete", kind, "value")) for kind, label in _KINDS + _REAL),
    ),
    Spec(
        "fid",
        "FID of the completions",
        "lower",
        3,
        tuple((label, ("fid", kind, "value")) for kind, label in _KINDS + _REAL),
        "The paper's extractor was never published, so its FIDs and ours are distances between other features; "
        "the last row is the least that can be expected here.",
    ),
    Spec(
        "rmse",
        "RMSE on hidden pixels, in [0, 1], pooled",
        "lower",
        4,
        tuple((label, ("rmse", kind, "pooled")) for kind, label in _KINDS),
    ),
)


def tables(records: list[Record]) -> tuple[Table, ...]:
    """The tables of `records`, which must agree (`records.read`); the paper's rows where the data are the paper's."""
    paper = paper_figures()
    of_paper = all(record.figures["dataset"] == paper["dataset"] for record in records)
    rates = sorted({record.rate for record in records} | set(paper["rates"] if of_paper else ()))
    return tuple(Table(_of(spec, records), tuple(rates), _rows(spec, rates, records, of_paper)) for spec in SPECS)


def _of(spec: Spec, records: list[Record]) -> Spec:
    """The table's description with the unit that the records give, where it is not the images'."""
    unit = records[0].figures.get("rmse", {}).get("mean", {}).get("unit", "pixel")
    if spec.key != "rmse" or "pixel" in unit:
        return spec
    return replace(spec, title=f"RMSE on hidden entries, in {unit}, pooled")


def provenance(records: list[Record]) -> str:
    """What is behind the rows that are not the paper's, in a line."""
    seeds = sorted({record.seed for record in records})
    dataset, items = records[0].figures["dataset"], records[0].figures["items"]
    text = f"{len(records)} run{'s' * (len(records) > 1)} on {dataset}, {items} test items, "
    text += f"seed{'s' * (len(seeds) > 1)} "
    text += ", ".join(map(str, seeds))
    return text + ("; mean ± standard deviation over the seeds" if len(seeds) > 1 else "")


@cache
def paper_figures() -> dict[str, Any]:
    """The paper's figures."""
    return yaml.safe_load(files("viscos.report").joinpath("paper.yaml").read_text(encoding="utf-8"))


def _rows(spec: Spec, rates: list[float], records: list[Record], of_paper: bool) -> tuple[Row, ...]:
    rows = []
    if of_paper:
        paper = paper_figures()
        for method, printed in paper["tables"][spec.key].items():
            known = {rate: (text, None) for rate, text in zip(paper["rates"], printed, strict=True) if text}
            rows.append(Row(method, True, tuple(known.get(rate) for rate in rates)))
    for method, keys in spec.rows:
        found = tuple(_figure([r.value(*keys) for r in records if r.rate == rate], spec.decimals) for rate in rates)
        rows.append(Row(method, False, found))
    return tuple(rows)


def _figure(values: list[float | None], decimals: int) -> Figure | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    spread = f"{statistics.stdev(known):.{decimals}f}" if len(known) > 1 else None
    return f"{statistics.fmean(known):.{decimals}f}", spread
