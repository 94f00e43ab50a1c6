"""Measures a model on a test split."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from viscos.core.batch import Incomplete, incomplete
from viscos.core.rng import generator, item_noise
from viscos.core.solution import Solution
from viscos.data.items import Data
from viscos.data.masks import mask_hash
from viscos.inference import Completions, Objective, impute
from viscos.linear.gaussian import Gaussian
from viscos.metrics.accuracy import Accuracy
from viscos.metrics.calibration import first_of_pairs
from viscos.metrics.judge import Judge
from viscos.metrics.tally import Tally
from viscos.posteriors import Amortised
from viscos.scores import add_completions, add_gaussian, gaussian_draws
from viscos.train import dequantise
from viscos.train.classifier import Classifier, LatentClassifier
from viscos.train.model import Model

Progress = Callable[[int, dict[str, float]], None]
"""Gets the number of items done, and figures."""


_INTERVALS = 100_000
"""Number of the first draw of an item for intervals: they are others than those of the mean."""


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
    """Items, the first, of which enough draws are made for the coverage of a 90 % interval."""
    interval_draws: int = 19
    """The fewest that have one."""
    levels: int = 256
    """Grey levels of the data, for bits per dimension."""
    noise: float = 0.0
    """Standard deviation of the noise of training, to be taken off draws where the flow can; 0: none."""
    density_items: int = 64
    """Items of which bits per dimension are measured where a log-determinant is dear."""


def evaluate(
    model: Model,
    test: Data,
    observed: Tensor,
    objective: Objective,
    protocol: Protocol,
    *,
    baseline: Gaussian | None = None,
    means: Tensor | None = None,
    judge: Judge | str = "no extractor was given",
    progress: Progress = lambda done, figures: None,
) -> tuple[dict[str, Any], Completions | None]:
    """Figures of `model` on `test` under the masks `observed` (N, …), and the completions of the first items.

    The record says of each figure how it was computed. `progress` gets the number of items done. `baseline`, a Gaussian
    fitted to training data, adds its own rows, and so do the `means` of observed training entries (d,), by default the
    Gaussian's. `judge` gives FID and a second accuracy; or it is the reason for which there are none, which the record
    then holds.
    """
    model.eval()
    means = baseline.mean if means is None and baseline is not None else means
    record: dict[str, Any] = {
        "items": len(test),
        "mask_hash": mask_hash(observed),
        "missing": float((~observed).double().mean()),
    }
    first: Completions | None = None
    if model.posterior is not None and not bool(observed.all()):
        run = _Completion(model, test, objective, protocol, baseline, means, Tally(test, judge))
        first = run.go(observed, progress)
        record |= run.record()
        record["bound"] = _bound(model, test, observed, objective, protocol)
    elif bool(observed.all()):
        record |= _complete_data_record(model, test, protocol, progress)
    if not test.units.clamped:
        record["log_likelihood"] = _log_likelihood(model, test, protocol)
    if model.classifier is not None and "accuracy" in record:
        record["accuracy"]["classifier"] = f"trained along, on {model.classifier.sees}"
    record["lipschitz"] = max(model.flow.lipschitz(), default=0.0)
    return record, first


@dataclass
class _Completion:
    """Completes all items, and gathers figures batch by batch."""

    model: Model
    test: Data
    objective: Objective
    protocol: Protocol
    baseline: Gaussian | None
    means: Tensor | None
    tally: Tally
    accuracy: Accuracy = field(default_factory=Accuracy)
    solver: list[Solution] = field(default_factory=list)

    def go(self, observed: Tensor, progress: Progress) -> Completions | None:
        """Returns the completions of the first batch."""
        assert self.model.posterior is not None
        first, device = None, next(self.model.parameters()).device
        for rows in torch.arange(len(self.test)).split(self.protocol.batch_size):
            batch = incomplete(self.test.values[rows], observed[rows], rows).to(device)
            done = impute(
                self.model.flow,
                self.model.posterior,
                batch,
                self.objective.solver,
                draws=self.protocol.draws,
                seed=self.protocol.seed,
                antithetic=True,
                noise=self.protocol.noise,
            )
            self._measure(batch, done)
            first = done if first is None else first
            figures = {"rmse": self.tally.rmse["mean"].pooled, "failed": float((~done.ok).double().mean())}
            progress(int(rows[-1]) + 1, figures)
        if len(first_of_pairs(torch.arange(self.protocol.draws))) < self.protocol.interval_draws:
            self._cover(observed)
        return first

    @torch.no_grad()
    def _cover(self, observed: Tensor) -> None:
        """Draws of the first items, for intervals that the draws of all are too few for."""
        assert self.model.posterior is not None
        protocol, device = self.protocol, next(self.model.parameters()).device
        size = max(1, protocol.batch_size * protocol.draws // protocol.interval_draws)
        for rows in torch.arange(min(protocol.interval_items, len(self.test))).split(size):
            batch = incomplete(self.test.values[rows], observed[rows], rows)
            hidden = batch.hidden & self.test.known[rows]
            done = impute(
                self.model.flow,
                self.model.posterior,
                batch.to(device),
                self.objective.solver,
                draws=protocol.interval_draws,
                seed=protocol.seed,
                first=_INTERVALS,
                noise=protocol.noise,
            )
            self.tally.update_intervals("draw", done.draws.cpu(), hidden, rows, done.ok.cpu())
            if self.baseline is not None:
                drawn = gaussian_draws(self.baseline, batch, protocol.seed, protocol.interval_draws)
                self.tally.update_intervals("gaussian_draw", drawn, hidden, rows)

    @torch.no_grad()
    def _measure(self, batch: Incomplete, done: Completions) -> None:
        rows = batch.index.cpu()
        hidden = batch.hidden.cpu() & self.test.known[rows]  # where nobody knows the truth there is no error
        add_completions(self.tally, done, hidden, rows)
        if self.means is not None:
            naive = self.means.view(1, *self.test.shape)
            self.tally.update("mean_imputation", batch.to("cpu").filled(naive), hidden, rows)
        if self.baseline is not None:
            add_gaussian(self.tally, self.baseline, batch.to("cpu"), hidden, self.protocol.seed, done)
        self.tally.update_truth(rows)
        prediction = None
        if isinstance(self.model.posterior, Amortised) and self.model.posterior.predicts:
            prediction = self.model.posterior.predict(batch)
            self.tally.update("prediction", prediction.cpu(), hidden, rows)
        if self.model.classifier is not None and self.test.labels is not None:
            self._classify(self.model.classifier, batch, done, prediction)
        self.solver.append(done.solution.with_value(done.solution.residual))  # the values are in `done` already

    def _classify(
        self, classifier: Classifier, batch: Incomplete, done: Completions, prediction: Tensor | None
    ) -> None:
        """By what the classifier was trained on: the network's own completion, or all draws."""
        assert self.test.labels is not None
        labels = self.test.labels[batch.index.cpu()]
        if prediction is not None and self.model.classifies_predictions:
            self.accuracy.update(classifier(prediction, prediction, batch.observed).cpu(), labels)
            return
        # One that was trained on complete items has never seen a mask with holes.
        whole = isinstance(self.model.posterior, Amortised) and not self.model.posterior.predicts
        observed = torch.ones_like(batch.observed) if whole else batch.observed
        seen = (torch.nan_to_num(done.latents), torch.nan_to_num(done.draws), observed.expand_as(done.draws))
        scores = classifier(*(part.flatten(0, 1) for part in seen)).softmax(1).view(*done.ok.shape, -1)
        weight = done.ok.to(scores.dtype).unsqueeze(-1)
        self.accuracy.update((scores * weight).sum(0).cpu(), labels, done.ok.any(0).cpu())

    def record(self) -> dict[str, Any]:
        """The figures and how they were computed; plain."""
        record: dict[str, Any] = {
            "draws": self.protocol.draws,
            "noise_taken_off_draws": self.protocol.noise if self.model.flow.denoises else 0.0,
            **self.tally.record(),
            "solver": Solution.joined(self.solver).record(),
        }
        if self.accuracy.count:
            record["accuracy"] = self.accuracy.record()
        return record


def _bound(
    model: Model, test: Data, observed: Tensor, objective: Objective, protocol: Protocol
) -> dict[str, Any] | None:
    """The bound of log p(y^O) in nats, over the first items."""
    assert model.posterior is not None
    rows = torch.arange(min(protocol.bound_items, len(test)))
    if not len(rows):
        return None
    device = next(model.parameters()).device
    batch = incomplete(test.values[rows], observed[rows], rows).to(device)
    noise = item_noise(protocol.seed, rows, protocol.bound_draws, test.shape, batch.values)
    with torch.no_grad():
        q = model.posterior(batch, model.flow)
        weight, _ = objective.log_weight(model.flow, batch, q, noise, generator(protocol.seed, "bound"))
    each = weight.nanmean(0)
    each = each[~each.isnan()].double()
    if not len(each):
        return None
    error = float(each.std() / len(each) ** 0.5) if len(each) > 1 else None
    return {
        "mean": float(each.mean()),
        "standard_error": error,
        "unit": f"nats an item, a lower bound of log p(y^O) for {test.units.values}",
        "items": len(each),
        "draws": protocol.bound_draws,
    }


@torch.no_grad()
def _complete_data_record(model: Model, test: Data, protocol: Protocol, progress: Progress) -> dict[str, Any]:
    """Bits per dimension of uniformly dequantised images, and accuracy."""
    device, flow = next(model.parameters()).device, model.flow
    total, accuracy, g = 0.0, Accuracy(), generator(protocol.seed, "dequantise")
    measured = min(len(test), protocol.density_items) if flow.matches else len(test)
    for start in range(0, len(test), protocol.batch_size):
        rows = slice(start, start + protocol.batch_size)
        if test.units.clamped and start < measured:
            values = dequantise(test.values[rows], protocol.levels, g)[: measured - start].to(device)
            total += float(flow.log_prob(values).double().sum())
        if model.classifier is not None and test.labels is not None:
            clean = test.values[rows].to(device)
            latents = flow.to_latent(clean) if isinstance(model.classifier, LatentClassifier) else clean
            scores = model.classifier(latents, clean, torch.ones_like(clean, dtype=torch.bool))
            accuracy.update(scores.cpu(), test.labels[rows])
        done = min(start + protocol.batch_size, len(test))
        progress(done, {"bits": _bits(total, test, min(done, measured), protocol)} if test.units.clamped else {})
    record: dict[str, Any] = {}
    if test.units.clamped:
        record["bits_per_dim"] = {
            "value": _bits(total, test, measured, protocol),
            "items": measured,
            "how": f"uniform dequantisation of {protocol.levels} levels; log-determinant by the flow's own estimate, "
            + ("one probe of each step, exact up to 64 entries" if flow.matches else "a series cut as in flow.series"),
        }
    if accuracy.count:
        record["accuracy"] = accuracy.record()
    return record


@torch.no_grad()
def _log_likelihood(model: Model, test: Data, protocol: Protocol) -> dict[str, Any] | None:
    """The mean of log p(y) in nats over the test vectors that have no hole of their own; None if there is none."""
    whole = test.values[test.known.flatten(1).all(1)]
    if not len(whole):
        return None
    device = next(model.parameters()).device
    each = torch.cat([model.flow.log_prob(y.to(device)).double().cpu() for y in whole.split(protocol.batch_size)])
    record: dict[str, Any] = {
        "value": float(each.mean()),
        "standard_error": float(each.std() / len(each) ** 0.5) if len(each) > 1 else None,
        "unit": f"nats an item, log p(y) for {test.units.values}",
        "items": len(each),
    }
    if test.units.scales:
        own = sum(math.log(scale) for scale in test.units.scales)
        record["value_own_units"] = record["value"] - own
    return record


def _bits(total: float, test: Data, done: int, protocol: Protocol) -> float:
    return -total / (done * test.values[0].numel() * math.log(2)) + math.log2(protocol.levels)
