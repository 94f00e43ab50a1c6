"""How completions are made and measured, by the settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from viscos.commands.assemble.data import Dataset
from viscos.commands.assemble.imputers import MODEL, Parts, check, described_by, is_model
from viscos.core.build import build
from viscos.core.errors import InputError
from viscos.core.progress import bar
from viscos.data.images import Images
from viscos.data.items import Data
from viscos.evaluate import Protocol, evaluate, measure, standard_metrics
from viscos.flows import Flow
from viscos.imputers import Imputer, check_apart
from viscos.inference import Completions, Objective
from viscos.linear import GMRES
from viscos.logdet import Auto, LogDetEstimator
from viscos.metrics import Metric, Reference
from viscos.metrics.extractor import extractor_for
from viscos.roots import RootFinder
from viscos.train.model import Model


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
class Measured:
    """What was measured of some test items."""

    record: dict[str, Any]
    """Plain, for JSON."""
    first: Completions | None = None
    """The completions of the first items; None where there was nothing to complete."""
    per_item: dict[str, Tensor] = field(default_factory=dict)
    """Numbers of each item, see `Metric.per_item`."""


@dataclass(frozen=True)
class Measuring:
    """How a model, or another imputer, is measured on a test split."""

    dataset: Dataset
    inception: str | None
    protocol: Protocol
    objective: Objective
    imputers: Sequence[str]
    """Names or dotted paths of those beside what is measured."""
    metrics: Sequence[str]
    """Dotted paths of those beside the standard ones."""
    subject: dict[str, Any] = field(default_factory=lambda: MODEL)
    """Describes what is measured."""

    @classmethod
    def of(cls, cfg: dict[str, Any], dataset: Dataset, objective: Objective) -> Measuring:
        """Reads the settings of a training or an evaluation, on the data set that a run was trained on."""
        noise = dataset.gaussian_noise if cfg["denoise"] else 0.0
        protocol = Protocol(cfg["draws"], cfg["batch_size"], cfg["seed"], levels=dataset.levels, noise=noise)
        beside = (tuple(cfg["imputers"]), tuple(cfg["metrics"]))
        return cls(dataset, cfg["inception"], protocol, objective, *beside, cfg["imputer"])

    @property
    def of_model(self) -> bool:
        """Whether a model is measured, and not another imputer."""
        return is_model(self.subject)

    def check(self, flow: Flow | None, test: Data, given: Sequence[Imputer] = ()) -> None:
        """Raises `InputError` for an imputer or a metric that there is not, or that does not suit the flow or the data.

        And for two of one name, those `given` among them. A metric of the user's own is made here once: what its code
        raises is seen before hours of training.
        """
        check_apart([*(check(spec, flow) for spec in (self.subject, *self._beside())), *given])
        self._own_metrics(test)

    def run(
        self, what: Model | Imputer, test: Data, observed: Tensor, parts: Parts, given: Sequence[Imputer] = ()
    ) -> Measured:
        """Measures `what`, with a bar, and beside it those that the settings name and those `given`.

        Raises `InputError` for an imputer where nothing is hidden.
        """
        if isinstance(what, Imputer) and bool(observed.all()):
            raise InputError("nothing is hidden, so there is nothing to complete; hide something: missing=0.5")
        others = [*(parts.imputer(spec) for spec in self._beside()), *given]
        metrics = standard_metrics(test, reference_of(self.dataset, test.shape, self.inception, parts.device))
        metrics += self._own_metrics(test)
        with bar("measuring", len(test)) as shown:
            how: dict[str, Any] = {"metrics": metrics, "progress": shown.update}
            if isinstance(what, Model):
                record, first = evaluate(what, test, observed, self.objective, self.protocol, others=others, **how)
            else:
                record, first = measure([what, *others], test, observed, self.protocol, device=parts.device, **how)
                record = {"imputer": what.name, **record}
        return Measured(record, first, {name: each for metric in metrics for name, each in metric.per_item().items()})

    def _own_metrics(self, test: Data) -> list[Metric]:
        return [build({"_target_": name}, Metric, test) for name in self.metrics]

    def left_out(self, asked: bool) -> tuple[str, ...]:
        """Lines on imputers that were asked for and are the one that is measured, but with other settings."""
        described = {name: described_by(name) for name in self.imputers if asked}
        same = {name: spec for name, spec in described.items() if spec["_target_"] == self.subject["_target_"]}
        line = "{} is left out of imputers, as it is measured once, by the settings of imputer"
        return tuple(line.format(name) for name, spec in same.items() if spec != self.subject)

    def _beside(self) -> list[dict[str, Any]]:
        """Descriptions of those beside what is measured, without it."""
        described = [described_by(name) for name in self.imputers]
        return [spec for spec in described if spec["_target_"] != self.subject["_target_"]]
