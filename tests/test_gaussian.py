"""The Gaussian's closed forms against index-by-index formulas in float64, and the two simplest imputers."""

import math

import pytest
import torch

from viscos.core.errors import InputError
from viscos.linear import gaussian
from viscos.linear.gaussian import Gaussian, observed_mean

NAN = float("nan")
D = 6


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def model():
    root = random(D, D, seed=1)
    return Gaussian(random(D, seed=2), root @ root.T + 0.1 * torch.eye(D, dtype=torch.float64))


@pytest.fixture
def batch():
    """Eight items; the first has nothing observed, the last nothing hidden."""
    observed = random(8, D, seed=3) > 0
    observed[0], observed[-1] = False, True
    return torch.where(observed, random(8, D, seed=4), NAN), observed


def by_index(model, y, o):
    """Conditional mean and covariance of the hidden entries, and log density of the observed ones, of one item."""
    mean, S, h = model.mean, model.covariance, ~o
    gain = S[h][:, o] @ torch.linalg.inv(S[o][:, o])
    residual = y[o] - mean[o]
    log_prob = torch.zeros((), dtype=torch.float64)
    if o.any():
        log_prob = torch.distributions.MultivariateNormal(mean[o], S[o][:, o]).log_prob(y[o])
    return mean[h] + gain @ residual, S[h][:, h] - gain @ S[o][:, h], log_prob


def test_two_dimensions_by_hand():
    model = Gaussian(torch.tensor([1.0, 2.0]), torch.tensor([[4.0, 1.0], [1.0, 9.0]]))
    values, observed = torch.tensor([[3.0, NAN]]), torch.tensor([[True, False]])
    assert model.conditional(values, observed).tolist() == [[3.0, 2.5]]  # 2 + 1/4 · (3 − 1)
    log_prob = model.log_prob_observed(values, observed).item()
    assert log_prob == pytest.approx(-0.5 * (4 / 4 + math.log(4) + math.log(2 * math.pi)))


def test_conditional_and_density_of_every_pattern(model, batch):
    values, observed = batch
    completed, log_prob = model.conditional(values, observed), model.log_prob_observed(values, observed)
    for item, (y, o) in enumerate(zip(values, observed, strict=True)):
        mean, _, density = by_index(model, y, o)
        assert torch.equal(completed[item][o], y[o])
        torch.testing.assert_close(completed[item][~o], mean, rtol=0, atol=1e-10)
        torch.testing.assert_close(log_prob[item], density, rtol=0, atol=1e-10)


def test_both_routes_agree(model, batch):
    # Alone, an item goes through its smaller side; in company of an empty one, all go through O.
    values, observed = batch
    for completed, y, o in zip(model.conditional(values, observed), values, observed, strict=True):
        torch.testing.assert_close(model.conditional(y[None], o[None])[0], completed, rtol=0, atol=1e-10)
    for density, y, o in zip(model.log_prob_observed(values, observed), values, observed, strict=True):
        torch.testing.assert_close(model.log_prob_observed(y[None], o[None])[0], density, rtol=0, atol=1e-10)
    few = model.conditional(values[observed.sum(1) > 3], observed[observed.sum(1) > 3])
    torch.testing.assert_close(few, model.conditional(values, observed)[observed.sum(1) > 3], rtol=0, atol=1e-10)


def test_samples_have_the_conditional_mean_and_covariance(model, batch):
    # A draw is affine in its noise, so the moments follow exactly from the zero vector and the unit vectors.
    values, observed = batch
    zero = model.conditional_sample(values, observed, torch.zeros_like(values))
    units = torch.eye(D, dtype=torch.float64)
    columns = torch.stack([model.conditional_sample(values, observed, unit.expand(8, D)) - zero for unit in units], -1)
    torch.testing.assert_close(zero, model.conditional(values, observed), rtol=0, atol=1e-10)
    for item, (y, o) in enumerate(zip(values, observed, strict=True)):
        _, covariance, _ = by_index(model, y, o)
        spread = columns[item] @ columns[item].T
        torch.testing.assert_close(spread[~o][:, ~o], covariance, rtol=0, atol=1e-10)
        assert not spread[o].any()


def test_hidden_values_do_not_matter_and_neither_do_chunks(model, batch, monkeypatch):
    values, observed = batch
    noise = random(8, D, seed=5)

    def results(y):
        yield model.conditional(y, observed)
        yield model.conditional_sample(y, observed, noise)
        yield model.log_prob_observed(y, observed)

    whole = list(results(values))
    for fill in (0.0, 1e30, float("inf")):
        assert all(torch.equal(*pair) for pair in zip(whole, results(values.nan_to_num(fill)), strict=True))
    monkeypatch.setattr(gaussian, "CACHE_BYTES", 8 * (D // 2) ** 2 * 3)
    for one, other in zip(whole, results(values), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_an_items_way_is_its_own(model):
    """By S where at most half is known, by its inverse otherwise, whatever company the item has."""
    known = torch.tensor([[True, False, False, True, False, False], [True] * 5 + [False]])
    values, other = random(2, D, seed=8).masked_fill(~known, 0), torch.eye(D, dtype=torch.float64)
    S, precision = model.covariance, torch.linalg.inv(model.covariance)
    whole = gaussian.regression(S, precision, known, values)
    assert torch.equal(gaussian.regression(S, other, known, values)[0], whole[0])
    assert torch.equal(gaussian.regression(other, precision, known, values)[1], whole[1])
    for item in range(2):
        row = slice(item, item + 1)
        assert torch.equal(gaussian.regression(S, precision, known[row], values[row]), whole[row])


def test_one_mask_for_all_items_is_factorised_once(model, monkeypatch):
    values, mask = random(5, D, seed=6), torch.tensor([True, False, True, True, False, False])
    seen = []
    cholesky = torch.linalg.cholesky
    monkeypatch.setattr(torch.linalg, "cholesky", lambda m: seen.append(m.shape) or cholesky(m))
    together, density = model.conditional(values, mask), model.log_prob_observed(values, mask)
    assert seen == [(1, 3, 3)] * 2
    for item in range(5):
        row = slice(item, item + 1)
        torch.testing.assert_close(together[row], model.conditional(values[row], mask), rtol=0, atol=1e-10)
        torch.testing.assert_close(density[row], model.log_prob_observed(values[row], mask), rtol=0, atol=1e-10)


def test_shapes_and_dtypes_are_kept(model):
    values, observed = random(4, 1, 2, 3).float(), random(4, 1, 2, 3, seed=7) > 0
    for result in (model.conditional(values, observed), model.conditional_sample(values, observed, random(4, D))):
        assert result.shape == values.shape and result.dtype == torch.float32
        assert torch.equal(result[observed], values[observed])
    flat = model.conditional(values.flatten(1), observed.flatten(1))
    assert torch.equal(flat.view_as(values), model.conditional(values, observed))
    none, mask = torch.zeros(0, D), torch.zeros(0, D, dtype=torch.bool)
    assert model.conditional(none, mask).shape == (0, D) and model.log_prob_observed(none, mask).shape == (0,)


def test_whitening(model):
    W = model.whitening()
    torch.testing.assert_close(W @ model.covariance @ W, torch.eye(D, dtype=torch.float64), rtol=0, atol=1e-10)
    assert torch.equal(W, W.T) or torch.allclose(W, W.T, atol=1e-12)
    assert (torch.linalg.eigvalsh(W) > 0).all()


def test_complete_data_give_the_sample_moments(monkeypatch):
    values = random(50, 1, 2, 3)
    monkeypatch.setattr(gaussian, "ROWS", 16)
    model = Gaussian.from_incomplete(values, values == values, 1e-6, 0.5)
    expected = torch.cov(values.flatten(1).T, correction=0) + 0.25 * torch.eye(D)
    torch.testing.assert_close(model.mean, values.flatten(1).mean(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(model.covariance, expected, rtol=0, atol=1e-12)


def test_incomplete_data_give_pairwise_moments():
    values, observed = random(40, D), random(40, D, seed=8) > -0.5
    model = Gaussian.from_incomplete(values, observed, floor=1e-9)
    for i in range(D):
        assert model.mean[i] == pytest.approx(values[observed[:, i], i].mean().item())
        for j in range(D):
            both = observed[:, i] & observed[:, j]
            product = (values[both, i] - model.mean[i]) * (values[both, j] - model.mean[j])
            assert model.covariance[i, j] == pytest.approx(product.mean().item(), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fits_see_observed_entries_only(dtype):
    values, observed = random(40, 1, 2, 3).to(dtype), random(40, 1, 2, 3, seed=9) > 0
    fits = []
    for fill in (values, NAN, 1e30, float("-inf")):
        garbage = torch.where(observed, values, fill)
        model = Gaussian.from_incomplete(garbage, observed)
        fits.append((model.mean, model.covariance, observed_mean(garbage, observed)))
    for fit in fits[1:]:
        assert all(torch.equal(*pair) for pair in zip(fits[0], fit, strict=True))


def test_eigenvalues_are_floored():
    values, observed = random(8, D), random(8, D, seed=10) > 0.3  # so few pairs that the raw matrix is indefinite
    eigenvalues = torch.linalg.eigvalsh(Gaussian.from_incomplete(values, observed, floor=0.05).covariance)
    assert eigenvalues.min() == pytest.approx(0.05)


def test_constant_and_empty_entries_have_a_defined_outcome():
    values, observed = random(60, D), random(60, D, seed=11) > -0.5
    values[:, 0] = 0.25
    observed[:, 1] = False  # never seen
    observed[:, 3] = ~observed[:, 2]  # never seen together
    model = Gaussian.from_incomplete(values, observed)
    others = [0, 2, 3, 4, 5]
    assert model.mean[0] == 0.25 and model.mean[1] == pytest.approx(model.mean[others].mean().item())
    raw = Gaussian.from_incomplete(values, observed, floor=1e-12, noise=1.0).covariance
    assert raw[2, 3] == 0 and not raw[1, others].any() and raw[0, 0] == pytest.approx(1.0)
    assert raw[1, 1] == pytest.approx(raw.diagonal()[others].mean().item())
    for fitted in (model, Gaussian.from_incomplete(torch.ones(5, D), torch.ones(D, dtype=torch.bool), 1e-6)):
        assert fitted.whitening().isfinite().all()
        assert fitted.conditional(values, observed).isfinite().all()
        assert fitted.log_prob_observed(values, observed).isfinite().all()


def test_refusals(model, batch):
    values, observed = batch
    with pytest.raises(InputError, match="over 6 entries"):
        model.conditional(values[:, :4], observed[:, :4])
    with pytest.raises(InputError, match="must be bool"):
        model.conditional(values, observed.float())
    with pytest.raises(InputError, match="not finite"):
        model.log_prob_observed(values, torch.ones_like(observed))
    with pytest.raises(InputError, match="noise has shape"):
        model.conditional_sample(values, observed, torch.zeros(8, 5))
    with pytest.raises(InputError, match="positive definite"):
        Gaussian(torch.zeros(2), torch.ones(2, 2))
    for covariance in (torch.tensor([[1.0, 0.5], [0.0, 1.0]]), torch.full((2, 2), NAN)):
        with pytest.raises(InputError, match="symmetric"):
            Gaussian(torch.zeros(2), covariance)
    with pytest.raises(InputError, match="shapes"):
        Gaussian(torch.zeros(3), torch.eye(2))


def test_fit_refusals():
    values, observed = random(4, D), torch.zeros(4, D, dtype=torch.bool)
    for fit in (Gaussian.from_incomplete, observed_mean):
        with pytest.raises(InputError, match="none of 4 items"):
            fit(values, observed)
        with pytest.raises(InputError, match="not finite"):
            fit(values * NAN, ~observed)
        with pytest.raises(InputError, match="shape"):
            fit(values, observed[:, :2])
    for more in ({"floor": 0.0}, {"noise": -1.0}, {"noise": NAN}):
        with pytest.raises(InputError, match="noise >= 0 and floor > 0"):
            Gaussian.from_incomplete(values, ~observed, **more)


def test_a_gaussian_keeps_what_it_was_given():
    mean, covariance = torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    made = Gaussian(mean, covariance)
    mean += 5
    covariance *= 2
    assert made.mean.tolist() == [0, 0] and made.covariance.tolist() == [[1, 0], [0, 1]]


def test_three_items_of_three_channels_and_one_mask():
    y = random(3, 3, 2, 2)
    mask = torch.ones(3, 2, 2, dtype=torch.bool)
    one, each = (Gaussian.from_incomplete(y, observed) for observed in (mask, mask.expand(3, 3, 2, 2)))
    assert torch.equal(one.covariance, each.covariance)
