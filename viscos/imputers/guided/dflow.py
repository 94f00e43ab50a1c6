"""Descent on the latent, through the flow."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.labels import Kind
from viscos.flows.flow import Flow
from viscos.imputers.guided.walk import GuidedImputer, Walk, angles


class DFlowImputer(GuidedImputer):
    """D-Flow (Ben-Hamu et al., 2024): gradient descent on the latent x of |u^O − u^O(x)|², through the flow.

    u(x) is by `steps` Euler steps from noise to data. The descent is by Adam from a random x, where the paper takes
    L-BFGS; it is what keeps x near the prior, with a weight of `prior` on |x|².
    """

    name, label = "d_flow", "D-Flow"
    mean = Kind("d_flow_mean", "D-Flow, mean")
    draw = Kind("d_flow_draw", "D-Flow, one draw")
    gradients = True

    def __init__(
        self,
        of: Flow,
        steps: int = 8,
        iterations: int = 40,
        learning_rate: float = 0.1,
        prior: float = 1e-3,
        noise: float = 0.0,
    ) -> None:
        super().__init__(of, noise)
        if steps < 1 or iterations < 1 or not learning_rate > 0 or prior < 0:
            raise InputError("d_flow: give steps and iterations of 1 or more, a learning_rate above 0, prior 0 or more")
        self.steps, self.iterations, self.learning_rate, self.prior = steps, iterations, learning_rate, prior

    def walk(self, walk: Walk) -> Tensor:
        with torch.enable_grad():
            x = walk.noise(0).clone().requires_grad_(True)
            optimizer = torch.optim.Adam([x], self.learning_rate)
            for _ in range(self.iterations):
                errors = torch.where(walk.observed, walk.target - self._end(walk, x), 0).square().sum()
                optimizer.zero_grad()
                x.grad = torch.autograd.grad(errors + self.prior * x.square().sum(), x)[0]
                optimizer.step()
        return self._end(walk, x.detach())

    def _end(self, walk: Walk, x: Tensor) -> Tensor:
        """u at θ = 0 of the latent x at π/2, by Euler steps."""
        z = x
        for here, there in itertools.pairwise(angles(self.steps)):
            walk.denoiser.passes += 1
            z = z + (there - here) * walk.denoiser.velocity(z, z.new_full((1,), here / angles(1)[0]))
        return z
