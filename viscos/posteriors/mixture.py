"""A mixture of Gaussians over x^H: a posterior that can hold several modes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.rng import generator
from viscos.posteriors.latent import LatentDistribution

_EDGE = 1e-12  # between this and 1 minus this a uniform number is kept


@dataclass(frozen=True)
class GaussianMixture(LatentDistribution):
    """q = Σ_c π_c N(μ_c, diag σ_c²), with C components for each item."""

    mean: Tensor
    """μ (B, C, …)."""
    hidden: Tensor
    log_scale: Tensor
    """log σ (B, C, …)."""
    logit: Tensor
    """log π (B, C), but for a constant."""
    start: Tensor | None = field(default=None, kw_only=True)

    def centers(self) -> Tensor:
        return self.masked(self.mean.transpose(0, 1))

    def sample(self, noise: Tensor) -> Tensor:
        """x^H (K, B, …), zero outside H, differentiable in means and scales, not in the weights.

        The first hidden entry of the noise says which component is drawn. v = Φ(ε) is uniform; where it falls into the
        part of [0, 1] of length π_c that belongs to c, its place within that part is uniform again, and Φ⁻¹ makes
        standard normal noise of it. So a draw is a function of its noise as a Gaussian's is.
        """
        first = self.hidden.flatten(1).to(torch.uint8).argmax(1)[None, :, None]
        flat = noise.flatten(2)
        first = first.expand(len(noise), -1, 1)
        which, rest = self._drawn(flat.gather(2, first).squeeze(2))
        epsilon = flat.scatter(2, first, rest.unsqueeze(2)).view_as(noise)
        rows = torch.arange(len(self.mean), device=noise.device)
        return self._placed(epsilon, self.mean[rows, which], self.log_scale[rows, which])

    @torch.no_grad()
    def _drawn(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The components that normal numbers (K, B) choose, and normal numbers (K, B) that are independent of these."""
        weight = self.logit.double().softmax(1)
        edges = weight.cumsum(1)
        v = torch.special.ndtr(noise.double())
        which = (v.unsqueeze(2) >= edges[:, :-1]).sum(2)
        rows = torch.arange(len(weight), device=noise.device)
        place = (v - edges[rows, which]) / weight[rows, which] + 1
        return which, torch.special.ndtri(place.clamp(_EDGE, 1 - _EDGE)).to(noise.dtype)

    def reparametrised(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Draws of each component in turn, which count as much as the component's weight: E_q = Σ_c π_c E_c.

        So no weight hides a component from the gradient, and the weights have one. Raises `InputError` for fewer draws
        than components.
        """
        draws, components = len(noise), self.logit.shape[1]
        if draws < components:
            raise InputError(
                f"a mixture of {components} components is fitted by as many draws a step, or more, got {draws}; "
                f"take samples={components}, or fewer components"
            )
        which = torch.arange(draws, device=noise.device) % components
        share = torch.bincount(which)[which] / draws
        mean, log_scale = (v.transpose(0, 1)[which] for v in (self.mean, self.log_scale))
        counts = self.logit.softmax(1).T[which] / share.to(self.logit.dtype).unsqueeze(1)
        return self._placed(noise, mean, log_scale), counts

    def _placed(self, epsilon: Tensor, mean: Tensor, log_scale: Tensor) -> Tensor:
        return self.masked(mean + self.masked(epsilon) * self.masked(log_scale).exp())

    def log_prob(self, x: Tensor) -> Tensor:
        return self._log_prob(x, self.mean, self.log_scale, self.logit)

    def log_prob_path(self, noise: Tensor, x: Tensor) -> Tensor:
        return self._log_prob(x, self.mean.detach(), self.log_scale.detach(), self.logit.detach())

    def _log_prob(self, x: Tensor, mean: Tensor, log_scale: Tensor, logit: Tensor) -> Tensor:
        hidden = self.hidden.unsqueeze(1)
        log_scale = torch.where(hidden, log_scale, 0)
        z = torch.where(hidden, x.unsqueeze(2) - mean, 0) * (-log_scale).exp()
        size = self.hidden.flatten(1).sum(1).to(x.dtype) * math.log(2 * math.pi)
        each = -0.5 * (z.square().flatten(3).sum(3) + size.unsqueeze(1)) - log_scale.flatten(2).sum(2)
        return torch.logsumexp(logit.log_softmax(1) + each, 2)

    def expectation(self) -> Tensor:
        return self.masked(torch.einsum("bc,bc...->b...", self.logit.softmax(1), self.mean))


def places_of(components: int, like: Tensor) -> tuple[Tensor, float]:
    """Places of `components` Gaussians (C, …) of one deviation, which are together about a standard normal.

    `like` (…) is an item. Along each of its entries they are at the quantiles (c + ½) / C, in an order of its own (a
    Latin hypercube; McKay, Beckman and Conover, 1979). The deviation is what the variance of the places leaves of 1.
    """
    order = torch.rand(components, *like.shape, generator=generator(0, "components")).argsort(0)
    places = torch.special.ndtri((order.double() + 0.5) / components)
    scale = (1 - torch.special.ndtri((torch.arange(components).double() + 0.5) / components).square().mean()).sqrt()
    return places.to(like), float(scale)


def spread(mean: Tensor, log_scale: Tensor, hidden: Tensor) -> GaussianMixture:
    """A mixture whose component c stands at a quantile of its own of the Gaussian c of μ and log σ (B, C, …).

    So components of Gaussians that are alike make up such a Gaussian, and no two are the same.
    """
    places, scale = places_of(mean.shape[1], mean[0, 0])
    log_scale = torch.where(log_scale.isfinite(), log_scale, 0)
    logit = mean.new_zeros(mean.shape[:2])
    return GaussianMixture(mean + places * log_scale.exp(), hidden, log_scale + math.log(scale), logit)
