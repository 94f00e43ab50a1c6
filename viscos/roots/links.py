"""A flow as a chain of links, for solvers that know the states between its layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from viscos.linear import LinearOperator


class Skeleton(Protocol):
    """An affine map close to g, cheap to apply and to invert on a block."""

    def apply(self, y: Tensor) -> Tensor:
        """The affine map (B, …)."""
        ...

    def inverse_block(self, hidden: Tensor) -> LinearOperator:
        """The inverse of its block on H, as an operator."""
        ...


@dataclass(frozen=True)
class Link:
    """One map between two states of the data's shape."""

    value: Callable[[Tensor], Tensor]
    """F (B, …) -> (B, …)."""
    skeleton: Skeleton | None = None
    """An affine map close to it; None for the identity."""


@dataclass(frozen=True)
class Links:
    """zₖ₊₁ = Fₖ(zₖ), from data z₀ to latent z_K."""

    each: Sequence[Link]
    center: Tensor | None = None
    """Where y^H begins for want of a guess (1, …); None: where the skeleton of the flow has its solution."""

    def values(self, states: Tensor) -> Tensor:
        """Fₖ(zₖ) of all links (B, K, …), for `states` (B, K, …)."""
        return torch.stack([link.value(z) for link, z in zip(self.each, states.unbind(1), strict=True)], 1)

    def start(self, y: Tensor, x: Tensor, hidden: Tensor) -> Tensor:
        """A path (B, K + 1, …) through the skeletons of the links from y (B, …), bent on H towards x (B, …)."""
        path = [y]
        for link in self.each:
            path.append(path[-1] if link.skeleton is None else link.skeleton.apply(path[-1]))
        gap = torch.where(hidden, x - path[-1], 0)
        return torch.stack([z + k / len(self.each) * gap for k, z in enumerate(path)], 1)
