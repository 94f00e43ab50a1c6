"""Products uᵀ t with what probes a Jacobian: their first derivative is an estimate, and their second one is none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from viscos.core.solution import item_dot, per_item


class _Once(torch.autograd.Function):
    """The gradient by `t`, which is not to be differentiated again."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, t: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:
        raise RuntimeError(
            "log|det G| is an estimate here, with a first derivative alone: its probes are solved for at one point; "
            "for a second one write the Jacobian out, which layers do up to their `exact_below` entries"
        )


class _Pairing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, t: Tensor) -> Tensor:
        ctx.save_for_backward(u, t)
        return item_dot(u, t)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        u, t = ctx.saved_tensors
        gradient = per_item(grads[0], u) * u
        return None, _Once.apply(gradient, t) if torch.is_grad_enabled() else gradient


def pairing(u: Tensor, t: Tensor) -> Tensor:
    """uᵀ t (B,) for a fixed u (B, …) and a differentiable t (B, …); a second derivative raises `RuntimeError`.

    It would silently lack what u owes to the point.
    """
    return _Pairing.apply(u, t)
