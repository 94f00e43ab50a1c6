"""An evaluation, by the settings of `viscos eval`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from viscos.commands.assemble.idle import apart, of_denoising, said
from viscos.commands.assemble.imputers import Parts
from viscos.commands.assemble.machine import Machine
from viscos.commands.assemble.masks import Masks, masks_of
from viscos.commands.assemble.measuring import Measuring, objective_of
from viscos.commands.assemble.saved import (
    check_finished,
    dataset_of,
    fitted_again,
    from_training,
    moved,
    test_masks,
    test_split,
    unfinished,
    unfinished_step,
)
from viscos.core.batch import incomplete
from viscos.core.errors import InputError
from viscos.data.items import Data
from viscos.data.scaling import Scaling
from viscos.imputers import GivenImputer, Imputer
from viscos.runs.records import TRAINED
from viscos.runs.trained import Fitted, Saved, Trained, load_any
from viscos.train.model import Model

CALIBRATION = "viscos.metrics.ranks.Calibration"
"""What `calibration` measures of test items."""
CALIBRATED = 100
"""Entries of an item up to which it is measured unless the settings say: in a deep flow of pictures, 39 draws of a
hundred items and as many samples may cost more than all else."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What was trained, the items that it is measured on, and how."""

    settings: dict[str, Any]
    """As the run saves them."""
    run_dir: Path
    trained: Trained | Fitted
    test: Data
    observed: Tensor
    """Of the test items (N, …), bool."""
    measuring: Measuring
    parts: Parts
    given: tuple[GivenImputer, ...]
    """Completions by another method, to be measured alike."""
    seed: int
    described: dict[str, Any]
    """The settings behind its record: the run's, and its own in their place."""
    idle: str | None = None
    """A line on settings that were given and have no effect, if there are any."""
    calibration: bool = False
    """Whether more intervals, CRPS and ranks are measured, of test items and of the flow's own samples."""

    @property
    def subject(self) -> Model | Imputer:
        """What is measured, ready for use: the run's own, or another by its flow or fitted to its training data."""
        if self.measuring.of_model:
            assert self.parts.model is not None  # as was checked
            return self.parts.model
        if isinstance(self.trained, Fitted) and self.measuring.subject == self.trained.cfg["imputer"]:
            return self.trained.imputer
        return self.parts.imputer(self.measuring.subject)


def evaluation(cfg: dict[str, Any]) -> Evaluation:
    """Assembles an evaluation by the checked settings of `viscos eval`.

    Raises `InputError` for a checkpoint that cannot be measured so.
    """
    cfg, typed = apart(cfg)
    trained = moved(load_any(cfg["checkpoint"], device := Machine.of(cfg).use()), cfg.get("dataset"))
    dataset = dataset_of(trained)
    split = test_split(trained, cfg["items"] or trained.cfg["test_items"])
    test = trained.standardised(split.data)
    test = replace(test, notes=(*test.notes, *unfinished(trained)))
    masks = masks_of(cfg)
    observed = test_masks(trained, masks, test, split.changed)
    model = trained.model if isinstance(trained, Trained) else None
    cfg = cfg | {"imputer": cfg.get("imputer") or trained.cfg["imputer"]}
    if isinstance(trained, Fitted):
        check_finished(trained, cfg["imputer"])
        test = replace(test, notes=(*test.notes, *fitted_again(trained, cfg["imputer"])))
    measuring = Measuring.of(cfg, dataset, objective_of(cfg["solver"]))
    test = replace(test, notes=(*test.notes, *measuring.left_out("imputers" in typed)))
    calibration = calibrates(cfg["calibration"], test.values.shape[1:].numel())
    if calibration:
        measuring = replace(measuring, metrics=(*measuring.metrics, CALIBRATION))
    given = () if cfg.get("completions") is None else (_given(cfg["completions"], trained),)
    measuring.check(None if model is None else model.flow, test, given)
    if measuring.of_model and model is not None and model.posterior is None and not bool(observed.all()):
        raise InputError("this flow was trained on complete data and has no inference network; use `viscos impute`")
    for imputer in given:
        imputer.check(incomplete(test.values, observed))  # before anything is measured
    parts = Parts(
        from_training(trained), model, measuring.objective.solver, measuring.protocol.noise, cfg["seed"], device
    )
    idle = {} if model is None else of_denoising(model, dataset.gaussian_noise)
    return Evaluation(
        settings=cfg,
        run_dir=Path(cfg["run_dir"]),
        trained=trained,
        test=test,
        observed=observed,
        measuring=measuring,
        parts=parts,
        given=given,
        seed=cfg["seed"],
        described=_described(trained, cfg, masks, len(test)),
        idle=said(typed, idle),
        calibration=calibration,
    )


def calibrates(asked: bool | None, entries: int) -> bool:
    """Whether calibration is measured of items of so many entries: as is `asked`, else where it is cheap."""
    return entries <= CALIBRATED if asked is None else asked


def _described(trained: Saved, cfg: dict[str, Any], masks: Masks | None, items: int) -> dict[str, Any]:
    """Settings by which records compare: what was trained, and how and under which masks it is measured."""
    own = {key: value for key, value in trained.cfg.items() if key not in ("imputers", "metrics")}
    own |= {key: cfg[key] for key in ("imputer", "solver", "draws", "denoise")} | {"test_items": items}
    own |= {TRAINED: {key: own.get(key) for key in ("mask", "missing")}}
    own |= {} if (step := unfinished_step(trained)) is None else {"unfinished_at_step": step}
    own |= {} if masks is None else {"mask": masks.saved, "missing": masks.missing}
    return own | {"evaluation": {"seed": cfg["seed"]}}


def _given(path: str, trained: Saved) -> GivenImputer:
    """Completions by another method, from a file or a run folder, in the units of the run's items.

    Those of a table are numbers of its columns, as `viscos impute` leaves them.
    """
    file, scaling = Path(path).expanduser(), trained.scaling
    if scaling is None:
        return GivenImputer.read(file)
    groups = list(scaling.scheme.groups)
    return GivenImputer.read(file, partial(_standardised, scaling, file), lambda mask: mask[..., groups])


def _standardised(scaling: Scaling, path: Path, draws: Tensor) -> Tensor:
    """Numbers (K, N, columns) of a table as the model takes them (K, N, d)."""
    columns = len(scaling.scheme.columns)
    if draws.shape[-1:] != (columns,):
        seen = tuple(draws.shape)
        raise InputError(f"completions in {path} have shape {seen}; give (K, N, {columns}), a number for each column")
    draws = torch.where(draws.isfinite(), draws.double(), torch.nan)  # a draw that failed is of no category
    try:
        return scaling.standardise(scaling.scheme.encode(draws))
    except InputError as error:
        raise InputError(f"completions in {path}: {error}; put that right, or NaN for a draw that failed") from None
