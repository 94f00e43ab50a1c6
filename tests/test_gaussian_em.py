"""Expectation-maximisation against a loop over rows, closed forms of monotone patterns, and data where pairs fail."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from viscos.core.errors import InputError
from viscos.linear import gaussian_em, gaussian_sums
from viscos.linear.gaussian import Gaussian, raise_eigenvalues
from viscos.linear.gaussian_em import Point, Prior, climb, em_gaussian
from viscos.linear.gaussian_sums import Rows, sums

NAN = float("nan")
D = 5


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def table(n, d, missing, seed=0, patterns=None):
    """Correlated rows, NaN where hidden, and their masks; only so many different ones if `patterns` says so."""
    g = torch.Generator().manual_seed(seed)
    observed = torch.rand((patterns or n, d), generator=g) >= missing
    observed = observed[torch.randint(len(observed), (n,), generator=g)] if patterns else observed
    values = random(n, d, seed=seed + 1) @ random(d, d, seed=seed + 2) + random(d, seed=seed + 3)
    return torch.where(observed, values, NAN), observed


def a_point(d, seed=9):
    root = random(d, d, seed=seed)
    return Point(random(d, seed=seed + 1), root @ root.T + 0.1 * torch.eye(d, dtype=torch.float64))


def step_by_rows(y, o, mean, S):
    """Log-likelihood under N(mean, S) and one step of EM, row by row, as Little and Rubin write it."""
    filled, spread, log_prob = [], torch.zeros_like(S), 0.0
    for row, known in zip(y[o.any(1)], o[o.any(1)], strict=True):
        gain = S[:, known] @ torch.linalg.inv(S[known][:, known])
        filled.append(torch.where(known, row, mean + gain @ (row[known] - mean[known])))
        rest = S - gain @ S[known]
        rest[known], rest[:, known] = 0, 0
        spread += rest
        log_prob += torch.distributions.MultivariateNormal(mean[known], S[known][:, known]).log_prob(row[known])
    filled = torch.stack(filled)
    centred = filled - filled.mean(0)
    return float(log_prob), filled.mean(0), (centred.T @ centred + spread) / len(filled)


def close(a, b, atol=1e-9):
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


@pytest.mark.parametrize("missing", [0.15, 0.5, 0.85])
@pytest.mark.parametrize("patterns", [None, 4])
@pytest.mark.parametrize("size", [2**26, 3 * 8 * D**2])
def test_one_step_is_that_of_a_loop_over_rows(missing, patterns, size, monkeypatch):
    monkeypatch.setattr(gaussian_sums, "CHUNK_BYTES", size)
    (y, o), point = table(30, D, missing, patterns=patterns), a_point(D)
    rows = Rows.of(y, o)
    assert len(rows) == o.any(1).sum() and rows.entries == o.sum()
    seen = sums(rows, point.mean, point.covariance)
    log_prob, mean, covariance = step_by_rows(y, o, point.mean, point.covariance)
    step = Prior(torch.ones(D).double(), 0.0, 1e-9).maximised(point, seen, len(rows))
    assert seen.log_prob == pytest.approx(log_prob)
    close(step.mean, mean)
    close(step.covariance, covariance)


def test_the_sums_are_the_gradient():
    (y, o), point = table(20, D, 0.4), a_point(D)
    mean, S = point.mean.clone().requires_grad_(), point.covariance.clone().requires_grad_()
    total = sum(
        torch.distributions.MultivariateNormal(mean[k], S[k][:, k]).log_prob(r[k])
        for r, k in zip(y, o, strict=True)
        if k.any()
    )
    slope, curvature = torch.autograd.grad(total, (mean, S))
    seen = sums(Rows.of(y, o), point.mean, point.covariance)
    close(seen.slope, slope)
    close(seen.curvature, curvature + curvature.T)


def test_a_monotone_pattern_has_a_closed_form():
    # The second block is seen only in the first 40 rows. Anderson (1957): moments of the first block from all rows,
    # and the regression of the second on it from those rows that have both.
    y = random(90, 4) @ random(4, 4, seed=1) + 1.0
    o = torch.ones(90, 4, dtype=torch.bool)
    o[40:, 2:] = False
    both, first = y[:40], y[:, :2]
    mean1, S11 = first.mean(0), torch.cov(first.T, correction=0)
    moments = torch.cov(both.T, correction=0)
    B = moments[2:, :2] @ torch.linalg.inv(moments[:2, :2])
    mean2 = both[:, 2:].mean(0) + B @ (mean1 - both[:, :2].mean(0))
    S22 = moments[2:, 2:] - B @ moments[:2, 2:] + B @ S11 @ B.T
    expected = torch.cat([torch.cat([S11, S11 @ B.T], 1), torch.cat([B @ S11, S22], 1)])
    climbed = climb(Rows.of(y, o), Point(y[:40].mean(0), moments), Prior(S11.new_ones(4), 0.0, 1e-9), 500, 1e-13)
    close(climbed.mean, torch.cat([mean1, mean2]), 1e-5)
    close(climbed.covariance, expected, 1e-5)
    fitted = em_gaussian(y, o, floor=1e-9, noise=0.5, shrinkage=0.0)  # stops sooner
    close(fitted.mean, climbed.mean, 0.02)
    close(fitted.covariance - 0.25 * torch.eye(4), expected, 0.05)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 25),
    st.integers(1, 6),
    st.floats(0.05, 0.95),
    st.integers(0, 1000),
    st.sampled_from([0.0, 0.5, 20.0]),
    st.sampled_from([1e-3, 0.5]),
)
def test_what_is_climbed_never_falls(n, d, missing, seed, strength, floor):
    y, o = table(n, d, missing, seed)
    o[0, 0], y[0, 0] = True, 1.0
    rows, start = Rows.of(y, o), Gaussian.from_incomplete(y, o, floor)
    prior = Prior(start.covariance.diagonal(), strength, floor)

    def value(point):
        penalty = torch.logdet(point.covariance) + (torch.linalg.inv(point.covariance) @ prior.variance.diag()).trace()
        return step_by_rows(y, o, point.mean, point.covariance)[0] - strength / 2 * float(penalty)

    point, before = Point(start.mean, start.covariance), -math.inf
    for _ in range(4):  # EM itself
        now = value(point)
        assert now >= before - 1e-8 * abs(before) - 1e-8
        before = now
        point = prior.raised(prior.maximised(point, sums(rows, point.mean, point.covariance), len(rows)))
    # And with longer steps, of which some are taken back: what is kept rises, and the last step of EM with it.
    kept, first = [], Point(start.mean, start.covariance)
    far = climb(
        rows, first, prior, 12, 0.0, lambda done, most, figures: kept.append(figures["log-likelihood"] * len(rows))
    )
    end, before = value(prior.raised(far)), value(first)
    assert end >= before - 1e-8 * abs(before) - 1e-8
    if not strength:  # what is told is without the prior
        for now, before in zip([*kept[1:], end], kept, strict=True):
            assert now >= before - 1e-8 * abs(before) - 1e-8


def test_longer_steps_save_most_of_them():
    y, o = table(200, 6, 0.6)
    rows, start = Rows.of(y, o), Gaussian.from_incomplete(y, o, 1e-3)
    prior, first, values = Prior(start.covariance.diagonal(), 1.0, 1e-3), Point(start.mean, start.covariance), []
    climb(rows, first, prior, 25, 0.0, lambda done, most, figures: values.append(figures["log-likelihood"]))
    plain = first
    for _ in range(25):
        plain = prior.raised(prior.maximised(plain, sums(rows, plain.mean, plain.covariance), len(rows)))
    far = prior.raised(climb(rows, first, prior, 400, 0.0))
    top = sums(rows, far.mean, far.covariance).log_prob / len(rows)
    short = top - sums(rows, plain.mean, plain.covariance).log_prob / len(rows)
    assert abs(top - values[-1]) < 0.2 * abs(short)


def collinear(n=200):
    x = random(n, 1)
    y = torch.cat([x, 2 * x + 0.04 * random(n, 1, seed=1)], 1)
    y = (y - y.mean(0)) / y.std(0)
    return y, torch.rand(y.shape, generator=torch.Generator().manual_seed(2)) > 0.3


def test_collinear_columns():
    y, o = collinear()
    hidden = ~o[100:]
    errors = []
    for fit in (em_gaussian, Gaussian.from_incomplete):
        fitted = fit(y[:100], o[:100], floor=0.0025, noise=0.05)
        found, one = fitted.conditional(y[100:], o[100:]), hidden & (hidden.sum(1) == 1)[:, None]
        errors.append((found - y[100:])[one].square().mean().sqrt().item())
    assert errors[0] < 0.03 < 0.06 < errors[1]


def test_shrinkage_is_that_of_the_likeliest_rows():
    # Few rows, independent columns: much shrinkage. Many, nearly collinear: none.
    y, o = random(24, 12), random(24, 12, seed=1) > 0
    strong = em_gaussian(torch.where(o, y, NAN), o, floor=1e-4)
    weak = em_gaussian(torch.where(o, y, NAN), o, floor=1e-4, shrinkage=0.0)
    fresh, everything = random(500, 12, seed=2), torch.ones(500, 12, dtype=torch.bool)
    gain = (strong.log_prob_observed(fresh, everything) - weak.log_prob_observed(fresh, everything)).mean()
    assert gain > 10
    y, o = collinear()
    assert torch.equal(em_gaussian(y, o, 0.0025).covariance, em_gaussian(y, o, 0.0025, shrinkage=0.0).covariance)
    assert not torch.equal(em_gaussian(y, o, 0.0025).covariance, em_gaussian(y, o, 0.0025, shrinkage=1.0).covariance)
    for far in (1e9, 1e12):
        S = em_gaussian(y, o, 0.0025, shrinkage=far).covariance
        close(S, Gaussian.from_incomplete(y, o, 0.0025).covariance.diagonal().diag(), 1e-3)


def test_entries_never_observed_and_rows_with_nothing():
    y, o = table(60, D, 0.4)
    o[:, 1] = False
    whole = em_gaussian(y, o, floor=1e-3, shrinkage=0.0)
    start = Gaussian.from_incomplete(y, o, floor=1e-3)
    others = [0, 2, 3, 4]
    assert whole.mean[1] == pytest.approx(start.mean[1].item())
    close(whole.covariance[1, others], torch.zeros(4).double())
    assert whole.covariance[1, 1] == pytest.approx(start.covariance[1, 1].item())
    close(whole.covariance[others][:, others], em_gaussian(y[:, others], o[:, others], 1e-3, shrinkage=0.0).covariance)
    nothing = torch.zeros(40, D, dtype=torch.bool)
    more = em_gaussian(torch.cat([y, y[:40]]), torch.cat([o, nothing]), floor=1e-3, shrinkage=0.0)
    close(more.mean, whole.mean)
    close(more.covariance, whole.covariance)
    one = em_gaussian(y[:1], torch.tensor([[True, False, False, False, False]]))
    assert one.covariance.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("work", [gaussian_em.WORK, 1e4])
def test_hidden_values_never_matter_and_the_same_data_give_the_same(dtype, work, monkeypatch):
    monkeypatch.setattr(gaussian_em, "WORK", work)
    monkeypatch.setattr(gaussian_em, "BLOCK", 8)
    y, o = table(60, D, 0.4)
    y = y.to(dtype).view(60, 1, D)
    first = em_gaussian(y, o.view_as(y))
    for fill in (NAN, 0.0, 1e30, float("-inf")):
        again = em_gaussian(torch.where(o.view_as(y), y, fill), o.view_as(y))
        assert torch.equal(again.mean, first.mean) and torch.equal(again.covariance, first.covariance)


def test_single_precision_is_near_double():
    y, o = table(200, 12, 0.5)
    single, double = em_gaussian(y.float(), o, 0.01, shrinkage=3.0), em_gaussian(y, o, 0.01, shrinkage=3.0)
    close(single.covariance, double.covariance, 2e-2 * double.covariance.diagonal().max().item())


def test_complete_data_keep_the_closed_form():
    y = random(30, 2, 3)
    for observed in (torch.ones(30, 2, 3, dtype=torch.bool), torch.ones(2, 3, dtype=torch.bool)):
        fitted, exact = em_gaussian(y, observed, 1e-6, 0.1), Gaussian.from_incomplete(y, y == y, 1e-6, 0.1)
        assert torch.equal(fitted.mean, exact.mean) and torch.equal(fitted.covariance, exact.covariance)


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_the_noise_comes_off_again(share):
    """What is left is what is fitted to values without noise, to the floor."""
    y, o = table(60, D, share)
    y[:, 2] = 0.25
    noisy, plain = (em_gaussian(y, o, 0.01, noise, shrinkage=1.0) for noise in (0.2, 0.0))
    close(noisy.without_noise(0.2, 0.01).covariance, plain.covariance, 1e-9)
    assert noisy.without_noise(0.0, 0.01) is noisy


def test_the_floor_and_the_noise():
    y, o = table(60, D, 0.4)
    y[:, 2] = 0.25  # no spread but the noise
    y, o = torch.where(o, y, NAN), o
    fitted = em_gaussian(y, o, floor=0.01, noise=0.2, shrinkage=0.0)
    assert fitted.covariance[2, 2] == pytest.approx(0.04, abs=0.008)
    assert torch.linalg.eigvalsh(em_gaussian(y, o, floor=0.3).covariance).min() > 0.3 - 1e-9
    matrix = torch.diag(torch.tensor([0.1, 2.0]).double())
    assert raise_eigenvalues(matrix, 0.5).diagonal().tolist() == [0.5, 2.0]


def test_where_all_rows_cost_too_much_each_step_sees_others(monkeypatch):
    y, o = table(3000, D, 0.5)
    whole, start = em_gaussian(y, o, shrinkage=1.0), Gaussian.from_incomplete(y, o)
    monkeypatch.setattr(gaussian_em, "BLOCK", 300)
    monkeypatch.setattr(gaussian_em, "WORK", Rows.of(y, o).cost)
    steps = []
    some = em_gaussian(y, o, shrinkage=1.0, progress=lambda done, most, _: steps.append((done, most)))
    assert steps == [(done, 10) for done in range(1, 11)], "what is shown is how many there can be"
    far, near = (sums(Rows.of(y, o), g.mean, g.covariance).log_prob for g in (start, some))
    top = sums(Rows.of(y, o), whole.mean, whole.covariance).log_prob
    assert far < near <= top and top - near < 0.3 * (top - far)


def test_refusals():
    y, o = table(6, D, 0.4)
    for bad in (-1.0, NAN, math.inf):
        with pytest.raises(InputError, match="shrinkage is"):
            em_gaussian(y, o, shrinkage=bad)
    with pytest.raises(InputError, match="noise >= 0 and floor > 0"):
        em_gaussian(y, o, floor=0.0)
    with pytest.raises(InputError, match="none of 6 items"):
        em_gaussian(y, torch.zeros_like(o))
    with pytest.raises(InputError, match="not finite"):
        em_gaussian(y, torch.ones_like(o))
    with pytest.raises(InputError, match="must be bool"):
        em_gaussian(y, o.float())
    with pytest.raises(InputError, match="shape"):
        em_gaussian(y, o[:, :2])
