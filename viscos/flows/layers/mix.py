"""Invertible 1×1 convolutions (Kingma and Dhariwal, 2018)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from viscos.core.rng import Generators
from viscos.core.solution import Solution
from viscos.flows.bijection import ClosedForm
from viscos.linear import LinearOperator


class Mix(ClosedForm):
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

    def forward_and_ladj(self, y: Tensor, generator: Generators | None = None) -> tuple[Tensor, Tensor]:
        pixels = y.shape[1:].numel() // len(self.W)
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
