"""Imputers of tables: `python scripts/tables.py [--tables wine …] [--seeds 5]`.

Ten numeric tables that come with scikit-learn, or are made by it, lose cells: 10, 30 or 50 % of all, completely at
random, or 30 % of all columns but one, the more the larger that one is. Each imputer is fitted to what is left and
completes the same table. The error at the hidden cells, in standard deviations of the complete columns, how many of
them a central 90 % interval of the draws covers, and the seconds go into outputs/reference/tables.json, case by case:
what is there already is not run again, so remove the file if the code has changed; it names the commits that made it.
The picture goes into docs/pictures/tables.png.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arguments import number, started
from numpy.typing import NDArray
from sklearn import datasets

from viscos.core import atomic
from viscos.data.incomplete import IncompleteData
from viscos.imputers import (
    ForestImputer,
    GaussianImputer,
    Imputer,
    IterativeImputer,
    MeanImputer,
    NeighboursImputer,
)
from viscos.runs.provenance import commit, machine, versions
from viscos.sklearn import FlowImputer

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "outputs" / "reference" / "tables.json"
DRAWS = 99
"""Of each cell, of which the fifth from either end bound an interval."""
OURS, MEANS = "viscos", "column means"
Table = NDArray[np.float64]


def _with_target(made: tuple[Any, ...]) -> Table:
    return np.column_stack([np.asarray(part, dtype=np.float64) for part in made])


def _features(load: Callable[..., Any]) -> Table:
    return np.asarray(load(return_X_y=True)[0], dtype=np.float64)


TABLES: dict[str, Callable[[], Table]] = {
    "wine": lambda: _features(datasets.load_wine),
    "breast cancer": lambda: _features(datasets.load_breast_cancer),
    "diabetes": lambda: _with_target(datasets.load_diabetes(return_X_y=True)),
    "iris": lambda: _features(datasets.load_iris),
    "linnerud": lambda: _with_target(datasets.load_linnerud(return_X_y=True)),
    "digits": lambda: _features(datasets.load_digits)[:300],
    "friedman1": lambda: _with_target(datasets.make_friedman1(500, 10, noise=1.0, random_state=0)),
    "friedman2": lambda: _with_target(datasets.make_friedman2(500, noise=50.0, random_state=0)),
    "friedman3": lambda: _with_target(datasets.make_friedman3(500, noise=0.1, random_state=0)),
    "swiss roll": lambda: _with_target(datasets.make_swiss_roll(500, noise=0.5, random_state=0)),
}
LOSSES = ("10 %", "30 %", "50 %", "30 % by a column")


def complete(name: str) -> Table:
    """The rows of a table, and of its columns those that vary there."""
    rows = TABLES[name]()
    return rows[:, rows.std(0) > 0]


def hidden(values: Table, loss: str, seed: int) -> NDArray[np.bool_]:
    """The cells that are hidden; in each column two at least stay, which differ."""
    share = int(loss.split()[0]) / 100
    n, d = values.shape
    for rng in (np.random.default_rng([seed, attempt]) for attempt in range(1000)):
        chance = np.full((n, d), share)
        if "column" in loss:
            by = int(rng.integers(d))
            chance *= 2 * (values[:, by].argsort().argsort()[:, None] + 0.5) / n
            chance[:, by] = 0
        gone = rng.random((n, d)) < chance
        if (np.nanstd(np.where(gone, np.nan, values), 0) > 0).all():
            return gone
    raise ValueError("no column of the table may lose so many cells")


Completed = tuple[Table, Table | None]
"""The mean (n, d), and draws (k, n, d) if there are any."""


def by_viscos(rows: Table, seed: int) -> Completed:
    """What a user of `viscos.sklearn` gets."""
    imputer = FlowImputer(random_state=seed).fit(rows)
    return imputer.transform(rows), imputer.sample(rows, DRAWS)


def by(make: Callable[[], Imputer]) -> Callable[[Table, int], Completed]:
    """A rival, which sees columns standardised by their observed cells."""

    def complete_(rows: Table, seed: int) -> Completed:
        center, scale = np.nanmean(rows, 0), np.nanstd(rows, 0)
        values = torch.from_numpy((rows - center) / scale)
        data = IncompleteData(values.float(), ~values.isnan())
        imputer = make().fit(data, seed)
        batch = data.batch(torch.arange(len(data)))
        mean = imputer.best_mean(batch, DRAWS, seed).mean().numpy() * scale + center
        if imputer.draw is None:
            return mean, None
        return mean, imputer.impute(batch, DRAWS, seed).draws.numpy() * scale + center

    return complete_


METHODS: dict[str, Callable[[Table, int], Completed]] = {
    OURS: by_viscos,
    "Gaussian (EM)": by(lambda: GaussianImputer(floor=0.01)),  # not the default: the record is of this
    "nearest neighbours": by(NeighboursImputer),
    "chained regressions": by(IterativeImputer),
    "chained forests": by(ForestImputer),
    MEANS: by(MeanImputer),
}


def measured(method: str, values: Table, gone: NDArray[np.bool_], seed: int) -> dict[str, Any]:
    """One case: the method sees NaN where cells are hidden."""
    start = time.process_time()
    mean, draws = METHODS[method](np.where(gone, np.nan, values), seed)
    seconds = time.process_time() - start
    error = ((mean - values) / values.std(0))[gone]
    found: dict[str, Any] = {"rmse": float(np.sqrt((error**2).mean())), "seconds": round(seconds, 2)}
    if draws is not None:
        ordered = np.sort(draws[:, gone], 0)
        rank = (DRAWS + 1) // 20
        inside = (ordered[rank - 1] <= values[gone]) & (values[gone] <= ordered[-rank])
        found["coverage"] = float(inside.mean())
    return found


def seeds(count: int) -> range:
    """From 1: what is general in the settings of ours, as the first layer of the flow, was chosen at seed 0."""
    return range(1, count + 1)


def key(table: str, loss: str, seed: int, method: str) -> str:
    """Of a case in the record."""
    return f"{table} | {loss} | {seed} | {method}"


def cases(record: dict[str, Any]) -> list[tuple[str, str, dict[str, dict[str, Any]]]]:
    """Table, loss and what each method came to, of every case that all of them have completed."""
    done = record["cases"]
    found = []
    for seed in seeds(record["seeds"]):
        for table in TABLES:
            for loss in LOSSES:
                here = {name: done.get(key(table, loss, seed, name)) for name in METHODS}
                if all(here.values()):
                    found.append((table, loss, {name: _even(each) for name, each in here.items()}))
    return found


def _even(case: dict[str, Any]) -> dict[str, Any]:
    """Without digits of rounding: a mean that single precision went through is the same mean."""
    return case | {"rmse": round(case["rmse"], 6)}


def _mean(numbers: list[float]) -> float:
    return float(np.mean(numbers)) if numbers else float("nan")


def summary(record: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Of each method the figures of the table: average rank by RMSE, share of cases worse than column means, …"""
    ranks: dict[str, list[float]] = {name: [] for name in METHODS}
    for _, _, here in cases(record):
        errors = {name: each["rmse"] for name, each in here.items()}
        for name, error in errors.items():  # those that are level share their ranks
            below, level = (sum(f(other, error) for other in errors.values()) for f in (float.__lt__, float.__eq__))
            ranks[name].append(below + (level + 1) / 2)
    found = {}
    for name in METHODS:
        here = [each[name] for _, _, each in cases(record)]
        means = [each[MEANS]["rmse"] for _, _, each in cases(record)]
        found[name] = {
            "rank": _mean(ranks[name]),
            "rmse": _mean([each["rmse"] for each in here]),
            "worse": _mean([float(each["rmse"] > mean) for each, mean in zip(here, means, strict=True)]),
            "coverage": _mean([each["coverage"] for each in here if "coverage" in each]),
            "seconds": _mean([each["seconds"] for each in here]),
        }
    return found


def _shown(number: float, how: str = ".3f") -> str:
    return "" if np.isnan(number) else format(number, how)


def markdown(record: dict[str, Any]) -> str:
    """All methods over all cases; then the RMSE by table and by loss, with what ours cover."""
    lines = ["| | average rank | RMSE | worse than column means | 90 % intervals cover | seconds a fit |"]
    lines.append("| --- " * 6 + "|")
    for name, of in summary(record).items():
        parts = (_shown(of["rank"], ".2f"), _shown(of["rmse"]), f"{100 * of['worse']:.1f} %")
        lines.append(f"| {name} | {' | '.join((*parts, _shown(of['coverage']), _shown(of['seconds'], '.1f')))} |")
    lines += [
        "",
        f"| RMSE | {' | '.join(METHODS)} | {OURS}, 90 % intervals cover |",
        "| --- " * (len(METHODS) + 2) + "|",
    ]
    for place, names in ((0, tuple(TABLES)), (1, LOSSES)):
        for name in names:
            here = [case[2] for case in cases(record) if case[place] == name]
            if not here:
                continue
            errors = [_shown(_mean([each[method]["rmse"] for each in here])) for method in METHODS]
            covered = _shown(_mean([each[OURS]["coverage"] for each in here]))
            label = f"{name} missing" if place else name
            lines.append(f"| {label} | {' | '.join(errors)} | {covered} |")
    return "\n".join(lines) + "\n"


def picture(record: dict[str, Any]) -> Any:
    """Errors of each table, relative to those of column means, and what our intervals cover."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 1), sharey=True)
    names = [name for name in TABLES if any(case[0] == name for case in cases(record))]
    for k, method in enumerate(METHODS):
        if method == MEANS:
            continue
        ratios = [
            _mean([each[method]["rmse"] / each[MEANS]["rmse"] for table, _, each in cases(record) if table == name])
            for name in names
        ]
        style = {"marker": "D", "s": 60, "zorder": 3} if method == OURS else {"marker": "o", "s": 30}
        left.scatter(ratios, names, color=f"C{k}", label=method, **style)
    left.axvline(1, color="grey", linewidth=1)
    left.set_xlabel("RMSE at hidden cells, over that of column means")
    left.legend(fontsize=8)
    covered = [[each[OURS]["coverage"] for table, _, each in cases(record) if table == name] for name in names]
    if covered:
        right.boxplot(covered, positions=range(len(names)), orientation="horizontal", widths=0.6)
    right.set_yticks(range(len(names)), names)
    right.axvspan(0.88, 0.92, color="C0", alpha=0.2)
    right.set_xlabel(f"{OURS}: 90 % intervals cover", fontsize=9)
    left.invert_yaxis()
    return figure


def main() -> None:
    """Runs the cases that the record lacks, writes it after each, draws the picture and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="*", default=list(TABLES), choices=TABLES, help="run now")
    parser.add_argument("--losses", nargs="*", default=list(LOSSES), choices=LOSSES, help="run now")
    parser.add_argument("--seeds", type=number, default=5, help="from 1; settings were chosen at seed 0")
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "pictures" / "tables.png")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    made = {"draws": DRAWS}
    old = json.loads(args.record.read_text(encoding="utf-8")) if args.record.is_file() else {}
    old = old if all(old.get(name) == value for name, value in made.items()) else {}
    record = {**made, "seeds": args.seeds, "commits": old.get("commits", []), "cases": old.get("cases", {})}
    if commit() not in record["commits"]:
        record["commits"].append(commit())
    record |= {"versions": versions(), "machine": machine(torch.device("cpu"))}
    for seed in seeds(args.seeds):  # a run that ends early has all tables of the first ones
        for table in args.tables:
            for loss in args.losses:
                values = complete(table)
                gone = hidden(values, loss, seed)
                for method in METHODS:
                    case = key(table, loss, seed, method)
                    if case not in record["cases"]:
                        record["cases"][case] = found = measured(method, values, gone, seed)
                        print(f"{case}: {found}", flush=True)
                        atomic.write_json(args.record, record)
    try:
        from viscos.report.figures.page import save_png

        save_png(picture(record), args.picture)
    except ImportError:
        print("matplotlib is not installed, so there is no picture")
    print(markdown(record))


if __name__ == "__main__":
    started(main)
