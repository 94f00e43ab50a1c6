"""Posteriors: modules whose call gives a distribution over x^H."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.core.solution import per_item
from viscos.flows.flow import Flow
from viscos.linear.gaussian import Gaussian
from viscos.posteriors.gaussian import DiagonalGaussian, FullGaussian, HouseholderGaussian, LatentGaussian
from viscos.posteriors.latent import LatentDistribution
from viscos.posteriors.mixture import GaussianMixture, places_of, spread

_REFLECTIONS = 50


class Posterior(nn.Module):
    """q(x^H | y^O) for a batch of incomplete observations."""

    held_out: float = 0.0
    """Share of the observed entries from which it learns to predict, see `viscos.posteriors.holdout`."""
    regressed: bool = False
    """Whether it learns from pairs of observations and latents (`teach`), and serves without a fit."""
    temperature: Tensor
    """What its deviations are multiplied by, a number; of one that `tempers`."""

    def forward(self, batch: Incomplete, flow: Flow) -> LatentDistribution:
        """The distribution for each item of `batch`."""
        raise NotImplementedError

    def check(self, shape: Sequence[int]) -> None:
        """Raises `InputError` unless the posterior is for items of `shape`."""

    def prepare(self, values: Tensor, observed: Tensor, gaussian: Gaussian | None) -> None:
        """Sets what depends on training data (N, …) before training, by their observed entries alone."""

    @property
    def predicts(self) -> bool:
        """Whether it has a completion of its own."""
        return False

    def predict(self, batch: Incomplete) -> Tensor:
        """Its own completion (B, …), observed entries as they are: a point estimate, without the flow.

        Raises `InputError` if it has none (`predicts`).
        """
        raise InputError("this posterior has no prediction of its own; take the mean of its draws")

    def teach(self, batch: Incomplete, latents: Tensor, flow: Flow) -> Tensor:
        """−log q(x^H | y^O) of `latents` (B, …) in nats, summed over the items: a loss for the posterior.

        Over pairs of observations and latents it is the forward divergence but for a constant, as in the wake–sleep
        algorithm (Hinton et al., 1995).
        """
        return -self(batch, flow).log_prob(latents[None])[0].sum()

    @property
    def tempers(self) -> bool:
        """Whether its deviations have a temperature, which training may set in the end (`viscos.train.stages`)."""
        return False

    def set_temperature(self, temperature: float) -> None:
        """Makes the deviations as many times as wide as those that it was taught; of one that `tempers`."""
        raise NotImplementedError


class InferenceNetwork(Posterior):
    """One posterior for all items of a shape, read off the observation by a network that is trained with the flow."""

    shape: torch.Size
    """Of an item."""

    def check(self, shape: Sequence[int]) -> None:
        if torch.Size(shape) != self.shape:
            raise InputError(f"the inference network is for items {tuple(self.shape)}, got {tuple(shape)}")


class PerItem(Posterior):
    """Free parameters for each item, starting at the standard normal: for completing some items after training."""

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.size = like.shape
        self.mean = nn.Parameter(torch.zeros_like(like))

    def forward(self, batch: Incomplete, flow: Flow) -> LatentDistribution:
        if batch.values.shape != self.size:
            raise InputError(
                f"this posterior is for a batch of shape {tuple(self.size)}, got {tuple(batch.values.shape)}"
            )
        return self.distribution(batch.hidden)

    def distribution(self, hidden: Tensor) -> LatentDistribution:
        """The distributions on H."""
        raise NotImplementedError

    @torch.no_grad()
    def center(self, x: Tensor) -> None:
        """Moves the mean to the latents x (B, …), but of an item where they are not finite."""
        sane = per_item(torch.isfinite(x).flatten(1).all(1), x)
        self.mean.copy_(torch.where(sane, x, self.mean))

    @torch.no_grad()
    def begin(self, q: LatentDistribution) -> None:
        """Initialises each item by the mean of q, and what else it can take over, where these are finite."""
        self.center(q.expectation())


class Diagonal(PerItem):
    """A diagonal Gaussian for each item of a batch with values like `like` (B, …)."""

    def __init__(self, like: Tensor) -> None:
        super().__init__(like)
        self.log_scale = nn.Parameter(torch.zeros_like(like))

    def distribution(self, hidden: Tensor) -> LatentGaussian:
        return DiagonalGaussian(self.mean, hidden, self.log_scale)

    @torch.no_grad()
    def begin(self, q: LatentDistribution) -> None:
        super().begin(q)
        if isinstance(q, DiagonalGaussian):
            self.log_scale.copy_(torch.where(q.log_scale.isfinite(), q.log_scale, 0))


class Householder(Diagonal):
    """A Gaussian turned by Householder reflections for each item (the paper's post-training posterior, appendix C).

    Raises `InputError` for more than an item has entries, and more than 50: as many make any rotation.
    """

    def __init__(self, like: Tensor, reflections: int = _REFLECTIONS) -> None:
        super().__init__(like)
        if reflections > max(_REFLECTIONS, d := like.shape[1:].numel()):
            raise InputError(
                f"posterior.reflections is {reflections}; {d} turn an item of {d} entries any way, so give no more"
            )
        noise = torch.randn(reflections, *like.shape[1:], generator=torch.Generator().manual_seed(0), dtype=like.dtype)
        self.vectors = nn.Parameter(noise.to(like.device).expand(len(like), *noise.shape).clone())

    def distribution(self, hidden: Tensor) -> LatentGaussian:
        return HouseholderGaussian(self.mean, hidden, self.log_scale, self.vectors)

    @torch.no_grad()
    def begin(self, q: LatentDistribution) -> None:
        """Takes over mean and scales, with reflections that leave the axes where they are.

        Two of each kind undo each other, and their gradients pull them apart. Of an odd number, the last one is along
        the axis of one hidden entry: it turns a sign, which no diagonal Gaussian minds.
        """
        super().begin(q)
        paired = self.vectors.shape[1] // 2 * 2
        self.vectors[:, 1:paired:2] = self.vectors[:, 0:paired:2]
        if self.vectors.shape[1] > paired:
            axis = q.hidden.flatten(1).to(torch.uint8).argmax(1, keepdim=True)  # the first hidden entry
            last = torch.zeros_like(self.vectors[:, -1]).flatten(1).scatter(1, axis, 1.0)
            self.vectors[:, -1] = last.view_as(self.vectors[:, -1])


def usual(like: Tensor, reflections: int = _REFLECTIONS) -> Householder:
    """What is fitted to each item of a batch with values like `like` (B, …) where no network was taught."""
    return Householder(like, reflections)


class Full(PerItem):
    """A Gaussian with any covariance for each item; d² numbers an item, so for small problems."""

    def __init__(self, like: Tensor, largest: int = 256) -> None:
        super().__init__(like)
        d = like.shape[1:].numel()
        if d > largest:
            raise InputError(
                f"posterior=full needs {d}² numbers an item; take posterior=householder above {largest} entries"
            )
        self.factor = nn.Parameter(like.new_zeros(len(like), d, d))

    def distribution(self, hidden: Tensor) -> LatentGaussian:
        return FullGaussian(self.mean, hidden, self.factor)

    @torch.no_grad()
    def begin(self, q: LatentDistribution) -> None:
        super().begin(q)
        if isinstance(q, DiagonalGaussian):
            scales = torch.where(q.log_scale.isfinite(), q.log_scale, 0).flatten(1)
            self.factor.copy_(torch.diag_embed(scales))


class Mixture(PerItem):
    """A mixture of diagonal Gaussians for each item, which can hold several modes; a fit needs a draw for each."""

    def __init__(self, like: Tensor, components: int = 4) -> None:
        super().__init__(like)
        if components < 1:
            raise InputError(f"posterior.components is {components}; give 1 or more")
        places, scale = places_of(components, like[0])
        self.mean = nn.Parameter(places.unsqueeze(0).expand(len(like), *places.shape).clone())
        self.log_scale = nn.Parameter(torch.full_like(self.mean, math.log(scale)))
        self.logit = nn.Parameter(like.new_zeros(len(like), components))

    def distribution(self, hidden: Tensor) -> GaussianMixture:
        return GaussianMixture(self.mean, hidden, self.log_scale, self.logit)

    @torch.no_grad()
    def center(self, x: Tensor) -> None:
        mean = torch.einsum("bc,bc...->b...", self.logit.softmax(1), self.mean)
        sane = per_item(torch.isfinite(x).flatten(1).all(1), x)
        self.mean.add_(torch.where(sane, x - mean, 0).unsqueeze(1))

    @torch.no_grad()
    def begin(self, q: LatentDistribution) -> None:
        """Takes over q where it is finite: a mixture as it is, or a Gaussian, with components at its quantiles."""
        if not isinstance(q, GaussianMixture):
            mean, shape = q.expectation(), self.mean.shape
            log_scale = q.log_scale if isinstance(q, DiagonalGaussian) else torch.zeros_like(mean)
            q = spread(mean.unsqueeze(1).expand(shape), log_scale.unsqueeze(1).expand(shape), q.hidden)
        if q.logit.shape != self.logit.shape:
            count = q.logit.shape[1]
            raise InputError(
                f"posterior.components is {self.logit.shape[1]}, and the fit begins at a mixture of {count}; "
                f"take posterior.components={count}, or start=gaussian"
            )
        sane = q.mean.isfinite() & q.log_scale.isfinite()
        self.mean.copy_(torch.where(sane, q.mean, self.mean))
        self.log_scale.copy_(torch.where(sane, q.log_scale, self.log_scale))
        self.logit.copy_(q.logit.log_softmax(1))
