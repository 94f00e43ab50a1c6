"""The loss of a part of a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from viscos.core.batch import Incomplete
from viscos.core.rng import Generators
from viscos.inference import Objective
from viscos.inference.elbo import stand_ins
from viscos.posteriors.holdout import holdout_errors
from viscos.train.classifier import LatentClassifier
from viscos.train.model import Model

Scalars = dict[str, float]
_Terms = tuple[Tensor, Tensor, Tensor, Tensor, Callable[[], Scalars]]  # x, y, log-densities, whether solved, numbers


@dataclass(frozen=True)
class Part:
    """A micro-batch, with its own of the step's random numbers."""

    batch: Incomplete
    noise: Tensor
    """Standard normal (B, …): the draws of x^H."""
    probes: Generators
    per_item: float
    """What each item counts in the loss."""
    complete: bool = False
    """Whether nothing is hidden, and the flow alone learns."""
    counts: Tensor | None = None
    """How much each entry counts where a flow is matched (B, …); None: all alike."""


@dataclass(frozen=True)
class Pairs:
    """A micro-batch of masked items and what their latents are, for q to be taught by."""

    batch: Incomplete
    latents: Tensor
    """g of the items before they were masked (B, …)."""
    per_entry: float
    """What each hidden entry counts in the loss."""
    per_item: float
    """What each item counts in the classifier's loss."""


@dataclass(frozen=True)
class HeldOut:
    """A micro-batch of which some observed entries are held out, for the inference network to complete."""

    batch: Incomplete
    sparser: Incomplete
    """The same without the held-out entries."""
    scale: float
    """½ |H| of the whole step, in entries an item: of its logarithm of the mean square."""
    per_item: float
    """What each item counts in the classifier's loss."""
    errors: float | None
    """The sum of squares over the whole step; None where this part is the whole."""


class Loss(nn.Module):
    """Minus the bound (or log p, or the flow's matching loss), plus the classifier's cross-entropy.

    Summed over the solved items of a part.

    Of held-out entries, ½ |H| log MSE, whose gradient is the parts' ½ |H| ∇(sum of squares) over the whole sum. A
    module, because what Fabric spreads over devices is the forward pass of a module.
    """

    def __init__(self, model: Model, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, part: Part | HeldOut | Pairs) -> tuple[Tensor, Callable[[], Scalars]]:
        """The weighted sum, and its numbers, to be read after the backward pass, which solves too."""
        if isinstance(part, HeldOut):
            return self._held_out(part)
        if isinstance(part, Pairs):
            return self._regression(part)
        if part.complete:
            x, y, terms, ok, solver = self._likelihood(part)
        else:
            x, y, terms, ok, solver = self._bound(part)
        loss = -terms.sum()
        solved = int(ok.sum())
        scalars: Scalars = {"items": len(ok) if part.per_item else 0, "solved": solved if part.per_item else 0}
        if self.model.classifier is not None and not self.model.classifies_predictions and part.batch.label is not None:
            scalars |= {"cross_entropy": math.nan, "accuracy": math.nan}
            if solved > 1:
                label = part.batch.label[ok]
                scores = self.model.classifier(x[ok], y[ok], part.batch.observed[ok])
                cross_entropy = F.cross_entropy(scores, label)
                loss = loss + solved * cross_entropy
                scalars["cross_entropy"] = float(cross_entropy.detach())
                scalars["accuracy"] = float((scores.argmax(1) == label).double().mean())
        if self.model.latent_classifier is not None and not part.complete:
            cross_entropy, hits = self._classify_latents(x[ok], part.batch.select(ok))
            loss = loss + cross_entropy
            scalars["accuracy_latents"] = hits / solved if solved > 1 else math.nan
        return part.per_item * loss, lambda: scalars | solver()

    def _classify_latents(self, x: Tensor, batch: Incomplete) -> tuple[Tensor, float]:
        """The cross-entropy, summed over the items, of the classifier that learns from latents beside the other one.

        And how many it has right. Nothing else learns from it.
        """
        classifier, label = self.model.latent_classifier, batch.label
        if classifier is None or label is None or len(label) < 2:  # batch normalisation needs two
            return x.new_zeros(()), 0.0
        scores = classifier(x.detach(), x.detach(), batch.observed)
        return F.cross_entropy(scores, label, reduction="sum"), float((scores.argmax(1) == label).sum())

    def _held_out(self, part: HeldOut) -> tuple[Tensor, Callable[[], Scalars]]:
        assert self.model.posterior is not None
        squares, completed = holdout_errors(self.model.posterior, part.batch, part.sparser)
        errors, label = float(squares.detach()), part.batch.label
        loss = part.scale * squares / max(part.errors or errors, 1e-30)
        scalars = {"errors": errors}
        classifier = self.model.classifier if self.model.classifies_predictions else None
        if classifier is not None and label is not None and len(label) > 1:  # batch normalisation needs two
            scores = classifier(completed, completed, part.sparser.observed)
            cross_entropy = F.cross_entropy(scores, label, reduction="sum")
            loss = loss + part.per_item * cross_entropy
            scalars["cross_entropy"] = float(cross_entropy.detach())
            scalars["hits"] = float((scores.argmax(1) == label).sum())
        return loss, lambda: scalars

    def _regression(self, part: Pairs) -> tuple[Tensor, Callable[[], Scalars]]:
        assert self.model.posterior is not None
        loss = self.model.posterior.teach(part.batch, part.latents, self.model.flow)
        scalars = {"nll": float(loss.detach())}
        cross_entropy, scalars["hits"] = self._classify_latents(part.latents, part.batch)
        return part.per_entry * loss + part.per_item * cross_entropy, lambda: scalars

    def _likelihood(self, part: Part) -> _Terms:
        y, matched = part.batch.values, self.model.flow.trained_by_matching
        solved = torch.ones(len(y), dtype=torch.bool, device=y.device)
        x, terms, sane = self._complete(part, solved)
        while bool((solved & ~sane).any()):  # as in the bound: 0 · NaN would reach shared parameters
            solved = solved & sane
            x, terms, sane = self._complete(part, solved)
        errors = -terms.detach()[solved]
        terms = torch.where(solved, terms, 0)
        return x, y, terms, solved, lambda: {"matching": float(errors.mean())} if matched else {}

    def _complete(self, part: Part, solved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Latents (B, …) and terms of the loss (B,) of complete items, and which of them are finite (B,), bool.

        Those that are not `solved` have stand-ins; where none is, there is nothing to learn.
        """
        flow, y, rows = self.model.flow, part.batch.values, stand_ins(solved)
        if not bool(solved.any()):
            nothing = torch.stack([(p * 0).sum() for p in flow.parameters() if p.requires_grad]).sum()
            return torch.zeros_like(y), nothing.expand(len(y)), ~solved
        probes = part.probes.clone_state()
        if flow.trained_by_matching:
            counts = None if part.counts is None else part.counts[rows]
            x, terms = self._seen(y[rows]), -flow.matching_loss(y[rows], probes, counts)
        else:
            x, surrogate = flow.forward_and_ladj_surrogate(y[rows], probes)
            terms = flow.base_log_prob(x) + surrogate
        return x, terms, terms.isfinite() & x.isfinite().flatten(1).all(1)

    @torch.no_grad()
    def _seen(self, y: Tensor) -> Tensor:
        """The latents of y, where a classifier sees them; they leave the flow as it is."""
        return self.model.flow.to_latent(y) if isinstance(self.model.classifier, LatentClassifier) else y

    def _bound(self, part: Part) -> _Terms:
        assert self.model.posterior is not None
        q = self.model.posterior(part.batch, self.model.flow)
        step = self.objective.step(self.model.flow, part.batch, q, part.noise[None], part.probes)
        return step.x, step.y, step.surrogate, step.ok, step.scalars


_OF_SOLVED = ("cross_entropy", "accuracy", "accuracy_latents", "matching")


def merged(records: Sequence[Scalars]) -> Scalars:
    """The numbers of several parts as those of the whole.

    Counts add up, of the residuals the largest stays, and the rest are means: the losses' over solved items, the
    solver's over all. NaN stands for a number that a part does not have.
    """
    whole: Scalars = {}
    for key in records[0]:
        known = [record for record in records if not math.isnan(record[key])]
        if key in ("items", "solved"):
            whole[key] = sum(record[key] for record in records)
        elif key == "residual":
            whole[key] = max((record[key] for record in known), default=math.nan)
        else:
            weight = "solved" if key in _OF_SOLVED else "items"
            count = sum(record[weight] for record in known)
            whole[key] = sum(record[weight] * record[key] for record in known) / count if count else math.nan
    return whole
