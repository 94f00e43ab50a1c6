"""Continuous flows, trained by flow matching and integrated in a few fixed steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.rng import Generators, standard_normal, uniform
from viscos.core.solution import Solution, item_max, per_item
from viscos.flows.composed import Composed
from viscos.flows.families.continuous.runge_kutta import METHODS, RungeKutta
from viscos.flows.families.continuous.velocity import Velocity, velocity
from viscos.flows.layer import Layer
from viscos.flows.layers.series import Series
from viscos.flows.layers.start import first_layers
from viscos.linear import IdentityPlus, LinearOperator, exact_value, lanczos_value
from viscos.roots import anderson
from viscos.roots.equation import LinearSolver
from viscos.roots.links import Links

_NEAR = 0.1  # tan θ at which the score is read: on digits draws came out best there, between 0.05 and 0.5
_CONTRACTS = 0.05  # |∇hᵏ v| / |v| after the last term, above which a step's series is not to be trusted


class Step(Layer):
    """x = y + h(y), one step of an integrator from time `start` to `end` with a network that the flow owns.

    Where an item has more than 64 entries its log-determinant is estimated by a series in ∇h and one Hutchinson probe.
    On a flow of 8 × 8 digits that came as close to `slogdet` as Lanczos quadrature of 24 steps, in a sixth of the time;
    the trace of ∇h alone was 3 nats off.
    """

    evaluates = True
    plain = True
    series = Series(terms=8)
    value_exact_below = 64

    def __init__(self, network: Velocity, start: float, end: float, method: str) -> None:
        super().__init__()
        self._shared = (network,)  # not registered: the steps have one network, which the flow registers once
        self.start, self.end, self.method = start, end, METHODS[method]

    def _velocity(self, z: Tensor, angle: float) -> Tensor:
        F: Tensor = self._shared[0](z, self._time(z, angle))
        return F

    def _time(self, z: Tensor, angle: float) -> Tensor:
        return z.new_full((1,), 2 / math.pi * angle)

    def forward(self, y: Tensor) -> Tensor:
        return y + self.method.increment(self._velocity, y, self.start, self.end)

    def tangent(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        def velocity(pair: Tensor, angle: float) -> Tensor:
            point, direction = pair.chunk(2)
            return torch.cat(self._shared[0].tangent(point, direction, self._time(pair, angle)))

        pair = torch.cat([y, v])  # which the method moves as it moves one of them
        x, t = (pair + self.method.increment(velocity, pair, self.start, self.end)).chunk(2)
        return x, t

    @torch.no_grad()
    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]:
        stages = list[LinearOperator]()

        def velocity(z: Tensor, angle: float) -> Tensor:
            F, stage = self._shared[0].linearize(z, self._time(z, angle))
            stages.append(stage)
            return F

        x = y + self.method.increment(velocity, y, self.start, self.end)
        return x, IdentityPlus(_Increment(stages, self.method, self.end - self.start, y.shape))

    def estimate(self, G: LinearOperator, like: Tensor, generator: Generators) -> Tensor:
        """Exactly up to `value_exact_below` entries, else by the series; by Lanczos where that cannot be cut."""
        if like[0].numel() <= self.value_exact_below:
            return exact_value(G, like)
        assert isinstance(G, IdentityPlus)
        value, rest = self.series.value_and_rest(G.part, like, generator)
        steep = ~(rest < _CONTRACTS)
        return torch.where(steep, lanczos_value(G, like, generator), value) if bool(steep.any()) else value

    @torch.no_grad()
    def inverse(self, x: Tensor) -> Solution:
        """By Anderson acceleration of y ← x − h(y), begun with the integrator's step back in time."""
        back = x + self.method.increment(self._velocity, x, self.end, self.start)
        solver = anderson(tolerance=1e-11 if x.dtype == torch.float64 else 2e-6, budget=60)
        found = solver.solve(_Inversion(self, x), back)  # type: ignore[arg-type]
        return replace(found, evaluations=found.evaluations + 1)


class _Increment(LinearOperator):
    """∇h at one point: the method itself, with the velocity's Jacobian at each stage as its field."""

    def __init__(self, stages: Sequence[LinearOperator], method: RungeKutta, step: float, shape: torch.Size) -> None:
        self.stages, self.method, self.step, self.shape = stages, method, step, shape

    def mv(self, v: Tensor) -> Tensor:
        stages = iter(self.stages)
        return self.method.increment(lambda t, _: next(stages).mv(t), v, 0.0, self.step)

    def rmv(self, u: Tensor) -> Tensor:
        return self.method.transposed(self.stages, u, self.step)

    def select(self, index: Tensor) -> _Increment:
        shape = torch.Size((len(index), *self.shape[1:]))
        return _Increment([stage.select(index) for stage in self.stages], self.method, self.step, shape)


@dataclass(frozen=True)
class _Inversion:
    """y + h(y) = x, near the identity."""

    step: Step
    x: Tensor

    def residual(self, z: Tensor) -> Tensor:
        return self.step(z) - self.x

    def residual_and_cost(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return self.residual(z), z.new_ones(len(z))

    def error(self, r: Tensor) -> Tensor:
        return item_max(r) / item_max(self.x).clamp_min(1.0)

    def precondition(self, r: Tensor) -> Tensor:
        return r

    def newton_direction(self, z: Tensor, r: Tensor, solve: LinearSolver) -> Solution:
        return solve(self.step.linearize(z)[1], r)

    def select(self, index: Tensor) -> _Inversion:
        return _Inversion(self.step, self.x[index])


@dataclass(frozen=True)
class _Steps(Links):
    """The first layers, and the steps of an integrator."""

    steps: Sequence[Step] = ()

    def values(self, states: Tensor) -> Tensor:
        first = len(self.each) - len(self.steps)
        before = [link.value(z) for link, z in zip(self.each, states[:, :first].unbind(1), strict=False)]
        together = self._together(states[:, first:])
        return torch.cat([torch.stack(before, 1), together], 1) if before else together

    def _together(self, states: Tensor) -> Tensor:
        """All steps at once, each from a state of its own (B, K, …): one call of the network for each stage.

        A step from θ over s is one from 0 over 1 of the field s F(z, θ + s t).
        """
        z, batch, network = states.flatten(0, 1), len(states), self.steps[0]._shared[0]
        start = z.new_tensor([step.start for step in self.steps]).repeat(batch)
        size = z.new_tensor([step.end - step.start for step in self.steps]).repeat(batch)

        def velocity(z: Tensor, t: float) -> Tensor:
            return per_item(size, z) * network(z, 2 / math.pi * (start + size * t))

        return (z + self.steps[0].method.increment(velocity, z, 0.0, 1.0)).view_as(states)

    def start(self, y: Tensor, x: Tensor, hidden: Tensor) -> Tensor:
        """Through the first layers, then along z = y cos θ + x sin θ on H, and along z = y cos θ on O."""
        path = [y]
        for link in self.each[: len(self.each) - len(self.steps)]:
            path.append(link.value(path[-1]))
        angles = [step.end for step in self.steps]
        z, toward = path[-1], torch.where(hidden, x, 0)
        return torch.stack([*path, *(z * math.cos(a) + toward * math.sin(a) for a in angles)], 1)


class Continuous(Composed):
    """The flow of dz/dθ = F(z, θ) from data at θ = 0 to noise at π/2, in fixed steps after a standardising layer.

    F is trained by flow matching (Lipman et al., 2023): with data y (standardised) and independent normal ε,

        z = y cos θ + ε sin θ,    F minimises E |F(z, θ) − dz/dθ|²,    dz/dθ = ε cos θ − y sin θ.

    That is their straight path z' = (1 − s) y + s ε with tan θ = s / (1 − s), divided by √(s² + (1 − s)²), which keeps
    the variance at one (Albergo and Vanden-Eijnden, 2023): the exact velocities give the same map from data to latent.
    With F = 0 the flow is its first layer, a Gaussian, and steps are near the identity.
    """

    matches = True
    dear = True
    denoises = True
    dense_below = 100  # a product costs as much as sixteen passes of the network

    def __init__(
        self, first: Sequence[Layer], network: Velocity, shape: Sequence[int], angles: Sequence[float], method: str
    ) -> None:
        steps = [Step(network, a, b, method) for a, b in itertools.pairwise(angles)]
        super().__init__([*first, *steps], shape)
        self.velocity = network
        self._precision: torch.dtype | None = None

    @torch.no_grad()
    def links(self, y: Tensor) -> Links:
        """A link for the first layer and for each step; steps are evaluated in one batch."""
        steps = [layer for layer in self.layers if isinstance(layer, Step)]
        assert self.shape is not None
        center = y.new_zeros(1, *self.shape)
        for layer in reversed(self.layers[: len(self.layers) - len(steps)]):
            center = layer.inverse(center).value
        return _Steps(super().links(y).each, center, steps)

    @torch.no_grad()
    def denoised(self, y: Tensor, noise: float) -> Tensor:
        """E[clean | y] of items y (B, …) that carry normal noise of a standard deviation of `noise`, as training did.

        By Tweedie's formula (Efron, 2011), y + noise² ∇ log p(y), in one pass of the network, which knows the score:
        near the data, z = y cos θ + ε sin θ, the mean of ε given z is F cos θ + z sin θ; ∇ log p is that over −tan θ.
        """
        z, jacobians = y, list[LinearOperator]()
        for layer in self.layers:
            if not isinstance(layer, Step):
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

    def matching_loss(self, y: Tensor, generator: Generators) -> Tensor:
        """|F(z, θ) − dz/dθ|² an entry, at one random θ for each item (B,)."""
        with torch.no_grad():
            for layer in self.layers:
                y = y if isinstance(layer, Step) else layer(y)
        t = uniform(y, generator)
        angle = per_item(0.5 * math.pi * t, y)
        noise = standard_normal(y, generator)
        with torch.autocast(y.device.type, self._precision, enabled=self._precision is not None):
            F = self.velocity(y * angle.cos() + noise * angle.sin(), t).to(y.dtype)
        return (F - noise * angle.cos() + y * angle.sin()).square().flatten(1).mean(1)


def continuous(
    shape: Sequence[int],
    *,
    steps: int = 8,
    method: str = "midpoint",
    width: int = 32,
    start: str = "standardise",
    grid: float = 1.3,
) -> Continuous:
    """A continuous flow for images (C, H, W), with a U-shaped velocity network, or vectors (d,), with a dense one.

    `steps` of a `method` (`euler`, `midpoint`, `rk4`) at times θ = π/2 (k/steps)^`grid`, finer near the data for a
    `grid` above 1. `start` is the first layer: `gaussian` (whitening by a Gaussian fitted to the data), `standardise`
    (each entry by its mean and deviation) or `none`. In as many steps of training the likelihood of digits came out
    better after `standardise`; after `gaussian`, restricted solves take half the evaluations.
    """
    shape = tuple(shape)
    if len(shape) not in (1, 3):
        raise InputError(f"a continuous flow takes vectors (d,) or images (C, H, W), got shape {shape}")
    if method not in METHODS:
        raise InputError(f"flow.method is {method!r}; choose one of {', '.join(METHODS)}")
    if steps < 1 or width < 1 or grid <= 0:
        raise InputError(f"flow.steps, flow.width and flow.grid must be positive, got {steps}, {width} and {grid}")
    angles = [0.5 * math.pi * (k / steps) ** grid for k in range(steps + 1)]
    return Continuous(first_layers(start, shape), velocity(shape, width), shape, angles, method)
