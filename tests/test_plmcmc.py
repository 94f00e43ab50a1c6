"""PL-MCMC: its stationary distribution, against quadrature and closed forms."""

from __future__ import annotations

import pytest
import torch
from problems import normal

from viscos.core.batch import incomplete
from viscos.core.errors import InputError
from viscos.core.solution import Solution
from viscos.flows import Affine, ClosedForm, Flow, Whitening
from viscos.imputers import PLMCMCImputer
from viscos.imputers.plmcmc import _Moments, _Target
from viscos.linear.gaussian import Gaussian

F64 = torch.float64
CHAINS = 1200
KS = 1.63 / CHAINS**0.5
"""The distance of 1200 independent draws from their law, which one sample in a hundred exceeds."""


class Bend(ClosedForm):
    """x₀ = y₀ exp(1.5 tanh y₁), x₁ = y₁: the volume depends on what is hidden."""

    def forward_and_ladj(self, y, generator=None):
        t = 1.5 * y[:, 1].tanh()
        return torch.stack([y[:, 0] * t.exp(), y[:, 1]], 1), t

    def inverse(self, x):
        return Solution.exact(torch.stack([x[:, 0] * (-1.5 * x[:, 1].tanh()).exp(), x[:, 1]], 1), 1.0)


def plane() -> Flow:
    """A flow of the plane that does not preserve volume."""
    return Flow([Bend()], (2,))


def by_quadrature(flow: Flow, y0: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A grid, and the distribution function of y₁ given y₀ on it."""
    grid = torch.linspace(-12, 12, 6001, dtype=F64)
    with torch.no_grad():
        density = flow.log_prob(torch.stack([torch.full_like(grid, y0), grid], 1)).exp()
    return grid, density.cumsum(0) / density.sum()


def distance(draws: torch.Tensor, grid: torch.Tensor, cdf: torch.Tensor) -> float:
    """Of Kolmogorov and Smirnov."""
    draws = draws.sort().values
    at = cdf[torch.searchsorted(grid, draws).clamp_max(len(grid) - 1)]
    steps = torch.arange(1, len(draws) + 1, dtype=F64) / len(draws)
    return float(torch.maximum((at - steps).abs(), (at - steps + 1 / len(draws)).abs()).max())


def chains(flow: Flow, y0: float, **settings) -> torch.Tensor:
    batch = incomplete(torch.tensor([[y0, 0.0]], dtype=F64), torch.tensor([True, False]))
    made = PLMCMCImputer(flow, **{"steps": 100, "sigma": 0.5, "scale": 0.6, **settings})
    return made.impute(batch, CHAINS, seed=1).draws[:, 0, 1]


@pytest.mark.parametrize("y0", [-0.5, 1.0])
def test_its_stationary_distribution_is_the_conditional_by_quadrature(y0):
    flow = plane()
    assert distance(chains(flow, y0), *by_quadrature(flow, y0)) < KS


def test_the_log_determinant_belongs_into_the_acceptance(monkeypatch):
    """A known fault of public implementations: without the ratio, draws are of another law, unless volume is kept."""
    flow, at = plane(), _Target.at

    def without(self, x):
        state = at(self, x)
        _, ladj = self.flow.forward_and_ladj(state.y)
        return type(state)(state.x, state.y, state.log_density + ladj, state.evaluations)

    monkeypatch.setattr(_Target, "at", without)
    assert distance(chains(flow, 1.0), *by_quadrature(flow, 1.0)) > 2 * KS


def test_the_loosened_observation_does_not_move_the_law():
    """The density is that of the truth beside y^H: at the loose values themselves, it would depend on sigma."""
    flow = plane()
    assert distance(chains(flow, 1.0, sigma=2.0), *by_quadrature(flow, 1.0)) < KS


def test_on_an_affine_flow_it_is_the_gaussian_conditional():
    root = torch.eye(3, dtype=F64) + 0.5 * normal(3, 3, seed=2)
    law = Gaussian(torch.tensor([0.5, -1.0, 0.2], dtype=F64), root @ root.T)
    layer = Whitening((3,)).double()
    layer.set_gaussian(law)
    batch = incomplete(torch.tensor([[1.0, 0.0, 0.0]], dtype=F64), torch.tensor([True, False, False]))
    made = PLMCMCImputer(Flow([layer], (3,)), steps=120, sigma=0.5, scale=0.6)
    done = made.impute(batch, 1000, seed=2)
    draws, S, (H, O) = done.draws[:, 0, 1:], law.covariance, (slice(1, 3), slice(0, 1))  # noqa: E741
    mean = law.conditional(batch.filled(), batch.observed)[0, 1:]
    covariance = S[H, H] - S[H, O] @ torch.linalg.solve(S[O, O], S[O, H])
    error = covariance.diagonal().sqrt() / 1000**0.5
    assert bool(((draws.mean(0) - mean).abs() < 4 * error).all())
    torch.testing.assert_close(draws.T.cov(), covariance, atol=float(4 * covariance.max() * (2 / 1000) ** 0.5), rtol=0)
    assert bool(((done.mean()[0, 1:] - mean).abs() < 4 * error).all()), "the mean of all chains"
    assert 0.02 < float(done.notes["acceptance"]) < 0.9


def flow() -> Flow:
    return Flow([Affine((3,))], (3,))


def test_an_item_is_its_own_and_the_seed_says_all():
    values, observed = normal(5, 3, seed=7).float(), torch.rand(5, 3, generator=torch.Generator().manual_seed(1)) < 0.5
    batch, made = incomplete(values, observed), PLMCMCImputer(flow(), steps=20, sigma=0.5, scale=0.3)
    done = made.impute(batch, 3, seed=4)
    assert torch.equal(done.draws[:, observed].nan_to_num(), values[observed].expand(3, -1)), "observed, bit for bit"
    alone = made.impute(batch.select(slice(2, 3)), 2, seed=4)
    torch.testing.assert_close(alone.draws, done.draws[:2, 2:3], equal_nan=True)
    assert not torch.equal(made.impute(batch, 3, seed=5).draws.nan_to_num(), done.draws.nan_to_num())
    assert not torch.equal(made.impute(batch, 3, seed=4, purpose="other").draws.nan_to_num(), done.draws.nan_to_num())
    garbage = incomplete(torch.where(observed, values, 1e3 * values), observed)
    assert torch.equal(made.impute(garbage, 3, seed=4).draws.nan_to_num(), done.draws.nan_to_num())


def test_with_all_hidden_it_samples_the_flow_and_with_nothing_hidden_it_returns_the_item():
    observed = torch.tensor([[False] * 3, [True] * 3])
    values = normal(2, 3, seed=3).float()
    done = PLMCMCImputer(flow(), steps=40, resample=1.0).impute(incomplete(values, observed), 2, seed=1)
    assert bool(done.ok.all()) and torch.equal(done.draws[:, 1], values[1].expand(2, 3))
    assert float(done.notes["acceptance"][0]) == 1, "a fresh latent is a draw of the target"
    assert torch.equal(done.mean()[1], values[1])


def test_a_chain_that_never_moved_has_failed():
    """Of three hundred pixels, all but one observed to a thousandth: no fresh latent meets them."""
    flow = Flow([Affine((300,))], (300,))
    observed = torch.ones(300, dtype=torch.bool)
    observed[0] = False
    batch = incomplete(normal(1, 300, seed=3).float(), observed)
    done = PLMCMCImputer(flow, steps=10, resample=1.0).impute(batch, 2)
    assert not done.ok.any() and done.draws[:, 0, 0].isnan().all() and float(done.notes["acceptance"]) == 0
    assert float(done.notes["effective_sample_size"]) == 0


def test_chains_that_never_moved_are_not_in_the_mean():
    observed = torch.tensor([True, False, False])
    batch = incomplete(torch.tensor([0.3, 0.0, 0.0]).expand(40, 3), observed)
    made = PLMCMCImputer(flow(), steps=3, sigma=0.05, resample=1.0)
    one, both = made.impute(batch, 1), made.impute(batch, 2)
    rows = both.ok[0] & ~both.ok[1]
    assert bool(rows.any()) and bool((~both.ok).all(0).any())
    assert torch.equal(both.mean()[rows], one.mean()[rows])
    assert torch.equal(both.mean()[:, ~observed].isnan().all(1), ~both.ok.any(0)), "none where all have failed"


@pytest.mark.parametrize(("keeps", "worth"), [(0.0, 1.0), (0.9, 0.1 / 1.9)])
def test_the_effective_sample_size_is_that_of_an_autoregression(keeps, worth):
    """(1 − ρ)/(1 + ρ) of n states, up to what batches of finite length miss."""
    n, draws = 2500, 40
    noise, y = normal(n, draws, 4, seed=5), torch.zeros(draws, 4, dtype=F64)
    moments = _Moments(y, n)
    for each in noise:
        y = keeps * y + (1 - keeps**2) ** 0.5 * each
        moments.add(y)
    found = moments.mixing(draws, torch.ones(1, 4, dtype=torch.bool))
    assert float(found["effective_sample_size"]) == pytest.approx(draws * n * worth, rel=0.3)
    assert float(found["r_hat"]) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("n", [250, 4000])
def test_chains_that_hardly_move_are_worth_no_more_draws_than_there_are_chains(n):
    """However long: batches within a chain alone would say 84 for 250 steps, and 320 for 4,000."""
    draws = 5
    y = normal(draws, 4, seed=1)
    moments = _Moments(y, n)
    for each in normal(n, draws, 4, seed=2):
        y = y + 0.1 * each / n**0.5
        moments.add(y)
    found = moments.mixing(draws, torch.ones(1, 4, dtype=torch.bool))
    assert 4 < float(found["effective_sample_size"]) < 5.5 and float(found["r_hat"]) > 5


def test_one_chain_says_nothing_of_how_it_mixes():
    moments = _Moments(torch.zeros(1, 4, dtype=F64), 100)
    for each in normal(100, 1, 4, seed=3):
        moments.add(each)
    assert all(bool(each.isnan()) for each in moments.mixing(1, torch.ones(1, 4, dtype=torch.bool)).values())
    assert all(bool(each.isfinite()) for each in moments.mixing(1, torch.zeros(1, 4, dtype=torch.bool)).values())


@pytest.mark.parametrize("wrong", [{"steps": 1}, {"sigma": 0.0}, {"scale": -1.0}, {"resample": 1.5}])
def test_refusals(wrong):
    with pytest.raises(InputError, match="give 2 steps or more"):
        PLMCMCImputer(flow(), **wrong)
