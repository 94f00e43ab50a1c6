"""The training of another imputer than a flow with its posterior, by the settings of `viscos train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from viscos import runs
from viscos.commands.assemble.data import Dataset
from viscos.commands.assemble.idle import apart, of_fitting, said
from viscos.commands.assemble.imputers import FromTraining, Parts, complete_gaussian, is_model
from viscos.commands.assemble.masks import masks_of
from viscos.commands.assemble.measuring import Measuring, objective_of
from viscos.commands.assemble.training import SPLITS, as_begun, refuse_other_data, split_masks, splits_of
from viscos.core.build import build, makes
from viscos.core.errors import InputError
from viscos.data.incomplete import IncompleteData
from viscos.data.items import Data
from viscos.data.rows import remembered
from viscos.data.scaling import Scaling, fit_scaling, standardised
from viscos.imputers import CompleteGaussianImputer, Imputer, OnFlow
from viscos.metrics.extractor import extractor_for
from viscos.runs import own_files
from viscos.runs.trained import imputer_state, read_state, restore
from viscos.train.devices import Devices


@dataclass(frozen=True)
class Fitting:
    """An imputer that learns, what from, and what it is measured on."""

    settings: dict[str, Any]
    """As a run saves them."""
    run_dir: Path
    imputer: Imputer
    """At its beginning, or where an earlier process left it."""
    finished: bool
    """Whether nothing is left to learn."""
    data: IncompleteData
    test: Data
    observed: Tensor
    """Of the test items (N, …), bool."""
    scaling: Scaling | None
    rows: Tensor | None
    """Fingerprints of the training rows of a table (N,)."""
    files: dict[str, str | None]
    """The digest of the file or folder of the data, if it is the user's own."""
    measuring: Measuring
    parts: Parts
    log_every: int
    seed: int
    spent: float
    """Seconds that the run has taken before this process."""
    idle: str | None = None
    """A line on settings that were given and have no effect, if there are any."""

    def state(self, finished: bool, seconds: float) -> dict[str, Any]:
        """What a checkpoint holds."""
        about = (self.settings, self.test.shape, self.test.classes, self.scaling, self.rows)
        state = imputer_state(self.imputer, *about)
        return state | {"files": self.files, "finished": finished, "seconds": seconds}

    @property
    def masks(self) -> dict[str, Tensor]:
        """Those of each split, bool, true where observed."""
        return dict(zip(SPLITS, (self.data.observed, self.observed), strict=True))


def other_imputer(cfg: dict[str, Any]) -> bool:
    """Whether the settings of `viscos train` ask for another imputer than a flow with its posterior."""
    return cfg.get("imputer") is not None and not is_model(cfg["imputer"])


def fitting(cfg: dict[str, Any], devices: Devices) -> Fitting:
    """Assembles the training of an imputer, or of one that goes on, by the checked settings of `viscos train`.

    Raises `InputError` for an imputer that learns nothing, or settings that do not go together.
    """
    cfg, given = apart(cfg)
    run_dir, dataset, masks = Path(cfg["run_dir"]), Dataset(cfg["dataset"]), masks_of(cfg, usual=0.5)
    assert masks is not None  # at the usual rate if at no other
    imputer = _learner(cfg["imputer"], devices)
    train, test = splits_of(cfg, dataset, devices)
    extractor_for(test.shape, cfg["inception"])  # refuses before anything is trained
    cfg = {**cfg, "dataset": dataset.saved, "mask": masks.spec, "missing": masks.missing}
    cfg |= {"validation": 0, "patience": None}  # nothing is held back
    state = read_state(file := runs.find_checkpoint(run_dir), devices.device) if cfg["resume"] else None
    train, test = as_begun(state, train), as_begun(state, test)
    rows, files = remembered(train), own_files.digests({"dataset": cfg["dataset"]})
    refuse_other_data(state, rows, files)
    observed, test_observed = split_masks(masks, run_dir, train, test, resumed=state is not None)
    scaling = fit_scaling(train, observed)
    train, test = standardised(train, scaling), standardised(test, scaling)
    data = IncompleteData(train.values, observed, train.labels, train.groups)
    measuring = Measuring.of(cfg, dataset, objective_of(cfg["solver"]))
    measuring.check(None)
    if state is not None:
        restore(imputer, state["imputer"], file)
        imputer.fit_seconds = state["seconds"] if state["finished"] else None
    items, floor = cfg["train_items"], cfg["gaussian_floor"]
    known = FromTraining(None, None, lambda: data, lambda: complete_gaussian(dataset, items, scaling, floor))
    return Fitting(
        {**cfg, "resume": None},
        run_dir,
        imputer,
        state is not None and bool(state["finished"]),
        data,
        test,
        test_observed,
        scaling,
        rows,
        files,
        measuring,
        Parts(known, None, measuring.objective.solver, 0.0, cfg["seed"], devices.device),
        cfg["log_every"],
        cfg["seed"],
        0.0 if state is None else float(state["seconds"]),
        said(given, of_fitting()),
    )


def _learner(spec: dict[str, Any], devices: Devices) -> Imputer:
    """The imputer that `spec` describes, before it has learnt anything."""
    if makes(spec, OnFlow):
        raise InputError(
            f"{str(spec['_target_']).rpartition('.')[2]} completes by a flow that is trained already: train that, then "
            "say imputer=… in viscos impute or viscos eval checkpoint=<run>"
        )
    imputer = build(spec, Imputer).to(devices.device)
    if isinstance(imputer, CompleteGaussianImputer):
        raise InputError(f"{imputer.label} knows what is hidden; measure it beside another: imputers=[{imputer.name}]")
    if type(imputer).fit is Imputer.fit:
        raise InputError(f"{imputer.label} learns nothing; measure it beside another: imputers=[…]")
    if type(imputer).state is Imputer.state:
        raise InputError(f"{imputer.label} does not say what it has learnt; it needs state and load_state")
    return imputer
