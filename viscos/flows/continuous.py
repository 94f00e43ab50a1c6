"""Continuous flows, trained by flow matching and integrated in a few fixed steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from viscos.errors import InputError
from viscos.flows.composed import Composed
from viscos.flows.layer import Layer
from viscos.flows.links import Links
from viscos.flows.networks import Velocity, velocity
from viscos.flows.series import Series
from viscos.flows.start import first_layers
from viscos.linear import IdentityPlus, LinearOperator, exact_value, lanczos_value
from viscos.rng import Generators, standard_normal, uniform
from viscos.roots import anderson
from viscos.roots.equation import LinearSolver
from viscos.solution import Solution, item_max, per_item

Field = Callable[[Tensor, float], Tensor]
"""A velocity F(z, θ) of points z (B, …)."""


@dataclass(frozen=True)
class RungeKutta:
    """An explicit method: kᵢ = F(z + s Σⱼ aᵢⱼ kⱼ, θ + s Σⱼ aᵢⱼ) for j < i, and the increment s Σᵢ bᵢ kᵢ of a step s."""

    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]

    def increment(self, F: Field, z: Tensor, start: float, end: float) -> Tensor:
        """∫ F dθ from `start` to `end` (B, …)."""
        size, k = end - start, list[Tensor]()
        for row in self.a:
            k.append(F(_sum([1.0, *[size * a for a in row]], [z, *k]), start + size * sum(row)))
        return _sum([size * b for b in self.b], k)

    def transposed(self, F: Sequence[LinearOperator], u: Tensor, size: float) -> Tensor:
        """The transpose of `increment` where F is linear, and another operator at each stage (B, …)."""
        w = list[Tensor]()  # of the stages from the last one on
        for i in reversed(range(len(self.b))):
            later = [size * row[i] for row in reversed(self.a[i + 1 :])]
            w.append(F[i].rmv(_sum([size * self.b[i], *later], [u, *w])))
        return _sum([1.0] * len(w), w)


def _sum(coefficients: Sequence[float], terms: Sequence[Tensor]) -> Tensor:
    """The linear combination, in which a coefficient of zero costs nothing."""
    (c, first), *others = [(c, t) for c, t in zip(coefficients, terms, strict=True) if c != 0] or [(0.0, terms[0])]
    total = first if c == 1 else c * first
    for c, term in others:
        total = torch.add(total, term, alpha=c)
    return total


METHODS = {
    "euler": RungeKutta(((),), (1.0,)),
    "midpoint": RungeKutta(((), (1 / 2,)), (0.0, 1.0)),
    "rk4": RungeKutta(((), (1 / 2,), (0.0, 1 / 2), (0.0, 0.0, 1.0)), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),  # Kutta (1901)
}


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
        together = _Together(self.steps)(states[:, first:])
        return torch.cat([torch.stack(before, 1), together], 1) if before else together

    def start(self, y: Tensor, x: Tensor, hidden: Tensor) -> Tensor:
        """Through the first layers, then along z = y cos θ + x sin θ on H, and along z = y cos θ on O."""
        path = [y]
        for link in self.each[: len(self.each) - len(self.steps)]:
            path.append(link.value(path[-1]))
        angles = [step.end for step in self.steps]
        z, toward = path[-1], torch.where(hidden, x, 0)
        return torch.stack([*path, *(z * math.cos(a) + toward * math.sin(a) for a in angles)], 1)


class _Together:
    """All steps at once, each from a state of its own (B, K, …): one call of the network for each stage."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.network, self.method = steps[0]._shared[0], steps[0].method
        self.starts = [step.start for step in steps]
        self.sizes = [step.end - step.start for step in steps]

    def __call__(self, states: Tensor) -> Tensor:
        batch, count = states.shape[:2]
        z = states.flatten(0, 1)
        size = per_item(z.new_tensor(self.sizes).repeat(batch), z)
        start = z.new_tensor(self.starts).repeat(batch)
        k = list[Tensor]()
        for row in self.method.a:
            at = z + size * _sum(row, k) if k else z
            angle = start + size.flatten() * sum(row)
            k.append(self.network(at, 2 / math.pi * angle))
        return (z + size * _sum(self.method.b, k)).view(batch, count, *states.shape[2:])


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
