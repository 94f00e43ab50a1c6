"""What a trained flow is never worse than: the simpler imputers, by cells of the training data that nobody has seen.

Those are the cells that the mask of training hid: they are known, and neither the flow nor any imputer was taught them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from viscos.commands.assemble.imputers import Parts, described_by
from viscos.data.incomplete import IncompleteData
from viscos.data.items import Data
from viscos.imputers.stacked import DRAWS, LEAST, HeldOut, StackedImputer, cells_of
from viscos.runs.trained import Saved

FLOW, MEAN, NEIGHBOURS = "viscos", "mean", "knn"
STACKED = (FLOW, "gaussian", NEIGHBOURS)
"""Imputers that share the mean of a completion; what their shares lack of 1 is that of the columns' means."""
ROWS = 200
"""Rows that are completed, the first with such cells."""
NAME = "floor"
"""Of the entry in the record of a run, and in its checkpoint."""
_READ = {"best", "rmse", "cells", "shares", "rmse_of_shares", "width"}


def measured(train: Data, data: IncompleteData, parts: Parts, seed: int) -> dict[str, Any] | None:
    """The RMSE of each imputer at the known cells of `train`, as the model takes them, that `data` hides.

    And the shares in the mean, and the width of draws, that suit those cells. None where there are fewer than 20.
    """
    rows = (train.known & ~data.observed).any(1).nonzero().flatten()[:ROWS]
    groups = None if data.groups is None else data.groups.tolist()
    known = IncompleteData(train.values[rows], train.known[rows], groups=groups)
    sparser = IncompleteData(data.values[rows], data.observed[rows])
    if (cells := cells_of(known.observed & ~sparser.observed, known)) < LEAST:
        return None
    imputers = [parts.imputer(described_by(name)) for name in STACKED]
    found = HeldOut.of(imputers, known, sparser, seed, parts.device)
    if found.cells < LEAST:
        return None
    weights = found.weights()
    rmse = dict(zip(STACKED, (found.error(one) for one in torch.eye(len(STACKED))), strict=True))
    rmse |= {MEAN: found.error(torch.zeros(len(STACKED)))}
    return {
        "cells": found.cells,
        "failed_cells_left_out": cells - found.cells,
        "rmse": rmse,
        "best": min(rmse, key=lambda name: (rmse[name], name != FLOW)),
        "shares": dict(zip(STACKED, weights.T.tolist(), strict=True)),
        "rmse_of_shares": found.error(weights),
        "width": found.width(weights).tolist(),
        "how": f"RMSE of the mean of {DRAWS} draws, in standard deviations of each column, at cells that training hid",
    }


def line(floor: dict[str, Any]) -> str:
    """What was found, for the terminal."""
    errors = ", ".join(f"{name} {value:.4f}" for name, value in floor["rmse"].items())
    said = f"held-out cells of training ({floor['cells']}): RMSE {errors}"
    if floor["best"] == FLOW:
        return said
    shares = {name: float(share.mean()) for name, share in _shares(floor).items()}
    parts = [f"{share:.2f} {name}" for name, share in shares.items() if share >= 0.005]
    rest = 1 - sum(shares.values())
    mix = " + ".join([*parts, *([f"{rest:.2f} {MEAN}"] if rest >= 0.005 else [])])
    error = f", RMSE {floor['rmse_of_shares']:.4f}" if "rmse_of_shares" in floor else ""
    gone = f" (without {floor['left_out']}, whose table has changed or is gone)" if "left_out" in floor else ""
    whose = ", on average over columns" if any(share.dim() for share in _shares(floor).values()) else ""
    return f"{said}; tables are completed by {mix}{whose}{error}{gone}, unless imputer=viscos is said"


def of_run(trained: Saved) -> dict[str, Any] | None:
    """What was measured at the end of a training, if it was: by its checkpoint, which may have been copied alone, or by
    the record of a run that was trained before checkpoints held it.
    """
    found: dict[str, Any] | None = trained.state.get(NAME) or (trained.record or {}).get(NAME)
    return found if isinstance(found, dict) and _READ <= found.keys() else None


def stacked(found: dict[str, Any], parts: Parts) -> StackedImputer:
    """What completes as `found` says: the flow's draws about a mean that the imputers share."""
    shares = {name: share for name, share in _shares(found).items() if bool(share.any()) or name == FLOW}
    imputers = [parts.imputer(described_by(name)) for name in shares]
    weights = torch.stack(torch.broadcast_tensors(*shares.values()), -1)
    return StackedImputer(imputers, weights, torch.tensor(found["width"]))


def without_neighbours(found: dict[str, Any]) -> dict[str, Any]:
    """The same, where the table that nearest neighbours are of is not there any more, or has changed.

    The others have their share, or if they have none the flow. How far off that is, nobody measured.
    """
    shares = _shares(found)
    total = sum(shares.values(), torch.zeros(()))
    left = total - shares.pop(NEIGHBOURS)
    shares = {name: torch.where(left > 0, share * total / left, 0) for name, share in shares.items()}
    shares[FLOW] = torch.where(left > 0, shares[FLOW], total)
    kept = {key: value for key, value in found.items() if key != "rmse_of_shares"}
    return kept | {"shares": {name: share.tolist() for name, share in shares.items()}, "left_out": NEIGHBOURS}


def has_neighbours(found: dict[str, Any]) -> bool:
    """Whether nearest neighbours have a share."""
    return bool(_shares(found)[NEIGHBOURS].any())


def _shares(found: Mapping[str, Any]) -> dict[str, Tensor]:
    """The shares of the imputers by name, one to an entry (d,), or one (), as records had it that are older."""
    return {name: torch.tensor(found["shares"].get(name, 0.0)) for name in STACKED}
