"""A dense Gaussian first layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from viscos.core.rng import Generators
from viscos.core.solution import Solution
from viscos.flows.bijection import ClosedForm
from viscos.flows.skeleton import AffineSkeleton
from viscos.linear import LinearOperator, SharedSymmetric
from viscos.linear.gaussian import Gaussian

_FLOOR = 1e-4
"""Share of the mean variance of data below which no direction of theirs has its variance, where they are initialised
from."""


class Whitening(ClosedForm):
    """x = W (y − μ) with W = Σ^(−1/2), symmetric positive definite.

    With it a flow starts as the Gaussian N(μ, Σ) instead of independent pixels. The symmetric root, rather than a
    triangular one, keeps the paper's assumption A1: every principal block of a positive definite matrix is invertible.
    μ and Σ are estimated from observed entries only, and are not trained.
    """

    near_affine = True
    W: Tensor
    W_inverse: Tensor
    mean: Tensor
    log_det: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        d = torch.Size(shape).numel()
        self.register_buffer("W", torch.eye(d))
        self.register_buffer("W_inverse", torch.eye(d))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("log_det", torch.zeros(()))

    @torch.no_grad()
    def set_gaussian(self, gaussian: Gaussian) -> None:
        """Takes μ and Σ over."""
        W = gaussian.whitening().double()  # before it is rounded: its inverse is then the better one in float32 too
        self.W.copy_(W)
        self.W_inverse.copy_(torch.linalg.inv(W))
        self.log_det.copy_(torch.linalg.slogdet(W)[1])
        self.mean.copy_(gaussian.mean.view_as(self.mean))

    @torch.no_grad()
    def initialize(self, y: Tensor) -> Tensor:
        """Takes over the Gaussian of complete items (B, …), unless it has one; returns g of them."""
        if not bool(self.log_det) and not bool(self.mean.any()):
            least = _FLOOR * float(y.flatten(1).var(0, correction=0).mean())
            known = torch.ones_like(y, dtype=torch.bool)
            self.set_gaussian(Gaussian.from_incomplete(y, known, floor=max(least, torch.finfo(y.dtype).tiny)))
        return self(y)

    @torch.no_grad()
    def _recompute(self) -> None:
        """What follows from W as it stands, to its own precision."""
        W = self.W.double()
        self.W_inverse.copy_(torch.linalg.inv(W))
        self.log_det.copy_(torch.linalg.slogdet(W)[1])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Whitening:
        before = self.W.dtype
        super()._apply(fn, recurse)
        if self.W.dtype == torch.float64 != before:  # an inverse to 1e-7 is none in double
            self._recompute()
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        saved = state_dict.get(f"{prefix}W")
        if self.W.dtype == torch.float64 and isinstance(saved, Tensor) and saved.dtype != torch.float64:
            self._recompute()

    def _product(self, v: Tensor, matrix: Tensor) -> Tensor:
        return (v.flatten(1) @ matrix).reshape(v.shape)

    def forward(self, y: Tensor) -> Tensor:
        return self._product(y - self.mean, self.W)

    def tangent(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self(y), self._product(v, self.W)

    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]:
        return self(y), SharedSymmetric(self.W, y.shape, self.W_inverse)

    def forward_and_ladj(self, y: Tensor, generator: Generators | None = None) -> tuple[Tensor, Tensor]:
        return self(y), self.log_det.expand(len(y))

    def inverse(self, x: Tensor) -> Solution:
        return Solution.exact(self._product(x, self.W_inverse) + self.mean)

    def skeleton_after(self, below: AffineSkeleton) -> AffineSkeleton:
        shift = -self._product(self.mean[None], self.W)
        if below.trivial and not below.moved:
            return AffineSkeleton(below.scale, shift, self.W, self.W_inverse)
        diagonal = self.W.diagonal().view(1, *self.mean.shape)
        return replace(below, scale=below.scale * diagonal, shift=below.shift * diagonal + shift)
