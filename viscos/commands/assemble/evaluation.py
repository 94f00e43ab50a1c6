"""An evaluation, by the settings of `viscos eval`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from viscos.commands.assemble.machine import Machine
from viscos.commands.assemble.masks import masks_of
from viscos.commands.assemble.measuring import Measuring, objective_of
from viscos.commands.assemble.saved import dataset_of, test_masks
from viscos.core.errors import InputError
from viscos.data.items import Data
from viscos.runs.trained import Trained, load


@dataclass(frozen=True)
class Evaluation:
    """A trained model, the items that it is measured on, and how."""

    settings: dict[str, Any]
    """As the run saves them."""
    run_dir: Path
    trained: Trained
    test: Data
    observed: Tensor
    """Of the test items (N, …), bool."""
    measuring: Measuring
    seed: int


def evaluation(cfg: dict[str, Any]) -> Evaluation:
    """Assembles an evaluation by the checked settings of `viscos eval`.

    Raises `InputError` for a checkpoint that cannot be measured so.
    """
    trained = load(cfg["checkpoint"], Machine.of(cfg).use())
    dataset = dataset_of(trained)
    test = trained.standardised(dataset.load("test", cfg["items"] or trained.cfg["test_items"]))
    observed = test_masks(trained, masks_of(cfg), test)
    if trained.model.posterior is None and not bool(observed.all()):
        raise InputError("this flow was trained on complete data and has no inference network; use `viscos impute`")
    measuring = Measuring.of(cfg, dataset, objective_of(cfg["solver"]))
    return Evaluation(cfg, Path(cfg["run_dir"]), trained, test, observed, measuring, cfg["seed"])
