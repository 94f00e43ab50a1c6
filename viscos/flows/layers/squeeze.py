"""Layers that only move pixels."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from viscos.core.rng import Generators
from viscos.core.solution import Solution
from viscos.flows.bijection import ClosedForm
from viscos.flows.layers.shuffle import shuffled, unshuffled
from viscos.flows.skeleton import AffineSkeleton
from viscos.linear import LinearOperator


class Squeeze(ClosedForm):
    """(C, H, W) → (4C, H/2, W/2), or back: each 2 × 2 patch becomes channels.

    A composed flow undoes its squeezes at the end, so that a latent has the shape of its datum and latent coordinate i
    belongs to data coordinate i (assumption A0).
    """

    near_affine = True
    permutes = True

    def __init__(self, undo: bool = False) -> None:
        super().__init__()
        self.undo = undo

    def _move(self, y: Tensor, undo: bool) -> Tensor:
        return shuffled(y, 2) if undo else unshuffled(y, 2)

    def forward(self, y: Tensor) -> Tensor:
        return self._move(y, self.undo)

    def tangent(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self(y), self(v)

    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]:
        return self(y), _Moved(self, y.shape)

    def forward_and_ladj(self, y: Tensor, generator: Generators | None = None) -> tuple[Tensor, Tensor]:
        return self(y), y.new_zeros(len(y))

    def inverse(self, x: Tensor) -> Solution:
        return Solution.exact(self._move(x, not self.undo))

    def skeleton_after(self, below: AffineSkeleton) -> AffineSkeleton:
        moved = below.moved + (-1 if self.undo else 1)
        return replace(below, scale=self(below.scale), shift=self(below.shift), moved=moved)


class _Moved(LinearOperator):
    """The Jacobian of a squeeze: a permutation."""

    def __init__(self, layer: Squeeze, shape: torch.Size, back: bool = False) -> None:
        self.layer, self.shape, self.back = layer, shape, back

    def mv(self, v: Tensor) -> Tensor:
        return self.layer._move(v, self.layer.undo != self.back)

    def rmv(self, u: Tensor) -> Tensor:
        return self.layer._move(u, self.layer.undo == self.back)

    def inverse(self, tolerance: float | None = None) -> LinearOperator:
        """The permutation back."""
        return _Moved(self.layer, self.shape, not self.back)

    def select(self, index: Tensor) -> LinearOperator:
        return _Moved(self.layer, torch.Size((len(index), *self.shape[1:])), self.back)
