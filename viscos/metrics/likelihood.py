"""What a flow says of test items as densities: the bound, log p(y), and bits per dimension."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from viscos.core.batch import incomplete
from viscos.core.precision import device_of
from viscos.core.rng import ItemGenerators, generator, item_noise
from viscos.data.items import Data
from viscos.flows import Flow
from viscos.inference import Objective, lower_bound
from viscos.metrics.accuracy import Accuracy
from viscos.train.classifier import LatentClassifier
from viscos.train.model import Model
from viscos.train.noise import dequantise

Progress = Callable[[int, dict[str, float]], None]
"""Gets the number of items done, and what was measured."""
DEAR_ITEMS = 64
"""Items of which bits per dimension are measured where a log-determinant is dear."""


@torch.no_grad()
def bound_record(
    model: Model, test: Data, observed: Tensor, objective: Objective, *, items: int, draws: int, seed: int
) -> dict[str, Any] | None:
    """The bound of log p(y^O) in nats over the first `items`, and how it was computed; None if no draw was solved.

    A failed draw counts as one of weight zero. An item of which all draws failed has a bound of −∞ and stands beside
    the mean, in `unsolved_items`.
    """
    assert model.posterior is not None
    rows = torch.arange(min(items, len(test)))
    if not len(rows):
        return None
    batch = incomplete(test.values[rows], observed[rows], rows).to(device_of(model))
    noise = item_noise(seed, rows, draws, test.shape, batch.values)
    q = model.posterior(batch, model.flow)
    weight = objective.log_weight(model.flow, batch, q, noise, generator(seed, "bound"))
    each = lower_bound(weight)
    each = each[each.isfinite()].double()
    if not len(each):
        return None
    return {
        **_mean(each, "mean"),
        "unit": f"nats an item, a lower bound of log p(y^O) for {test.units.values}",
        "items": len(each),
        "unsolved_items": len(rows) - len(each),
        "failed": float(weight.isnan().double().mean()),
        "draws": draws,
    }


@torch.no_grad()
def log_likelihood_record(flow: Flow, test: Data, batch_size: int) -> dict[str, Any] | None:
    """The mean of log p(y) in nats over the test vectors that have no hole of their own; None if there is none."""
    whole = test.values[test.known.flatten(1).all(1)]
    if not len(whole):
        return None
    device = device_of(flow)
    each = torch.cat(
        [
            flow.log_prob(whole[rows].to(device), _probes(rows)).double().cpu()
            for rows in torch.arange(len(whole)).split(batch_size)
        ]
    )
    unit = f"nats an item, log p(y) for {test.units.values}"
    record: dict[str, Any] = {**_mean(each, "value"), "unit": unit, "items": len(each)}
    if test.units.scales:
        record["value_own_units"] = record["value"] - sum(math.log(scale) for scale in test.units.scales)
    return record


@torch.no_grad()
def complete_data_record(
    model: Model, test: Data, levels: int, batch_size: int, seed: int, progress: Progress
) -> dict[str, Any]:
    """Bits per dimension of uniformly dequantised images of so many grey levels, and the classifier's accuracy."""
    flow, device, accuracy = model.flow, device_of(model), Accuracy()
    measured = min(len(test), DEAR_ITEMS) if flow.trained_by_matching else len(test)
    measured = measured if test.units.clamped else 0  # what has no grey levels has no cells
    total, cells = 0.0, dequantise(test.values[:measured], levels, generator(seed, "dequantise"))

    def bits(done: int) -> float:
        return -total / (done * test.values.shape[1:].numel() * math.log(2)) + math.log2(levels - 1)

    for start in range(0, len(test), batch_size):
        rows = torch.arange(start, min(start + batch_size, len(test)))
        if start < measured:
            within = rows[rows < measured]
            total += float(flow.log_prob(cells[within].to(device), _probes(within)).double().sum())
        if model.classifier is not None and test.labels is not None:
            accuracy.update(_scores(model, test.values[rows].to(device)), test.labels[rows])
        done = min(start + batch_size, len(test))
        progress(done, {"bits": bits(min(done, measured))} if test.units.clamped else {})
    record: dict[str, Any] = {}
    if test.units.clamped:
        probed = "one probe of each step, exact up to 64 entries"
        record["bits_per_dim"] = {
            "value": bits(measured),
            "items": measured,
            "how": f"uniform dequantisation of {levels} levels; log-determinant by the flow's own estimate, "
            + (probed if flow.trained_by_matching else "a series cut as in flow.series"),
        }
    if accuracy.count:
        assert model.classifier is not None
        record["accuracy"] = accuracy.record() | {"classifier": f"trained along, on {model.classifier.sees}"}
    return record


def _probes(rows: Tensor) -> ItemGenerators:
    """Those of the items at `rows` (n,): an item's own, whatever its batch."""
    return ItemGenerators(0, rows, 1, 0)


def _scores(model: Model, clean: Tensor) -> Tensor:
    """The classifier's, of complete items (B, …): (B, classes), on the CPU."""
    assert model.classifier is not None
    latents = model.flow.to_latent(clean) if isinstance(model.classifier, LatentClassifier) else clean
    scores: Tensor = model.classifier(latents, clean, torch.ones_like(clean, dtype=torch.bool))
    return scores.cpu()


def _mean(each: Tensor, name: str) -> dict[str, float | None]:
    error = float(each.std() / len(each) ** 0.5) if len(each) > 1 else None
    return {name: float(each.mean()), "standard_error": error}
