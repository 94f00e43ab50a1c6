"""Items that no step learns from: how a model does on them while it is trained, and the best that it was."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.rng import Generators, generator, usual_probes
from viscos.inference import Objective, lower_bound
from viscos.posteriors.holdout import hold_out, holdout_errors
from viscos.train.model import Model

TIMES = 20
"""Measurements in a phase, or in a training without phases."""
ITEMS = 512
"""Most items that are measured."""
BOUND_ITEMS = 64
"""Most items of which the bound is measured, which takes solves."""


def validation_order(items: int, share: float, seed: int) -> tuple[Tensor, int]:
    """The numbers of `items` training items, first those that are learnt from, and how many these are.

    Those held back are in no order: the first of them, of which some is measured, are like the rest. A `share` of 0
    leaves them as they are; any other holds back one item at least, and leaves one to learn from.
    """
    held = min(max(1, round(share * items)), items - 1) if share > 0 else 0
    if not held:
        return torch.arange(items), items
    order = torch.randperm(items, generator=generator(seed, "validation"))
    return torch.cat([order[held:].sort().values, order[:held]]), items - held


@dataclass
class Validation:
    """Keeps the best model of a phase, or of a training without phases, by a loss on items held back.

    A loss that is not finite is never the best. With `patience`, so many measurements in a row without a better one
    end the phase.
    """

    patience: int | None = None
    best: float = math.inf
    step: int = 0
    """At which the best was measured."""
    since: int = 0
    """Measurements since."""
    kept: dict[str, Tensor] = field(default_factory=dict)
    """The best model's parameters and buffers."""
    record: list[dict[str, Any]] = field(default_factory=list)
    """What each phase so far came to; plain."""

    @staticmethod
    def due(within: int, steps: int) -> bool:
        """Whether to measure after `within` of so many steps, from 1: `TIMES` times, the last at the end."""
        return within * TIMES // steps > (within - 1) * TIMES // steps

    def take(self, model: Model, loss: float, step: int) -> None:
        """Compares a model with the best so far."""
        self.since += 1
        if loss < self.best:
            self.best, self.step, self.since = loss, step, 0
            self.kept = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @property
    def over(self) -> bool:
        """Whether it has been better too long ago."""
        return self.patience is not None and self.since >= self.patience

    def finish(self, model: Model, phase: str | None, step: int) -> None:
        """Puts the best parameters into `model` at the end of a phase, and begins anew."""
        if self.kept:
            model.load_state_dict(self.kept)
            said = {} if phase is None else {"phase": phase}
            self.record.append({**said, "loss": self.best, "best_after_steps": self.step, "ended_after_steps": step})
        self.best, self.step, self.since, self.kept = math.inf, 0, 0, {}

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs, in plain containers."""
        return {name: getattr(self, name) for name in ("best", "step", "since", "kept", "record")}

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave."""
        self.best, self.step, self.since = float(state["best"]), int(state["step"]), int(state["since"])
        self.kept, self.record = dict(state["kept"]), list(state["record"])


# What is measured. Noise, probes and held-out entries are the same each time, so that only the model differs.


def held_out_error(model: Model, batch: Incomplete, seed: int, groups: Tensor | None = None) -> dict[str, float]:
    """The RMSE of the inference network at observed entries that are hidden from it; nothing if it has none."""
    network = model.posterior
    if network is None or not model.holds_out:
        return {}
    sparser = hold_out(batch, network.held_out, generator(seed, "validation held out"), groups)
    count = int((batch.observed & sparser.hidden).sum())
    squares = float(holdout_errors(network, batch, sparser)[0])
    return {"holdout": math.sqrt(squares / count)} if count else {}


def flow_loss(model: Model, values: Tensor, seed: int, counts: Tensor | None = None) -> dict[str, float]:
    """What the flow minimises on complete items (B, …): the matching loss, or −log p in nats an item.

    Entries are weighted by `counts` (B, …) where the flow is matched.
    """
    if model.flow.trained_by_matching:
        g = generator(seed, "validation probe")
        return {"matching": float(model.flow.matching_loss(values, g, counts).mean())}
    return {"nll": -float(model.flow.log_prob(values, usual_probes()).mean())}


def posterior_loss(model: Model, batch: Incomplete, latents: Tensor) -> dict[str, float]:
    """−log q(x^H | y^O) an entry, of the latents (B, …) of masked items."""
    assert model.posterior is not None
    return {"nll": float(model.posterior.teach(batch, latents, model.flow)) / max(1, int(batch.hidden.sum()))}


def bound(model: Model, objective: Objective, batch: Incomplete, noise: Tensor, probes: Generators) -> float:
    """The bound (or log p) in nats, by the cheap estimators, for the items of a batch, taken as draws of one.

    `noise` (1, B, …) is standard normal.
    """
    if bool(batch.observed.all()):
        return float(model.flow.log_prob(batch.values, usual_probes()).mean())
    assert model.posterior is not None
    q = model.posterior(batch, model.flow)
    weight = objective.log_weight(model.flow, batch, q, noise, probes, exact_below=100)
    return float(lower_bound(weight.view(-1, 1)))


def bound_loss(model: Model, objective: Objective, batch: Incomplete, seed: int) -> dict[str, float]:
    """The bound in nats an item, or minus log p of the flow alone where nothing is hidden."""
    if bool(batch.observed.all()):
        return flow_loss(model, batch.values, seed)
    g, few = generator(seed, "validation bound"), batch.select(slice(0, BOUND_ITEMS))
    noise = torch.randn((1, *few.values.shape), generator=g).to(few.values.device)
    return {"bound": bound(model, objective, few, noise, g)}


def loss_of(scalars: dict[str, float]) -> float:
    """The number by which a model is judged, the lower the better: the first of what was measured."""
    name, value = next(iter(scalars.items()), ("", math.nan))
    return -value if name == "bound" else value
