"""The contractions of residual layers: bounded linear maps, and activations between them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from viscos.flows.layers.activations import ACTIVATIONS
from viscos.flows.layers.lipschitz import BoundedConv2d, BoundedLinear
from viscos.linear import LinearOperator


class Branch(nn.Module):
    """h = Aₙ ∘ σ ∘ … ∘ A₁ ∘ σ: activations before the maps (pre-activation), each map bounded."""

    def __init__(self, maps: Sequence[nn.Module], activation: str, flat: bool = False, first: bool = False) -> None:
        super().__init__()
        self.maps = nn.ModuleList(maps)
        kinds = [ACTIVATIONS[activation]() for _ in maps]
        self.activations = nn.ModuleList([nn.Identity() if first and k == 0 else a for k, a in enumerate(kinds)])
        self.flat = flat
        self.autocast: torch.dtype | None = None

    def _enter(self, y: Tensor) -> Tensor:
        return y.flatten(1) if self.flat else y

    def _leave(self, z: Tensor, y: Tensor) -> Tensor:
        return z.reshape(y.shape) if self.flat else z

    def _precision(self, y: Tensor) -> AbstractContextManager[Any]:
        """The precision of a differentiable pass: lower where allowed, after the maps' norms in the full one."""
        lower = self.autocast is not None and torch.is_grad_enabled()
        return torch.autocast(y.device.type, self.autocast) if lower else nullcontext()

    def forward(self, y: Tensor) -> Tensor:
        """h(y) (B, …)."""
        z, weights = self._enter(y), [linear.effective() for linear in self.maps]
        with self._precision(y):
            for activation, linear, weight in zip(self.activations, self.maps, weights, strict=True):
                z = linear.product(activation(z), weight, linear.bias)
        return self._leave(z, y).to(y.dtype)

    def tangent(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """h(y) and ∇h(y) v (B, …), differentiable: the value and its derivative in one pass of pairs."""
        z, t, weights = self._enter(y), self._enter(v), [linear.effective() for linear in self.maps]
        with self._precision(y):
            for activation, linear, weight in zip(self.activations, self.maps, weights, strict=True):
                if not isinstance(activation, nn.Identity):
                    z, t = activation.tangent(z, t)
                z, t = linear.product(z, weight, linear.bias), linear.product(t, weight)
        return self._leave(z, y).to(y.dtype), self._leave(t, v).to(v.dtype)

    @torch.no_grad()
    def linearize(self, y: Tensor) -> tuple[Tensor, BranchJacobian]:
        """h(y) (B, …) and ∇h(y): the slopes of the activations are kept, so a product is as many maps as h has."""
        z, slopes = self._enter(y), []
        for activation, linear in zip(self.activations, self.maps, strict=True):
            slope: Tensor | None = None
            if not isinstance(activation, nn.Identity):
                z, slope = activation.value_and_slope(z)
            slopes.append(slope)
            z = linear(z)
        weights = [linear.effective() for linear in self.maps]
        return self._leave(z, y), BranchJacobian(self, slopes, weights, y.shape)

    def lipschitz(self) -> float:
        """A certified bound of the Lipschitz constant of h."""
        bound = 1.0
        for linear in self.maps:
            bound *= linear.certified_norm()
        return bound


class BranchJacobian(LinearOperator):
    """∇h at one point."""

    def __init__(self, branch: Branch, slopes: list[Tensor | None], weights: list[Tensor], shape: torch.Size) -> None:
        self.branch, self.slopes, self.weights, self.shape = branch, slopes, weights, shape

    def mv(self, v: Tensor) -> Tensor:
        t = self.branch._enter(v)
        for slope, weight, linear in zip(self.slopes, self.weights, self.branch.maps, strict=True):
            t = linear.product(t if slope is None else slope * t, weight)
        return self.branch._leave(t, v)

    def rmv(self, u: Tensor) -> Tensor:
        t = self.branch._enter(u)
        for slope, weight, linear in zip(
            reversed(self.slopes), reversed(self.weights), reversed(list(self.branch.maps)), strict=True
        ):
            t = linear.product_transposed(t, weight)
            t = t if slope is None else slope * t
        return self.branch._leave(t, u)

    def select(self, index: Tensor) -> BranchJacobian:
        slopes = [None if s is None else s[index] for s in self.slopes]
        return BranchJacobian(self.branch, slopes, self.weights, torch.Size((len(index), *self.shape[1:])))


def conv_branch(
    channels: int, hidden: int, size: tuple[int, int], activation: str, coefficient: float, first: bool = False
) -> Branch:
    """The 3-1-3 branch: 3×3 convolution, 1×1, 3×3."""
    maps = [
        BoundedConv2d(channels, hidden, 3, size, coefficient),
        BoundedConv2d(hidden, hidden, 1, size, coefficient),
        BoundedConv2d(hidden, channels, 3, size, coefficient),
    ]
    return Branch(maps, activation, first=first)


def dense_branch(d: int, hidden: int, activation: str, coefficient: float, first: bool = False) -> Branch:
    """A fully connected branch d → hidden → hidden → d."""
    maps = [BoundedLinear(a, b, coefficient) for a, b in ((d, hidden), (hidden, hidden), (hidden, d))]
    return Branch(maps, activation, flat=True, first=first)
