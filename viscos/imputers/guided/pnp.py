"""Plug-and-play with the denoiser of a flow."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.labels import Kind
from viscos.flows.flow import Flow
from viscos.imputers.guided.walk import GuidedImputer, Walk


class PnPFlowImputer(GuidedImputer):
    """PnP-Flow (Martin et al., 2025, algorithm 3): a gradient step on what is observed, fresh noise, and a denoising.

    At t = n/N: u^O moves toward the truth by γ = (1 − t)^`alpha`, z = t u + (1 − t) ε, u ← E[u | z], the mean over
    `averages` draws of ε. On our path t u + (1 − t) ε is z at tan θ = (1 − t)/t, but for a factor. It is a point
    estimate, whose draws differ by little. The paper: N = 100, averages of 5.
    """

    name, label = "pnp_flow", "PnP-Flow"
    mean = Kind("pnp_flow_mean", "PnP-Flow, mean")
    draw = Kind("pnp_flow_draw", "PnP-Flow, one draw")

    def __init__(self, of: Flow, steps: int = 50, averages: int = 3, alpha: float = 0.5, noise: float = 0.0) -> None:
        super().__init__(of, noise)
        if steps < 1 or averages < 1 or alpha < 0:
            seen = f"{steps}, {averages} and {alpha}"
            raise InputError(f"pnp_flow: steps, averages and alpha are {seen}; give 1, 1 and 0, or more")
        self.steps, self.averages, self.alpha = steps, averages, alpha

    def walk(self, walk: Walk) -> Tensor:
        u, number = torch.zeros_like(walk.target), 0
        for n in range(self.steps):
            t = n / self.steps
            toward = u - (1 - t) ** self.alpha * (u - walk.target)
            point, angle = torch.where(walk.observed, toward, u), math.atan2(1 - t, t)
            total = torch.zeros_like(u)
            for _ in range(self.averages):
                z = point * math.cos(angle) + walk.noise(number) * math.sin(angle)
                total, number = total + walk.denoiser.both(z, angle)[0], number + 1
            u = total / self.averages
        return u
