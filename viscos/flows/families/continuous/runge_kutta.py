"""Explicit Runge–Kutta methods of a fixed step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from viscos.linear import LinearOperator

Field = Callable[[Tensor, float], Tensor]
"""A velocity F(z, θ) of points z (B, …)."""


@dataclass(frozen=True)
class RungeKutta:
    """An explicit method: kᵢ = F(z + s Σⱼ aᵢⱼ kⱼ, θ + s Σⱼ aᵢⱼ) for j < i, and the increment s Σᵢ bᵢ kᵢ of a step s."""

    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]

    def increment(self, F: Field, z: Tensor, start: float, end: float) -> Tensor:
        """∫ F dθ from `start` to `end` (B, …)."""
        size, k = end - start, list[Tensor]()
        for row in self.a:
            k.append(F(combination([1.0, *[size * a for a in row]], [z, *k]), start + size * sum(row)))
        return combination([size * b for b in self.b], k)

    def transposed(self, F: Sequence[LinearOperator], u: Tensor, size: float) -> Tensor:
        """The transpose of `increment` where F is linear, and another operator at each stage (B, …)."""
        w = list[Tensor]()  # of the stages from the last one on
        for i in reversed(range(len(self.b))):
            later = [size * row[i] for row in reversed(self.a[i + 1 :])]
            w.append(F[i].rmv(combination([size * self.b[i], *later], [u, *w])))
        return combination([1.0] * len(w), w)


def combination(coefficients: Sequence[float], terms: Sequence[Tensor]) -> Tensor:
    """The linear combination, in which a coefficient of zero costs nothing."""
    (c, first), *others = [(c, t) for c, t in zip(coefficients, terms, strict=True) if c != 0] or [(0.0, terms[0])]
    total = first if c == 1 else c * first
    for c, term in others:
        total = torch.add(total, term, alpha=c)
    return total


METHODS = {
    "euler": RungeKutta(((),), (1.0,)),
    "midpoint": RungeKutta(((), (1 / 2,)), (0.0, 1.0)),
    "rk4": RungeKutta(((), (1 / 2,), (0.0, 1 / 2), (0.0, 0.0, 1.0)), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),  # Kutta (1901)
}
