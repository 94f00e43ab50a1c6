"""The velocity network of images: a U-Net whose products with the Jacobian are known."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from viscos.flows.families.continuous.velocity import Clock, Velocity, start_at_zero
from viscos.flows.layers.activations import silu_tangent
from viscos.flows.layers.lipschitz import Convolution
from viscos.flows.layers.shuffle import shuffled, unshuffled
from viscos.linear import LinearOperator


class UNetVelocity(Velocity):
    """A U-Net for images (B, C, H, W): residual blocks at up to three scales, and back up with skip sums.

    As in Ronneberger, Fischer and Brox (2015), on patches of 2 × 2 pixels where the sizes are even: a flow evaluates it
    some dozen times, so it has to be cheap. Without normalisation layers its Jacobian is convolutions and slopes.
    """

    def __init__(self, shape: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.factor = 2 if shape[1] % 2 == 0 and shape[2] % 2 == 0 else 1
        channels = shape[0] * self.factor**2
        scales = 3 if min(shape[1:]) >= 8 * self.factor else 2
        self.clock = Clock(2 * width)
        self.enter = _Conv(channels, width)
        self.scales = _Scale([width, *[2 * width] * (scales - 1)], 2 * width)
        self.leave = _Conv(width, channels)
        start_at_zero(self.leave)

    def forward(self, z: Tensor, t: Tensor) -> Tensor:
        z = self.scales(self.enter(unshuffled(z, self.factor)), self.clock(t))
        return shuffled(self.leave(F.silu(z)), self.factor)

    @torch.no_grad()
    def linearize(self, z: Tensor, t: Tensor) -> tuple[Tensor, LinearOperator]:
        shape = z.shape
        z, inner = self.scales.linearize(self.enter(unshuffled(z, self.factor)), self.clock(t))
        return shuffled(self.leave(F.silu(z)), self.factor), _UNetJacobian(self, inner, _slope(z), shape)

    def tangent(self, z: Tensor, v: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        z, v = (unshuffled(x, self.factor) for x in (z, v))
        z, v = silu_tangent(*self.scales.tangent(self.enter(z), self.enter.mv(v), self.clock(t)))
        return shuffled(self.leave(z), self.factor), shuffled(self.leave.mv(v), self.factor)


class _Conv(Convolution, nn.Conv2d):
    """A convolution with SAME zero padding, which knows the products with its matrix."""

    def __init__(self, c_in: int, c_out: int, kernel: int = 3) -> None:
        super().__init__(c_in, c_out, kernel)

    def forward(self, z: Tensor) -> Tensor:
        return self.product(z, self.weight, self.bias)

    def mv(self, v: Tensor) -> Tensor:
        """The product without the bias (B, …)."""
        return self.product(v, self.weight)

    def rmv(self, u: Tensor) -> Tensor:
        """The product with the transpose (B, …)."""
        return self.product_transposed(u, self.weight)


class _Block(nn.Module):
    """z + B σ(A σ(z)), the inner features scaled and shifted by the time."""

    def __init__(self, width: int, clock: int) -> None:
        super().__init__()
        self.first, self.second = (_Conv(width, width) for _ in range(2))
        self.modulate = nn.Linear(clock, 2 * width)

    def forward(self, z: Tensor, features: Tensor) -> Tensor:
        scale, shift = self._modulation(features)
        return z + self.second(F.silu(self.first(F.silu(z)) * scale + shift))

    def linearize(self, z: Tensor, features: Tensor) -> tuple[Tensor, _BlockJacobian]:
        scale, shift = self._modulation(features)
        inner = self.first(F.silu(z)) * scale + shift
        return z + self.second(F.silu(inner)), _BlockJacobian(self, _slope(z), _slope(inner) * scale)

    def tangent(self, z: Tensor, v: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        scale, shift = self._modulation(features)
        inner, t = silu_tangent(z, v)
        inner, t = silu_tangent(self.first(inner) * scale + shift, self.first.mv(t) * scale)
        return z + self.second(inner), v + self.second.mv(t)

    def _modulation(self, features: Tensor) -> tuple[Tensor, Tensor]:
        scale, shift = self.modulate(features)[:, :, None, None].chunk(2, 1)
        return 1 + scale, shift


class _Scale(nn.Module):
    """One scale of the U and all below it: B(z + up(narrow(inner(down(z))))), z = A(·), with blocks A and B."""

    def __init__(self, widths: list[int], clock: int) -> None:
        super().__init__()
        width, *below = widths
        self.before, self.after = _Block(width, clock), _Block(width, clock)
        if below:
            self.down = nn.Conv2d(width, below[0], 3, padding=1, stride=2)
            self.inner = _Scale(below, clock)
            self.narrow = _Conv(below[0], width, 1)
        self.last = not below

    def forward(self, z: Tensor, features: Tensor) -> Tensor:
        z = self.before(z, features)
        if not self.last:
            z = z + self.up(self.narrow(self.inner(self.down(z), features)), z)
        after: Tensor = self.after(z, features)
        return after

    def linearize(self, z: Tensor, features: Tensor) -> tuple[Tensor, _ScaleJacobian]:
        z, before = self.before.linearize(z, features)
        inner: _ScaleJacobian | None = None
        if not self.last:
            low, inner = self.inner.linearize(self.down(z), features)
            z = z + self.up(self.narrow(low), z)
        z, after = self.after.linearize(z, features)
        return z, _ScaleJacobian(self, before, inner, after)

    def tangent(self, z: Tensor, v: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        z, v = self.before.tangent(z, v, features)
        if not self.last:
            low, t = self.inner.tangent(self.down(z), self.down_product(v), features)
            z, v = z + self.up(self.narrow(low), z), v + self.up(self.narrow.mv(t), v)
        after: tuple[Tensor, Tensor] = self.after.tangent(z, v, features)
        return after

    def down_product(self, v: Tensor) -> Tensor:
        """`down` without its bias."""
        return F.conv2d(v, self.down.weight, stride=2, padding=1)

    def up(self, low: Tensor, like: Tensor) -> Tensor:
        """Features of the scale below, in the size of `like`."""
        return F.interpolate(low, size=like.shape[2:])


class _BlockJacobian:
    """I + B diag A diag, at one point of a block."""

    def __init__(self, block: _Block, outer: Tensor, inner: Tensor) -> None:
        self.block, self.outer, self.inner = block, outer, inner

    def mv(self, v: Tensor) -> Tensor:
        return v + self.block.second.mv(self.inner * self.block.first.mv(self.outer * v))

    def rmv(self, u: Tensor) -> Tensor:
        return u + self.outer * self.block.first.rmv(self.inner * self.block.second.rmv(u))

    def select(self, index: Tensor) -> _BlockJacobian:
        return _BlockJacobian(self.block, self.outer[index], self.inner[index])


class _ScaleJacobian:
    """The Jacobian of a scale at one point: blocks, and the way down and up between them."""

    def __init__(
        self, scale: _Scale, before: _BlockJacobian, inner: _ScaleJacobian | None, after: _BlockJacobian
    ) -> None:
        self.scale, self.before, self.inner, self.after = scale, before, inner, after

    def mv(self, v: Tensor) -> Tensor:
        v = self.before.mv(v)
        if self.inner is not None:
            low = self.inner.mv(self.scale.down_product(v))
            v = v + self.scale.up(self.scale.narrow.mv(low), v)
        return self.after.mv(v)

    def rmv(self, u: Tensor) -> Tensor:
        u = self.after.rmv(u)
        if self.inner is not None:
            low = self.inner.rmv(self.scale.narrow.rmv(_pooled(u)))
            odd = [1 - n % 2 for n in u.shape[2:]]
            u = u + F.conv_transpose2d(low, self.scale.down.weight, stride=2, padding=1, output_padding=odd)
        return self.before.rmv(u)

    def select(self, index: Tensor) -> _ScaleJacobian:
        inner = self.inner.select(index) if self.inner is not None else None
        return _ScaleJacobian(self.scale, self.before.select(index), inner, self.after.select(index))


class _UNetJacobian(LinearOperator):
    """The Jacobian of a `UNetVelocity` at one point."""

    def __init__(self, network: UNetVelocity, inner: _ScaleJacobian, slope: Tensor, shape: torch.Size) -> None:
        self.network, self.inner, self.slope, self.shape = network, inner, slope, shape

    @torch.no_grad()
    def mv(self, v: Tensor) -> Tensor:
        v = self.inner.mv(self.network.enter.mv(unshuffled(v, self.network.factor)))
        return shuffled(self.network.leave.mv(self.slope * v), self.network.factor)

    @torch.no_grad()
    def rmv(self, u: Tensor) -> Tensor:
        u = self.slope * self.network.leave.rmv(unshuffled(u, self.network.factor))
        return shuffled(self.network.enter.rmv(self.inner.rmv(u)), self.network.factor)

    def select(self, index: Tensor) -> _UNetJacobian:
        shape = torch.Size((len(index), *self.shape[1:]))
        return _UNetJacobian(self.network, self.inner.select(index), self.slope[index], shape)


def _slope(z: Tensor) -> Tensor:
    """The derivative of the activation."""
    return torch.ops.aten.silu_backward(torch.ones_like(z), z)


def _pooled(u: Tensor) -> Tensor:
    """The transpose of interpolating to the size of u from half of it, rounded up."""
    size = [(n + 1) // 2 for n in u.shape[2:]]
    return torch.ops.aten.upsample_nearest2d_backward(u, u.shape[2:], [*u.shape[:2], *size])
