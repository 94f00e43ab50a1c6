"""Destinations, refined by what is observed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.labels import Kind
from viscos.flows.flow import Flow
from viscos.imputers.guided.walk import GuidedImputer, Walk, angles


class FlowerImputer(GuidedImputer):
    """Flower (2026): predict the destination, refine it by what is observed, move on along the path to it.

    At θ: û = E[u | z]; the refined destination is a draw of N(û, sin² θ) given the observed entries, without noise of
    the measurement: those entries themselves, and û + n sin θ elsewhere; then z = ũ cos θ' + ε sin θ' with fresh ε.
    """

    name, label = "flower", "Flower"
    mean = Kind("flower_mean", "Flower, mean")
    draw = Kind("flower_draw", "Flower, one draw")

    def __init__(self, of: Flow, steps: int = 50, noise: float = 0.0) -> None:
        super().__init__(of, noise)
        if steps < 1:
            raise InputError(f"flower: steps is {steps}; give 1 or more")
        self.steps = steps

    def walk(self, walk: Walk) -> Tensor:
        times, z = angles(self.steps), walk.noise(0)
        for k, here in enumerate(times[:-1]):
            u, _ = walk.denoiser.both(z, here)
            there = times[k + 1]
            if there == 0:
                return u
            spread = u + math.sin(here) * walk.noise(2 * k + 1)
            refined = torch.where(walk.observed, walk.target, spread)
            z = refined * math.cos(there) + walk.noise(2 * k + 2) * math.sin(there)
        return z
