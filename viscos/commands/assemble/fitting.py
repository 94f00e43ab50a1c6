"""The training of another imputer than a flow with its posterior, by the settings of `viscos train`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from viscos import runs
from viscos.commands.assemble.idle import apart, of_fitting, said
from viscos.commands.assemble.imputers import FromTraining, Parts, complete_gaussian, is_model, of_flow
from viscos.commands.assemble.job import Job
from viscos.commands.assemble.measuring import Measuring, objective_of
from viscos.commands.assemble.splits import splits_of
from viscos.core.build import build, makes
from viscos.core.errors import InputError
from viscos.data.incomplete import IncompleteData
from viscos.data.scaling import fit_scaling, standardised
from viscos.imputers import CompleteGaussianImputer, Imputer, OnFlow
from viscos.runs.trained import imputer_state, restore
from viscos.train.devices import Devices


@dataclass(frozen=True)
class Fitting(Job):
    """The training of another imputer than a flow with its posterior."""

    imputer: Imputer
    """At its beginning, or where an earlier process left it."""
    finished: bool
    """Whether nothing is left to learn."""
    data: IncompleteData
    parts: Parts

    @property
    def about(self) -> str:
        """What is trained, and from how much, in a line."""
        return f"{self.imputer.label}: {len(self.data)} items"

    def state(self, finished: bool, seconds: float) -> dict[str, Any]:
        """What a checkpoint holds."""
        about = (self.settings, self.test.shape, self.classes, self.scaling, self.begun.rows)
        state = imputer_state(self.imputer, *about)
        return state | {"files": self.begun.files, "finished": finished, "seconds": seconds}


def other_imputer(cfg: dict[str, Any]) -> bool:
    """Whether the settings of `viscos train` ask for another imputer than a flow with its posterior."""
    return not is_model(cfg["imputer"])


def fitting_of(cfg: dict[str, Any], devices: Devices) -> Fitting:
    """Assembles the training of an imputer, or of one that goes on, by the checked settings of `viscos train`.

    Raises `InputError` for an imputer that learns nothing, or settings that do not go together.
    """
    cfg, given = apart(cfg)
    imputer = _learner(cfg["imputer"], devices)
    splits = splits_of(cfg, devices)
    cfg, dataset, state = splits.cfg | {"validation": 0, "patience": None}, splits.dataset, splits.state
    observed = splits.begun.masks["train"]
    scaling = fit_scaling(splits.train, observed)
    train, test = standardised(splits.train, scaling), standardised(splits.test, scaling)
    data = IncompleteData(train.values, observed, train.labels, train.groups)
    measuring = Measuring.of(cfg, dataset, objective_of(cfg["solver"]))
    measuring.check(None, test)
    test = replace(test, notes=(*test.notes, *measuring.left_out("imputers" in given)))
    finished = state is not None and bool(state["finished"])
    if state is not None:
        restore(imputer, state["imputer"], runs.find_checkpoint(splits.begun.run_dir))
        imputer.fit_seconds = splits.begun.spent if finished else None
    items, floor = cfg["train_items"], cfg["gaussian_floor"]
    known = FromTraining(None, lambda: None, lambda: data, lambda: complete_gaussian(dataset, items, scaling, floor))
    parts = Parts(known, None, measuring.objective.solver, 0.0, cfg["seed"], devices.device)
    settings, idle = {**cfg, "resume": None}, said(given, of_fitting())
    return Fitting(
        settings, splits.begun, test, train.classes, scaling, measuring, idle, imputer, finished, data, parts
    )


def _learner(spec: dict[str, Any], devices: Devices) -> Imputer:
    """The imputer that `spec` describes, before it has learnt anything."""
    if makes(spec, OnFlow):
        raise InputError(
            f"{of_flow(spec)} completes by a flow that is trained already: train that, then say imputer=… in viscos "
            "impute or viscos eval checkpoint=<run>"
        )
    imputer = build(spec, Imputer).to(devices.device)
    if isinstance(imputer, CompleteGaussianImputer):
        raise InputError(f"{imputer.label} knows what is hidden; measure it beside another: imputers=[{imputer.name}]")
    if type(imputer).fit is Imputer.fit:
        raise InputError(f"{imputer.label} learns nothing; measure it beside another: imputers=[…]")
    if type(imputer).state is Imputer.state:
        raise InputError(f"{imputer.label} does not say what it has learnt; it needs state and load_state")
    return imputer
