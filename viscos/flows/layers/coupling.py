"""Affine coupling layers, and flows made of them: RealNVP (Dinh et al., 2017) and Glow (Kingma and Dhariwal, 2018).

A coupling flow has no structure that ties latent coordinate i to data coordinate i, so it is conditioned with another
partition of its latent: `partition=maxvol` (see `viscos.inference.partition`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from viscos.core.errors import InputError
from viscos.core.rng import Generators
from viscos.core.solution import Solution
from viscos.flows.composed import Composed
from viscos.flows.layer import Affine, Closed, Layer
from viscos.flows.layers.lipschitz import Convolution, Dense
from viscos.flows.layers.residual import Branch, BranchJacobian
from viscos.flows.layers.squeeze import Squeeze
from viscos.flows.layers.start import first_layers
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


class Coupling(Closed):
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

    def ladj(self, y: Tensor, generator: Generators) -> tuple[Tensor, Tensor]:
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


class Mix(Closed):
    """x = W y over the channels of every pixel, or over the entries of a vector: Glow's invertible 1×1 convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.linalg.qr(torch.randn(channels, channels))[0])

    def forward(self, y: Tensor) -> Tensor:
        return _mixed(y, self.W)

    def tangent(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self(y), self(v)

    @torch.no_grad()
    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]:
        return self(y), _Channels(self.W.detach(), y.shape)

    def ladj(self, y: Tensor, generator: Generators) -> tuple[Tensor, Tensor]:
        pixels = y[0].numel() // len(self.W)
        return self(y), (pixels * torch.linalg.slogdet(self.W)[1]).expand(len(y))

    @torch.no_grad()
    def inverse(self, x: Tensor) -> Solution:
        return Solution.exact(_mixed(x, torch.linalg.inv(self.W)))


def _mixed(y: Tensor, W: Tensor) -> Tensor:
    return F.conv2d(y, W[:, :, None, None]) if y.dim() == 4 else y @ W.T


class _Channels(LinearOperator):
    """The same W at every pixel."""

    def __init__(self, W: Tensor, shape: torch.Size) -> None:
        self.W, self.shape = W, shape

    def mv(self, v: Tensor) -> Tensor:
        return _mixed(v, self.W)

    def rmv(self, u: Tensor) -> Tensor:
        return _mixed(u, self.W.T)

    def inverse(self, tolerance: float | None = None) -> LinearOperator:
        return _Channels(torch.linalg.inv(self.W), self.shape)

    def select(self, index: Tensor) -> LinearOperator:
        return _Channels(self.W, torch.Size((len(index), *self.shape[1:])))


def realnvp(
    shape: Sequence[int], *, blocks: Sequence[int] = (6, 6), channels: int = 64, start: str = "standardise"
) -> Composed:
    """Affine couplings in turn on the two halves of an item, each behind ActNorm; the data's shape from end to end.

    For images (C, H, W) `blocks` couplings at each scale: on checkerboards at the first one, on halves of the channels
    after each squeeze. For vectors (d,) the halves are the even and the odd entries. `channels` is the width of the
    conditioners, `start` the first layer (see `viscos.flows.layers.start`).
    """

    def layers(size: tuple[int, ...], scale: int, k: int) -> list[Layer]:
        mask = _halves(size) if scale else _checkerboard(size)
        return [Affine(size, per_channel=len(size) == 3), Coupling(1 - mask if k % 2 else mask, channels)]

    return _scales(shape, blocks, start, layers, squeeze_first=False)


def glow(shape: Sequence[int], *, blocks: Sequence[int] = (8,), channels: int = 64, start: str = "none") -> Composed:
    """Steps of Glow: ActNorm, an invertible 1×1 convolution, a coupling on half of the channels.

    For images a squeeze stands before each scale of `blocks` steps. No part of the latent is split off, and the
    squeezes are undone at the end, so that a latent has the shape of its datum. For vectors the convolution mixes all
    entries.
    """

    def layers(size: tuple[int, ...], scale: int, k: int) -> list[Layer]:
        return [Affine(size, per_channel=len(size) == 3), Mix(size[0]), Coupling(_halves(size), channels)]

    return _scales(shape, blocks, start, layers, squeeze_first=True)


Block = Callable[[tuple[int, ...], int, int], list[Layer]]
"""The layers of a block, from the size of what it acts on, its scale and its number there."""


def _scales(shape: Sequence[int], blocks: Sequence[int], start: str, layers: Block, squeeze_first: bool) -> Composed:
    """Blocks at each scale, with squeezes between them, all undone at the end."""
    size = tuple(shape)
    if len(size) not in (1, 3) or (len(size) == 1 and size[0] < 2):
        raise InputError(f"a coupling flow takes vectors of 2 entries or more, or images (C, H, W), got shape {size}")
    made, squeezes = first_layers(start, size), 0
    for scale, count in enumerate(blocks):
        if len(size) == 3 and (scale or squeeze_first):
            if size[1] % 2 or size[2] % 2:
                raise InputError(
                    f"images of {shape[1]} × {shape[2]} cannot be squeezed {squeezes + 1} times; give flow.blocks "
                    "fewer scales"
                )
            made.append(Squeeze())
            size, squeezes = (4 * size[0], size[1] // 2, size[2] // 2), squeezes + 1
        for k in range(count):
            made += layers(size, scale, k)
    return Composed([*made, *[Squeeze(undo=True) for _ in range(squeezes)]], shape)


def _checkerboard(size: tuple[int, ...]) -> Tensor:
    """One where the coordinates have an even sum (…); of the entries of a vector, the even ones."""
    grid = torch.arange(size[-1])[None] + torch.arange(size[-2] if len(size) == 3 else 1)[:, None]
    board = ((grid + 1) % 2).float()
    return board.expand(size) if len(size) == 3 else board[0]


def _halves(size: tuple[int, ...]) -> Tensor:
    """One on the first half of the channels (…)."""
    first = torch.arange(size[0]) < size[0] // 2
    return first.float().view(-1, *[1] * (len(size) - 1)).expand(size)
