"""How far the completions of `viscos impute` can be trusted: exact draws if they are asked for, and the verdicts."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from viscos.commands.assemble.imputing import Imputing, Items
from viscos.commands.lines import write_lines
from viscos.core.solution import Status
from viscos.data.dialect import Dialect
from viscos.inference import Completions
from viscos.inference.conditional import Conditional
from viscos.inference.diagnosis import LIMITS, Diagnosis
from viscos.inference.refine import Refined
from viscos.metrics.rmse import known

TRUST = "trust.csv"
"""The file with a line for each item."""


def drawn(job: Imputing, conditional: Conditional) -> Completions:
    """The draws of a batch; of refined ones, what their weighed proposals say is with them."""
    if job.refine is None:
        # The draws of a table serve multiple imputation, whose between-variance wants them independent of each other.
        return conditional.completions(job.draws, antithetic=job.items.rows is None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the summary says which are doubtful
        return conditional.refine(job.refine, job.draws, proposals=job.proposals)


def weighed(job: Imputing, conditional: Conditional, done: Completions) -> Diagnosis | None:
    """What weighed draws say of a batch whose draws are `done`, if any are weighed."""
    if isinstance(done, Refined):
        return done.diagnosis
    return conditional.diagnose(job.proposals) if job.proposals else None


def record(job: Imputing, diagnosis: Diagnosis | None) -> dict[str, Any]:
    """The verdicts on items with a hole as counts, and how they came about; plain."""
    holed = (~job.items.observed).flatten(1).any(1).nonzero().flatten()
    if not len(holed):
        return {}
    if diagnosis is None:
        return {"trust": {"weighed_draws": 0, "how": "no draws were weighed; proposals=64 weighs some"}}
    diagnosis = diagnosis.select(holed)
    found: dict[str, Any] = {
        **diagnosis.counts(),
        "weighed_draws": diagnosis.draws,
        "pareto_k_median": known(float(diagnosis.pareto_k.nanmedian())),
        "effective_sample_size_median": known(float(diagnosis.effective.median())),
        "failed": float(diagnosis.failed.mean()),
        "elsewhere": known(float(diagnosis.elsewhere.nanmean())),
        "error_of_log_weights": float(diagnosis.error.square().mean().sqrt()),
        "limits": LIMITS,
        "how": "importance weights of draws of the posterior, which compare it with the flow's exact conditional",
    }
    if job.refine is not None:
        assert diagnosis.distinct is not None
        found |= {"refine": job.refine, "distinct_draws": float(diagnosis.distinct.double().mean())}
        if diagnosis.acceptance is not None:
            found["acceptance"] = float(diagnosis.acceptance.mean())
    if (first := diagnosis.first_doubtful()) is not None:
        found["first_doubtful"] = {called(job.items): number(job.items, int(holed[first[0]])), "reason": first[1]}
    return {"trust": found}


def arrays(done: Completions, diagnosis: Diagnosis | None) -> dict[str, np.ndarray]:
    """What is said of each item (N,), for `completions.npz` and `trust.csv`."""
    solution, shape = done.solution, done.draws.shape[:2]
    residual = torch.where(solution.converged, solution.residual, float("-inf")).view(shape).amax(0)
    status = [Status(code).name.lower() for code in solution.status.view(shape).amax(0).tolist()]
    found: dict[str, np.ndarray] = {}
    if diagnosis is not None:
        found |= {
            "trust": np.array(diagnosis.words),
            "reason": np.array([reason for _, reason in diagnosis.verdicts()]),
            "bound": diagnosis.bound.cpu().numpy(),
            "pareto_k": diagnosis.pareto_k.cpu().numpy(),
            "effective_sample_size": diagnosis.effective.cpu().numpy(),
            "failed": diagnosis.failed.cpu().numpy(),
            "elsewhere": diagnosis.elsewhere.cpu().numpy(),
        }
        for name in ("distinct", "acceptance"):
            if (value := getattr(diagnosis, name)) is not None:
                found[name] = value.cpu().numpy()
    found["residual"] = torch.where(residual.isfinite(), residual, float("nan")).numpy()
    return found | {"status": np.array(status)}


def called(items: Items) -> str:
    """What one of the items is called."""
    return "item" if items.rows is None else "row"


def number(items: Items, place: int) -> int:
    """The number of an item, from 0; that of a row of a table, from 1 as in the other files that a table leaves."""
    return place if items.rows is None else place + 1


def save(folder: Path, items: Items, each: dict[str, np.ndarray]) -> None:
    """Writes the same as `trust.csv`, a line an item, with its name if it has one; of a table in the signs of that."""
    signs = items.signs

    def cells(place: int) -> list[object]:
        row = [values[place] for values in each.values()]
        named = [items.names[place]] if items.names else []
        return [number(items, place), *named, *(_cell(value, signs) for value in row)]

    header = (called(items), *(["name"] if items.names else []), *each)
    write_lines(folder / TRUST, header, map(cells, range(len(items.data))), signs)


def _cell(value: Any, signs: Dialect) -> object:
    return signs.number(float(value), 6) if isinstance(value, np.floating) else value
