"""Guidance by the predicted end: diffusion posterior sampling."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.labels import Kind
from viscos.core.solution import per_item
from viscos.flows.flow import Flow
from viscos.imputers.guided.walk import GuidedImputer, Walk, ancestral, angles


class DPSImputer(GuidedImputer):
    """DPS (Chung et al., 2023, algorithm 1): each step is pulled so that its predicted end fits what is observed.

    After an ancestral step from θ to θ', z' ← z' − ζ ∇_z |u^O − û^O(z)|² / |u^O − û^O(z)|, through the network. `scale`
    is ζ; the paper takes 1000 steps and ζ about 1, for images: such a step is about 2 ζ long, which is far for few
    entries.
    """

    name, label = "dps", "DPS"
    mean = Kind("dps_mean", "DPS, mean")
    draw = Kind("dps_draw", "DPS, one draw")
    gradients = True

    def __init__(self, of: Flow, steps: int = 50, scale: float = 1.0, noise: float = 0.0) -> None:
        super().__init__(of, noise)
        if steps < 1 or not scale > 0:
            raise InputError(f"dps: steps is {steps} and scale {scale}; give 1 step or more, and a scale above 0")
        self.steps, self.scale = steps, scale

    def walk(self, walk: Walk) -> Tensor:
        z, numbers = walk.noise(0), itertools.count(1)
        for here, there in itertools.pairwise(angles(self.steps)):
            u, epsilon, pull = self._ends(walk, z, here)
            z = ancestral(walk, (u, epsilon), here, there, next(numbers)) - self.scale * pull
        return z

    @torch.enable_grad()
    def _ends(self, walk: Walk, z: Tensor, angle: float) -> tuple[Tensor, Tensor, Tensor]:
        """û, ε̂, and the gradient of the squared distance over the distance (K·B, …)."""
        z = z.detach().requires_grad_(True)
        u, epsilon = walk.denoiser.both(z, angle)
        squares = torch.where(walk.observed, walk.target - u, 0).square().flatten(1).sum(1)
        (slope,) = torch.autograd.grad(squares.sum(), z)
        distance = squares.detach().sqrt().clamp_min(torch.finfo(z.dtype).tiny)
        return u.detach(), epsilon.detach(), slope / per_item(distance, z)
