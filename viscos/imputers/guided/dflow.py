"""Descent on the latent, through the flow."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.labels import Kind
from viscos.core.solution import per_item
from viscos.flows.flow import Flow
from viscos.imputers.guided.walk import GuidedImputer, Walk, angles

_BETAS, _EPSILON = (0.9, 0.999), 1e-8  # of Adam (Kingma and Ba, 2015)


class DFlowImputer(GuidedImputer):
    """D-Flow (Ben-Hamu et al., 2024): gradient descent on the latent x of |u^O − u^O(x)|², through the flow.

    u(x) is by `steps` Euler steps from noise to data. The descent begins at a random x, and it is what keeps x near the
    prior, with a weight of `prior` on |x|². Where the paper takes L-BFGS it is by Adam, with one second moment for an
    item and a decoupled weight (Loshchilov and Hutter, 2019): with a moment for each entry, those that the observation
    does not touch would go to 0 as fast as others go to what is observed. Where nothing is observed x stays as it is.
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
        x = walk.noise(0)
        mean, square = torch.zeros_like(x), x.new_zeros(len(x))
        for k in range(1, self.iterations + 1):
            slope = self._slope(walk, x)
            square = torch.lerp(slope.square().flatten(1).mean(1), square, _BETAS[1])
            mean = torch.lerp(slope, mean, _BETAS[0])
            size = (square / (1 - _BETAS[1] ** k)).sqrt()
            step = mean / (1 - _BETAS[0] ** k) / per_item(size.clamp_min(_EPSILON), x) + 2 * self.prior * x
            x = torch.where(per_item(size == 0, x), x, x - self.learning_rate * step)
        return self._end(walk, x)

    @torch.enable_grad()
    def _slope(self, walk: Walk, x: Tensor) -> Tensor:
        """The gradient of |u^O − u^O(x)|² (K·B, …)."""
        x = x.detach().requires_grad_(True)
        errors = torch.where(walk.observed, walk.target - self._end(walk, x), 0).square().sum()
        (slope,) = torch.autograd.grad(errors, x)
        return slope

    def _end(self, walk: Walk, x: Tensor) -> Tensor:
        """u at θ = 0 of the latent x at π/2, by Euler steps."""
        z = x
        for here, there in itertools.pairwise(angles(self.steps)):
            walk.denoiser.passes += 1
            z = z + (there - here) * walk.denoiser.velocity(z, z.new_full((1,), here / angles(1)[0]))
        return z
