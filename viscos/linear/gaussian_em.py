"""A Gaussian of greatest likelihood from data with holes, by expectation-maximisation.

With the sums over N rows of `viscos.linear.gaussian_sums`, one step is

    μ' = μ + S Σa / N          S' = S + S Σ(a aᵀ − P) S / N − (μ' − μ)(μ' − μ)ᵀ

which is the mean and the covariance of rows whose hidden entries have their conditional mean and covariance given the
observed ones (Dempster, Laird and Rubin 1977; Little and Rubin, Statistical Analysis with Missing Data, chapter 11),
and at the same time a step up the gradient. Two things are added that leave EM its nature of never going down:

- Shrinkage κ, a prior worth κ rows whose covariance is D, diagonal: S' becomes (N S' + κ D) / (N + κ), and what rises
  is log p(y^O) − κ/2 (log det S + tr S⁻¹ D).
- A floor for the eigenvalues of S, to which those of S' below it are raised: the best choice under that restriction.

Steps are made longer as long as that helps (Salakhutdinov and Roweis, Adaptive Overrelaxed Bound Optimization Methods,
2003); one that has gone down is taken back, and the step of EM made in its place. Where a pass over all rows costs too
much, each step sees other rows, and is shorter than the one before (Cappé and Moulines, On-line EM, 2009).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from viscos.core.batch import incomplete
from viscos.core.errors import InputError
from viscos.linear.gaussian import Gaussian, raise_eigenvalues
from viscos.linear.gaussian_sums import Rows, Sums, sums

PASSES = 100
"""Most steps."""
TOLERANCE = 2e-5
"""A step that adds less than this to the log-likelihood of an observed entry, on average and in nats, is the last."""
LONGER = 1.5
"""By how much a step is longer than the last one, if that went up."""
WORK = 1e12
"""Most multiplications, `Rows.cost`: a minute or two on one core."""
FEWEST = 4
"""Steps over all rows that there must be time for; otherwise each step sees other rows."""
BLOCK = 2000
"""Rows that one such step sees, and at least two for each entry."""
SHRINKAGES = (100.0, 30.0, 10.0, 3.0, 1.0, 0.1, 0.0)
"""Candidates for κ, in rows. The best for digits of 8 × 8 was near 10, whether 50 or 90 % of them were missing."""
USUAL = 10.0
"""κ where there is no time, or too little data, to choose one."""
FOLD = 5
"""One row in so many is held out to choose κ."""
TRIES = 8
"""Most steps with each candidate, from where the one before has led."""

Progress = Callable[[int, int, dict[str, float]], None]
"""Called with the number of steps made, the most that there may be, and what was measured."""


def em_gaussian(
    values: Tensor,
    observed: Tensor,
    floor: float = 0.01,
    noise: float = 0.0,
    shrinkage: float | None = None,
    progress: Progress = lambda done, most, scalars: None,
) -> Gaussian:
    """Fits a Gaussian to observed entries: `values` (N, *shape), `observed` bool (N, *shape) or (*shape).

    `noise`, the standard deviation of noise that is added to the values, and `floor`, the least eigenvalue, are as in
    `Gaussian.from_incomplete`, where this starts; that is all of it if nothing is hidden. `shrinkage` is κ >= 0, in
    rows; None takes the one under which rows held out are likeliest. Factors are in float32 if `values` are, the rest
    in float64. Raises `InputError` if nothing is observed, an observed value is not finite, or a number out of range.
    """
    if shrinkage is not None and not 0 <= shrinkage < math.inf:
        raise InputError(f"shrinkage is {shrinkage}; give a number of rows, 0 or more, or None")
    batch = incomplete(values, observed)
    y, known = batch.values.flatten(1), batch.observed.flatten(1)
    pairwise = Gaussian.from_incomplete(y, known, floor, noise)
    if known.all():
        return pairwise
    clean = Gaussian.from_incomplete(y, known, floor)
    start = Point(clean.mean, clean.covariance)
    # Rounding must not make a block indefinite whose least eigenvalue is the floor.
    exact = y.dtype == torch.float64 or floor < 1e-4 * float(start.covariance.diagonal().max())
    y = y.to(torch.float64 if exact else torch.float32)
    chosen = _likeliest(y, known, start, floor) if shrinkage is None else float(shrinkage)
    prior = Prior(start.covariance.diagonal(), chosen, floor)
    rows = Rows.of(y, known)
    if rows.cost * FEWEST <= WORK:
        steps = int(min(PASSES, WORK / rows.cost))
        fitted = climb(rows, start, prior, steps, TOLERANCE, progress)
    else:
        fitted = _online(y, known, start, prior, rows.cost / len(y), progress)
    fitted.covariance.diagonal().add_(noise**2)
    return Gaussian(fitted.mean, raise_eigenvalues(fitted.covariance, floor))


@dataclass(frozen=True)
class Point:
    """The place where an iteration is."""

    mean: Tensor
    """μ (d,), float64."""
    covariance: Tensor
    """S (d, d), float64."""

    def towards(self, other: Point, length: float) -> Point:
        """`length` times the way to `other`."""
        mean = self.mean + length * (other.mean - self.mean)
        return Point(mean, self.covariance + length * (other.covariance - self.covariance))


@dataclass(frozen=True)
class Prior:
    """What holds before any row is seen."""

    variance: Tensor
    """The diagonal of D (d,)."""
    strength: float
    """κ, in rows."""
    floor: float
    """Least eigenvalue of S."""

    def log_density(self, covariance: Tensor) -> float:
        """−κ/2 (log det S + tr S⁻¹ D), for S `covariance` (d, d)."""
        factor = torch.linalg.cholesky(covariance)
        trace = torch.cholesky_inverse(factor).diagonal() @ self.variance
        return -0.5 * self.strength * float(2 * factor.diagonal().log().sum() + trace)

    def maximised(self, point: Point, seen: Sums, count: int) -> Point:
        """The step of EM from `point`, under which `count` rows have the sums `seen`, before eigenvalues are raised."""
        step, S = point.covariance @ seen.slope / count, point.covariance
        covariance = S + S @ seen.curvature @ S / count - torch.outer(step, step)
        share = self.strength / (count + self.strength)
        return Point(point.mean + step, (1 - share) * (covariance + covariance.T) / 2 + share * self.variance.diag())

    def raised(self, point: Point) -> Point:
        """`point` with no eigenvalue below the floor."""
        return Point(point.mean, raise_eigenvalues(point.covariance, self.floor))


def climb(
    rows: Rows,
    start: Point,
    prior: Prior,
    steps: int,
    tolerance: float,
    progress: Progress = lambda done, most, scalars: None,
) -> Point:
    """Makes at most `steps` steps of EM over all `rows` from `start`; the last one's eigenvalues are not raised yet."""
    point, length, highest, best = start, 1.0, -math.inf, start
    for step in range(steps):
        seen = sums(rows, point.mean, point.covariance)
        now = seen.log_prob + prior.log_density(point.covariance)
        if now < highest and length > 1:
            point, length = prior.raised(best), 1.0
            continue
        progress(step + 1, steps, {"log-likelihood": seen.log_prob / len(rows)})
        gain, highest = now - highest, now
        best = prior.maximised(point, seen, len(rows))
        if gain < tolerance * rows.entries:
            break
        length *= LONGER
        point = prior.raised(point.towards(best, length))
    return best


def _online(values: Tensor, known: Tensor, start: Point, prior: Prior, cost: float, progress: Progress) -> Point:
    """Steps that each see other rows, as many as there is time for; a row costs `cost`."""
    block = min(len(values), max(BLOCK, 2 * values.shape[1]))
    steps = int(max(1, min(len(values) // block, WORK / (cost * block))))
    point = start
    for step in range(steps):
        some = slice(step, None, len(values) // block)
        rows = Rows.of(values[some], known[some])
        if not len(rows):
            continue
        # The prior is worth κ rows of all, of which these are a share.
        share = Prior(prior.variance, prior.strength * len(rows) / len(values), prior.floor)
        seen = sums(rows, point.mean, point.covariance)
        point = prior.raised(point.towards(share.maximised(point, seen, len(rows)), 2 / (step + 4)))
        progress(step + 1, steps, {"log-likelihood": seen.log_prob / len(rows)})
    return point


def _likeliest(values: Tensor, known: Tensor, start: Point, floor: float) -> float:
    """The κ under which rows held out are likeliest, by a tenth of `WORK`; the greatest, soonest done, come first."""
    rows = Rows.of(values, known)
    affordable = WORK / 10 / (len(SHRINKAGES) * TRIES) / (rows.cost / len(rows))
    if affordable < min(len(rows), 2 * len(start.mean)):
        return USUAL
    some = slice(None, None, math.ceil(len(values) / affordable))
    values, known = values[some], known[some]
    held = torch.arange(len(values), device=values.device) % FOLD == FOLD - 1
    fit, test = Rows.of(values[~held], known[~held]), Rows.of(values[held], known[held])
    if not (len(fit) and len(test)):
        return USUAL
    highest, best, point = -math.inf, USUAL, start
    for shrinkage in SHRINKAGES:
        prior = Prior(start.covariance.diagonal(), shrinkage, floor)
        point = prior.raised(climb(fit, point, prior, TRIES, TOLERANCE))
        score = sums(test, point.mean, point.covariance).log_prob
        if score < highest:
            break
        highest, best = score, shrinkage
    return best
