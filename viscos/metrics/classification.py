"""Accuracy of classifiers that were trained along with a flow, on what that flow and its network make of the items."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from viscos.core import labels
from viscos.imputers import Imputer, NetworkImputer, ViscosImputer
from viscos.inference import Completions
from viscos.metrics.accuracy import Accuracy
from viscos.metrics.metric import Metric, Truth
from viscos.train.classifier import Classifier
from viscos.train.model import Model


class TrainedAlong(Metric):
    """Top-1 accuracy by what a classifier was trained on: the network's own completion, or all draws of the flow.

    Of the classifier that learnt from latents beside it, if there is one, `accuracy_latents`.
    """

    measures = (labels.ACCURACY,)

    def __init__(self, model: Model) -> None:
        self.model, self.accuracy, self.of_latents = model, Accuracy(), Accuracy()

    @torch.no_grad()
    def update(self, imputer: Imputer | type[Imputer], done: Completions, truth: Truth) -> None:
        classifier, beside = self.model.classifier, self.model.latent_classifier
        if classifier is None or truth.labels is None:
            return
        observed = truth.observed.to(done.draws.device)
        if isinstance(imputer, ViscosImputer):
            ok = done.ok.any(0).cpu()
            if not self.model.classifies_predictions:
                self.accuracy.update(self._over_draws(classifier, done, observed), truth.labels, ok)
            if beside is not None:
                self.of_latents.update(self._over_draws(beside, done, observed), truth.labels, ok)
        elif isinstance(imputer, NetworkImputer) and self.model.classifies_predictions:
            completed = done.mean()
            self.accuracy.update(classifier(completed, completed, observed).cpu(), truth.labels, done.ok.any(0).cpu())

    def _over_draws(self, classifier: Classifier, done: Completions, observed: Tensor) -> Tensor:
        """The sum of class probabilities over the draws that were solved (B, classes), on the CPU."""
        assert done.latents is not None and self.model.posterior is not None
        if not self.model.posterior.predicts:  # taught on complete data, and the classifier never saw a mask with holes
            observed = torch.ones_like(observed)
        seen = (torch.nan_to_num(done.latents), torch.nan_to_num(done.draws), observed.expand_as(done.draws))
        scores = classifier(*(part.flatten(0, 1) for part in seen)).softmax(1).view(*done.ok.shape, -1)
        weight = done.ok.to(scores.dtype).unsqueeze(-1)
        return (scores * weight).sum(0).cpu()

    def record(self) -> dict[str, Any]:
        return self._first() | self._beside()

    def _beside(self) -> dict[str, Any]:
        classifier = self.model.latent_classifier
        if classifier is None or not self.of_latents.count:
            return {}
        along = f"trained along, on {classifier.sees}, leaving the flow as it is"
        return {"accuracy_latents": self.of_latents.record() | {"classifier": along}}

    def _first(self) -> dict[str, Any]:
        if not self.accuracy.count:
            return {}
        assert self.model.classifier is not None
        whose = "the inference network's own " if self.model.classifies_predictions else ""
        along = f"trained along, on {whose}{self.model.classifier.sees}" + (", without the flow" if whose else "")
        return {"accuracy": self.accuracy.record() | {"classifier": along}}
