"""Measures a model on a test split."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from viscos.batch import Incomplete, incomplete
from viscos.data.datasets import Images
from viscos.data.masks import mask_hash
from viscos.gaussian import Gaussian
from viscos.inference import Completions, Objective, impute
from viscos.metrics.accuracy import Accuracy
from viscos.metrics.rmse import RMSE
from viscos.model import Model
from viscos.rng import generator, item_noise
from viscos.train import dequantise


@dataclass(frozen=True)
class Protocol:
    """How to measure."""

    draws: int = 8
    batch_size: int = 64
    seed: int = 0
    bound_items: int = 16
    """Items of which the bound is evaluated, which costs as many products as an item has entries."""
    bound_draws: int = 2
    levels: int = 256
    """Grey levels of the data, for bits per dimension."""


@dataclass
class _Tally:
    """What is gathered over the batches."""

    draw: RMSE = field(default_factory=RMSE)
    mean: RMSE = field(default_factory=RMSE)
    mean_imputation: RMSE = field(default_factory=RMSE)
    gaussian: RMSE = field(default_factory=RMSE)
    gaussian_draw: RMSE = field(default_factory=RMSE)
    accuracy: Accuracy = field(default_factory=Accuracy)
    solver: list[Tensor] = field(default_factory=list)


def evaluate(
    model: Model,
    test: Images,
    observed: Tensor,
    objective: Objective,
    protocol: Protocol,
    *,
    baseline: Gaussian | None = None,
    progress: Callable[[int, dict[str, float]], None] = lambda done, figures: None,
) -> tuple[dict[str, Any], Completions | None]:
    """Figures of `model` on `test` under the masks `observed` (N, …), and the completions of the first items.

    The record says of each figure how it was computed. `progress` gets the number of items done. `baseline`, a Gaussian
    fitted to training data, adds its own rows.
    """
    model.eval()
    record: dict[str, Any] = {
        "items": len(test),
        "mask_hash": mask_hash(observed),
        "missing": float((~observed).double().mean()),
    }
    first: Completions | None = None
    if model.posterior is not None and not bool(observed.all()):
        tally, first = _complete_all(model, test, observed, objective, protocol, baseline, progress)
        record |= _completion_record(tally, baseline, protocol)
        record["bound"] = _bound(model, test, observed, objective, protocol)
    elif bool(observed.all()):
        record |= _complete_data_record(model, test, protocol, progress)
    if model.classifier is not None and "accuracy" in record:
        record["accuracy"]["classifier"] = f"trained along, on {model.classifier.sees}"
    record["lipschitz"] = max(model.flow.lipschitz(), default=0.0)
    return record, first


def _complete_all(
    model: Model,
    test: Images,
    observed: Tensor,
    objective: Objective,
    protocol: Protocol,
    baseline: Gaussian | None,
    progress: Callable[[int, dict[str, float]], None],
) -> tuple[_Tally, Completions | None]:
    assert model.posterior is not None
    tally, first = _Tally(), None
    device = next(model.parameters()).device
    for start in range(0, len(test), protocol.batch_size):
        rows = torch.arange(start, min(start + protocol.batch_size, len(test)))
        batch = incomplete(test.values[rows], observed[rows], rows).to(device)
        done = impute(
            model.flow,
            model.posterior,
            batch,
            objective.solver,
            draws=protocol.draws,
            seed=protocol.seed,
            antithetic=True,
        )
        _measure(tally, model, test, batch, done, rows)
        if baseline is not None:
            _measure_baseline(tally, baseline, test, batch, rows, protocol.seed)
        first = done if first is None else first
        progress(start + len(rows), {"rmse": tally.mean.pooled, "failed": float((~done.ok).double().mean())})
    return tally, first


def _measure(tally: _Tally, model: Model, test: Images, batch: Incomplete, done: Completions, rows: Tensor) -> None:
    truth, hidden = test.values[rows], batch.hidden.cpu()
    tally.draw.update(done.draws[0].cpu(), truth, hidden, done.ok[0].cpu())
    tally.mean.update(done.mean().cpu(), truth, hidden, done.ok.any(0).cpu())
    if model.classifier is not None and test.labels is not None:
        seen = (torch.nan_to_num(done.latents), torch.nan_to_num(done.draws), batch.observed.expand_as(done.draws))
        scores = model.classifier(*(part.flatten(0, 1) for part in seen)).softmax(1).view(*done.ok.shape, -1)
        weight = done.ok.to(scores.dtype).unsqueeze(-1)
        tally.accuracy.update((scores * weight).sum(0).cpu(), test.labels[rows], done.ok.any(0).cpu())
    s = done.solution
    columns = (s.evaluations, s.residual.nan_to_num(math.inf, math.inf), s.fallback, ~s.converged)
    tally.solver.append(torch.stack([c.double().cpu() for c in columns], 1))


def _measure_baseline(
    tally: _Tally, baseline: Gaussian, test: Images, batch: Incomplete, rows: Tensor, seed: int
) -> None:
    truth, hidden = test.values[rows], batch.hidden.cpu()
    values, observed = batch.values.cpu(), batch.observed.cpu()
    mean = baseline.mean.view(1, *truth.shape[1:]).to(truth.dtype)
    tally.mean_imputation.update(torch.where(observed, values, mean), truth, hidden)
    tally.gaussian.update(baseline.conditional(values, observed), truth, hidden)
    noise = item_noise(seed, rows, 1, truth.shape[1:], truth)[0]
    tally.gaussian_draw.update(baseline.conditional_sample(values, observed, noise), truth, hidden)


def _completion_record(tally: _Tally, baseline: Gaussian | None, protocol: Protocol) -> dict[str, Any]:
    numbers = torch.cat(tally.solver)
    solved = numbers[numbers[:, 3] == 0]
    record: dict[str, Any] = {
        "draws": protocol.draws,
        "rmse": {"mean": tally.mean.record(), "draw": tally.draw.record()},
        "solver": {
            "evaluations": float(numbers[:, 0].mean()),
            "residual": float(solved[:, 1].max()) if len(solved) else None,
            "fallback": float(numbers[:, 2].mean()),
            "failed": float(numbers[:, 3].mean()),
            "solves": len(numbers),
        },
    }
    if baseline is not None:
        record["rmse"] |= {
            "mean_imputation": tally.mean_imputation.record(),
            "gaussian_mean": tally.gaussian.record(),
            "gaussian_draw": tally.gaussian_draw.record(),
        }
    if tally.accuracy.count:
        record["accuracy"] = tally.accuracy.record()
    return record


def _bound(
    model: Model, test: Images, observed: Tensor, objective: Objective, protocol: Protocol
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
        "unit": "nats an item, a lower bound of log p(y^O) for values in [0, 1]",
        "items": len(each),
        "draws": protocol.bound_draws,
    }


@torch.no_grad()
def _complete_data_record(
    model: Model, test: Images, protocol: Protocol, progress: Callable[[int, dict[str, float]], None]
) -> dict[str, Any]:
    """Bits per dimension of uniformly dequantised data, and accuracy."""
    device = next(model.parameters()).device
    total, accuracy, g = 0.0, Accuracy(), generator(protocol.seed, "dequantise")
    for start in range(0, len(test), protocol.batch_size):
        rows = slice(start, start + protocol.batch_size)
        values = dequantise(test.values[rows], protocol.levels, g).to(device)
        total += float(model.flow.log_prob(values).double().sum())
        if model.classifier is not None and test.labels is not None:
            clean = test.values[rows].to(device)
            scores = model.classifier(model.flow.to_latent(clean), clean, torch.ones_like(clean, dtype=torch.bool))
            accuracy.update(scores.cpu(), test.labels[rows])
        progress(min(start + protocol.batch_size, len(test)), {"bits": _bits(total, test, start, protocol)})
    record: dict[str, Any] = {
        "bits_per_dim": {
            "value": _bits(total, test, len(test), protocol),
            "how": f"uniform dequantisation of {protocol.levels} levels; "
            "log-determinant by the flow's own estimate, a series cut as in flow.series",
        }
    }
    if accuracy.count:
        record["accuracy"] = accuracy.record()
    return record


def _bits(total: float, test: Images, start: int, protocol: Protocol) -> float:
    done = len(test) if start >= len(test) else min(start + protocol.batch_size, len(test))
    d = test.values[0].numel()
    return -total / (done * d * math.log(2)) + math.log2(protocol.levels)
