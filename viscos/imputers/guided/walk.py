"""What walks from noise to data have in common: the denoiser of a continuous flow, its times, and its noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.core.rng import item_noise
from viscos.flows.families.continuous.flow import Continuous
from viscos.flows.families.continuous.steps import IntegratorStep
from viscos.flows.flow import Flow
from viscos.flows.layers.affine import Affine
from viscos.imputers.imputer import OnFlow, observed_error
from viscos.inference import Completions

HALF_PI = 0.5 * math.pi
_TOGETHER = 4096  # random numbers of an item that are made at once


class Denoiser:
    """E[u | z] and E[ε | z] of z = u cos θ + ε sin θ, with u the data after the flow's first layer, entry by entry.

    From the velocity F, which estimates dz/dθ = ε cos θ − u sin θ:

        E[u | z] = z cos θ − F sin θ,    E[ε | z] = z sin θ + F cos θ.

    `passes` counts those of the network. Raises `InputError` for a flow that is not continuous, or whose first layer
    mixes entries, so that what is observed of the data is not observed of u.
    """

    def __init__(self, flow: Flow) -> None:
        if not isinstance(flow, Continuous):
            raise InputError("this imputer walks along the velocity of a continuous flow; take flow=continuous")
        self.velocity, self.passes = flow.velocity, 0
        self.first = [layer for layer in flow.layers if isinstance(layer, Affine)]
        if not all(isinstance(layer, (Affine, IntegratorStep)) for layer in flow.layers):
            raise InputError(
                "this imputer needs a first layer that acts entry by entry: train with flow.start=standardise"
            )

    def standardise(self, y: Tensor) -> Tensor:
        """u of data (B, …); NaN stays where it is."""
        for layer in self.first:
            y = layer(y)
        return y

    def restore(self, u: Tensor) -> Tensor:
        """The data (B, …) of u."""
        for layer in reversed(self.first):
            u = layer.inverse(u).value
        return u

    def both(self, z: Tensor, angle: float) -> tuple[Tensor, Tensor]:
        """E[u | z] and E[ε | z] (B, …) at one θ for all, differentiable in z."""
        self.passes += 1
        F = self.velocity(z, z.new_full((1,), angle / HALF_PI))
        return z * math.cos(angle) - F * math.sin(angle), z * math.sin(angle) + F * math.cos(angle)


@dataclass(frozen=True)
class Walk:
    """One batch of K·B completions on their way: draws in the outer axis."""

    denoiser: Denoiser
    target: Tensor
    """u (K·B, …), with zero where it is hidden."""
    observed: Tensor
    """(K·B, …), bool."""
    noise: Callable[[int], Tensor]
    """Standard normal noise (K·B, …) for each number that it is asked for, an item's own."""


def angles(steps: int) -> list[float]:
    """Times θ from π/2, noise, to 0, data, finer near the data (steps + 1)."""
    return [HALF_PI * (k / steps) ** 1.5 for k in range(steps, -1, -1)]


class _Noise:
    """Normal noise (K·B, …) for each step of a walk, keyed by (seed, purpose, item, draw) and the number of the step.

    Made for several steps at once, as many as the size of an item alone says.
    """

    def __init__(self, batch: Incomplete, draws: int, seed: int, purpose: str) -> None:
        self.batch, self.draws, self.seed, self.purpose = batch, draws, seed, purpose
        self.steps = max(1, _TOGETHER // max(1, batch.values.shape[1:].numel()))
        self._block, self._made = -1, batch.values

    def __call__(self, number: int) -> Tensor:
        """That of step `number`."""
        block, within = divmod(number, self.steps)
        if block != self._block:
            like, purpose = self.batch.values, f"{self.purpose} {block}"
            shape = (self.steps, *like.shape[1:])
            made = item_noise(self.seed, self.batch.index, self.draws, shape, like, purpose=purpose)
            self._block, self._made = block, made.flatten(0, 1)
        return self._made[:, within]


class GuidedImputer(OnFlow):
    """Completes by a walk that a subclass writes; `noise` is taken off hidden entries, as off draws of the flow.

    Raises `InputError` for a flow that it cannot walk along, see `Denoiser`.
    """

    def __init__(self, of: Flow, noise: float = 0.0) -> None:
        super().__init__(of, noise)
        Denoiser(of)  # refuses what it cannot walk along

    def walk(self, walk: Walk) -> Tensor:
        """u (K·B, …) at the end."""
        raise NotImplementedError

    def best_mean(self, batch: Incomplete, draws: int, seed: int = 0) -> Completions:
        return self.impute(batch, draws, seed)  # a walk has fresh noise at every step, and no antithetic twin

    @torch.inference_mode(False)
    @torch.no_grad()
    def impute(self, batch: Incomplete, draws: int = 1, seed: int = 0, purpose: str = "item") -> Completions:
        denoiser, like = Denoiser(self.of), batch.values
        noise = _Noise(batch, draws, seed, purpose)
        target = denoiser.standardise(batch.filled()).masked_fill(batch.hidden, 0)
        target, observed = (part.expand(draws, *part.shape).flatten(0, 1) for part in (target, batch.observed))
        y = denoiser.restore(self.walk(Walk(denoiser, target, observed, noise))).view(draws, *like.shape)
        notes = {"observed_error": observed_error(y, batch)}
        # The denoiser sees what is observed as it is, as it does beside a draw of viscos.
        y = self.of.cleaned(batch.filled(y).flatten(0, 1), ~observed, self.noise).view(draws, *like.shape)
        return Completions.checked(y, batch, float(denoiser.passes), notes)


def ancestral(walk: Walk, ends: tuple[Tensor, Tensor], here: float, there: float, number: int) -> Tensor:
    """A step of the walk without a condition, from the time `here`, where the ends are (û, ε̂), to `there`."""
    u, epsilon = ends
    variance = (math.sin(there) / math.sin(here)) ** 2 * max(0.0, 1 - (math.cos(here) / math.cos(there)) ** 2)
    kept = math.sqrt(max(0.0, math.sin(there) ** 2 - variance))
    return u * math.cos(there) + epsilon * kept + math.sqrt(variance) * walk.noise(number)
