"""Layers of a composed flow, and the simplest of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from viscos.core.errors import InputError
from viscos.core.rng import Generators, rademacher
from viscos.core.solution import Solution, item_dot
from viscos.flows.bijection import written_out
from viscos.flows.skeleton import AffineSkeleton, Skeleton, estimated_skeleton
from viscos.linear import Diagonal, Jacobian, LinearOperator, lanczos_value
from viscos.roots import LatentEquation, anderson

if TYPE_CHECKING:
    from viscos.flows.layers.residual import Branch

_PROBE = 1e-3  # relative residual of a probe's solve, far below the noise of one probe


class Layer(nn.Module):
    """One bijection of a composed flow, written in the direction data → latent.

    A subclass writes `forward`; everything else has a general, slower form here, which a subclass overrides where it
    knows better: value and product with the Jacobian in one differentiable pass (`tangent`), products at one point
    (`linearize`), log-determinant (`ladj` for its value, `ladj_surrogate` for its gradient) and inverse.
    """

    exact_below = 16
    """Up to so many entries an item the log-determinant is that of the Jacobian written out."""
    plain = False
    """Whether `skeleton` knows all of the layer that is not a contraction, and so makes a good preconditioner."""
    moves = False
    """Whether the layer does nothing but move entries about."""
    evaluates = False
    """Whether the inverse counts evaluations of the network."""

    def forward(self, y: Tensor) -> Tensor:
        """The layer's value (B, …)."""
        raise NotImplementedError

    def tangent(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The value and the product of the Jacobian with v, both differentiable (B, …)."""
        x, t = torch.func.jvp(self.forward, (y,), (v,))  # type: ignore[misc]
        return x, t

    @torch.no_grad()
    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]:
        """The value (B, …) and the Jacobian as an operator, without a graph."""
        jacobian = Jacobian(self.forward, y)
        return jacobian.value, jacobian

    def ladj(self, y: Tensor, generator: Generators) -> tuple[Tensor, Tensor]:
        """The value (B, …) and the log absolute determinant of the Jacobian, or an estimate of it (B,)."""
        if y[0].numel() <= self.exact_below:
            return self._written_out(y)
        x, G = self.linearize(y.detach())
        twin = generator.clone_state()  # the same probes for the gradient, and the same value with and without one
        value = self.estimate(G, y.detach(), generator)
        if not torch.is_grad_enabled():
            return x, value
        x, surrogate = self.ladj_surrogate(y, twin)  # lends the value its gradient
        return x, value + surrogate - surrogate.detach()

    def ladj_surrogate(self, y: Tensor, generator: Generators) -> tuple[Tensor, Tensor]:
        """The value (B, …) and a number whose expected gradient is that of the log absolute determinant (B,)."""
        if y[0].numel() <= self.exact_below:
            return self._written_out(y)
        _, G = self.linearize(y.detach())
        pairs = list(self.probes(G, y.detach(), generator))
        total, x = y.new_zeros(len(y)), y
        for v, u in pairs:
            x, t = self.tangent(y, v)
            total = total + item_dot(u, t) / len(pairs)
        return x, total

    def estimate(self, G: LinearOperator, like: Tensor, generator: Generators) -> Tensor:
        """An estimate of log|det G| at one point (B,), without a gradient: by Lanczos quadrature."""
        return lanczos_value(G, like, generator)

    def probes(self, G: LinearOperator, like: Tensor, generator: Generators) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs (v, u) such that E[uᵀ (∇G) v] = ∇ log|det G|: a random v, and u = G⁻ᵀ v."""
        v = rademacher(like, generator)
        yield v, G.inverse(_PROBE).rmv(v)

    def _written_out(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The value, and the dense Jacobian's log-determinant, differentiable."""
        x, G = written_out(self.tangent, y)
        return x, torch.linalg.slogdet(G)[1]

    @torch.no_grad()
    def inverse(self, x: Tensor) -> Solution:
        """The datum of a latent, with a verdict on each item."""
        solver = anderson(tolerance=1e-11 if x.dtype == torch.float64 else 2e-6, budget=100)
        hidden = torch.ones_like(x, dtype=torch.bool)
        equation = LatentEquation.build(_Alone(self), torch.zeros_like(x), hidden, x)
        return solver.solve(equation, equation.start())

    def skeleton(self, below: AffineSkeleton) -> AffineSkeleton:
        """The affine skeleton of `below` followed by this layer; what is near the identity adds nothing."""
        return below

    def initialize(self, y: Tensor) -> Tensor:
        """Sets what depends on data from a first batch (B, …) of complete data; returns the layer's value."""
        return self(y)

    def renormalize(self, iterations: int = 1) -> None:
        """Restores constraints after an optimiser's step."""

    def branches(self) -> list[Branch]:
        """The contractions in the layer, whose Lipschitz constants must stay below one."""
        return []


@dataclass(frozen=True)
class _Alone:
    """A layer as what an equation needs of a flow."""

    layer: Layer

    def to_latent(self, y: Tensor) -> Tensor:
        return self.layer(y)

    def to_data(self, x: Tensor) -> Solution:
        return self.layer.inverse(x)

    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]:
        return self.layer.linearize(y)

    def skeleton(self, y: Tensor) -> Skeleton:
        return estimated_skeleton(self, y)

    def links(self, y: Tensor) -> None:
        return None

    def select(self, index: Tensor) -> _Alone:
        return self


class Closed(Layer):
    """A layer whose log-determinant has a closed form, differentiable: `ladj`."""

    def ladj(self, y: Tensor, generator: Generators) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def ladj_surrogate(self, y: Tensor, generator: Generators) -> tuple[Tensor, Tensor]:
        return self.ladj(y, generator)


class Affine(Closed):
    """x = (y − shift) · scale for each entry, or for each channel of an image; ActNorm when `learn` is set.

    Glow (Kingma and Dhariwal, 2018), section 3.1. That it has been initialised is a buffer, so a loaded layer never
    initialises itself again; and it is never initialised by a forward pass, only by `initialize`.
    """

    initialized: Tensor
    plain = True

    def __init__(
        self, shape: tuple[int, ...], per_channel: bool = False, learn: bool = True, floor: float = 1e-2
    ) -> None:
        super().__init__()
        self.floor = floor
        size = (shape[0], *[1] * (len(shape) - 1)) if per_channel else shape
        self.entries = torch.Size(shape).numel() // torch.Size(size).numel()
        self.shift = nn.Parameter(torch.zeros(size), requires_grad=learn)
        self.log_scale = nn.Parameter(torch.zeros(size), requires_grad=learn)
        self.register_buffer("initialized", torch.tensor(False))

    def forward(self, y: Tensor) -> Tensor:
        return (y - self.shift) * self.log_scale.exp()

    def tangent(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        scale = self.log_scale.exp()
        return (y - self.shift) * scale, v * scale

    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]:
        return self(y), InvertibleDiagonal(self.log_scale.detach().exp()[None], len(y))

    def ladj(self, y: Tensor, generator: Generators) -> tuple[Tensor, Tensor]:
        return self(y), (self.log_scale.sum() * self.entries).expand(len(y))

    def inverse(self, x: Tensor) -> Solution:
        return Solution.exact(x * (-self.log_scale).exp() + self.shift)

    def skeleton(self, below: AffineSkeleton) -> AffineSkeleton:
        scale = self.log_scale.detach().exp()[None]
        return replace(below, scale=below.scale * scale, shift=(below.shift - self.shift.detach()) * scale)

    @torch.no_grad()
    def set_moments(self, mean: Tensor, deviation: Tensor) -> None:
        """Standardises by `mean` and `deviation`, floored so that a constant entry cannot give NaN."""
        if not bool(torch.isfinite(mean).all()) or not bool(torch.isfinite(deviation).all()):
            raise InputError("the mean and deviation of the data are not finite; an entry may never be observed")
        self.shift.copy_(mean)
        self.log_scale.copy_(-deviation.clamp_min(self.floor).log())
        self.initialized.fill_(True)

    @torch.no_grad()
    def initialize(self, y: Tensor) -> Tensor:
        if not bool(self.initialized):
            axes = [0, *[k + 1 for k, n in enumerate(self.shift.shape) if n == 1 and y.shape[k + 1] > 1]]
            deviation, mean = torch.std_mean(y, dim=axes, keepdim=True, correction=0)
            self.set_moments(mean[0], deviation[0])
        return self(y)


class InvertibleDiagonal(Diagonal):
    """A diagonal that knows its inverse."""

    def inverse(self, tolerance: float | None = None) -> LinearOperator:
        """diag(1/s)."""
        return InvertibleDiagonal(1 / self.scale, self.shape[0])

    def select(self, index: Tensor) -> LinearOperator:
        return InvertibleDiagonal(self.scale if len(self.scale) == 1 else self.scale[index], len(index))
