"""log|det(I + A)| of a contraction A, by its power series and Hutchinson probes.

    value      log det(I + A) = Σ_{k≥1} (−1)^{k+1}/k  tr A^k
    gradient   ∇ log det(I + A) = tr((I + A)⁻¹ ∇A) = E[uᵀ (∇A) v],   u = Σ_{k≥0} (−Aᵀ)^k v

The series is cut after a fixed number of terms, or at a random one with each term weighted by one over the
probability of reaching it (Russian roulette: Chen et al., 2019), which makes it unbiased. The terms need no graph:
only the last product does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from viscos.core.counts import count
from viscos.core.rng import Generators, rademacher
from viscos.core.solution import item_dot
from viscos.linear import LinearOperator


@dataclass(frozen=True)
class Series:
    """How the series is estimated."""

    terms: int = 8
    """Terms that are always taken."""
    roulette: float = 0.0
    """Mean number of further, randomly many terms (geometric); 0 cuts the series at `terms`, with a bias."""
    count: int = 1
    """Hutchinson probes."""

    def __post_init__(self) -> None:
        count(self.terms, "terms", 1)
        count(self.count, "count", 1)

    def coefficients(self, generator: Generators) -> list[float]:
        """The weight of each term k = 0, 1, …: one, then one over the probability of reaching the term."""
        weights = [1.0] * self.terms
        if self.roulette <= 0:
            return weights
        shared = generator if isinstance(generator, torch.Generator) else generator.shared
        stay, reach = self.roulette / (1 + self.roulette), 1.0
        while float(torch.rand((), generator=shared)) < stay:
            reach *= stay
            weights.append(1 / reach)
        return weights

    def value(self, A: LinearOperator, like: Tensor, generator: Generators) -> Tensor:
        """An estimate of log det(I + A) (B,), without a gradient."""
        return self.value_and_rest(A, like, generator)[0]

    def value_and_rest(self, A: LinearOperator, like: Tensor, generator: Generators) -> tuple[Tensor, Tensor]:
        """The estimate, and |(Aᵀ)^k v| / |v| after the last term, the largest of all probes (B,): what is cut off."""
        total, rest = like.new_zeros(len(like)), like.new_zeros(len(like))
        for _ in range(self.count):
            v = rademacher(like, generator)
            w, sign = v, 1.0
            for k, weight in enumerate(self.coefficients(generator), start=1):
                w = A.rmv(w)
                total += sign * weight / k * item_dot(w, v) / self.count
                sign = -sign
            rest = torch.maximum(rest, (item_dot(w, w) / item_dot(v, v)).sqrt())
        return total, rest

    def probes(self, A: LinearOperator, like: Tensor, generator: Generators) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs (v, u) such that E[uᵀ (∇A) v] = ∇ log det(I + A)."""
        for _ in range(self.count):
            v = rademacher(like, generator)
            u, w = v, v
            for weight in self.coefficients(generator)[1:]:
                w = -A.rmv(w)
                u = u + weight * w
            yield v, u
