"""Continuous flows, trained by flow matching and integrated in a few fixed steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from viscos.errors import InputError
from viscos.flows.composed import Composed
from viscos.flows.layer import Layer
from viscos.flows.networks import velocity
from viscos.flows.series import Series
from viscos.flows.start import first_layers
from viscos.linear import GMRES, Inverse, Jacobian, LinearOperator, exact_value
from viscos.rng import Generators, standard_normal, uniform
from viscos.roots import anderson
from viscos.roots.equation import LinearSolver
from viscos.solution import Solution, item_max, per_item

Field = Callable[[Tensor, float], Tensor]
"""A velocity F(z, θ) of points z (B, …)."""


def euler(F: Field, z: Tensor, start: float, end: float) -> Tensor:
    """∫ F dθ from `start` to `end`, to first order."""
    return (end - start) * F(z, start)


def midpoint(F: Field, z: Tensor, start: float, end: float) -> Tensor:
    """To second order, by two evaluations."""
    size = end - start
    return size * F(z + 0.5 * size * F(z, start), start + 0.5 * size)


def rk4(F: Field, z: Tensor, start: float, end: float) -> Tensor:
    """To fourth order, by four evaluations (Kutta, 1901)."""
    size, middle = end - start, 0.5 * (start + end)
    a = F(z, start)
    b = F(z + 0.5 * size * a, middle)
    c = F(z + 0.5 * size * b, middle)
    d = F(z + size * c, end)
    return size / 6 * (a + 2 * b + 2 * c + d)


METHODS = {"euler": euler, "midpoint": midpoint, "rk4": rk4}


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

    def __init__(self, network: nn.Module, start: float, end: float, method: str) -> None:
        super().__init__()
        self._shared = (network,)  # not registered: the steps have one network, which the flow registers once
        self.start, self.end, self.method = start, end, method

    def _velocity(self, z: Tensor, angle: float) -> Tensor:
        F: Tensor = self._shared[0](z, z.new_full((1,), 2 / math.pi * angle))
        return F

    def forward(self, y: Tensor) -> Tensor:
        return y + METHODS[self.method](self._velocity, y, self.start, self.end)

    @torch.no_grad()
    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]:
        jacobian = _StepJacobian(self.forward, y)
        return jacobian.value, jacobian

    def estimate(self, G: LinearOperator, like: Tensor, generator: Generators) -> Tensor:
        """Exactly up to `value_exact_below` entries, else by the series."""
        if like[0].numel() <= self.value_exact_below:
            return exact_value(G, like)
        return self.series.value(_LessIdentity(G), like, generator)

    @torch.no_grad()
    def inverse(self, x: Tensor) -> Solution:
        """By Anderson acceleration of y ← x − h(y), begun with the integrator's step back in time."""
        back = x + METHODS[self.method](self._velocity, x, self.end, self.start)
        solver = anderson(tolerance=1e-11 if x.dtype == torch.float64 else 2e-6, budget=60)
        found = solver.solve(_Inversion(self, x), back)  # type: ignore[arg-type]
        return replace(found, evaluations=found.evaluations + 1)


class _StepJacobian(Jacobian):
    """I + ∇h at one point, by automatic differentiation."""

    def inverse(self, tolerance: float | None = None) -> LinearOperator:
        """(I + ∇h)⁻¹ by GMRES, which takes few products so near the identity."""
        tight = 1e-10 if self.value.dtype == torch.float64 else 1e-5
        return Inverse(self, GMRES(tolerance or tight, budget=400, restart=60))


class _LessIdentity(LinearOperator):
    """G − I."""

    def __init__(self, G: LinearOperator) -> None:
        self.G, self.shape = G, G.shape

    def mv(self, v: Tensor) -> Tensor:
        return self.G.mv(v) - v

    def rmv(self, u: Tensor) -> Tensor:
        return self.G.rmv(u) - u


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


class Continuous(Composed):
    """The flow of dz/dθ = F(z, θ) from data at θ = 0 to noise at π/2, in fixed steps after a standardising layer.

    F is trained by flow matching (Lipman et al., 2023): with data y (standardised) and independent normal ε,

        z = y cos θ + ε sin θ,    F minimises E |F(z, θ) − dz/dθ|²,    dz/dθ = ε cos θ − y sin θ.

    That is their straight path z' = (1 − s) y + s ε with tan θ = s / (1 − s), divided by √(s² + (1 − s)²), which keeps
    the variance at one (Albergo and Vanden-Eijnden, 2023): the exact velocities give the same map from data to latent.
    With F = 0 the flow is its first layer, a Gaussian, and steps are near the identity.
    """

    matches = True
    dense_below = 100  # a product costs as much as two dozen passes of the network

    def __init__(
        self, first: Sequence[Layer], network: nn.Module, shape: Sequence[int], angles: Sequence[float], method: str
    ) -> None:
        steps = [Step(network, a, b, method) for a, b in itertools.pairwise(angles)]
        super().__init__([*first, *steps], shape)
        self.velocity = network

    def matching_loss(self, y: Tensor, generator: Generators) -> Tensor:
        """|F(z, θ) − dz/dθ|² an entry, at one random θ for each item (B,)."""
        with torch.no_grad():
            for layer in self.layers:
                y = y if isinstance(layer, Step) else layer(y)
        t = uniform(y, generator)
        angle = per_item(0.5 * math.pi * t, y)
        noise = standard_normal(y, generator)
        F = self.velocity(y * angle.cos() + noise * angle.sin(), t)
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
