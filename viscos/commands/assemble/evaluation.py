"""An evaluation, by the settings of `viscos eval`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from viscos.commands.assemble.idle import apart, of_denoising, said
from viscos.commands.assemble.machine import Machine
from viscos.commands.assemble.masks import masks_of
from viscos.commands.assemble.measuring import Measuring, objective_of
from viscos.commands.assemble.saved import dataset_of, test_masks
from viscos.core.batch import incomplete
from viscos.core.errors import InputError
from viscos.data.items import Data
from viscos.data.sources.array import find, read_arrays
from viscos.imputers import GivenImputer
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
    given: tuple[GivenImputer, ...]
    """Completions by another method, to be measured alike."""
    seed: int
    idle: str | None = None
    """A line on settings that were given and have no effect, if there are any."""


def evaluation(cfg: dict[str, Any]) -> Evaluation:
    """Assembles an evaluation by the checked settings of `viscos eval`.

    Raises `InputError` for a checkpoint that cannot be measured so.
    """
    cfg, typed = apart(cfg)
    trained = load(cfg["checkpoint"], Machine.of(cfg).use())
    dataset = dataset_of(trained)
    test = trained.standardised(dataset.load("test", cfg["items"] or trained.cfg["test_items"]))
    observed = test_masks(trained, masks_of(cfg), test)
    if trained.model.posterior is None and not bool(observed.all()):
        raise InputError("this flow was trained on complete data and has no inference network; use `viscos impute`")
    measuring = Measuring.of(cfg, dataset, objective_of(cfg["solver"]))
    measuring.check(trained.model.flow)
    given = () if cfg.get("completions") is None else (_given(Path(cfg["completions"]).expanduser(), trained),)
    for imputer in given:
        imputer.check(incomplete(test.values, observed))  # before anything is measured
    idle = said(typed, of_denoising(trained.model, dataset.gaussian_noise))
    return Evaluation(cfg, Path(cfg["run_dir"]), trained, test, observed, measuring, given, cfg["seed"], idle)


def _given(path: Path, trained: Trained) -> GivenImputer:
    """The array `draws` of a file, or the only one, in the data's own units; called as the file, or as its folder."""
    if path.is_dir():
        path = path / "completions.npz"
    if not path.is_file():
        raise InputError(f"there is no file of completions {str(path)!r}; give an .npz with draws (K, N, …)")
    arrays = read_arrays(path)
    draws = torch.from_numpy(arrays[find(arrays, ("draws", "completions"), path, "completions")])
    if trained.scaling is not None:
        draws = trained.scaling.standardise(draws)
    label = path.parent.name if path.stem == "completions" else path.stem
    return GivenImputer(label or "other", draws)
