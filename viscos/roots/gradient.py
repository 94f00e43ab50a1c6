"""The gradient through a solved equation: an ordinary implicit layer.

With r(z, θ) = 0 solved for z and A = ∂r/∂z, a loss with gradient a = ∂ℓ/∂z has dℓ/dθ = −λᵀ ∂r/∂θ, where Aᵀλ = a.
For form (G), r = g^H(y; φ) − x^H: the gradient of x^H gains λ, that of the flow's parameters −λᵀ ∂g^H/∂φ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _Implicit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, r: Tensor, solve_transposed: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.solve_transposed = solve_transposed
        return z.clone()

    @staticmethod
    @once_differentiable  # a second derivative would silently lack the solve's own
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None]:
        return None, -ctx.solve_transposed(grads[0]), None


def implicit(z: Tensor, r: Tensor, solve_transposed: Callable[[Tensor], Tensor]) -> Tensor:
    """The solution `z` (B, …) with the gradient of an implicit function.

    `r` (B, …) is the residual at the (detached) solution, differentiable in whatever z depends on; `solve_transposed`
    maps a gradient a (B, …) to λ with Aᵀλ = a.
    """
    return _Implicit.apply(z.detach(), r, solve_transposed)
