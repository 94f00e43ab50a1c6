"""The Gaussian with closed forms for everything: a yardstick, and where a flow may start from.

With S the covariance, μ the mean and O, H the observed and hidden entries of an item,

    E[y^H | y^O] = μ^H + S^HO (S^OO)⁻¹ (y^O − μ^O)
    log p(y^O)   = −½ [ rᵀ (S^OO)⁻¹ r + log det S^OO + |O| log 2π ],   r = y^O − μ^O

Every item of a batch has its own O, see `viscos.linear.principal`. With little missing, H and S⁻¹ take the place of O
and S, see `regression`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from viscos.core.batch import Incomplete, incomplete
from viscos.core.errors import InputError
from viscos.linear.principal import PrincipalBlocks, by_size, longest

ROWS = 4096
"""Training items taken at a time: large enough for fast products, small enough for little memory."""
FACTOR_BYTES = 2**27
"""Memory for the factors of one chunk of items, in bytes."""
CACHE_BYTES = 2**23
"""The same on a CPU, whose caches hold about so much: twice as fast for blocks of 200 to 400 entries."""

_Work = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Gaussian:
    """N(mean, covariance), in float64 inside. Items may have any shape whose size is d; results have it again.

    Raises `InputError` if the sizes do not fit or the covariance is not symmetric positive definite.
    """

    mean: Tensor
    """μ (d,), float64."""
    covariance: Tensor
    """S (d, d), float64."""

    def __post_init__(self) -> None:
        mean, covariance = self.mean.detach().double().clone(), self.covariance.detach().double()
        if mean.dim() != 1 or covariance.shape != (len(mean), len(mean)):
            shapes = f"{tuple(mean.shape)} and {tuple(covariance.shape)}"
            raise InputError(f"mean and covariance have shapes {shapes}; give (d,) and (d, d)")
        if not torch.allclose(covariance, covariance.T, rtol=1e-5, atol=1e-8):  # false for NaN too
            raise InputError("the covariance is not symmetric, or not finite; give (S + S.T) / 2")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "covariance", (covariance + covariance.T) / 2)
        _ = self._factor

    @classmethod
    def from_incomplete(cls, values: Tensor, observed: Tensor, floor: float = 0.01, noise: float = 0.0) -> Gaussian:
        """Fits one to observed entries only: `values` (N, *shape), `observed` bool (N, *shape) or (*shape).

        Each covariance is the sum of the products of two centred entries where both are observed, over their count; 0
        where they never are. Such a matrix need not be positive definite: `noise`² is added to its diagonal, then its
        eigenvalues are raised to `floor` (both in squared units of the values). An entry that is never observed gets
        the average mean and the average variance of the others. Products are taken in the dtype of `values`, sums
        of chunks in float64. Raises `InputError` if nothing is observed, or an observed value is not finite.
        """
        if not (noise >= 0 and floor > 0):
            raise InputError(f"noise is {noise} and floor is {floor}; give noise >= 0 and floor > 0")
        mean = observed_mean(values, observed)
        size, dtype = len(mean), torch.float64 if values.dtype == torch.float64 else torch.float32
        products = torch.zeros((size, size), dtype=torch.float64, device=values.device)
        pairs = torch.zeros_like(products)
        for y, known in _chunks(values, observed):
            centred = torch.where(known, y - mean, 0).to(dtype)
            products += centred.T @ centred
            # Every pair is seen every time when nothing is hidden: no second product.
            pairs += len(y) if known.all() else known.to(dtype).T @ known.to(dtype)
        covariance = products / pairs.clamp(min=1)
        covariance.diagonal().copy_(_averages(products.diagonal(), pairs.diagonal()) + noise**2)
        return cls(mean, raise_eigenvalues(covariance, floor))

    def to(self, device: torch.device | str) -> Gaussian:
        """The same distribution on `device`; itself, with its factors, if it is there already."""
        if self.mean.device == torch.device(device):
            return self
        return Gaussian(self.mean.to(device), self.covariance.to(device))

    def without_noise(self, noise: float, floor: float) -> Gaussian:
        """That of values without their normal noise of the standard deviation `noise`; itself if that is 0.

        Eigenvalues that this leaves below `floor` are raised to it.
        """
        if noise == 0:
            return self
        identity = torch.eye(len(self.mean), dtype=torch.float64, device=self.mean.device)
        return Gaussian(self.mean, raise_eigenvalues(self.covariance - noise**2 * identity, floor))

    def whitening(self) -> Tensor:
        """W = S^(−1/2) (d, d), float64, symmetric positive definite: W (y − μ) is standard normal."""
        eigenvalues, vectors = torch.linalg.eigh(self.covariance)
        return (vectors * eigenvalues.rsqrt()) @ vectors.T

    def conditional(self, values: Tensor, observed: Tensor) -> Tensor:
        """E[y | y^O] (B, *shape) of `values` (B, *shape); observed entries are returned as they are.

        What `values` hold where `observed` (bool, B, *shape, or *shape) is false does not matter. Raises `InputError`
        if shapes or dtypes do not fit, or an observed value is not finite.
        """
        batch, y, known = self._batch(values, observed)
        mean = self.mean.expand_as(y)
        return batch.filled((mean + self._correction(known, y - mean)).view_as(values).to(values.dtype))

    def conditional_sample(self, values: Tensor, observed: Tensor, noise: Tensor) -> Tensor:
        """One draw from p(y | y^O) (B, *shape), of standard normal `noise` (B, d) or (B, *shape).

        By Matheron's rule: z ~ N(μ, S) has the right spread and the wrong y^O; moving it by the conditional mean of the
        difference, z + S^:O (S^OO)⁻¹ (y^O − z^O), sets it right. Raises `InputError` as `conditional` does.
        """
        batch, y, known = self._batch(values, observed)
        if noise.shape not in (y.shape, values.shape):
            raise InputError(f"noise has shape {tuple(noise.shape)}; give one number an entry, {tuple(y.shape)}")
        joint = self.mean + noise.double().reshape(y.shape) @ self._factor.T
        return batch.filled((joint + self._correction(known, y - joint)).view_as(values).to(values.dtype))

    def log_prob_observed(self, values: Tensor, observed: Tensor) -> Tensor:
        """log p(y^O) (B,), float64, in nats; 0 for an item with nothing observed. Raises as `conditional` does."""
        _, y, known = self._batch(values, observed)
        apart = torch.where(known, y - self.mean, 0.0)
        terms = _by_smaller(self._by_covariance, self._by_precision, known, apart)
        return -0.5 * (terms + known.sum(1).double() * math.log(2 * math.pi))

    def _by_covariance(self, known: Tensor, difference: Tensor) -> Tensor:
        """rᵀ (S^OO)⁻¹ r + log det S^OO (B,), for r = `difference` (B, d), zero outside O, which `known` marks."""
        block = PrincipalBlocks.of(self.covariance, known)
        residual = block.gather(difference)
        return (residual * block.solve(residual)).sum(1) + block.log_det()

    def _by_precision(self, known: Tensor, difference: Tensor) -> Tensor:
        """The same by Λ = S⁻¹: rᵀ Λ r − (Λr)^Hᵀ (Λ^HH)⁻¹ (Λr)^H + log det S + log det Λ^HH."""
        block, weighted = PrincipalBlocks.of(self._precision, ~known), difference @ self._precision
        rest = block.gather(weighted)
        distance = (difference * weighted).sum(1) - (rest * block.solve(rest)).sum(1)
        return distance + block.log_det() + 2 * self._factor.diagonal().log().sum()

    @cached_property
    def _factor(self) -> Tensor:
        """L with L Lᵀ = S (d, d)."""
        factor, info = torch.linalg.cholesky_ex(self.covariance)
        if info:
            raise InputError("the covariance is not positive definite; add noise, or raise its eigenvalues to a floor")
        return factor

    def _batch(self, values: Tensor, observed: Tensor) -> tuple[Incomplete, Tensor, Tensor]:
        """The batch, its values (B, d) in float64, and which of them are known (B, d)."""
        batch = incomplete(values, observed)
        if batch.values[0:1].numel() != len(self.mean) * min(1, len(values)):
            raise InputError(
                f"items have shape {tuple(values.shape[1:])}; this Gaussian is over {len(self.mean)} entries"
            )
        return batch, batch.values.double().flatten(1), batch.observed.flatten(1)

    def _correction(self, known: Tensor, difference: Tensor) -> Tensor:
        """`regression` (B, d); `difference` may be anything outside O."""
        return regression(self.covariance, self._precision, known, torch.where(known, difference, 0.0))

    @cached_property
    def _precision(self) -> Tensor:
        """Λ = S⁻¹ (d, d)."""
        return torch.cholesky_inverse(self._factor)


def regression(covariance: Tensor, precision: Tensor, known: Tensor, difference: Tensor) -> Tensor:
    """S^:O (S^OO)⁻¹ difference^O (B, d), right on H at least, for S `covariance` and S⁻¹ `precision` (d, d).

    `known` (B, d) marks O, outside of which `difference` (B, d) must be zero. Where little is missing it is found as
    −(Λ^HH)⁻¹ Λ^HO difference^O with Λ = S⁻¹, by a factor of the size of H.
    """

    def by_covariance(known: Tensor, difference: Tensor) -> Tensor:
        return PrincipalBlocks.of(covariance, known).solve_padded(difference) @ covariance

    def by_precision(known: Tensor, difference: Tensor) -> Tensor:
        return -PrincipalBlocks.of(precision, ~known).solve_padded(difference @ precision)

    return _by_smaller(by_covariance, by_precision, known, difference)


def observed_mean(values: Tensor, observed: Tensor) -> Tensor:
    """Mean of each entry over the items that observe it (d,), float64; one that none observes gets the others' average.

    `values` (N, *shape), `observed` bool (N, *shape) or (*shape). Raises `InputError` if nothing is observed, if shapes
    or dtypes do not fit, or if an observed value is not finite.
    """
    total = torch.zeros(values[:1].numel(), dtype=torch.float64, device=values.device)
    count = torch.zeros_like(total)
    for y, known in _chunks(values, observed):
        total += torch.where(known, y, 0).sum(0)
        count += known.sum(0)
    if not count.any():
        raise InputError(f"none of {len(values)} items has an observed entry; give some data to fit")
    return _averages(total, count)


def _averages(total: Tensor, count: Tensor) -> Tensor:
    """total / count, with the average of the others where the count is 0."""
    average = total / count.clamp(min=1)
    return torch.where(count > 0, average, average[count > 0].mean())


def _chunks(values: Tensor, observed: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """`values` in float64, with NaN where hidden, and `observed`, some items at a time and flat (b, d)."""
    each = observed.shape == values.shape
    one = observed[None] if observed.shape == values.shape[1:] else observed  # which may be as many items, too
    for start in range(0, len(values), ROWS):
        rows = slice(start, start + ROWS)
        batch = incomplete(values[rows], observed[rows] if each else one)
        yield batch.values.double().flatten(1), batch.observed.flatten(1)


def _by_smaller(of_known: _Work, of_hidden: _Work, known: Tensor, difference: Tensor) -> Tensor:
    """What `of_known` makes of items of which at most half is known, and `of_hidden` of the others, some at a time."""

    def chunked(work: _Work, items: Tensor) -> Tensor:
        own, apart = known[items], difference[items]
        size = max(1, min(longest(own), longest(~own)))
        memory = CACHE_BYTES if apart.device.type == "cpu" else FACTOR_BYTES
        pieces = max(1, memory // (apart.element_size() * size**2))
        return torch.cat([work(*chunk) for chunk in zip(own.split(pieces), apart.split(pieces), strict=True)])

    half = known.shape[1] // 2
    return by_size(known, half, lambda items: chunked(of_known, items), lambda items: chunked(of_hidden, items))


def raise_eigenvalues(matrix: Tensor, floor: float) -> Tensor:
    """The symmetric `matrix` (d, d), but for rounding, with eigenvalues of at least `floor`."""
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    if eigenvalues[0] >= floor:
        return (matrix + matrix.T) / 2
    return (vectors * eigenvalues.clamp(min=floor)) @ vectors.T
