"""Activations with a Lipschitz constant of at most one, and their derivatives."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LipSwish(nn.Module):
    """z · sigmoid(β z) / 1.1 with a learned β > 0 (Chen et al., 2019): Lipschitz constant below one."""

    def __init__(self) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.tensor(math.log(math.expm1(1.0))))

    def forward(self, z: Tensor) -> Tensor:
        beta = F.softplus(self.raw)
        return F.silu(z * beta) * (1 / (1.1 * beta))

    @torch.no_grad()
    def value_and_slope(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The value and the derivative (B, …), without a graph."""
        beta = F.softplus(self.raw)
        u = z * beta
        return F.silu(u) * (1 / (1.1 * beta)), torch.ops.aten.silu_backward(torch.full_like(u, 1 / 1.1), u)

    def tangent(self, z: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """The value and the derivative times t (B, …), once differentiable."""
        return _SwishTangent.apply(z, t, F.softplus(self.raw), 1.1)


def silu_tangent(z: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """The value of z sigmoid(z) and the derivative times t (B, …), once differentiable."""
    return _SwishTangent.apply(z, t, z.new_ones(()), 1.0)


class _SwishTangent(torch.autograd.Function):
    """(s(βz)/β, s′(βz) t) with s(u) = u sigmoid(u) / c: a tangent costs twice as much when left to autograd."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, t: Tensor, beta: Tensor, c: float) -> tuple[Tensor, Tensor]:
        u = z * beta
        return F.silu(u).div_(c * beta), torch.ops.aten.silu_backward(t, u).div_(c)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.c = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, gv: Tensor, gm: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        z, t, beta = ctx.saved_tensors
        slope, bend, value_by_beta = _SwishTangent._slopes(z, t, beta, ctx.c)
        bend = bend * gm
        by_beta = (gv * value_by_beta + z * bend).sum() if ctx.needs_input_grad[2] else None
        return gv * slope + beta * bend, gm * slope, by_beta, None

    @staticmethod
    def jvp(ctx: Any, dz: Tensor, dt: Tensor, dbeta: Tensor | None, _: None) -> tuple[Tensor, Tensor]:
        z, t, beta = ctx.saved_tensors
        slope, bend, value_by_beta = _SwishTangent._slopes(z, t, beta, ctx.c)
        dbeta = torch.zeros_like(beta) if dbeta is None else dbeta
        return slope * dz + value_by_beta * dbeta, slope * dt + bend * (beta * dz + z * dbeta)

    @staticmethod
    def _slopes(z: Tensor, t: Tensor, beta: Tensor, c: float) -> tuple[Tensor, Tensor, Tensor]:
        """s′(u), s″(u) t and ∂(s(βz)/β)/∂β at u = βz."""
        u = z * beta
        gate = torch.sigmoid(u)
        slope = (1 + u * (1 - gate)) * gate / c  # s′ = σ (1 + u (1−σ)) / c
        bend = ((1 - 2 * gate) * u + 2) * (gate - gate * gate) * t / c  # s″ = σ(1−σ) (2 + u (1−2σ)) / c
        return slope, bend, z * (slope - gate / c) / beta


class ELU(nn.Module):
    """The exponential linear unit: Lipschitz constant one."""

    def forward(self, z: Tensor) -> Tensor:
        return F.elu(z)

    def value_and_slope(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The value and the derivative (B, …)."""
        return F.elu(z), z.clamp_max(0).exp()

    def tangent(self, z: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """The value and the derivative times t (B, …), differentiable."""
        value, slope = self.value_and_slope(z)
        return value, slope * t


ACTIVATIONS: dict[str, type[LipSwish] | type[ELU]] = {"lipswish": LipSwish, "elu": ELU}
