"""A training on rows of a table that Python holds: `viscos train`'s own settings, without its folder and its report.

The mean is shared with imputers that are simpler, and the draws' spread corrected, by cells held out of the training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.resources import files
from itertools import islice
from typing import Any

import torch
import yaml

from viscos.commands.assemble.plan import passes, settled, started
from viscos.commands.assemble.training import gaussian_of, trainer_of
from viscos.core.build import build
from viscos.core.choices import choice, description
from viscos.core.progress import bar
from viscos.data.incomplete import IncompleteData
from viscos.flows import Flow
from viscos.imputers import GaussianImputer, Imputer, NeighboursImputer, ViscosImputer
from viscos.imputers.stacked import LEAST, HeldOut, StackedImputer, folds
from viscos.linear.gaussian import Gaussian
from viscos.train import Report, Trainer
from viscos.train.devices import OneDevice
from viscos.train.model import Model

_PASSES = 60
"""Most passes over the rows in a phase: a few rows are learnt by heart else."""
_FEW = 1000
"""Known cells below which each is held out once, by a training of its own for each fifth; below `LEAST`, none is."""


def completing(
    data: IncompleteData, flow: str, steps: int, seed: int, verbose: bool, calibrate: bool = True
) -> tuple[Model, Gaussian, StackedImputer]:
    """A flow trained on standardised rows (N, d), and what completes them with its share in the mean.

    The shares of the flow, the Gaussian, nearest neighbours and the columns' means, and the draws' spread, are those
    that suit known cells that the fits behind them have not seen: a tenth, which the flow never sees, or where cells
    are few each one in turn. Unless one is to `calibrate`, the flow has all. Raises as `trained_on_rows`.
    """
    cells = int(data.observed.sum())
    few = cells < _FEW
    count = 0 if cells < LEAST or not calibrate else 5 if few else 1
    each = islice(folds(data, 0.2 if few else 0.1, seed), count)
    fewer = [sparser for sparser in each if not torch.equal(sparser.observed, data.observed)]
    parts = []
    for sparser in fewer:
        trained = trained_on_rows(sparser, flow, steps, seed, verbose)
        parts.append(HeldOut.of(_with_simpler(trained[2], trained[1], sparser), data, sparser, seed))
    anew = few or not fewer
    if anew:
        trained = trained_on_rows(data, flow, steps, seed, verbose)
    model, _, method = trained
    gaussian = trained[1] if anew else _gaussian(data, verbose)
    imputers = _with_simpler(method, gaussian, data)
    if not parts:
        alone = torch.eye(len(imputers))[:1].expand(data.shape[0], -1)
        return model, gaussian, StackedImputer(imputers, alone, torch.ones(data.shape[0]))
    found = HeldOut.joined(parts)
    weights = found.weights()
    return model, gaussian, StackedImputer(imputers, weights, found.width(weights))


def _with_simpler(method: ViscosImputer, gaussian: Gaussian, data: IncompleteData) -> Sequence[Imputer]:
    return method, GaussianImputer(gaussian), NeighboursImputer().fit(data)


def trained_on_rows(
    data: IncompleteData, flow: str, steps: int, seed: int, verbose: bool
) -> tuple[Model, Gaussian, ViscosImputer]:
    """What `viscos train dataset=table` makes of standardised rows (N, d) by its own settings, in phases of `steps`.

    Returns the model, the Gaussian of the rows and what completes them. Raises `InputError` for an unknown flow.
    """
    cfg = _settings()
    batches = math.ceil(len(data) / cfg["batch_size"])
    steps = min(steps, _PASSES * batches)
    cfg |= {"teach": "regression", "epochs": math.ceil(steps / batches), "max_steps": steps, "seed": seed}
    cfg["temper"] = 0  # `completing` corrects the spread in the end, by cells that nothing has learnt from
    cfg["dataset"] = passes(cfg["dataset"], len(data), cfg["batch_size"])
    made = _flow(flow, data)
    hides = not bool(data.observed.all())
    cfg = settled(cfg, data.shape, len(data), matches=made.trained_by_matching, hides=hides)
    gaussian = _gaussian(data, verbose)
    trainer = trainer_of(cfg, made, 0, data, len(data), hides, gaussian, OneDevice(torch.device("cpu")))
    _run(trainer, verbose)
    model = trainer.result().eval()
    assert model.posterior is not None  # it was taught by regression
    solver, noise = trainer.objective.solver, cfg["dataset"]["noise"]
    return model, gaussian, ViscosImputer(model.flow, model.posterior, solver, noise)


def _flow(name: str, data: IncompleteData) -> Flow:
    choice("flow", name, Flow, data.shape, objects=False)  # refuses a name that there is not
    return build(started(description("flow", name), data.shape, table=True), Flow, data.shape)


def _settings() -> dict[str, Any]:
    """Those of `viscos train dataset=table`."""
    cfg: dict[str, Any] = yaml.safe_load(files("viscos.configs").joinpath("train.yaml").read_text(encoding="utf-8"))
    cfg |= {part: description(part, "auto") for part in ("solver", "lad")}
    return cfg | {"posterior": description("posterior", "amortised"), "dataset": description("dataset", "table")}


def _gaussian(data: IncompleteData, verbose: bool) -> Gaussian:
    cfg = _settings()
    return gaussian_of(cfg["dataset"]["noise"], cfg["gaussian_floor"], data, patience=3.0 if verbose else math.inf)


def _run(trainer: Trainer, verbose: bool) -> None:
    if not verbose:
        return trainer.run(lambda report: None, lambda epoch: None)
    with bar("training", trainer.total) as line:

        def after(report: Report) -> None:
            line.update(report.step + 1, {key: report.loss[key] for key in ("matching", "nll") if key in report.loss})

        trainer.run(after, lambda epoch: None)
