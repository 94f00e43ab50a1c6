"""What a trained flow is never worse than: the simpler imputers, by cells of the training data that nobody has seen.

Those are the cells that the mask of training hid: they are known, and neither the flow nor any imputer was taught them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from viscos.commands.assemble.imputers import FromTraining, Parts, described_by
from viscos.core.errors import InputError
from viscos.data.incomplete import IncompleteData
from viscos.data.items import Data
from viscos.imputers import GaussianImputer, Imputer, MeanImputer, NeighboursImputer
from viscos.imputers.recentred import RecentredImputer
from viscos.runs.trained import Saved, Trained

FLOW = "viscos"
SIMPLE = ("mean", "gaussian", "knn")
"""Imputers that a flow must not be worse than."""
ROWS, DRAWS = 200, 32
"""Rows that are completed, the first with such cells, and draws of each."""
NAME = "floor"
"""Of the entry in the record of a run."""


def measured(train: Data, data: IncompleteData, parts: Parts, seed: int) -> dict[str, Any] | None:
    """The RMSE of each imputer at the known cells of `train`, as the model takes them, that `data` hides.

    None where there are no such cells.
    """
    held = train.known & ~data.observed
    rows = held.any(1).nonzero().flatten()[:ROWS]
    if not len(rows):
        return None
    batch, cells = data.batch(rows).to(parts.device), held[rows]
    found = {}
    for name in (FLOW, *SIMPLE):
        imputer = parts.imputer(described_by(name))
        with torch.no_grad():
            mean = imputer.best_mean(batch, DRAWS, seed).mean().cpu().nan_to_num(0)  # a solve that failed: the mean
        found[name] = float((mean - train.values[rows])[cells].double().square().mean().sqrt())
    best = min(found, key=lambda name: (found[name], name != FLOW))
    how = f"RMSE of the mean of {DRAWS} draws, in standard deviations of each column, at cells that training hid"
    return {"cells": int(cells.sum()), "rmse": found, "best": best, "how": how}


def line(floor: dict[str, Any]) -> str:
    """What was found, for the terminal."""
    errors = ", ".join(f"{name} {value:.4f}" for name, value in floor["rmse"].items())
    said = f"held-out cells of training ({floor['cells']}): RMSE {errors}"
    if floor["best"] == FLOW:
        return said
    return f"{said}; {floor['best']} completes tables, unless imputer=viscos is said"


def of_run(checkpoint: Path) -> dict[str, Any] | None:
    """What was measured at the end of the training that left this checkpoint, if it was."""
    try:
        record = json.loads((checkpoint.parent / "metrics.json").read_text(encoding="utf-8"))
        found: dict[str, Any] | None = record.get(NAME)
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, dict) and {"best", "rmse", "cells"} <= found.keys() else None


def simpler(trained: Saved, known: FromTraining) -> Imputer | None:
    """The imputer that did better than the flow on cells that its training hid, if one did; with draws."""
    found = of_run(trained.path)
    if not isinstance(trained, Trained) or found is None or found["best"] == FLOW or trained.gaussian is None:
        return None
    spread, best, rmse = GaussianImputer(trained.gaussian), found["best"], found["rmse"]
    if best == "mean" and known.means is not None:
        return RecentredImputer(MeanImputer(known.means), spread)
    try:
        if best == "knn" and known.data is not None:
            return RecentredImputer(NeighboursImputer().fit(known.data()), spread)
    except InputError:  # the table is there no more
        best = "gaussian" if rmse["gaussian"] < rmse[FLOW] else FLOW
    return spread if best == "gaussian" else None
