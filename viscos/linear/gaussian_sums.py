"""What rows with holes say about a Gaussian: the log-density of their observed entries and its gradient, summed.

With r_i = y_i − μ on O_i and 0 elsewhere, P_i = (S^OO)⁻¹ on O_i × O_i and 0 elsewhere, and a_i = P_i r_i,

    log p(y_i^O) = −½ [ r_iᵀ a_i + log det S^OO + |O_i| log 2π ]
    gradient in μ: a_i          gradient in S: ½ (a_i a_iᵀ − P_i)

Everything that expectation-maximisation needs is in Σ a_i and Σ (a_i a_iᵀ − P_i): no d × d matrix of a row is formed.
Rows that share a mask share P_i. With little missing, Λ = S⁻¹ and Q_i = (Λ^HH)⁻¹ on H_i × H_i take the place of P_i:
P_i = Λ − Λ Q_i Λ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from viscos.linear.principal import PrincipalBlocks, longest

CHUNK_BYTES = 2**26
"""Memory for the blocks, or the rows, of one chunk of masks."""


@dataclass(frozen=True)
class Rows:
    """Rows with holes, sorted by their masks. Rows with nothing observed are left out: they say nothing."""

    values: Tensor
    """**y** (N, d), NaN where hidden."""
    masks: Tensor
    """The different masks (M, d), bool, true where observed; those of the most rows first."""
    counts: Tensor
    """How many rows have each mask (M,)."""
    first: Tensor
    """The number of the first row of each mask (M,); the others follow it."""

    @classmethod
    def of(cls, values: Tensor, known: Tensor) -> Rows:
        """Sorts `values` (N, d) by `known` (N, d), bool; what they hold where it is false does not matter."""
        some = known.any(1)
        values, known = torch.where(known, values, math.nan)[some], known[some]
        masks, mask, counts = known.unique(dim=0, return_inverse=True, return_counts=True)
        # Of as many rows, those of as many entries together: a chunk's blocks are all as large as its largest.
        order = (counts * (known.shape[1] + 1) + masks.sum(1)).argsort(descending=True, stable=True)
        place = order.argsort()  # of each mask among the sorted
        counts = counts[order]
        return cls(values[place[mask].argsort(stable=True)], masks[order], counts, counts.cumsum(0) - counts)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def entries(self) -> int:
        """How many entries are observed, in all."""
        return int((self.masks.sum(1) * self.counts).sum())

    @property
    def cost(self) -> float:
        """About the multiplications of one pass over the rows: a cube for each mask's block, and its handling."""
        d, seen = self.values.shape[1], self.masks.sum(1)
        size = torch.minimum(seen, d - seen).double()
        return float((size**2 * (size + 250)).sum()) + len(self) * d**2

    def chunks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Some masks (b, d) at a time, their counts (b,) and their rows (b, m, d), filled up with rows of NaN."""
        start, d = 0, self.values.shape[1]
        longest_left = self.masks.sum(1).flip(0).cummax(0).values.flip(0).tolist()  # at once: the masks may be many
        while start < len(self.masks):
            most = int(self.counts[start])
            step = max(1, CHUNK_BYTES // (8 * d * max(most, longest_left[start])))
            masks, counts = self.masks[start : start + step], self.counts[start : start + step]
            within = torch.arange(most, device=counts.device)
            row = (self.first[start : start + step, None] + within).clamp(max=len(self) - 1)
            yield masks, counts, torch.where((within < counts[:, None])[..., None], self.values[row], math.nan)
            start += step


@dataclass(frozen=True)
class Sums:
    """Sums over rows, in float64."""

    log_prob: float
    """Σ log p(y_i^O), in nats."""
    slope: Tensor
    """Σ a_i (d,)."""
    curvature: Tensor
    """Σ (a_i a_iᵀ − P_i) (d, d): twice the gradient of `log_prob` in S."""


def sums(rows: Rows, mean: Tensor, covariance: Tensor) -> Sums:
    """The sums under N(`mean` (d,), `covariance` (d, d)), both float64; factors are in the dtype of the rows."""
    log_prob, d = -0.5 * rows.entries * math.log(2 * math.pi), len(mean)
    slope, through = torch.zeros_like(mean), 0
    outer, inverses, hidden = (torch.zeros_like(covariance) for _ in range(3))
    factor = torch.linalg.cholesky(covariance)
    precision, log_det = torch.cholesky_inverse(factor), 2 * factor.diagonal().log().sum()
    dtype = rows.values.dtype
    for masks, counts, values in rows.chunks():
        residual = torch.where(values.isnan(), 0, values - mean.to(dtype))
        if longest(~masks) < longest(masks):
            block = _Inverses.of(precision.to(dtype), ~masks)
            wide = residual @ precision.to(dtype)
            a = torch.where(masks[:, None], wide - block.product(wide) @ precision.to(dtype), 0)
            hidden += block.sum(counts, d)
            through += int(counts.sum())
            log_prob -= 0.5 * float((counts * (log_det + block.log_det)).sum())
        else:
            block = _Inverses.of(covariance.to(dtype), masks)
            a = block.product(residual)
            inverses += block.sum(counts, d)
            log_prob -= 0.5 * float((counts * block.log_det).sum())
        log_prob -= 0.5 * float((residual * a).sum(dtype=torch.float64))
        a = a.flatten(0, 1)
        slope += a.sum(0)
        outer += a.T @ a
    inverses += through * precision - precision @ hidden @ precision
    return Sums(log_prob, slope, outer - inverses)


@dataclass(frozen=True)
class _Inverses:
    """A[mask, mask]⁻¹ of b masks, all different."""

    index: Tensor
    """Numbers of the entries in each mask (b, k), filled up with some that are not."""
    inverse: Tensor
    """(b, k, k), 0 outside of the mask."""
    log_det: Tensor
    """log det A[mask, mask] (b,), float64."""

    @classmethod
    def of(cls, matrix: Tensor, masks: Tensor) -> _Inverses:
        blocks = PrincipalBlocks.of(matrix, masks)
        valid = blocks.valid[:, :, None] & blocks.valid[:, None, :]
        inverse = torch.where(valid, torch.cholesky_inverse(blocks.factor), 0)
        return cls(blocks.index, inverse, blocks.log_det().double())

    def product(self, right: Tensor) -> Tensor:
        """A[mask, mask]⁻¹ right for `right` (b, m, d), of which only masked entries matter; 0 elsewhere (b, m, d)."""
        index = self.index[:, None].expand(-1, right.shape[1], -1)
        return torch.zeros_like(right).scatter_(2, index, right.gather(2, index) @ self.inverse)

    def sum(self, counts: Tensor, size: int) -> Tensor:
        """Σ counts · A[mask, mask]⁻¹, 0 outside of a mask (size, size)."""
        place = self.index[:, :, None] * size + self.index[:, None, :]
        weighted = counts[:, None, None] * self.inverse
        total = weighted.new_zeros(size * size).scatter_add_(0, place.flatten(), weighted.flatten())
        return total.double().view(size, size)
