"""Layers of a composed flow, and the two simplest of them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from viscos.errors import InputError
from viscos.flows.skeleton import AffineSkeleton
from viscos.linear import Diagonal, LinearOperator
from viscos.rng import Generators
from viscos.solution import Solution


class Layer(nn.Module):
    """One bijection of a composed flow, written in the direction data → latent.

    Every layer knows its value (`forward`), products with its Jacobian at one point (`linearize`), value and product
    in one differentiable pass (`tangent`), log-determinant (`ladj` for its value, `ladj_surrogate` for its gradient)
    and inverse.
    """

    def forward(self, y: Tensor) -> Tensor:
        """The layer's value (B, …)."""
        raise NotImplementedError

    def tangent(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The value and the product of the Jacobian with v, both differentiable (B, …)."""
        raise NotImplementedError

    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]:
        """The value (B, …) and the Jacobian as an operator, without a graph."""
        raise NotImplementedError

    def ladj(self, y: Tensor, generator: Generators) -> tuple[Tensor, Tensor]:
        """The value (B, …) and the log absolute determinant of the Jacobian, or an estimate of it (B,)."""
        raise NotImplementedError

    def ladj_surrogate(self, y: Tensor, generator: Generators) -> tuple[Tensor, Tensor]:
        """The value (B, …) and a number whose expected gradient is that of the log absolute determinant (B,)."""
        return self.ladj(y, generator)

    def inverse(self, x: Tensor) -> Solution:
        """The datum of a latent, with a verdict on each item."""
        raise NotImplementedError

    def skeleton(self, below: AffineSkeleton) -> AffineSkeleton:
        """The affine skeleton of `below` followed by this layer; a residual layer adds nothing."""
        return below

    def initialize(self, y: Tensor) -> Tensor:
        """Sets what depends on data from a first batch (B, …) of complete data; returns the layer's value."""
        return self(y)

    def renormalize(self, iterations: int = 1) -> None:
        """Restores constraints after an optimiser's step."""


class Affine(Layer):
    """x = (y − shift) · scale for each entry, or for each channel of an image; ActNorm when `learn` is set.

    Glow (Kingma and Dhariwal, 2018), section 3.1. That it has been initialised is a buffer, so a loaded layer never
    initialises itself again; and it is never initialised by a forward pass, only by `initialize`.
    """

    initialized: Tensor

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
