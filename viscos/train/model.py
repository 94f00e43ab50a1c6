"""What is trained together: a flow, an inference network and classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from viscos.core.build import build
from viscos.core.errors import InputError
from viscos.flows import Affine, Flow, Whitening
from viscos.linear.gaussian import Gaussian
from viscos.posteriors import Posterior
from viscos.train.classifier import Classifier, CompletionClassifier, LatentClassifier, make_classifier

_SAMPLE = 512
"""Items from which a flow's layers take what depends on the data, such as the scales of ActNorm."""


class Model(nn.Module):
    """Flow, inference network (absent after training on complete data) and classifiers (absent without labels)."""

    flow: Flow
    posterior: Posterior | None
    classifier: Classifier | None
    latent_classifier: LatentClassifier | None
    """One that learns from latents beside `classifier`, and leaves the flow as it is."""

    def __init__(
        self,
        flow: Flow,
        posterior: Posterior | None,
        classifier: Classifier | None,
        latent_classifier: LatentClassifier | None = None,
    ) -> None:
        super().__init__()
        self.flow, self.posterior, self.classifier = flow, posterior, classifier
        self.latent_classifier = latent_classifier  # last, so that the numbers of the others' parameters stay

    @torch.no_grad()
    def prepare(self, values: Tensor, observed: Tensor, gaussian: Gaussian) -> None:
        """Sets all that depends on the data before training, from observed entries (N, …) alone."""
        first = self.flow.layers[0]
        if isinstance(first, Whitening):
            first.set_gaussian(gaussian)
        elif isinstance(first, Affine) and not first.shift.requires_grad:
            deviation = gaussian.covariance.diagonal().sqrt()
            first.set_moments(gaussian.mean.view_as(first.shift), deviation.view_as(first.shift))
        if self.posterior is not None:
            self.posterior.prepare(values, observed, gaussian)
        noise = torch.randn(min(_SAMPLE, len(values)), len(gaussian.mean), generator=torch.Generator().manual_seed(0))
        rows = slice(0, len(noise))
        complete = gaussian.conditional_sample(values[rows], observed[rows], noise.to(values.device))
        self.flow.initialize(complete.to(values.dtype))

    @property
    def holds_out(self) -> bool:
        """Whether held-out entries teach the inference network."""
        return self.posterior is not None and self.posterior.held_out > 0

    @property
    def classifies_predictions(self) -> bool:
        """Whether the classifier sees the inference network's own completions, and is trained beside it."""
        return self.holds_out and isinstance(self.classifier, CompletionClassifier)

    def parts(self) -> dict[str, Any]:
        """The parameters and buffers of each part, as plain containers."""
        return {name: None if m is None else dict(m.state_dict()) for name, m in self._named()}

    def load_parts(self, parts: dict[str, Any]) -> None:
        """Takes over what `parts` gave; raises `InputError` if it was of another model."""
        for name, module in self._named():
            if (module is None) != (parts.get(name) is None):
                raise InputError(f"the checkpoint and its settings disagree about the {name}; it may have been edited")
            if module is not None:
                try:
                    module.load_state_dict(parts[name])
                except (RuntimeError, TypeError, AttributeError) as error:
                    raise InputError(
                        f"the checkpoint's {name} does not fit its settings; it may have been edited"
                    ) from error
                _check_finite(name, module)

    def _named(self) -> list[tuple[str, nn.Module | None]]:
        named = [("flow", self.flow), ("posterior", self.posterior), ("classifier", self.classifier)]
        return [*named, ("latent_classifier", self.latent_classifier)]


def _check_finite(name: str, module: nn.Module) -> None:
    for key, value in module.state_dict().items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise InputError(
                f"the checkpoint's {name} has values in {key!r} that are not finite; "
                "take another checkpoint, or train again"
            )


def build_model(
    flow: dict[str, Any] | Flow,
    posterior: dict[str, Any] | None,
    classifier: str,
    shape: Sequence[int],
    classes: int,
) -> Model:
    """The model for items of `shape`, from plain descriptions of its flow and its inference network, if it has one.

    `classifier` names a kind of classifier, for data of two classes or more; with `both` and an inference network,
    without which nothing would teach it, there is one of latents too.
    """
    made = flow if isinstance(flow, Flow) else build(flow, Flow, shape)
    network = None if posterior is None else build(posterior, Posterior, shape)
    if classes < 2:
        return Model(made, network, None)
    first = make_classifier(classifier, tuple(shape), classes)
    beside = network is not None and classifier == "both"
    return Model(made, network, first, LatentClassifier(torch.Size(shape).numel(), classes) if beside else None)
