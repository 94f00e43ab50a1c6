"""Imputers by their settings, each with what it needs: a model, its flow alone, or the training data."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from viscos.commands.assemble.data import Dataset
from viscos.core.build import build, maker, makes
from viscos.core.choices import description, names
from viscos.core.errors import InputError
from viscos.core.progress import patient_bar
from viscos.data.incomplete import IncompleteData
from viscos.data.scaling import Scaling, standardised
from viscos.flows import Flow
from viscos.imputers import CompleteGaussianImputer, GaussianImputer, Imputer, MeanImputer, OnFlow, ViscosImputer
from viscos.linear.gaussian import Gaussian
from viscos.roots import RootFinder
from viscos.train.model import Model

MODEL: dict[str, Any] = {"_target_": "viscos.imputers.ViscosImputer"}
"""The description of a flow with its posterior, which are parts of their own in the settings."""


def described_by(name: str) -> dict[str, Any]:
    """The description of the imputer called `name`, or of the class of that dotted path, with its usual settings.

    Raises `InputError` if nothing is called so.
    """
    if name in names("imputer"):
        return description("imputer", name)
    if "." in name:
        return {"_target_": name}
    known = ", ".join(names("imputer"))
    raise InputError(f"imputers has {name!r}; choose from {known}, or give the dotted path of a class")


def is_model(spec: dict[str, Any]) -> bool:
    """Whether a description is `MODEL`, or of a class below its."""
    return makes(spec, ViscosImputer)


def check(spec: dict[str, Any], flow: Flow | None) -> Imputer | type[Imputer]:
    """Raises `InputError` for settings that an imputer cannot have, or a flow that it cannot use: before it is made.

    Returns what has the names of its numbers.
    """
    if is_model(spec) or makes(spec, OnFlow):
        _check_flow(spec, flow)
    if is_model(spec):
        return ViscosImputer
    return build(spec, OnFlow, flow) if makes(spec, OnFlow) else build(spec, Imputer)


def of_flow(spec: dict[str, Any]) -> str:
    """What readers call an imputer that completes by a flow."""
    made = maker(spec["_target_"], Imputer)
    return str(getattr(made, "label", made.__name__))


def _check_flow(spec: dict[str, Any], flow: Flow | None) -> None:
    if flow is None:
        name = of_flow(spec)
        raise InputError(f"{name} completes by a flow that is trained already, and there is none; train one first")


@dataclass(frozen=True)
class FromTraining:
    """What a run knows of its training data."""

    means: Tensor | None
    """Of the observed training entries (d,)."""
    gaussian: Callable[[], Gaussian | None]
    """The one that was fitted to the observed training entries, without the noise on training values; None: none was.
    """
    data: Callable[[], IncompleteData] | None
    """The training data as the model saw them, loaded when an imputer has to be fitted to them; None: there are none.
    """
    complete_gaussian: Callable[[], Imputer]
    """The Gaussian of the training data without their masks, see `complete_gaussian`."""


def complete_gaussian(dataset: Dataset, items: int | None, scaling: Scaling | None, floor: float) -> Imputer:
    """A Gaussian of the first `items` training items without their masks, but for holes that they have of their own."""
    train = standardised(dataset.load("train", items), scaling)
    return CompleteGaussianImputer(floor=floor).fit(IncompleteData(train.values, train.known))


@dataclass(frozen=True)
class Parts:
    """What imputers are made of."""

    known: FromTraining
    model: Model | None
    """The model that is trained, if there is one."""
    solver: RootFinder
    noise: float
    """Standard deviation of the noise that is taken off draws."""
    seed: int
    device: torch.device

    def imputer(self, spec: dict[str, Any]) -> Imputer:
        """What `spec` describes, fitted. Raises `InputError` where what it needs is not there."""
        model, known = self.model, self.known
        flow = None if model is None else model.flow
        if is_model(spec):
            _check_flow(spec, flow)
            assert model is not None
            if model.posterior is None:
                raise InputError("this flow was trained without an inference network; `viscos impute` fits a posterior")
            return ViscosImputer(model.flow, model.posterior, self.solver, self.noise)
        if makes(spec, OnFlow):
            _check_flow(spec, flow)
            return build(spec, OnFlow, flow, noise=self.noise)
        if spec == description("imputer", "mean") and known.means is not None:
            return MeanImputer(known.means)
        if spec == description("imputer", "gaussian") and (gaussian := known.gaussian()) is not None:
            return GaussianImputer(gaussian)
        if known.data is None:
            raise InputError("this flow came without training data, and the imputer has to be fitted to some")
        if makes(spec, CompleteGaussianImputer):
            return known.complete_gaussian()
        return fitted(build(spec, Imputer).to(self.device), known.data(), self.seed)


def fitted(imputer: Imputer, data: IncompleteData, seed: int) -> Imputer:
    """The imputer, fitted, with a bar where that takes long; `fit_seconds` says how long."""
    began = time.monotonic()
    with patient_bar(f"fitting {imputer.label}") as progress:
        imputer.fit(data, seed, progress)
    imputer.fit_seconds = time.monotonic() - began
    return imputer
