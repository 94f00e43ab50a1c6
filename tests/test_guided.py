"""Rivals that walk along the velocity of a trained flow, on one whose velocity is exact: that of a Gaussian."""

from __future__ import annotations

import math

import pytest
import torch
from problems import normal

from viscos.core.batch import incomplete
from viscos.core.errors import InputError
from viscos.flows import Affine, Flow, Whitening, continuous
from viscos.flows.families.continuous.flow import Continuous
from viscos.flows.families.continuous.velocity import Velocity
from viscos.imputers import GUIDED, DFlowImputer, DPSImputer, FlowerImputer, PnPFlowImputer, ReplacementImputer
from viscos.imputers.guided.walk import HALF_PI, Denoiser, angles
from viscos.imputers.imputer import observed_error
from viscos.linear.gaussian import Gaussian

F64 = torch.float64
D = 3
ROOT = torch.tensor([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [-0.5, 0.3, 0.8]], dtype=F64)
LAW = Gaussian(torch.tensor([0.4, -0.2, 0.1], dtype=F64), ROOT @ ROOT.T)
N = 6
Y = normal(N, D, seed=3) @ ROOT.T + LAW.mean
OBSERVED = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]]).bool()
BATCH = incomplete(Y, OBSERVED)


class Exact(Velocity):
    """E[ε cos θ − u sin θ | z] for u of N(0, Σ): everything is Gaussian."""

    def __init__(self, covariance):
        super().__init__()
        self.register_buffer("S", covariance)

    def forward(self, z, t):
        angle = HALF_PI * t.view(-1, 1, 1)
        c, s, one = angle.cos(), angle.sin(), torch.eye(D, dtype=F64)
        M = (c * s) * (one - self.S) @ torch.linalg.inv(c**2 * self.S + s**2 * one)
        return (M @ z.unsqueeze(-1)).squeeze(-1)


def exact() -> Continuous:
    """A flow whose velocity is that of LAW, after a first layer that takes mean and deviations away."""
    first, deviation = Affine((D,), learn=False).double(), LAW.covariance.diagonal().sqrt()
    first.set_moments(LAW.mean, deviation)
    network = Exact(LAW.covariance / torch.outer(deviation, deviation))
    return Continuous([first], network, (D,), [HALF_PI * k / 8 for k in range(9)], "euler")


LONG = {
    "repaint": lambda flow: ReplacementImputer(flow, steps=60, resamplings=12),
    "dps": lambda flow: DPSImputer(flow, steps=300, scale=0.3),
    "pnp_flow": lambda flow: PnPFlowImputer(flow, steps=100, averages=8),
    "flower": lambda flow: FlowerImputer(flow, steps=200),
    "d_flow": lambda flow: DFlowImputer(flow, steps=40, iterations=40),
}
NEAR = {"repaint": 0.12, "dps": 0.55, "pnp_flow": 0.3, "flower": 0.2, "d_flow": 0.2}
"""Distance of the mean of draws from the conditional mean that each may have: all but the first are approximations."""


def test_the_denoiser_has_the_conditional_means_of_data_and_noise():
    denoiser, z = Denoiser(exact()), normal(5, D, seed=4)
    S = denoiser.velocity.S
    for angle in (0.0, 0.3, 1.1, HALF_PI):
        c, s = math.cos(angle), math.sin(angle)
        total = torch.linalg.inv(c**2 * S + s**2 * torch.eye(D, dtype=F64))
        u, epsilon = denoiser.both(z, angle)
        torch.testing.assert_close(u, c * z @ total @ S)
        torch.testing.assert_close(epsilon, s * z @ total)
        torch.testing.assert_close(c * u + s * epsilon, z)
    torch.testing.assert_close(denoiser.restore(denoiser.standardise(Y)), Y)
    assert denoiser.passes == 4


@pytest.mark.parametrize("name", LONG)
def test_draws_come_near_the_conditional_of_a_gaussian(name):
    done = LONG[name](exact()).impute(BATCH, 200, seed=1)
    assert bool(done.ok.all()) and torch.equal(done.draws[:, OBSERVED], Y[OBSERVED].expand(200, -1))
    wanted = LAW.conditional(Y, OBSERVED)
    some = OBSERVED.any(1)
    off = (done.mean() - wanted)[some].abs().max()
    naive = (LAW.mean.expand_as(Y) - wanted)[~OBSERVED & some.unsqueeze(1)].abs().max()
    assert float(off) < NEAR[name] < float(naive)


def test_how_far_a_walk_ends_from_what_is_observed_is_noted():
    """A walk that ends c standard deviations off: its RMSE in the data's units, and 0 where nothing is observed."""

    class Off(ReplacementImputer):
        def walk(self, walk):
            return walk.target + 0.5

    off = (0.5 * LAW.covariance.diagonal().sqrt()).square() * OBSERVED
    wanted = (off.sum(1) / OBSERVED.sum(1).clamp_min(1)).sqrt()
    done = Off(exact()).impute(BATCH, 3)
    torch.testing.assert_close(done.notes["observed_error"], wanted)
    diverged, nothing = torch.full((2, 1, 3), torch.nan), incomplete(torch.zeros(1, 3), torch.zeros(1, 3).bool())
    known = incomplete(torch.zeros(1, 3), torch.tensor([[True, False, False]]))
    assert observed_error(diverged, known).isnan().all() and observed_error(diverged, nothing).tolist() == [0]
    assert torch.equal(done.draws[:, OBSERVED], Y[OBSERVED].expand(3, -1))


def test_what_takes_the_noise_of_training_off_is_not_said_to_be_off_for_it():
    """RePaint puts what is observed in its place in its last step, and the noise of training comes off after."""
    done = ReplacementImputer(exact(), steps=10, noise=0.3).impute(BATCH, 3)
    torch.testing.assert_close(done.notes["observed_error"], torch.zeros(N, dtype=F64))


def test_d_flow_leaves_the_prior_where_nothing_is_said():
    """The item of which nothing is observed keeps its first latent."""
    draws = DFlowImputer(exact(), steps=40).impute(BATCH.select(slice(5, 6)), 3000).draws[:, 0]
    torch.testing.assert_close(draws.std(0), LAW.covariance.diagonal().sqrt(), atol=0.0, rtol=0.1)


@pytest.mark.parametrize("size", [1.0, 0.05, 1e-3])
def test_d_flow_stays_near_the_prior_where_an_observation_says_little(size):
    """u = x, of whose first entry only a share `size` is seen: the other entries' latents stay as wide as they were."""

    class Identity(Velocity):
        def forward(self, z, t):
            return torch.zeros_like(z)

    first = Affine((D,), learn=False).double()
    first.set_moments(torch.zeros(D, dtype=F64), torch.tensor([1 / size, 1.0, 1.0], dtype=F64))
    flow = Continuous([first], Identity(), (D,), [HALF_PI * k / 8 for k in range(9)], "euler")
    values = torch.zeros(1, D, dtype=F64)
    batch = incomplete(values, torch.tensor([[True, False, False]]))
    done = DFlowImputer(flow).impute(batch, 500)
    assert bool(done.ok.all())
    torch.testing.assert_close(done.draws[:, 0, 1:].std(0), torch.ones(2, dtype=F64), atol=0, rtol=0.15)


def test_without_a_condition_repaint_samples_the_flow():
    """The item of which nothing is observed: its draws have the law's mean and covariance."""
    draws = ReplacementImputer(exact(), steps=200, resamplings=1).impute(BATCH.select(slice(5, 6)), 3000).draws[:, 0]
    torch.testing.assert_close(draws.mean(0), LAW.mean, atol=0.08, rtol=0)
    torch.testing.assert_close(draws.T.cov(), LAW.covariance, atol=0.12, rtol=0)


@pytest.mark.parametrize("kind", GUIDED)
def test_what_all_of_them_keep(kind):
    imputer = kind(exact())
    done = imputer.impute(BATCH, 2, seed=3)
    alone = imputer.impute(BATCH.select(slice(2, 3)), 2, seed=3)
    torch.testing.assert_close(done.draws[:, 2:3], alone.draws)
    assert float(done.solution.evaluations[0]) == float(alone.solution.evaluations[0]) > 1
    assert not torch.allclose(done.draws, imputer.impute(BATCH, 2, seed=4).draws)
    assert not any(p.requires_grad for p in done.draws.unbind()) and imputer.name in {k.name for k in GUIDED}
    whole = incomplete(Y, torch.ones_like(OBSERVED))
    assert torch.equal(imputer.impute(whole).mean(), Y)


@pytest.mark.parametrize("kind", GUIDED)
def test_the_noise_of_training_is_taken_off_every_walk(kind):
    """What a denoiser expects of data with noise has noise too: a walk that ends in a denoising is not clean yet."""
    flow, hidden = exact(), BATCH.hidden.expand(2, *BATCH.hidden.shape).flatten(0, 1)
    plain, clean = kind(flow).impute(BATCH, 2), kind(flow, noise=0.3).impute(BATCH, 2)
    expected = flow.cleaned(plain.draws.flatten(0, 1), hidden, 0.3).view_as(plain.draws)
    torch.testing.assert_close(clean.draws, expected)
    assert not torch.allclose(clean.draws, plain.draws)


@pytest.mark.parametrize("kind", GUIDED)
def test_what_the_caller_records_does_not_matter(kind):
    with torch.inference_mode():
        batch = incomplete(Y.clone(), OBSERVED.clone())
        quiet = kind(exact()).impute(batch, 2, seed=3)
    torch.testing.assert_close(quiet.draws, kind(exact()).impute(BATCH, 2, seed=3).draws)


@pytest.mark.parametrize("kind", GUIDED)
def test_refusals(kind):
    with pytest.raises(InputError, match="take flow=continuous"):
        kind(Flow([Affine((D,))], (D,)))
    mixing = continuous((D,), start="gaussian")
    assert isinstance(mixing.layers[0], Whitening)
    with pytest.raises(InputError, match=r"train with flow\.start=standardise"):
        kind(mixing)
    with pytest.raises(InputError, match=kind.name):
        kind(exact(), steps=0)


def test_times_go_from_noise_to_data():
    times = angles(5)
    assert times[0] == HALF_PI and times[-1] == 0 and times == sorted(times, reverse=True) and len(times) == 6
