"""What a network that was trained on complete images sees in completions: FID, and accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.data.images import Images
from viscos.metrics.accuracy import Accuracy
from viscos.metrics.extractor import Extractor
from viscos.metrics.fid import Moments, frechet_distance
from viscos.metrics.rmse import item_mask

ROWS = 128
"""Training images that are looked at together."""


@dataclass(frozen=True, eq=False)
class Reference:
    """An extractor, and the complete training images that completions should be like."""

    extractor: Extractor
    train: Images

    @cached_property
    def whole(self) -> Tensor:
        """The training images without holes of their own (N,), bool."""
        return self.train.known.flatten(1).all(1)

    @cached_property
    def moments(self) -> Moments:
        """Moments of the training images' features; looked at when first asked for, which takes a while."""
        moments = Moments(self.extractor.size)
        for images in self.train.values[self.whole].split(ROWS):
            moments.update(self.features(images))
        return moments

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """(B, size), on the extractor's device, of images (B, C, H, W)."""
        return self.extractor.features(images.to(next(self.extractor.parameters())))


class FeatureStatistics:
    """Accumulates features of one kind of image, say one completion of each item, clamped to [0, 1] first."""

    def __init__(self, reference: Reference) -> None:
        self.against = reference
        self.moments, self.accuracy, self.failed = Moments(reference.extractor.size), Accuracy(), 0

    def update(self, images: Tensor, labels: Tensor | None = None, ok: Tensor | None = None) -> None:
        """Adds `images` (B, C, H, W), of which those that are not `ok` (bool, B) are left out and counted.

        With `labels` (B,), of an extractor that classifies, they count for the accuracy too.
        """
        ok = item_mask(ok, len(images), images.device)
        features = self.against.features(torch.where(ok.view(-1, 1, 1, 1), images, 0).clamp(0, 1))
        self.moments.update(features[ok.to(features.device)])
        self.failed += int((~ok).sum())
        if labels is not None:
            self.accuracy.update(self.against.extractor.scores(features).cpu(), labels.cpu(), ok.cpu())

    def fid_record(self) -> dict[str, Any]:
        """FID and how it was computed; plain. Where there are too few items, None and the reason."""
        extractor, train = self.against.extractor, self.against.train
        return {
            "metric": "fid",
            **self._fid(),
            "between": f"these images, one an item, clamped to [0, 1], and complete training images of {train.name}",
            "items": self.moments.count,
            "reference_items": int(self.against.whole.sum()),
            "failed_items_left_out": self.failed,
            "extractor": extractor.name,
            "extractor_sha256": extractor.sha256,
        }

    def accuracy_record(self) -> dict[str, Any]:
        """Accuracy and how it was computed; plain."""
        extractor = self.against.extractor
        classifier = f"trained on complete {extractor.classifies}, applied to these images"
        return self.accuracy.record() | {"classifier": classifier, "classifier_sha256": extractor.sha256}

    def _fid(self) -> dict[str, Any]:
        seen, known = self.moments, self.against
        try:
            # In this order, too few items are refused before the training images are looked at.
            both = (seen.mean, seen.covariance, known.moments.mean, known.moments.covariance)
        except InputError as error:
            return {"value": None, "reason": str(error)}
        return {"value": frechet_distance(*both)}
