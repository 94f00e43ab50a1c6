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

from viscos.runs.records import Record, families

Figure = tuple[str, str | None]
"""A mean and, of several seeds, their standard deviation; as they are printed."""

_FLOW = "viscos"
"""What the label of a row begins with whose figures are of a flow."""
_SAME = 1e-3
"""Share by which figures that need no flow may differ between runs of several flows, by rounding, and be one."""
_KINDS = (
    ("mean", f"{_FLOW}, posterior mean"),
    ("draw", f"{_FLOW}, one draw"),
    ("prediction", f"{_FLOW}, its network's own prediction"),
    ("gaussian_mean", "Gaussian conditional, mean"),
    ("gaussian_draw", "Gaussian conditional, one draw"),
    ("mean_imputation", "mean imputation"),
)
_REAL = (("real", "the complete test images"),)
_DRAWS = (("draw", f"{_FLOW}, draws"), ("gaussian_draw", "Gaussian conditional, draws"))


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
    optional: bool = False
    """Whether the table is left out if no record has a figure of it."""


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


def _of_draws(key: str, title: str, better: str, decimals: int, note: str = "") -> Spec:
    """Of a score of independent draws, which older records lack."""
    rows = tuple((label, (key, kind, "value")) for kind, label in _DRAWS)
    return Spec(key, title, better, decimals, rows, note, optional=True)


SPECS = (
    Spec(
        "accuracy",
        "Top-1 accuracy of a classifier that was trained along, on incomplete images",
        "higher",
        4,
        ((_FLOW, ("accuracy", "value")),),
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
    _of_draws("energy", "Energy score of independent draws, over an item's hidden pixels at once", "lower", 4),
    _of_draws(
        "coverage",
        "Coverage: share of hidden pixels, of those that vary, in the central {percent} % interval of draws",
        "nearer to {nominal}",
        3,
        "Ends count as inside, so that right draws of pixels that are often exactly 0 cover more.",
    ),
    _of_draws("spread_skill", "Spread of independent draws over the error of their mean", "nearer to 1", 3),
)


def tables(records: list[Record]) -> tuple[Table, ...]:
    """The tables of `records`, which must agree (`records.read`); the paper's rows where the data are the paper's."""
    paper = paper_figures()
    of_paper = all(record.figures["dataset"] == paper["dataset"] for record in records)
    rates = sorted({record.rate for record in records} | set(paper["rates"] if of_paper else ()))
    found = [Table(_of(spec, records), tuple(rates), _rows(spec, rates, records, of_paper)) for spec in SPECS]
    return tuple(t for t in found if not t.spec.optional or any(any(row.figures) for row in t.rows))


def _of(spec: Spec, records: list[Record]) -> Spec:
    """The table's description with what the records say of it: their unit where it is not the images', their level."""
    if spec.key == "coverage":
        levels = [record.value("coverage", kind, "nominal") for record in records for kind, _ in _DRAWS]
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
    if len(kinds := families(records)) > 1:
        text += ", ".join(f"{len(those)} of a {name}" for name, those in kinds.items()) + ", "
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
        for method, printed in paper["tables"].get(spec.key, {}).items():
            known = {rate: (text, None) for rate, text in zip(paper["rates"], printed, strict=True) if text}
            rows.append(Row(method, True, tuple(known.get(rate) for rate in rates)))
    for method, keys, those in _methods(spec, records):
        found = tuple(_figure([r.value(*keys) for r in those if r.rate == rate], spec.decimals) for rate in rates)
        rows.append(Row(method, False, found))
    return tuple(rows)


def _methods(spec: Spec, records: list[Record]) -> list[tuple[str, tuple[str, ...], list[Record]]]:
    """The label of each row that is not the paper's, the keys of its figures, and the records that they are from."""
    kinds = families(records)
    if len(kinds) == 1:
        return [(label, keys, records) for label, keys in spec.rows]
    own = [row for row in spec.rows if row[0].startswith(_FLOW)]
    methods = [
        (label.replace(_FLOW, f"{_FLOW}, {flow}", 1), keys, those)
        for flow, those in kinds.items()
        for label, keys in own
    ]
    for label, keys in (row for row in spec.rows if row not in own):
        if (shared := _shared(records, keys)) is not None:
            methods.append((label, keys, shared))
        else:
            methods += [(f"{label} (beside the {flow})", keys, those) for flow, those in kinds.items()]
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


def _figure(values: list[float | None], decimals: int) -> Figure | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    spread = f"{statistics.stdev(known):.{decimals}f}" if len(known) > 1 else None
    return f"{statistics.fmean(known):.{decimals}f}", spread
