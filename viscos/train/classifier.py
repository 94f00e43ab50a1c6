"""Classifiers that are trained along, on what a flow makes of incomplete items; they never see a hidden entry."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from viscos.core.errors import InputError


class Classifier(nn.Module):
    """Scores of classes from a completion and its latent."""

    sees: str
    """What its input is, in words."""

    def forward(self, x: Tensor, y: Tensor, observed: Tensor) -> Tensor:
        """Scores (B, classes) for latents x (B, …), completions y (B, …) and the mask of O (B, …)."""
        raise NotImplementedError


class LatentClassifier(Classifier):
    """The paper's: latents, flattened, BatchNorm1d, a linear map without bias. Its gradient shapes the flow too."""

    sees = "latents"

    def __init__(self, d: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(d)
        self.linear = nn.Linear(d, classes, bias=False)

    def forward(self, x: Tensor, y: Tensor, observed: Tensor) -> Tensor:
        scores: Tensor = self.linear(self.norm(x.flatten(1)))
        return scores


class CompletionClassifier(Classifier):
    """A small network on completions and their masks, which leaves the completions as they are.

    Of convolutions for images (C, H, W), fully connected for vectors (d,).
    """

    sees = "completions and masks"

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        if len(shape) not in (1, 3):
            raise InputError(
                f"classifier=completions is for images (C, H, W) and vectors (d,), got {shape}; take classifier=latents"
            )
        self.layers = _dense(shape[0], classes, 64) if len(shape) == 1 else _convolutions(shape, classes, 32)

    def forward(self, x: Tensor, y: Tensor, observed: Tensor) -> Tensor:
        scores: Tensor = self.layers(torch.cat([y.detach(), observed.to(y.dtype)], 1))
        return scores


def _dense(d: int, classes: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(2 * d, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )


def _convolutions(shape: tuple[int, ...], classes: int, width: int) -> nn.Sequential:
    size = [-(-n // 4) for n in shape[1:]]
    return nn.Sequential(
        nn.Conv2d(2 * shape[0], width, 3, padding=1, stride=2),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1, stride=2),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(2 * width * size[0] * size[1], 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


CLASSIFIERS = ("both", "completions", "latents")
"""`latents` is the paper's, and shapes the flow where the bound teaches. `both` has one of completions, and beside it
one of latents that leaves the flow as it is."""


def make_classifier(name: str, shape: tuple[int, ...], classes: int) -> Classifier:
    """The classifier called `name`, one of `CLASSIFIERS`, for items of `shape`; of `both`, the one of completions."""
    if name not in CLASSIFIERS:
        raise InputError(f"classifier is {name!r}; choose {', '.join(CLASSIFIERS[:-1])} or {CLASSIFIERS[-1]}")
    if name == "latents":
        return LatentClassifier(torch.Size(shape).numel(), classes)
    return CompletionClassifier(shape, classes)
