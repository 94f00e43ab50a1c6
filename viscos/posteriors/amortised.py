"""The inference network: one posterior for all items, read off the observation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.flows.flow import Flow
from viscos.linear.gaussian import Gaussian, regression
from viscos.posteriors.gaussian import DiagonalGaussian
from viscos.posteriors.latent import LatentDistribution
from viscos.posteriors.mixture import GaussianMixture, places_of
from viscos.posteriors.networks import MLP, Plain, UNet
from viscos.posteriors.posterior import InferenceNetwork

_LOG_SCALES = -6.0, 1.0
"""Between these log σ of a regressed latent is kept: a wild output early in training must not make a draw wild."""
_FILLED = 1024
"""Entries of an item up to which a Gaussian fills its holes, unless it is said."""
_SAMPLE = 512
"""Items whose observed entries give the median."""


class Amortised(InferenceNetwork):
    """A network from an incomplete image (C, H, W) or vector (d,) to a diagonal Gaussian over x^H.

    The paper's has five 3×3 convolutions, holes filled by the median of the observed values; that is `channels` =
    (4, 8, 16, 32), the channels of all layers but the last. It ends in 8 channels; for a grey image squeezed to 4
    channels these are a mean and a log-scale for each entry, so we read that the network works on squeezed images.
    By default it is a U-Net of `width` instead; for vectors a fully connected network of four times that width.

    What differs. The mask is an input too. With `gaussian`, holes are filled by the conditional mean of a Gaussian
    fitted to observed entries, by default in items of up to 1024 entries: beyond, a conditional mean takes far longer
    than the network. And the network moves that filling: its first output is a completion ŷ, and the mean
    of q is g^H(ŷ), so at the start q is centred on the latent of the filled image, whatever the flow has become.
    With `held_out` above zero the network learns to predict that share of the observed entries from the rest (see
    `viscos.posteriors.holdout`), and that prediction is a head of its own; ŷ and the scales of q are read off the same
    features, which the bound leaves alone. At zero all learns from the bound, and ŷ is the prediction.

    `regressed` is for a network that learns q by regression on pairs of observations and latents (`viscos.train`): a
    second network of the same kind gives mean and scale of every latent, without a pass of the flow. With nothing held
    out there is no prediction then, and no first network. With `components` above 1 it gives a mixture of as many
    Gaussians (Bishop, 1994), which holds several modes; that is for regression alone. The deviations that it learns
    count `temperature` times: a flow that learned from its own completions has too little spread, and so has its q.

    What is taught without the bound `corrects` the filling, and its latents as the flow's skeleton has them, or else
    begins at the median, and at zero; by default it does so for vectors alone. A correction is good at once, and slow
    to become better where the filling is about as good as anything linear: of images it is for short trainings.
    """

    median: Tensor
    center: Tensor
    covariance: Tensor
    precision: Tensor
    spread: Tensor
    places: Tensor
    network: MLP | Plain | UNet
    reader: MLP | Plain | UNet

    def __init__(
        self,
        shape: Sequence[int],
        width: int = 32,
        channels: Sequence[int] | None = None,
        gaussian: bool | None = None,
        held_out: float = 0.2,
        regressed: bool = False,
        components: int = 1,
        corrects: bool | None = None,
    ) -> None:
        super().__init__()
        if components < 1:
            raise InputError(f"posterior.components is {components}; give 1 or more")
        if len(shape) not in (1, 3):
            raise InputError(
                f"posterior=amortised is for images (C, H, W) and vectors (d,), got {tuple(shape)}; "
                "take posterior=householder"
            )
        if len(shape) == 1 and channels is not None:
            raise InputError("the paper's inference network is of convolutions, for images; take posterior=amortised")
        self.shape, self.held_out, self.regressed = torch.Size(shape), held_out, regressed
        self.corrects = len(shape) == 1 if corrects is None else corrects
        self.factor = 2 if len(shape) == 3 and shape[1] % 2 == 0 and shape[2] % 2 == 0 else 1
        c = shape[0] * self.factor**2
        if self.predicts:
            self.network = self._network(2 * c, width, channels)
        if regressed:
            self.reader = self._network(2 * c, width, channels)
            self.register_buffer("spread", torch.ones(()))
            self.register_buffer("temperature", torch.ones(()))
        self.heads = nn.ModuleDict()
        names = ["mean", "log_scale"] if regressed else ["center", "log_scale"]
        for name in names + (["prediction"] if held_out else []):
            self.heads[name] = self._head(c * components if regressed and name != "prediction" else c)
        self.components = components
        if regressed and components > 1:
            self.heads["logit"] = nn.Linear(self.reader.width, components)
            places, self.deviation = places_of(components, torch.zeros(self.shape))
            self.register_buffer("places", places, persistent=False)
        for p in self.heads.parameters():
            nn.init.zeros_(p)
        entries = self.shape.numel()
        d = entries if (entries <= _FILLED if gaussian is None else gaussian) else 0
        self.register_buffer("median", torch.zeros(()))
        self.register_buffer("center", torch.zeros(self.shape))
        self.register_buffer("covariance", torch.eye(d))
        self.register_buffer("precision", torch.eye(d))

    @property
    def predicts(self) -> bool:
        return self.held_out > 0 or not self.regressed

    @property
    def tempers(self) -> bool:
        return self.regressed

    def _network(self, c_in: int, width: int, channels: Sequence[int] | None) -> MLP | Plain | UNet:
        if len(self.shape) == 1:
            return MLP(c_in, 4 * width)
        return UNet(c_in, width) if channels is None else Plain(c_in, channels)

    def _head(self, c: int) -> nn.Module:
        """A map from features to `c` numbers, at each place of an image or once."""
        width = (self.network if self.predicts else self.reader).width
        return nn.Linear(width, c) if len(self.shape) == 1 else nn.Conv2d(width, c, 3, padding=1)

    @torch.no_grad()
    def prepare(self, values: Tensor, observed: Tensor, gaussian: Gaussian | None) -> None:
        """Takes over what the training data say about the filling: the observed entries' median, and their Gaussian."""
        known = values[:_SAMPLE][observed[:_SAMPLE]]
        self.median.fill_(float(known.median()) if len(known) else 0.0)
        if self.regressed and gaussian is not None:
            self.center.copy_(gaussian.mean.view_as(self.center))
            self.spread.copy_(gaussian.covariance.diagonal().mean().sqrt())
        if self.precision.numel() and gaussian is not None:
            self.center.copy_(gaussian.mean.view_as(self.center))
            self.covariance.copy_(gaussian.covariance)
            self.precision.copy_(torch.linalg.inv(gaussian.covariance))

    @torch.no_grad()
    def _fill(self, batch: Incomplete) -> Tensor:
        """The holes filled by the Gaussian's conditional mean, or else by the median, or each entry's own mean."""
        if not self.precision.numel():
            return batch.filled(self.center if self.regressed else self.median)
        known = batch.filled(self.center) - self.center
        guess = regression(self.covariance, self.precision, batch.observed.flatten(1), known.flatten(1))
        return batch.filled(guess.view_as(known) + self.center)

    def predict(self, batch: Incomplete) -> Tensor:
        if not self.predicts:
            raise InputError("this inference network was taught on complete data and predicts latents alone")
        filled, features = self._features(batch)
        if not self.held_out:
            return self._moved(batch, filled, features, "center")
        begin = filled if self.corrects else self.median
        return torch.where(batch.observed, filled, begin + self._output(features, "prediction"))

    def _features(self, batch: Incomplete) -> tuple[Tensor, Tensor]:
        filled = self._fill(batch)
        z = torch.cat([filled, batch.observed.to(filled.dtype)], 1)
        return filled, self.network(z if self.factor == 1 else F.pixel_unshuffle(z, self.factor))

    def _output(self, features: Tensor, head: str) -> Tensor:
        output = self.heads[head](features)
        return output if self.factor == 1 else F.pixel_shuffle(output, self.factor)

    def _moved(self, batch: Incomplete, filled: Tensor, features: Tensor, head: str) -> Tensor:
        return torch.where(batch.observed, filled, filled + self._output(features, head))

    def forward(self, batch: Incomplete, flow: Flow) -> LatentDistribution:
        if not self.regressed:
            return self._through(batch, flow)
        q = self._read(batch, flow)
        return replace(q, log_scale=q.log_scale + self.temperature.log())

    def set_temperature(self, temperature: float) -> None:
        self.temperature.fill_(temperature)

    def teach(self, batch: Incomplete, latents: Tensor, flow: Flow) -> Tensor:
        """The loss of any posterior, without the temperature, which the network would learn to undo."""
        q = self._read(batch, flow) if self.regressed else self(batch, flow)
        return -q.log_prob(latents[None])[0].sum()

    def _read(self, batch: Incomplete, flow: Flow) -> DiagonalGaussian | GaussianMixture:
        """q whose means and scales are outputs of the second network; means from where the flow's skeleton has them."""
        filled = self._fill(batch)
        z = torch.cat([(filled - self.center) / self.spread, batch.observed.to(self.center.dtype)], 1)
        features = self.reader(z if self.factor == 1 else F.pixel_unshuffle(z, self.factor))
        mean, log_scale = self._output(features, "mean"), self._output(features, "log_scale")
        if flow.near_affine and self.corrects:
            mean = mean + flow.skeleton(filled).apply(filled).repeat(1, self.components, *[1] * (mean.dim() - 2))
        if self.components == 1:
            return DiagonalGaussian(mean, batch.hidden, log_scale.clamp(*_LOG_SCALES))
        mean, log_scale = (v.view(len(v), self.components, *self.shape) for v in (mean, log_scale))
        log_scale = (log_scale + math.log(self.deviation)).clamp(*_LOG_SCALES)
        logit = self.heads["logit"](features.flatten(2).mean(2) if features.dim() == 4 else features)
        return GaussianMixture(mean + self.places, batch.hidden, log_scale, logit)

    def _through(self, batch: Incomplete, flow: Flow) -> LatentDistribution:
        """q centred on the latent of a completion."""
        if self.components > 1:
            raise InputError("a network gives a mixture if it is taught by regression; take posterior.components=1")
        filled, features = self._features(batch)
        features = features.detach() if self.held_out else features
        guess, log_scale = self._moved(batch, filled, features, "center"), self._output(features, "log_scale")
        mean = flow.to_latent(guess)
        sane = torch.isfinite(mean).flatten(1).all(1)
        if not bool(sane.all()):  # else 0 · NaN would stand in the gradient of shared parameters
            mean = torch.zeros_like(mean).index_put((sane.nonzero().flatten(),), flow.to_latent(guess[sane]))
        return DiagonalGaussian(mean, batch.hidden, log_scale, start=guess.detach())
