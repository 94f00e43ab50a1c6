"""Velocity networks of continuous flows: from a point and a time to a velocity."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_FREQUENCIES = 8


class Clock(nn.Module):
    """Features of a time in [0, 1] (B,) -> (B, width): cosines and sines, and one layer on top."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * _FREQUENCIES, width)

    def forward(self, t: Tensor) -> Tensor:
        """(B,) -> (B, width)."""
        angles = 0.5 * math.pi * t[:, None] * torch.arange(1, _FREQUENCIES + 1, dtype=t.dtype, device=t.device)
        return F.silu(self.linear(torch.cat([angles.cos(), angles.sin()], 1)))


class DenseVelocity(nn.Module):
    """For vectors (B, d): two hidden layers, whose units the time scales and shifts."""

    def __init__(self, d: int, width: int) -> None:
        super().__init__()
        self.clock = Clock(width)
        self.enter, self.refine, self.leave = nn.Linear(d, width), nn.Linear(width, width), nn.Linear(width, d)
        self.modulate = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(2))
        _rest(self.leave)

    def forward(self, z: Tensor, t: Tensor) -> Tensor:
        """(B, d), and times (B,) or one for all (1,) -> (B, d)."""
        features = self.clock(t)
        for linear, modulate in zip((self.enter, self.refine), self.modulate, strict=True):
            scale, shift = modulate(features).chunk(2, 1)
            z = F.silu(linear(z) * (1 + scale) + shift)
        velocity: Tensor = self.leave(z)
        return velocity


class _Block(nn.Module):
    """z + B σ(A σ(z)), the inner features scaled and shifted by the time."""

    def __init__(self, width: int, clock: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.modulate = nn.Linear(clock, 2 * width)

    def forward(self, z: Tensor, features: Tensor) -> Tensor:
        scale, shift = self.modulate(features)[:, :, None, None].chunk(2, 1)
        inner = self.first(F.silu(z)) * (1 + scale) + shift
        return z + self.second(F.silu(inner))


class UNetVelocity(nn.Module):
    """For images (B, C, H, W): residual blocks at up to three scales, and back up with skip sums.

    As in Ronneberger, Fischer and Brox (2015), on patches of 2 × 2 pixels where the sizes are even: a flow evaluates it
    some dozen times, so it has to be cheap. Without normalisation layers its Jacobian is convolutions and slopes.
    """

    def __init__(self, shape: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.factor = 2 if shape[1] % 2 == 0 and shape[2] % 2 == 0 else 1
        channels = shape[0] * self.factor**2
        scales = 3 if min(shape[1:]) >= 8 * self.factor else 2
        widths = [width, *[2 * width] * (scales - 1)]
        self.clock = Clock(2 * width)
        self.enter = nn.Conv2d(channels, width, 3, padding=1)
        self.leave = nn.Conv2d(width, channels, 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, stride=2) for a, b in itertools.pairwise(widths))
        self.narrow = nn.ModuleList(nn.Conv2d(b, a, 1) for a, b in itertools.pairwise(widths))
        self.before = nn.ModuleList(_Block(w, 2 * width) for w in widths)
        self.after = nn.ModuleList(_Block(w, 2 * width) for w in widths)
        _rest(self.leave)

    def forward(self, z: Tensor, t: Tensor) -> Tensor:
        """(B, C, H, W), and times (B,) or one for all (1,) -> (B, C, H, W)."""
        features, skips = self.clock(t), []
        z = self.enter(F.pixel_unshuffle(z, self.factor))
        for k, block in enumerate(self.before):
            z = block(self.down[k - 1](z) if k else z, features)
            skips.append(z)
        for k, block in reversed(list(enumerate(self.after))):
            if k + 1 < len(skips):
                z = skips[k] + F.interpolate(self.narrow[k](z), size=skips[k].shape[2:])
            z = block(z, features)
        return F.pixel_shuffle(self.leave(F.silu(z)), self.factor)


def _rest(last: nn.Linear | nn.Conv2d) -> None:
    """Zero weights: the velocity is zero at first, and the flow its first layer."""
    nn.init.zeros_(last.weight)
    assert last.bias is not None
    nn.init.zeros_(last.bias)


def velocity(shape: tuple[int, ...], width: int) -> nn.Module:
    """The network for items of `shape`, (d,) or (C, H, W)."""
    return UNetVelocity(shape, width) if len(shape) == 3 else DenseVelocity(shape[0], width)
