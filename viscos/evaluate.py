"""Measures imputers on a test split, all alike; and of a model what there is besides its completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from viscos.core.batch import Incomplete, incomplete
from viscos.core.labels import MEASURES
from viscos.core.precision import device_of
from viscos.core.solution import Solution
from viscos.data.items import Data
from viscos.data.mask_files import mask_hash
from viscos.imputers import Cost, GivenImputer, Imputer, NetworkImputer, ViscosImputer, check_apart, kinds_of
from viscos.inference import Completions, Objective
from viscos.metrics import Coverage, EnergyAndSpread, Errors, Metric, Recognition, Reference, TrainedAlong
from viscos.metrics.likelihood import Progress, bound_record, complete_data_record, log_likelihood_record
from viscos.metrics.metric import measured
from viscos.train.model import Model


@dataclass(frozen=True)
class Protocol:
    """How to measure."""

    draws: int = 8
    batch_size: int = 64
    seed: int = 0
    bound_items: int = 16
    """Items of which the bound is evaluated, which costs as many products as an item has entries."""
    bound_draws: int = 2
    interval_items: int = 100
    """Items, the first, of which enough draws are made for metrics that need many, as intervals do."""
    levels: int = 256
    """Grey levels of the data, for bits per dimension."""
    noise: float = 0.0
    """Standard deviation of the noise of training, to be taken off draws where the flow can; 0: none."""


def evaluate(
    model: Model,
    test: Data,
    observed: Tensor,
    objective: Objective,
    protocol: Protocol,
    *,
    others: Sequence[Imputer] = (),
    metrics: Sequence[Metric] | None = None,
    progress: Progress = lambda done, scalars: None,
) -> tuple[dict[str, Any], Completions | None]:
    """A record of `model` on `test` under the masks `observed` (N, …), and the completions of the first items.

    `others` are measured beside the model's own imputers, as `measure` does. Where nothing is hidden, there is nothing
    to complete, and the flow is measured as a density.
    """
    model.eval()
    record, first = about(test, observed), None
    if model.posterior is not None and not bool(observed.all()):
        metrics = [*(standard_metrics(test) if metrics is None else metrics), TrainedAlong(model)]
        imputers, device = [*_own(model, objective, protocol), *others], device_of(model)
        record, first = measure(imputers, test, observed, protocol, metrics=metrics, device=device, progress=progress)
        record["noise_taken_off_draws"] = protocol.noise if model.flow.can_denoise else 0.0
        bounded = {"items": protocol.bound_items, "draws": protocol.bound_draws, "seed": protocol.seed}
        record["bound"] = bound_record(model, test, observed, objective, **bounded)
    elif bool(observed.all()):
        record |= complete_data_record(model, test, protocol.levels, protocol.batch_size, protocol.seed, progress)
    if not test.units.clamped:
        record["log_likelihood"] = log_likelihood_record(model.flow, test, protocol.batch_size)
    record["lipschitz"] = max(model.flow.lipschitz(), default=0.0)
    return record, first


def measure(
    imputers: Sequence[Imputer],
    test: Data,
    observed: Tensor,
    protocol: Protocol,
    *,
    metrics: Sequence[Metric] | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = lambda done, scalars: None,
) -> tuple[dict[str, Any], Completions]:
    """A record of `imputers` on `test` under the masks `observed` (N, …), and the first one's completions of the first
    items.

    The record says of each number how it was computed, and what each imputer cost. All are measured by the same
    `metrics`, by default `standard_metrics` without an extractor. `progress` gets the number of items done.
    """
    metrics = standard_metrics(test) if metrics is None else metrics
    run = _Completion(test, observed, protocol, imputers, metrics, torch.device(device))
    first = run.go(progress)
    return about(test, observed) | {"draws": protocol.draws, **run.record()}, first


def about(test: Data, observed: Tensor) -> dict[str, Any]:
    """What was measured on: that a record says whether or not there was anything to complete."""
    return {"items": len(test), "mask_hash": mask_hash(observed), "missing": float((~observed).double().mean())}


def standard_metrics(test: Data, reference: Reference | str = "no extractor was given") -> list[Metric]:
    """RMSE, FID and accuracy by `reference`, or the reason for which there is none; and the scores of draws."""
    return [Errors(test), EnergyAndSpread(test), Coverage(test), Recognition(test, reference)]


def _own(model: Model, objective: Objective, protocol: Protocol) -> list[Imputer]:
    """The imputers that a model is; the first one is what it was trained for."""
    assert model.posterior is not None
    own: list[Imputer] = [ViscosImputer(model.flow, model.posterior, objective.solver, protocol.noise)]
    return [*own, NetworkImputer(model.posterior)] if model.posterior.predicts else own


class _Completion:
    """Completes all items by each imputer, and measures batch by batch."""

    def __init__(
        self,
        test: Data,
        observed: Tensor,
        protocol: Protocol,
        imputers: Sequence[Imputer],
        metrics: Sequence[Metric],
        device: torch.device,
    ) -> None:
        self.test, self.observed, self.protocol, self.imputers = test, observed, protocol, imputers
        self.metrics, self.device = metrics, device
        check_apart(imputers)
        self.costs = [Cost.of(imputer) for imputer in imputers]
        self.solutions: list[Solution] = []
        self.asked: list[Tensor] = []

    def go(self, progress: Progress) -> Completions:
        """Returns the first imputer's completions of the first batch."""
        protocol, first, solved, total = self.protocol, None, 0, 0
        shown = kinds_of(self.imputers[0])[0].key
        independent = (protocol.draws + 1) // 2
        needy = [metric for metric in self.metrics if metric.draws > independent]
        usual = [metric for metric in self.metrics if metric not in needy]
        for rows in torch.arange(len(self.test)).split(protocol.batch_size):
            batch = self._batch(rows)
            for imputer, cost in zip(self.imputers, self.costs, strict=True):
                began = time.monotonic()
                done = imputer.best_mean(batch, protocol.draws, protocol.seed)
                done.solution.status.cpu()  # waits for the device
                cost.add(done, time.monotonic() - began)
                self._measure(usual, imputer, done, rows)
                if imputer is self.imputers[0]:
                    first = done if first is None else first
                    solved, total = solved + int(done.ok.sum()), total + done.ok.numel()
                    # Without the values, which are in `done` already.
                    self.solutions.append(done.solution.with_value(done.solution.residual))
                    self.asked.append(done.asked(batch.hidden))
            for metric in usual:
                metric.update_truth(measured(self.test, rows, self.observed[rows]))
            scalars = {key: value for metric in usual for key, value in metric.so_far(shown).items()}
            scalars["failed"] = 1 - solved / max(total, 1)
            progress(int(rows[-1]) + 1, scalars)
        self._draw_more(needy)
        assert first is not None
        return first

    def _draw_more(self, metrics: Sequence[Metric]) -> None:
        """Measures the first items by as many draws as each metric needs, of those that the neediest does."""
        protocol, most = self.protocol, max((metric.draws for metric in metrics), default=0)
        if not most:
            return
        size = max(1, protocol.batch_size * protocol.draws // most)
        for rows in torch.arange(min(protocol.interval_items, len(self.test))).split(size):
            for imputer in self.imputers:
                if imputer.draw is not None:
                    done = imputer.impute(self._batch(rows), most, protocol.seed, purpose="intervals")
                    for metric in metrics:
                        self._measure([metric], imputer, done.first(metric.draws), rows)

    def _batch(self, rows: Tensor) -> Incomplete:
        return incomplete(self.test.values[rows], self.observed[rows], rows).to(self.device)

    def _measure(self, metrics: Sequence[Metric], imputer: Imputer, done: Completions, rows: Tensor) -> None:
        truth = measured(self.test, rows, self.observed[rows])
        for metric in metrics:
            metric.update(imputer, done, truth)

    def record(self) -> dict[str, Any]:
        """The numbers and how they were computed; plain."""
        record: dict[str, Any] = {}
        for metric in self.metrics:
            record |= metric.record()
        if self.solutions:
            record["solver"] = Solution.joined(self.solutions).among(torch.cat(self.asked)).record()
        own = [measure for metric in self.metrics for measure in metric.measures if measure not in MEASURES]
        if own:
            record["measures"] = [asdict(measure) for measure in own]
        made = zip(self.imputers, self.costs, strict=True)
        record["cost"] = {cost.name: cost.record() for imputer, cost in made if not isinstance(imputer, GivenImputer)}
        return record | {"labels": {kind.key: kind.label for imputer in self.imputers for kind in kinds_of(imputer)}}
