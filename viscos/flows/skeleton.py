"""The affine skeleton of a flow: what remains when every residual branch is dropped.

It is what makes Anderson acceleration converge on a trained flow, and where a restricted solve starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from viscos.linear import CG, Block, Chain, Diagonal, Inverse, LinearOperator, PrincipalInverse, SharedSymmetric
from viscos.linear.principal import longest
from viscos.rng import rademacher

if TYPE_CHECKING:
    from viscos.flows.bijection import Flow

_FACTORS = 2**26  # numbers in the factors of a batch above which (W^HH)⁻¹ is iterative
_INNER = 3e-2  # relative residual of those iterative solves; a preconditioner need not be exact


@dataclass(frozen=True)
class AffineSkeleton:
    """y ↦ scale · (W y) + shift, entrywise, with an optional dense symmetric W in front."""

    scale: Tensor
    """(1, …) or (B, …)."""
    shift: Tensor
    """(1, …) or (B, …)."""
    W: Tensor | None = None
    """(d, d), positive definite, or absent."""
    W_inverse: Tensor | None = None
    """(d, d), present where W is."""

    def apply(self, y: Tensor) -> Tensor:
        """The map (B, …)."""
        product = y if self.W is None else (y.flatten(1) @ self.W).view_as(y)
        return self.scale * product + self.shift

    def inverse_block(self, hidden: Tensor) -> LinearOperator:
        """The inverse of the block on H, as an operator."""
        back = Diagonal(1 / self.scale, len(hidden))
        if self.W is None or self.W_inverse is None:
            return back
        flat = hidden.flatten(1)
        fits = len(flat) * min(longest(flat), longest(~flat)) ** 2 <= _FACTORS
        first = PrincipalInverse(self.W, self.W_inverse, hidden) if fits else self._iterative_inverse(hidden)
        return Chain([back, first], hidden.shape)

    def _iterative_inverse(self, hidden: Tensor) -> LinearOperator:
        """(W^HH)⁻¹ by conjugate gradients, where factors do not fit."""
        assert self.W is not None
        jacobi = Diagonal((1 / self.W.diagonal()).view(1, *hidden.shape[1:]), len(hidden))
        block = Block(SharedSymmetric(self.W, hidden.shape), hidden)
        return Inverse(block, lambda A, b: CG(tolerance=_INNER)(A, b, jacobi))


def estimated_skeleton(flow: Flow, y: Tensor, probes: int = 8, exact_below: int = 16) -> AffineSkeleton:
    """The diagonal of G at `y` (B, …): exactly in a few dimensions, else by Hutchinson probes E[v ⊙ G v].

    Entries that come out small or of an unlikely sign are raised to a tenth of the median: a preconditioner must not
    be singular.
    """
    x, G = flow.linearize(y)
    d = y[0].numel()
    if d <= exact_below:
        basis = torch.eye(d, dtype=y.dtype, device=y.device).view(d, 1, *y.shape[1:]).expand(d, *y.shape)
        diagonal = sum((e * G.mv(e) for e in basis), torch.zeros_like(y))
    else:
        generator = torch.Generator().manual_seed(0)
        diagonal = torch.zeros_like(y)
        for _ in range(probes):
            v = rademacher(y[:1], generator).expand_as(y).contiguous()
            diagonal += v * G.mv(v) / probes
    size = diagonal.abs().flatten(1).median(1).values.clamp_min(1e-6).view(-1, *[1] * (y.dim() - 1))
    sign = torch.where(diagonal < 0, -1.0, 1.0).to(y.dtype)
    scale = sign * torch.maximum(diagonal.abs(), 0.1 * size)
    return AffineSkeleton(scale, x - scale * y)
