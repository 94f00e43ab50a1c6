"""The loss of a part of a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from viscos.batch import Incomplete
from viscos.inference import Objective
from viscos.logdet import LogDetEstimator
from viscos.model import Model
from viscos.rng import Generators

Figures = dict[str, float]


@dataclass(frozen=True)
class Part:
    """A micro-batch, with its own of the step's random numbers."""

    batch: Incomplete
    noise: Tensor
    """Standard normal (B, …): the draws of x^H."""
    probes: Generators
    lad: LogDetEstimator
    """The estimator that the whole step takes."""
    weight: float
    """Of each item in the loss."""


class Loss(nn.Module):
    """Minus the bound (or log p), plus the classifier's cross-entropy, summed over the solved items of a part.

    A module, because what Fabric spreads over devices is the forward pass of a module.
    """

    def __init__(self, model: Model, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, part: Part) -> tuple[Tensor, Callable[[], Figures]]:
        """The weighted sum, and its figures, to be read after the backward pass, which solves too."""
        if self.model.posterior is None:
            x, terms, ok, solver = self._likelihood(part)
        else:
            x, terms, ok, solver = self._bound(part)
        loss = -terms.sum()
        solved = int(ok.sum())
        figures: Figures = {"items": len(ok) if part.weight else 0, "solved": solved if part.weight else 0}
        if self.model.classifier is not None and part.batch.label is not None:
            figures |= {"cross_entropy": math.nan, "accuracy": math.nan}
            if solved > 1:
                scores, label = self.model.classifier(x[ok]), part.batch.label[ok]
                cross_entropy = F.cross_entropy(scores, label)
                loss = loss + solved * cross_entropy
                figures["cross_entropy"] = float(cross_entropy.detach())
                figures["accuracy"] = float((scores.argmax(1) == label).double().mean())
        return part.weight * loss, lambda: figures | solver()

    def _likelihood(self, part: Part) -> tuple[Tensor, Tensor, Tensor, Callable[[], Figures]]:
        flow = self.model.flow
        x, surrogate = flow.to_latent_and_ladj_surrogate(part.batch.values, part.probes)
        return x, flow.base_log_prob(x) + surrogate, torch.ones_like(surrogate, dtype=torch.bool), dict

    def _bound(self, part: Part) -> tuple[Tensor, Tensor, Tensor, Callable[[], Figures]]:
        assert self.model.posterior is not None
        q = self.model.posterior(part.batch, self.model.flow)
        objective = replace(self.objective, lad=part.lad)
        step = objective.step(self.model.flow, part.batch, q, part.noise[None], part.probes)
        return step.x, step.surrogate, step.ok, step.figures


_CLASSIFIER = ("cross_entropy", "accuracy")


def merged(records: Sequence[Figures]) -> Figures:
    """The figures of several parts as those of the whole.

    Counts add up, of the residuals the largest stays, and the rest are means: the classifier's over solved items, the
    solver's over all. NaN stands for a figure that a part does not have.
    """
    whole: Figures = {}
    for key in records[0]:
        known = [record for record in records if not math.isnan(record[key])]
        if key in ("items", "solved"):
            whole[key] = sum(record[key] for record in records)
        elif key == "residual":
            whole[key] = max((record[key] for record in known), default=math.nan)
        else:
            weight = "solved" if key in _CLASSIFIER else "items"
            count = sum(record[weight] for record in known)
            whole[key] = sum(record[weight] * record[key] for record in known) / count if count else math.nan
    return whole
