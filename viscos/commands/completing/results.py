"""What `viscos impute` says of its completions, and the files that it leaves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from viscos import runs
from viscos.commands.assemble.imputing import Imputing
from viscos.commands.completing import trust
from viscos.commands.completing.completed import Completed
from viscos.commands.completing.outputs import write
from viscos.commands.completing.tables import COMPLETED, SUMMARY, clamped
from viscos.core import atomic
from viscos.core.batch import incomplete
from viscos.core.progress import say
from viscos.core.solution import Solution
from viscos.data.mask_files import mask_hash
from viscos.imputers import Cost, GaussianImputer, Imputer, UnfittedImputer, ViscosImputer, kinds_of
from viscos.inference import Completions
from viscos.inference.diagnosis import Diagnosis
from viscos.metrics import Coverage, EnergyAndSpread, Errors, Metric, Truth
from viscos.metrics.calibration import FEWEST, LEVEL
from viscos.metrics.rmse import known
from viscos.runs.provenance import versions


@dataclass(frozen=True, kw_only=True)
class Results:
    """The results of some items, or of all; on the CPU, and without latents."""

    draws: Completions
    bound: Tensor
    """Of each item (b,)."""
    before: Completions | None = None
    """A draw from the posterior before it was fitted, if it was, of the same noise as the first in `draws`."""
    first_bound: Tensor | None = None
    """The bound before the posterior was fitted (b,)."""
    condition: Tensor
    """About the condition number of G^HH (b,)."""
    fit_seconds: float = 0.0
    draw_seconds: float
    diagnosis: Diagnosis | None = None
    """What weighed draws say of each item, if there were any."""
    weigh_seconds: float = 0.0
    """That it took to weigh them, beside the draws."""

    def __post_init__(self) -> None:
        for name in ("draws", "before"):
            if (completions := getattr(self, name)) is not None:
                object.__setattr__(self, name, _kept(completions))

    def state(self) -> dict[str, Any]:
        """The results as tensors and plain containers."""
        flat = {field.name: getattr(self, field.name) for field in fields(self)}
        flat |= {name: None if flat[name] is None else _flat(flat[name]) for name in ("draws", "before")}
        return flat | {"diagnosis": self.diagnosis and self.diagnosis.state()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Results:
        """What `state` gave."""
        whole = {name: None if state[name] is None else _whole(state[name]) for name in ("draws", "before")}
        diagnosis = None if state["diagnosis"] is None else Diagnosis(**state["diagnosis"])
        return cls(**(state | whole | {"diagnosis": diagnosis}))


def _kept(completions: Completions) -> Completions:
    solution = completions.solution
    moved = {field.name: getattr(solution, field.name).cpu() for field in fields(solution)}
    expected = None if completions.expected is None else completions.expected.cpu()
    notes = completions.notes and {name: each.cpu() for name, each in completions.notes.items()}
    return Completions(completions.draws.cpu(), None, Solution(**moved), completions.paired, expected, notes)


def _flat(completions: Completions) -> dict[str, Any]:
    solution = {field.name: getattr(completions.solution, field.name) for field in fields(completions.solution)}
    flat = {name: getattr(completions, name) for name in ("draws", "paired", "expected", "notes")}
    return flat | {"solution": solution}


def _whole(state: dict[str, Any]) -> Completions:
    known = (state["paired"], state["expected"], state["notes"])
    return Completions(state["draws"], None, Solution(**state["solution"]), *known)


def joined(parts: list[Results]) -> Results:
    """The results of all items."""
    before = [part.before for part in parts if part.before is not None]
    first = [part.first_bound for part in parts if part.first_bound is not None]
    return Results(
        draws=_side_by_side([part.draws for part in parts]),
        bound=torch.cat([part.bound for part in parts]),
        before=_side_by_side(before) if before else None,
        first_bound=torch.cat(first) if first else None,
        condition=torch.cat([part.condition for part in parts]),
        fit_seconds=sum(part.fit_seconds for part in parts),
        draw_seconds=sum(part.draw_seconds for part in parts),
        diagnosis=Diagnosis.joined([part.diagnosis for part in parts if part.diagnosis])
        if parts[0].diagnosis
        else None,
        weigh_seconds=sum(part.weigh_seconds for part in parts),
    )


def _side_by_side(parts: list[Completions]) -> Completions:
    """The completions of all items, without latents; the verdicts stand draw by draw."""
    solution = Solution.joined([part.solution for part in parts], len(parts[0].draws))
    noted = [part.notes or {} for part in parts]
    notes = {name: torch.cat([each[name] for each in noted]) for name in noted[0]}
    expected = [part.expected for part in parts if part.expected is not None]
    draws, mean = torch.cat([part.draws for part in parts], 1), torch.cat(expected) if expected else None
    return Completions(draws, None, solution, parts[0].paired, mean, notes or None)


def record_of(job: Imputing, done: Results) -> dict[str, Any]:
    """The numbers and how they were computed; plain."""
    return {
        "command": "impute",
        "checkpoint": runs.absolute(job.saved.path),
        "dataset": job.data.name,
        "items": len(job.data),
        "mask_hash": mask_hash(job.items.observed),
        "missing": float((~job.items.observed).double().mean()),
        "draws": len(done.draws.draws),
        "solver": done.draws.solution.among(done.draws.asked(~job.items.observed)).record(),
        "fit_seconds": round(done.fit_seconds, 1),
        "draw_seconds": round(done.draw_seconds, 2),
        "weigh_seconds": round(done.weigh_seconds, 2),
        **(_of_fit(job, done) if job.imputer is None else _of_imputer(job.imputer)),
        **_measured(job, done),
        **_cost(job, done),
        "noise_taken_off": job.noise,
        "seed": job.seed,
        "versions": versions(),
    }


def _cost(job: Imputing, done: Results) -> dict[str, Any]:
    imputer = job.imputer
    cost = Cost(ViscosImputer.name, passes=job.trained.model.flow.passes) if imputer is None else Cost.of(imputer)
    cost.add(done.draws, done.fit_seconds + done.draw_seconds)
    return {"cost": {cost.name: cost.record()}}


def _of_imputer(imputer: Imputer) -> dict[str, Any]:
    return {"imputer": {"name": imputer.name, **imputer.about()}}


def _of_fit(job: Imputing, done: Results) -> dict[str, Any]:
    """What there is of a posterior besides its completions."""
    return {
        "partition": {
            "kind": job.partition,
            "condition_median": known(float(done.condition.median())),
            "condition_largest": known(float(done.condition.max())),
            "how": "condition number of G^HH where the fit begins; a lower bound above 64 hidden entries",
        },
        **_bounds(job, done),
        **trust.record(job, done.diagnosis),
        "fit": job.choice.record(job.posterior(job.data.values[:1])),
    }


def _measured(job: Imputing, done: Results) -> dict[str, Any]:
    """Errors and scores where the truth is known and was not used, if it is anywhere."""
    data, hidden = job.data, job.items.measured
    if not bool(hidden.any()):
        return {}
    metrics: tuple[Metric, ...] = (Errors(data), EnergyAndSpread(data), Coverage(data))
    truth = Truth(data.values, hidden, job.items.observed, data.labels)
    found: list[tuple[Imputer | type[Imputer], Completions]] = [(job.imputer or ViscosImputer, done.draws)]
    if done.before is not None:
        found.append((UnfittedImputer, done.before))
    if job.saved.clean_gaussian is not None and type(job.imputer) is not GaussianImputer:
        batch, gaussian = incomplete(data.values, job.items.observed), GaussianImputer(job.saved.clean_gaussian)
        found.append((gaussian, gaussian.best_mean(batch, job.draws, job.seed)))
    for imputer, completions in found:
        for metric in metrics:
            metric.update(imputer, completions, truth)
    labels = {kind.key: kind.label for imputer, _ in found for kind in kinds_of(imputer)}
    # Of a picture with a mask that may be what a user wants gone.
    against = {"measured_against": "what stands under the mask"} if job.items.names else {}
    measured = {key: entry for metric in metrics for key, entry in metric.record().items()}
    return measured | {"labels": labels} | against


def _bounds(job: Imputing, done: Results) -> dict[str, Any]:
    """The bound after the fit and before it, over the items where both are finite, and the Gaussian's log p(y^O)."""
    last = done.bound.double()
    first = None if done.first_bound is None else done.first_bound.double()
    sane = last.isfinite() if first is None else last.isfinite() & first.isfinite()
    if not bool(sane.any()):
        return {}
    bound: dict[str, Any] = {"mean": float(last[sane].mean())}
    if first is not None:
        bound["first_iteration"] = float(first[sane].mean())
    if job.trained.gaussian is not None:
        exact = job.trained.gaussian.log_prob_observed(job.data.values[sane], job.items.observed[sane])
        bound["gaussian_log_prob"] = float(exact.mean())
    unit = f"nats an item, a lower bound of log p(y^O) for {job.data.units.values}; of the Gaussian, log p(y^O) itself"
    small = job.data.values.shape[1:].numel() <= job.trained.model.flow.dense_below
    how = "log-determinants written out" if small else "log-determinants by one probe each, unless H is small"
    bound |= {"items": int(sane.sum()), "unsolved_items": int((last == -torch.inf).sum())}
    return {"bound": bound | {"draws": done.diagnosis.draws if done.diagnosis else 2, "unit": unit, "how": how}}


def completed(job: Imputing, done: Results) -> Completed:
    """The completions in the data's own units."""
    items, scaling = job.items, job.saved.scaling
    values, known, observed = items.data.values, items.known, items.observed
    if scaling is not None:
        values, known, observed = scaling.scheme.decode(values), scaling.known(known), scaling.known(observed)
        if items.numbers is not None:  # a number need not come back from its logarithm
            values = torch.where(items.numbers.isnan(), values, items.numbers)

    def kept(y: Tensor, rounded: bool = True) -> Tensor:
        y = y.cpu() if scaling is None else scaling.cells(y, rounded)[0]
        return torch.where(observed, values, y.to(values.dtype))

    draws = kept(done.draws.draws)
    mean = kept(done.draws.mean(), rounded=False)
    if scaling is not None:
        drawn = draws.nanmean(0)  # of a table's cells as they are written; NaN where no draw was solved
        # An expectation is none of these cells where draws were moved, or are not linear in what the model sees.
        logs = torch.tensor([column.log for column in scaling.scheme.columns])
        apart = logs | scaling.cells(done.draws.draws)[1].any(0) | drawn.isnan()
        mean = drawn if done.draws.expected is None else torch.where(apart, drawn, mean)
        mean = torch.where(observed, values, mean)
    before = None if done.before is None else kept(done.before.draws[0])
    said = () if done.diagnosis is None else tuple(done.diagnosis.verdicts())
    return Completed(values, draws, mean, known, observed, done.draws.ok.cpu(), done.draws.paired, before, said)


def _of_cells(job: Imputing, found: Completed) -> Iterator[str]:
    """What the files of a table lack, a line each."""
    holes = ~found.observed
    holed = holes.any(1)
    if empty := int((holes & found.mean.isnan()).sum()):
        yield f"{COMPLETED}: {empty} of {int(holes.sum())} hidden cells stay empty, as no draw of them was solved"
    few = int((found.solved.sum(0) < FEWEST)[holed].sum())
    if job.imputer is not None and job.imputer.draw is None:
        yield f"{job.imputer.name} gives one completion: there are no intervals in {SUMMARY}, and nothing to pool"
    elif few:
        of, level = f"{few} of {int(holed.sum())} rows with holes", 100 * LEVEL
        yield f"{SUMMARY} has no intervals of {of}: of {level:g} % they need {FEWEST} solved draws or more"


def save(job: Imputing, done: Results) -> list[str]:
    """Writes the completions in the data's own units; returns the names of the files beside `completions.npz`."""
    scaling, found = job.saved.scaling, completed(job, done)
    if scaling is not None and (line := clamped(scaling, done.draws.draws, found.observed)):
        say(line)
    if job.items.rows is not None and job.items.rows.sheet is not None:
        for line in _of_cells(job, found):
            say(line)
    arrays: dict[str, Any] = {
        "draws": found.draws.numpy(),
        "mean": found.mean.numpy(),
        "observed": found.observed.numpy(),
        "solved": found.solved.numpy(),
        "antithetic": np.array(found.paired),
        "values": torch.where(found.observed, found.values, float("nan")).numpy(),
        "truth": torch.where(found.known, found.values, float("nan")).numpy(),
    }
    if job.items.names:
        arrays["names"] = np.array(job.items.names)
    if found.before is not None:
        arrays["first_iteration_draw"] = found.before.numpy()
    verdicts = trust.arrays(done.draws, done.diagnosis)
    everything = arrays | verdicts
    atomic.write(job.run_dir / runs.COMPLETIONS, lambda path: np.savez_compressed(path, **everything))
    trust.save(job.run_dir, job.items, verdicts)
    return [*write(job, found), trust.TRUST]
