"""How completions are made and measured, by the settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from viscos.commands.assemble.data import Dataset
from viscos.core.build import build, maker
from viscos.core.errors import InputError
from viscos.core.progress import bar
from viscos.data.images import Images
from viscos.data.incomplete import IncompleteData
from viscos.data.items import Data
from viscos.data.scaling import Scaling, standardised
from viscos.evaluate import Protocol, evaluate, standard_metrics
from viscos.flows import Flow
from viscos.imputers import GUIDED, OTHERS, CompleteGaussianImputer, GaussianImputer, Imputer, MeanImputer
from viscos.inference import Completions, Objective
from viscos.linear import GMRES
from viscos.linear.gaussian import Gaussian
from viscos.logdet import Auto, LogDetEstimator
from viscos.metrics import Metric, Reference
from viscos.metrics.extractor import extractor_for
from viscos.roots import RootFinder
from viscos.train.model import Model

BESIDE = ("mean", "gaussian")
"""Imputers that are measured beside a model unless the settings say which; they are known from its training."""
_COMPLETE = CompleteGaussianImputer.name
_FITTED = {kind.name: kind for kind in OTHERS}
_GUIDED = {kind.name: kind for kind in GUIDED}


def objective_of(solver: dict[str, Any], lad: dict[str, Any] | None = None) -> Objective:
    """Solver and estimator by their settings; adjoints and probes to a hundredth, below the noise of one probe."""
    return Objective(build(solver, RootFinder), build(lad, LogDetEstimator) if lad else Auto(), GMRES(tolerance=1e-2))


def reference_of(
    dataset: Dataset, shape: tuple[int, ...], inception: str | None, device: torch.device
) -> Reference | str:
    """An extractor for items of `shape`, for FID, with all complete training images; or why there is none."""
    extractor = extractor_for(shape, inception)
    if isinstance(extractor, str):
        return extractor
    train = dataset.load("train")
    assert isinstance(train, Images)
    return Reference(extractor.to(device), train)


@dataclass(frozen=True)
class FromTraining:
    """What a training knows of its data, for imputers that stand beside the model."""

    means: Tensor | None
    """Of the observed training entries (d,)."""
    gaussian: Gaussian | None
    data: Callable[[], IncompleteData]
    """The training data as the model saw them, loaded when an imputer has to be fitted to them."""
    complete_gaussian: Callable[[], Imputer]
    """The Gaussian of the training data without their masks, see `complete_gaussian`."""

    def imputer(self, name: str, flow: Flow, noise: float = 0.0) -> Imputer | None:
        """The imputer called `name`, or of the class of that dotted path, fitted; None if the run cannot tell.

        Raises `InputError` as `check_imputer` does.
        """
        if name == "mean":
            return None if self.means is None else MeanImputer(self.means)
        if name == "gaussian":
            return None if self.gaussian is None else GaussianImputer(self.gaussian)
        if name == _COMPLETE:
            return self.complete_gaussian()
        if name in _GUIDED:
            return _GUIDED[name](flow, noise=noise)
        return (_FITTED[name]() if name in _FITTED else build({"_target_": name}, Imputer)).fit(self.data())


def complete_gaussian(dataset: Dataset, items: int | None, scaling: Scaling | None, floor: float) -> Imputer:
    """A Gaussian of the first `items` training items without their masks, but for holes that they have of their own."""
    train = standardised(dataset.load("train", items), scaling)
    fitted = CompleteGaussianImputer(floor=floor, noise=dataset.gaussian_noise)
    return fitted.fit(IncompleteData(train.values, train.known))


def check_imputer(name: str, flow: Flow) -> None:
    """Raises `InputError` if nothing is called so, or if it does not suit the flow: before anything is trained."""
    if name in _GUIDED:
        _GUIDED[name](flow)
    elif "." in name:
        maker(name, Imputer)
    elif name not in (*BESIDE, _COMPLETE, *_FITTED):
        known = ", ".join((*BESIDE, _COMPLETE, *_FITTED, *_GUIDED))
        raise InputError(f"imputers has {name!r}; choose from {known}, or give the dotted path of a class")


@dataclass(frozen=True)
class Measuring:
    """How a model is measured on a test split."""

    dataset: Dataset
    inception: str | None
    protocol: Protocol
    objective: Objective
    imputers: Sequence[str]
    """Names or dotted paths of those beside the model."""
    metrics: Sequence[str]
    """Dotted paths of those beside the standard ones."""

    @classmethod
    def of(cls, cfg: dict[str, Any], dataset: Dataset, objective: Objective) -> Measuring:
        """Reads the settings of a training or an evaluation, on the data set that a run was trained on."""
        noise = dataset.gaussian_noise if cfg["denoise"] else 0.0
        protocol = Protocol(cfg["draws"], cfg["batch_size"], cfg["seed"], levels=dataset.levels, noise=noise)
        imputers, metrics = cfg.get("imputers", BESIDE), cfg.get("metrics", ())  # older runs say nothing of them
        return cls(dataset, cfg["inception"], protocol, objective, tuple(imputers), tuple(metrics))

    def check(self, flow: Flow) -> None:
        """Raises `InputError` for an imputer or a metric that there is not, or that does not suit the flow."""
        for name in self.imputers:
            check_imputer(name, flow)
        for name in self.metrics:
            maker(name, Metric)

    def run(
        self, model: Model, test: Data, observed: Tensor, known: FromTraining, given: Sequence[Imputer] = ()
    ) -> tuple[dict[str, Any], Completions | None]:
        """The record, and the completions of the first items, with a bar; `given` are measured too."""
        device = next(model.parameters()).device
        noise = self.protocol.noise
        others = [made for name in self.imputers if (made := known.imputer(name, model.flow, noise)) is not None]
        others += given
        metrics = standard_metrics(test, reference_of(self.dataset, test.shape, self.inception, device))
        metrics += [build({"_target_": name}, Metric, test) for name in self.metrics]
        with bar("measuring", len(test)) as progress:
            return evaluate(
                model,
                test,
                observed,
                self.objective,
                self.protocol,
                others=others,
                metrics=metrics,
                progress=progress.update,
            )
