"""FID: closed forms, other implementations of it, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import F64, normal, orthogonal

from viscos.core.errors import InputError
from viscos.metrics.fid import Moments, frechet_distance

quick = settings(max_examples=30, deadline=None)


def covariance(d: int, seed: int, rank: int | None = None) -> torch.Tensor:
    """A random positive semi-definite matrix (d, d) of the given rank."""
    root = normal(d, d if rank is None else rank, seed=seed)
    return root @ root.T


def moments(features: torch.Tensor, size: int | None = None, batch: int = 10_000) -> Moments:
    gathered = Moments(features.shape[1] if size is None else size)
    for part in features.split(batch):
        gathered.update(part)
    return gathered


def fid(p: Moments, q: Moments) -> float:
    return frechet_distance(p.mean, p.covariance, q.mean, q.covariance)


# --------------------------------------------------------------------------------------------------------- closed forms


def test_in_one_dimension():
    """(μ − ν)² + (σ − ω)²."""
    distance = frechet_distance(*(torch.tensor(t) for t in ([1.0], [[4.0]], [-2.0], [[0.25]])))
    assert distance == pytest.approx(9 + 1.5**2, rel=1e-12)


@quick
@given(st.integers(0, 10**6))
def test_covariances_that_commute(seed):
    """‖μ − ν‖² + Σᵢ (√λᵢ − √κᵢ)², with common eigenvectors."""
    d, Q = 7, orthogonal(7, seed)
    first, second = normal(d, seed=seed + 1).square(), normal(d, seed=seed + 2).square()
    first[0] = second[1] = 0  # singular in different directions
    mu, nu = normal(d, seed=seed + 3), normal(d, seed=seed + 4)
    expected = (mu - nu).square().sum() + (first.sqrt() - second.sqrt()).square().sum()
    distance = frechet_distance(mu, Q @ first.diag() @ Q.T, nu, Q @ second.diag() @ Q.T)
    assert distance == pytest.approx(float(expected), rel=1e-6)


@quick
@given(st.integers(0, 10**6))
def test_an_optimal_map(seed):
    """y = T x + c with T positive definite is optimal: E‖y − x‖² = ‖(T − I) μ + c‖² + tr (T − I) Σ (T − I)."""
    d, eye = 6, torch.eye(6, dtype=F64)
    T, sigma = eye + covariance(d, seed), covariance(d, seed + 1)
    mu, c = normal(d, seed=seed + 2), normal(d, seed=seed + 3)
    expected = ((T - eye) @ mu + c).square().sum() + ((T - eye) @ sigma @ (T - eye)).trace()
    distance = frechet_distance(mu, sigma, T @ mu + c, T @ sigma @ T)
    assert distance == pytest.approx(float(expected), rel=1e-9)


@quick
@given(st.integers(0, 10**6), st.integers(1, 6))
def test_it_is_a_distance(seed, rank):
    d = 6
    p = normal(d, seed=seed), covariance(d, seed + 1, rank)
    q = normal(d, seed=seed + 2), covariance(d, seed + 3)
    assert 0 <= frechet_distance(*p, *p) < 1e-6
    assert frechet_distance(*p, *q) == pytest.approx(frechet_distance(*q, *p), rel=1e-6)
    Q = orthogonal(d, seed)
    turned = frechet_distance(Q @ p[0], Q @ p[1] @ Q.T, Q @ q[0], Q @ q[1] @ Q.T)
    assert turned == pytest.approx(frechet_distance(*p, *q), rel=1e-6)


# ------------------------------------------------------------------------------------------------ other implementations


def test_against_a_square_root_of_the_product():
    """The formula as it is usually written, tr Σ + tr Ω − 2 tr (Σ Ω)^½, by scipy."""
    sqrtm = pytest.importorskip("scipy.linalg").sqrtm
    for seed in range(5):
        d = 12
        mu, nu, sigma, omega = (
            normal(d, seed=seed), normal(d, seed=seed + 9), covariance(d, seed), covariance(d, seed + 9)
        )  # fmt: skip
        root = sqrtm((sigma @ omega).numpy())
        expected = (mu - nu).square().sum() + (sigma + omega).trace() - 2 * root.trace().real
        assert frechet_distance(mu, sigma, nu, omega) == pytest.approx(float(expected), rel=1e-8)


def test_against_torchmetrics():
    fid_of = pytest.importorskip("torchmetrics.image.fid").FrechetInceptionDistance

    class Flat(torch.nn.Module):
        num_features = 8

        def forward(self, images):
            return images.flatten(1)

    metric = fid_of(Flat(), normalize=False, input_img_size=(1, 2, 4)).set_dtype(F64)
    one, two = normal(300, 8, seed=1), 0.3 + normal(200, 8, seed=2) @ normal(8, 8, seed=3)
    metric.update(one.view(-1, 1, 2, 4), real=True)
    metric.update(two.view(-1, 1, 2, 4), real=False)
    assert fid(moments(one), moments(two)) == pytest.approx(float(metric.compute()), rel=1e-9)


# -------------------------------------------------------------------------------------------------------------- moments


@quick
@given(st.integers(0, 10**6), st.integers(1, 40))
def test_batches_do_not_matter(seed, size):
    features = 3 + normal(40, 5, seed=seed) @ normal(5, 5, seed=seed + 1)
    gathered = moments(features, batch=size)
    torch.testing.assert_close(gathered.mean, features.mean(0), atol=1e-12, rtol=0)
    torch.testing.assert_close(gathered.covariance, features.T.cov(), atol=1e-11, rtol=0)
    assert gathered.count == 40


def test_a_mean_far_from_zero_costs_no_digits():
    """Sums of squares would leave nothing of a variance of 1 beside a mean of 1e8."""
    spread = normal(1000, 3, seed=4)
    far = moments(spread + 1e8, batch=7)
    torch.testing.assert_close(far.covariance, spread.T.cov(), atol=1e-6, rtol=0)


def test_features_of_a_single_precision_network():
    features = normal(100, 4, seed=5, dtype=torch.float32)
    gathered = moments(features)
    assert gathered.mean.dtype == gathered.covariance.dtype == F64
    torch.testing.assert_close(gathered.covariance, features.double().T.cov(), atol=1e-12, rtol=0)
    gathered.update(features[:0])
    assert gathered.count == 100


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("n", [0, 1, 4, 5])
def test_too_few_items(n):
    enough = moments(normal(6, 5))
    assert fid(enough, enough) < 1e-9
    with pytest.raises(InputError, match=f"^{n} items are too few for a covariance of 5 features$"):
        fid(enough, moments(normal(n, 5), 5))


def test_features_that_do_not_fit():
    for bad in (torch.zeros(3, 4), torch.zeros(5), torch.zeros(2, 3, 5)):
        with pytest.raises(InputError, match=r"features have shape .*; give \(B, 5\)"):
            Moments(5).update(bad)
    with pytest.raises(InputError, match=r"shapes \(4,\), \(4, 4\), \(5,\), \(5, 5\)"):
        fid(moments(normal(9, 4)), moments(normal(9, 5)))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_features_that_are_not_finite(bad):
    features = normal(9, 5)
    features[3, 2] = bad
    gathered = moments(normal(9, 5))
    with pytest.raises(InputError, match="not finite"):
        gathered.update(features)
    assert gathered.count == 9  # and nothing of it was added
    eye = torch.eye(5, dtype=F64)
    with pytest.raises(InputError, match="not finite"):
        frechet_distance(features[3], eye, features[0], eye)
