"""Continuous flows, trained by flow matching and integrated in a few fixed steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.rng import Generators, standard_normal, uniform
from viscos.core.solution import per_item
from viscos.flows.bijection import Bijection
from viscos.flows.families.continuous.links import StepLinks
from viscos.flows.families.continuous.runge_kutta import METHODS
from viscos.flows.families.continuous.steps import IntegratorStep
from viscos.flows.families.continuous.unet import UNetVelocity
from viscos.flows.families.continuous.velocity import DenseVelocity, Velocity
from viscos.flows.families.stack import whole
from viscos.flows.flow import Flow
from viscos.flows.layers.start import first_layers
from viscos.linear import LinearOperator
from viscos.roots.links import Links

_NEAR = 0.1  # tan θ at which the score is read: on digits draws came out best there, between 0.05 and 0.5


class Continuous(Flow):
    """The flow of dz/dθ = F(z, θ) from data at θ = 0 to noise at π/2, in fixed steps after a standardising layer.

    F is trained by flow matching (Lipman et al., 2023): with data y (standardised) and independent normal ε,

        z = y cos θ + ε sin θ,    F minimises E |F(z, θ) − dz/dθ|²,    dz/dθ = ε cos θ − y sin θ.

    That is their straight path z' = (1 − s) y + s ε with tan θ = s / (1 − s), divided by √(s² + (1 − s)²), which keeps
    the variance at one (Albergo and Vanden-Eijnden, 2023): the exact velocities give the same map from data to latent.
    With F = 0 the flow is its first layer, a Gaussian, and steps are near the identity.
    """

    trained_by_matching = True
    deep = True
    can_denoise = True
    dense_below = 100  # a product costs as much as sixteen passes of the network

    def __init__(
        self, first: Sequence[Bijection], network: Velocity, shape: Sequence[int], angles: Sequence[float], method: str
    ) -> None:
        steps = [IntegratorStep(network, a, b, method) for a, b in itertools.pairwise(angles)]
        super().__init__([*first, *steps], shape)
        self.velocity, self.passes = network, sum(len(step.method.b) for step in steps)
        self._precision: torch.dtype | None = None

    @torch.no_grad()
    def links(self, y: Tensor) -> Links:
        """A link for the first layer and for each step; steps are evaluated in one batch."""
        steps = [layer for layer in self.layers if isinstance(layer, IntegratorStep)]
        assert self.shape is not None
        center = y.new_zeros(1, *self.shape)
        for layer in reversed(self.layers[: len(self.layers) - len(steps)]):
            center = layer.inverse(center).value
        return StepLinks(self._links(y), center, steps)

    @torch.no_grad()
    def denoised(self, y: Tensor, noise: float) -> Tensor:
        """E[clean | y] of items y (B, …) that carry normal noise of a standard deviation of `noise`, as training did.

        By Tweedie's formula (Efron, 2011), y + noise² ∇ log p(y), in one pass of the network, which knows the score:
        near the data, z = y cos θ + ε sin θ, the mean of ε given z is F cos θ + z sin θ; ∇ log p is that over −tan θ.
        """
        z, jacobians = y, list[LinearOperator]()
        for layer in self.layers:
            if not isinstance(layer, IntegratorStep):
                z, jacobian = layer.linearize(z)
                jacobians.append(jacobian)
        angle = math.atan(_NEAR)
        z = z * math.cos(angle)
        F = self.velocity(z, z.new_full((1,), 2 / math.pi * angle))
        slope = (F * math.cos(angle) + z * math.sin(angle)) / _NEAR
        for jacobian in reversed(jacobians):
            slope = jacobian.rmv(slope)
        return y - noise**2 * slope

    def autocast(self, dtype: torch.dtype | None) -> None:
        """Lets the network run in `dtype` where it is trained; None: in that of the data. All else stays as it is."""
        self._precision = dtype

    def matching_loss(self, y: Tensor, generator: Generators, weights: Tensor | None = None) -> Tensor:
        """|F(z, θ) − dz/dθ|², a mean over an item's entries, each times its weight, at one random θ an item (B,)."""
        with torch.no_grad():
            for layer in self.layers:
                y = y if isinstance(layer, IntegratorStep) else layer(y)
        t = uniform(y, generator)
        angle = per_item(0.5 * math.pi * t, y)
        noise = standard_normal(y, generator)
        with torch.autocast(y.device.type, self._precision, enabled=self._precision is not None):
            F = self.velocity(y * angle.cos() + noise * angle.sin(), t).to(y.dtype)
        squares = (F - noise * angle.cos() + y * angle.sin()).square().flatten(1)
        return (squares if weights is None else weights.flatten(1) * squares).mean(1)


def continuous(
    shape: int | Sequence[int],
    *,
    steps: int = 8,
    method: str = "euler",
    width: int = 32,
    start: str | None = None,
    grid: float = 1.5,
) -> Continuous:
    """A continuous flow for images (C, H, W), with a U-shaped velocity network, or vectors (d,), with a dense one.

    `steps` of a `method` (`euler`, `midpoint`, `rk4`) at times θ = π/2 (k/steps)^`grid`, finer near the data for a
    `grid` above 1. `start` is the first layer: `gaussian` (whitening by a Gaussian fitted to the data), `standardise`
    (each entry by its mean and deviation; so does None) or `none`. In as many steps of training the likelihood of
    digits came out better after `standardise`; after `gaussian`, restricted solves take half the evaluations.
    """
    shape = whole(shape, "shape")
    if len(shape) not in (1, 3):
        raise InputError(f"a continuous flow takes vectors (d,) or images (C, H, W), got shape {shape}")
    if method not in METHODS:
        raise InputError(f"flow.method is {method!r}; choose one of {', '.join(METHODS)}")
    if steps < 1 or width < 1 or grid <= 0:
        raise InputError(f"flow.steps, flow.width and flow.grid must be positive, got {steps}, {width} and {grid}")
    angles = [0.5 * math.pi * (k / steps) ** grid for k in range(steps + 1)]
    network = UNetVelocity(shape, width) if len(shape) == 3 else DenseVelocity(shape[0], width)
    return Continuous(first_layers(start or "standardise", shape), network, shape, angles, method)
