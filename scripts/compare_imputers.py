"""Imputers of one trained continuous flow, each at the same digits: `python scripts/compare_imputers.py --case …`.

A case is a run of `viscos train dataset=mnist flow=continuous` and what is hidden: `--case "90 %" RUN` takes the masks
of the run, `--case "50 %" RUN random,missing=0.5` a choice of configs/mask. Of the first test digits every method makes
19 draws, those that are cheap a few of more digits, and all have the same metrics. A method is named as in
configs/imputer. Settings that are not the usual ones stand behind either name: `dps,steps=160`. Seconds are of the
processor; a pass of the network with a gradient counts as two. The record is written after each method, and keeps what
is not measured anew, with the commit that measured it; one of other numbers of digits or draws is refused.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from arguments import number, started
from torch import Tensor

from viscos.commands.assemble.imputers import Parts, described_by
from viscos.commands.assemble.measuring import reference_of
from viscos.commands.assemble.saved import dataset_of, from_training, test_masks, test_split
from viscos.core import atomic
from viscos.core.batch import Incomplete, incomplete
from viscos.core.build import build
from viscos.core.choices import description
from viscos.core.errors import InputError
from viscos.data.items import Data
from viscos.data.masks import Mask
from viscos.imputers import Imputer
from viscos.imputers.cost import averaged
from viscos.inference import Completions
from viscos.metrics import Coverage, EnergyAndSpread, Errors, Metric, Recognition, Reference
from viscos.metrics.metric import measured
from viscos.report.compared import own_name, pictures, table
from viscos.report.figures.page import save_png
from viscos.roots import RootFinder
from viscos.runs.provenance import commit, continued, machine, versions
from viscos.runs.trained import Trained, load_any

ROOT = Path(__file__).parents[1]
RECORD, PICTURE = ROOT / "outputs" / "reference" / "compare_imputers.json", ROOT / "docs" / "pictures" / "compared.png"
CHEAP = ("viscos", "repaint", "dps", "pnp_flow", "flower", "gaussian")
DEAR = ("d_flow",)
"""Measured on the first digits alone, as any other imputer that is named."""


@dataclass(frozen=True)
class Case:
    """A flow, and test digits under masks."""

    trained: Trained
    test: Data
    observed: Tensor
    reference: Reference | str
    solver: RootFinder

    @classmethod
    def of(cls, run: str, mask: str | None, items: int) -> Case:
        """The first `items` test items of a run, under its own masks or those of a choice in configs/mask."""
        trained = load_any(run, torch.device("cpu"))
        assert isinstance(trained, Trained)
        test = test_split(trained, items).data
        hide = None if mask is None else build(described(mask, partial(description, "mask")), Mask)
        observed = test_masks(trained, None, test) if hide is None else hide((*test.shape,), len(test), 0, "test")
        reference = reference_of(dataset_of(trained), test.shape, None, torch.device("cpu"))
        return cls(trained, test, observed, reference, build(description("solver", "auto"), RootFinder))

    def imputer(self, name: str) -> Imputer:
        """The method of that name, with its usual settings but for those that stand behind it."""
        model, noise = self.trained.model, self.trained.taken_off(True)
        known = from_training(self.trained)
        return Parts(known, model, self.solver, noise, 0, torch.device("cpu")).imputer(described(name, described_by))

    def batch(self, rows: Tensor) -> Incomplete:
        """Some of the digits."""
        return incomplete(self.test.values[rows], self.observed[rows], rows)

    def metrics(self) -> list[Metric]:
        """Fresh ones."""
        return [Errors(self.test), EnergyAndSpread(self.test), Coverage(self.test)]


def described(name: str, usually: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """What a name `usually` describes, with the settings behind it in the place of the usual ones."""
    own, *settings = name.split(",")
    given = {key: yaml.safe_load(value) for key, _, value in (each.partition("=") for each in settings)}
    usual = usually(own)
    for key in given.keys() - usual.keys():
        raise InputError(f"{own} has no setting {key!r}; choose from {', '.join(sorted(usual.keys() - {'_target_'}))}")
    return usual | given


@dataclass(frozen=True)
class Sizes:
    """How many digits and draws."""

    first: int
    items: int
    draws: int
    first_draws: int = Coverage.draws


class Scores:
    """What some metrics say of an imputer, and what its draws took."""

    def __init__(self, case: Case, metrics: list[Metric]) -> None:
        self.case, self.metrics = case, metrics

    def add(self, imputer: Imputer, done: Completions, rows: Tensor) -> None:
        for metric in self.metrics:
            metric.update(imputer, done, measured(self.case.test, rows, self.case.observed[rows]))

    def record(self, imputer: Imputer) -> dict[str, Any]:
        """The numbers alone; how they are computed is the metrics' own record."""
        found: dict[str, Any] = {}
        for metric in self.metrics:
            found |= metric.record()
        assert imputer.mean is not None and imputer.draw is not None
        mean, draw = imputer.mean.key, imputer.draw.key
        return {
            "items": found["rmse"][mean]["items"],
            "rmse": found["rmse"][mean]["pooled"],
            "rmse_draw": found["rmse"][draw]["pooled"],
            **{key: _of(found, key, draw, "value", "standard_error", "nominal") for key in ("energy", "coverage")},
            "spread_skill": _of(found, "spread_skill", draw, "value", "standard_error"),
            "draws": found["energy"][draw]["draws"],
            "fid": found.get("fid", {}).get(draw, {}).get("value"),
        }


def _of(record: dict[str, Any], key: str, kind: str, *what: str) -> dict[str, Any]:
    return {name: record[key][kind][name] for name in what if name in record[key][kind]}


def measure(case: Case, name: str, sizes: Sizes) -> dict[str, Any]:
    """One method's part of the record."""
    imputer = case.imputer(name)
    first, rest = torch.arange(sizes.first), torch.arange(sizes.first, sizes.items)
    few, many = Scores(case, case.metrics()), Scores(case, [*case.metrics(), Recognition(case.test, case.reference)])
    seconds = passes = draws = failed = 0.0
    notes: dict[str, list[Tensor]] = {}
    for rows in (first, *(rest.split(26) if own_name(name) in CHEAP else ())):
        count = sizes.first_draws if rows is first else sizes.draws
        began = time.process_time()
        done = imputer.impute(case.batch(rows), count)
        seconds += time.process_time() - began
        passes += float(done.solution.evaluations.double().sum()) * imputer.passes * (1 + imputer.gradients)
        draws, failed = draws + count * len(rows), failed + float((~done.ok).sum())
        for key, each in (done.notes or {}).items():
            notes.setdefault(key, []).append(each.double())
        if rows is first:
            few.add(imputer, done, rows)
        many.add(imputer, done.first(sizes.draws), rows)
    return {
        "label": ", ".join([imputer.label, *name.split(",")[1:]]),
        "first": few.record(imputer),
        "all": many.record(imputer) if own_name(name) in CHEAP else None,
        "passes_a_draw": passes / draws,
        "seconds_a_draw": seconds / draws,
        "failed": failed / draws,
        "notes": {name: value for key, each in notes.items() for name, value in averaged(key, torch.cat(each)).items()},
        "commit": commit(),
    }


def ordered(methods: dict[str, Any]) -> dict[str, Any]:
    """The same, as they stand in a table: those that nobody has to name first."""
    usual = {name: place for place, name in enumerate((*CHEAP, *DEAR))}
    return dict(sorted(methods.items(), key=lambda each: usual.get(own_name(each[0]), len(usual))))


def main() -> None:
    """Measures, writes the record and the picture, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", action="append", default=[], help="its name, a run, a mask if not its own")
    parser.add_argument("--methods", nargs="*", default=(*CHEAP, *DEAR), help="measured; of others what there is")
    parser.add_argument("--items", type=number, default=200, help="test digits for methods that are cheap")
    parser.add_argument(
        "--first", type=number, default=10, help="test digits for all methods, of which there are more draws"
    )
    parser.add_argument("--draws", type=number, default=4, help="of each of the others")
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sizes = Sizes(args.first, args.items, args.draws)
    size = {"first": sizes.first, "items": sizes.items, "draws": sizes.draws}
    cases = continued(args.record, size).get("cases", {})
    record = {"settings": size, "versions": versions(), "machine": machine(torch.device("cpu")), "cases": cases}
    for title, run, *mask in args.case:
        case = Case.of(run, *(mask or [None]), sizes.items)
        part = cases.setdefault(title, {"missing": float((~case.observed).double().mean()), "methods": {}})
        for name in args.methods:
            found = part["methods"] | {name: measure(case, name, sizes)}
            print(title, name, json.dumps(found[name]), flush=True)
            part["methods"] = ordered(found)
            atomic.write_json(args.record, record)
    save_png(pictures(record), args.picture)
    print(table(record))


if __name__ == "__main__":
    started(main)
