"""Affine coupling layers (Dinh et al., 2017)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from viscos.core.rng import Generators
from viscos.core.solution import Solution
from viscos.flows.bijection import ClosedForm
from viscos.flows.layers.branch import Branch, BranchJacobian
from viscos.flows.layers.lipschitz import Convolution, Dense
from viscos.linear import LinearOperator

_STEEPEST = 2.0  # largest log-scale of one coupling: scales from 0.14 to 7.4, so that no inverse overflows


class Free(nn.Module):
    """A linear map with bias, and no bound."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def effective(self) -> Tensor:
        """The weight that acts."""
        return self.weight

    def forward(self, z: Tensor) -> Tensor:
        return self.product(z, self.weight, self.bias)


class FreeConv2d(Convolution, Free):
    """A convolution of stride one with SAME zero padding."""

    def __init__(self, c_in: int, c_out: int, kernel: int) -> None:
        conv = nn.Conv2d(c_in, c_out, kernel)
        assert conv.bias is not None
        Free.__init__(self, conv.weight.detach(), conv.bias.detach())


class FreeLinear(Dense, Free):
    """A dense map."""

    def __init__(self, d_in: int, d_out: int) -> None:
        linear = nn.Linear(d_in, d_out)
        Free.__init__(self, linear.weight.detach(), linear.bias.detach())


def conditioner(shape: Sequence[int], hidden: int) -> Branch:
    """The network of a coupling, (c, …) → (2c, …): 3-1-3 convolutions for images, three dense maps for vectors.

    Its last map starts at zero, so that a coupling starts as the identity.
    """
    c, maps = shape[0], list[Free]()
    if len(shape) == 3:
        maps = [FreeConv2d(c, hidden, 3), FreeConv2d(hidden, hidden, 1), FreeConv2d(hidden, 2 * c, 3)]
    else:
        maps = [FreeLinear(c, hidden), FreeLinear(hidden, hidden), FreeLinear(hidden, 2 * c)]
    for p in maps[-1].parameters():
        nn.init.zeros_(p)
    return Branch(maps, "lipswish", first=True)


class Coupling(ClosedForm):
    """x = y on the mask; elsewhere x = y exp(s) + t, with s and t read off the entries on the mask.

    s = a tanh(ŝ/a) with a = 2. `mask` (…) is one where an entry stays as it is.
    """

    mask: Tensor

    def __init__(self, mask: Tensor, hidden: int) -> None:
        super().__init__()
        self.register_buffer("mask", mask.float()[None].clone())
        self.network = conditioner(mask.shape, hidden)

    def forward(self, y: Tensor) -> Tensor:
        return self._moved(y, *self._scale_and_shift(self.network(self.mask * y)))

    def _scale_and_shift(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """s and t, zero on the mask (B, …)."""
        s, t = raw.chunk(2, 1)
        free = 1 - self.mask
        return free * _STEEPEST * torch.tanh(s / _STEEPEST), free * t

    def _moved(self, y: Tensor, s: Tensor, t: Tensor) -> Tensor:
        return y * s.exp() + t

    def tangent(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        raw, along = self.network.tangent(self.mask * y, self.mask * v)
        s, t = self._scale_and_shift(raw)
        ds, dt = along.chunk(2, 1)
        slope = 1 - (s / _STEEPEST).square()
        moved = y * s.exp()
        return moved + t, v * s.exp() + (1 - self.mask) * (moved * slope * ds + dt)

    @torch.no_grad()
    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]:
        raw, jacobian = self.network.linearize(self.mask * y)
        s, t = self._scale_and_shift(raw)
        moved = y * s.exp()
        weight = torch.cat([moved * (1 - (s / _STEEPEST).square()), torch.ones_like(moved)], 1)
        free = 1 - self.mask
        weight = weight * torch.cat([free, free], 1)
        return moved + t, CouplingJacobian(self.mask, s.exp(), weight, jacobian)

    def forward_and_ladj(self, y: Tensor, generator: Generators | None = None) -> tuple[Tensor, Tensor]:
        s, t = self._scale_and_shift(self.network(self.mask * y))
        return self._moved(y, s, t), s.flatten(1).sum(1)

    @torch.no_grad()
    def inverse(self, x: Tensor) -> Solution:
        s, t = self._scale_and_shift(self.network(self.mask * x))
        return Solution.exact((x - t) * (-s).exp())


class CouplingJacobian(LinearOperator):
    """diag(e) + K, with K from the entries on the mask to the others; so its inverse is (I − K) diag(1/e).

    On the mask e is one, which is why diag(1/e) K is K diag(1/e) applied to the masked entries alone.
    """

    def __init__(
        self, mask: Tensor, scale: Tensor, weight: Tensor, network: BranchJacobian, inverted: bool = False
    ) -> None:
        self.mask, self.scale, self.weight, self.network, self.inverted = mask, scale, weight, network, inverted
        self.shape = scale.shape

    def _K(self, v: Tensor) -> Tensor:
        a, b = (self.weight * self.network.mv(self.mask * v)).chunk(2, 1)
        return a + b

    def _K_transposed(self, u: Tensor) -> Tensor:
        return self.mask * self.network.rmv(self.weight * torch.cat([u, u], 1))

    def mv(self, v: Tensor) -> Tensor:
        if self.inverted:
            return (v - self._K(v)) / self.scale
        return self.scale * v + self._K(v)

    def rmv(self, u: Tensor) -> Tensor:
        if self.inverted:
            u = u / self.scale
            return u - self._K_transposed(u)
        return self.scale * u + self._K_transposed(u)

    def inverse(self, tolerance: float | None = None) -> LinearOperator:
        return CouplingJacobian(self.mask, self.scale, self.weight, self.network, not self.inverted)

    def select(self, index: Tensor) -> LinearOperator:
        picked = (self.scale[index], self.weight[index], self.network.select(index))
        return CouplingJacobian(self.mask, *picked, self.inverted)
