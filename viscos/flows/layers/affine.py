"""Entrywise affine layers."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from viscos.core.errors import InputError
from viscos.core.rng import Generators
from viscos.core.solution import Solution
from viscos.flows.bijection import ClosedForm
from viscos.flows.skeleton import AffineSkeleton
from viscos.linear import Diagonal, LinearOperator


class Affine(ClosedForm):
    """x = (y − shift) · scale for each entry, or for each channel of an image; ActNorm when `learn` is set.

    Glow (Kingma and Dhariwal, 2018), section 3.1. That it has been initialised is a buffer, so a loaded layer never
    initialises itself again; and it is never initialised by a forward pass, only by `initialize`.
    """

    initialized: Tensor
    near_affine = True

    def __init__(
        self, shape: tuple[int, ...], per_channel: bool = False, learn: bool = True, floor: float = 1e-2
    ) -> None:
        super().__init__()
        self.floor = floor
        size = (shape[0], *[1] * (len(shape) - 1)) if per_channel else shape
        self.entries = torch.Size(shape).numel() // torch.Size(size).numel()
        self.shift = nn.Parameter(torch.zeros(size), requires_grad=learn)
        self.log_scale = nn.Parameter(torch.zeros(size), requires_grad=learn)
        self.register_buffer("initialized", torch.tensor(False))

    def forward(self, y: Tensor) -> Tensor:
        return (y - self.shift) * self.log_scale.exp()

    def tangent(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        scale = self.log_scale.exp()
        return (y - self.shift) * scale, v * scale

    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]:
        return self(y), Diagonal(self.log_scale.detach().exp()[None], len(y))

    def forward_and_ladj(self, y: Tensor, generator: Generators | None = None) -> tuple[Tensor, Tensor]:
        return self(y), (self.log_scale.sum() * self.entries).expand(len(y))

    def inverse(self, x: Tensor) -> Solution:
        return Solution.exact(x * (-self.log_scale).exp() + self.shift)

    def skeleton_after(self, below: AffineSkeleton) -> AffineSkeleton:
        scale = self.log_scale.detach().exp()[None]
        return replace(below, scale=below.scale * scale, shift=(below.shift - self.shift.detach()) * scale)

    @torch.no_grad()
    def set_moments(self, mean: Tensor, deviation: Tensor) -> None:
        """Standardises by `mean` and `deviation`, which counts at least `floor`: a constant entry must not give NaN."""
        if not bool(torch.isfinite(mean).all()) or not bool(torch.isfinite(deviation).all()):
            raise InputError("the mean and deviation of the data are not finite; an entry may never be observed")
        self.shift.copy_(mean)
        self.log_scale.copy_(-deviation.clamp_min(self.floor).log())
        self.initialized.fill_(True)

    @torch.no_grad()
    def initialize(self, y: Tensor) -> Tensor:
        if not bool(self.initialized):
            axes = [0, *[k + 1 for k, n in enumerate(self.shift.shape) if n == 1 and y.shape[k + 1] > 1]]
            deviation, mean = torch.std_mean(y, dim=axes, keepdim=True, correction=0)
            self.set_moments(mean[0], deviation[0])
        return self(y)
