"""Sylvester flows (van den Berg et al., 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal

from viscos.core.errors import InputError
from viscos.core.solution import Solution
from viscos.flows.families.stack import stack, whole
from viscos.flows.flow import Flow
from viscos.flows.layers.lowrank import LowRankLayer, monotone_root


class Sylvester(LowRankLayer):
    """x = y + Q R tanh(R̃ Qᵀy + b): Q (d, m) with orthonormal columns, R and R̃ (m, m) upper triangular.

    Invertible where every product of their diagonals is above −1 (theorem 2 there): here r̃ᵢᵢ = exp(·) and
    rᵢᵢ r̃ᵢᵢ = softplus(·) − 1. Q is the first columns of an orthogonal matrix: of the exponential of a skew matrix
    (d, d), for vectors; or of a product of Householder `reflections` (section 3.2 there), for larger items. The
    inverse solves for Qᵀy from its last entry up, one monotone function each.
    """

    def __init__(self, d: int, columns: int, reflections: int = 0) -> None:
        super().__init__()
        self.sizes = d, columns, reflections
        if not 1 <= columns <= d:
            raise InputError(f"flow.columns is {columns}; it must lie between 1 and the {d} entries of an item")
        self.reflections = nn.Parameter(torch.randn(reflections, d)) if reflections else None
        if not reflections:
            self.basis = nn.Linear(columns, d, bias=False)
            # Without torch's trivialisation, whose base keeps the precision that it was made in.
            orthogonal(self.basis, "weight", orthogonal_map="matrix_exp", use_trivialization=False)
        self.upper = nn.Parameter(0.1 * torch.randn(columns, columns) / columns**0.5)
        self.upper_inner = nn.Parameter(0.1 * torch.randn(columns, columns) / columns**0.5)
        self.raw_inner = nn.Parameter(torch.zeros(columns))
        self.raw_product = nn.Parameter(0.5 + 0.1 * torch.randn(columns))
        self.b = nn.Parameter(torch.randn(columns))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles it by its weights: what torch makes orthogonal has a class of its own, which no pickle holds."""
        return _read_back, (
            type(self),
            self.sizes,
            self.state_dict(),
            self.training,
            [p.requires_grad for p in self.parameters()],
        )

    def constrained(self) -> tuple[Tensor, Tensor, Tensor]:
        """Q (d, m), R and R̃ (m, m)."""
        inner = self.raw_inner.exp()
        outer = (F.softplus(self.raw_product) - 1) / inner
        return self._q(), self.upper.triu(1) + outer.diag(), self.upper_inner.triu(1) + inner.diag()

    def _q(self) -> Tensor:
        if self.reflections is None:
            return self.basis.weight
        d, m = self.reflections.shape[1], len(self.b)
        Q = torch.eye(d, m, dtype=self.b.dtype, device=self.b.device)
        for v in F.normalize(self.reflections, dim=1):
            Q = Q - 2 * v[:, None] * (v @ Q)
        return Q

    def parts(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        Q, R, inner = self.constrained()
        value = torch.tanh(y @ Q @ inner.T + self.b)
        U = (Q @ R) * (1 - value.square())[:, None, :]
        return y + value @ (Q @ R).T, y.new_ones(len(y)), U, (Q @ inner.T).expand_as(U)

    @torch.no_grad()
    def inverse(self, x: Tensor) -> Solution:
        Q, R, inner = self.constrained()
        flat = x.flatten(1)
        z = flat @ Q
        v, value = torch.zeros_like(z), torch.zeros_like(z)
        for i in reversed(range(z.shape[1])):
            s, b = z[:, i] - value @ R[i], v @ inner[i] + self.b[i]  # entries of v and value up to i are still zero
            one = torch.ones_like(s)
            v[:, i] = monotone_root(s, inner[i, i] * one, b, R[i, i] * one)
            value[:, i] = torch.tanh(inner[i, i] * v[:, i] + b)
        return Solution.exact((flat - value @ (Q @ R).T).view_as(x))


def _read_back(
    kind: type[Sylvester], sizes: tuple[int, int, int], state: dict[str, Tensor], training: bool, learns: list[bool]
) -> Sylvester:
    with torch.random.fork_rng(devices=[]):
        layer = kind(*sizes)
    some = next(iter(state.values()))
    layer.to(some.device, some.dtype).load_state_dict(state)
    for p, wanted in zip(layer.parameters(), learns, strict=True):
        p.requires_grad_(wanted)
    return layer.train(training)


def sylvester(
    shape: int | Sequence[int], *, layers: int = 8, columns: int = 2, reflections: int = 0, start: str = "standardise"
) -> Flow:
    """A stack of Sylvester layers for items of any `shape`, behind a first layer (see `viscos.flows.layers.start`).

    `reflections` above zero makes Q a product of so many Householder reflections.
    """
    shape = whole(shape, "shape")
    d = math.prod(shape)
    return stack([Sylvester(d, columns, reflections) for _ in range(layers)], shape, start)
