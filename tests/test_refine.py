"""Importance weights, exact draws by them, and the verdict on a completion: closed forms, scipy and quadrature."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from problems import F64, PLANE, AffineFlow, exact, normal, residual_flow, shaken
from scipy.stats import genpareto, kstest, norm

import viscos
from viscos.core.errors import InputError
from viscos.core.rng import item_uniform
from viscos.core.solution import Status
from viscos.inference.diagnosis import Diagnosis
from viscos.inference.proposals import propose
from viscos.inference.refine import chained, refined, resampled
from viscos.inference.weights import (
    effective_size,
    generalised_pareto,
    log_evidence,
    pareto_quantile,
    pareto_smoothed,
    shares,
)
from viscos.posteriors import Diagonal
from viscos.roots import anderson

NAN, INF = float("nan"), float("inf")
TIGHT = anderson(1e-9, 100)


def uniform(*shape, seed=0):
    return torch.rand(shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("k", [-0.4, 0.0, 0.3, 0.7, 1.2])
def test_the_generalised_pareto_fit_against_scipy(k):
    n, items = 400, 60
    x = np.sort(genpareto.rvs(k, scale=2.0, size=(n, items), random_state=np.random.default_rng(1)), axis=0)
    shape, scale = generalised_pareto(torch.tensor(x))
    unbiased = (shape * (n + 10) - 5) / n  # without the prior, which is worth ten draws at one half
    assert float(unbiased.mean()) == pytest.approx(k, abs=4 * float(unbiased.std()) / items**0.5 + 0.005)
    assert float(scale.mean()) == pytest.approx(2, abs=4 * float(scale.std()) / items**0.5 + 0.01)
    for i in range(2):
        likeliest = genpareto.fit(x[:, i], floc=0)
        assert float(unbiased[i]) == pytest.approx(likeliest[0], abs=0.03)
        assert float(scale[i]) == pytest.approx(likeliest[2], abs=0.1)
    p = torch.linspace(0.01, 0.99, 9, dtype=F64)
    wanted = torch.tensor(genpareto.ppf(p.numpy(), k, scale=2.0))
    torch.testing.assert_close(pareto_quantile(p, torch.tensor(k, dtype=F64), torch.tensor(2.0, dtype=F64)), wanted)


@pytest.mark.parametrize("k", [0.3, 0.7, 1.2])
def test_k_of_pareto_weights(k):
    _, found = pareto_smoothed(-k * uniform(2000, 400).log() + 500)  # w = u^−k, of any scale
    tail = 3 * 2000**0.5
    wanted = (k * tail + 5) / (tail + 10)
    assert float(found.mean()) == pytest.approx(wanted, abs=4 * float(found.std()) / 20)


def test_k_of_a_gaussian_for_another():
    """p = N(0, 1), q = N(0, σ²): P(w > t) falls as t^(−1/(1 − σ²)), but for logarithms; no tail where σ ≥ 1."""
    for sigma, wanted in ((0.6, 0.64), (0.8, 0.36)):
        x = sigma * normal(20000, 20, seed=3)
        k = pareto_smoothed(-x.square() / 2 + x.square() / (2 * sigma**2))[1]
        assert float(k.mean()) == pytest.approx(wanted, abs=0.07)
    x = 1.3 * normal(20000, 20, seed=3)
    assert (pareto_smoothed(-x.square() / 2 + x.square() / (2 * 1.3**2))[1] < 0).all()


def test_smoothing_keeps_the_order_the_body_and_the_largest():
    w = -0.9 * uniform(400, 3, seed=5).log()
    w[7, 1] = NAN
    smooth, k = pareto_smoothed(w)
    known = torch.where(w.isnan(), -INF, w)
    assert torch.equal(smooth.argsort(0), known.argsort(0))
    body = known.argsort(0)[1:-60]
    torch.testing.assert_close(smooth.gather(0, body), known.gather(0, body))
    assert (smooth.amax(0) <= known.amax(0) + 1e-12).all() and not torch.allclose(smooth, known)
    assert smooth[7, 1] == -INF
    for column in range(3):  # an item by itself
        alone = pareto_smoothed(w[:, column : column + 1])
        torch.testing.assert_close(alone[0][:, 0], smooth[:, column])
        torch.testing.assert_close(alone[1][0], k[column])


def test_the_tail_is_quantiles_of_its_law():
    """Of 128 weights ⌈25.6⌉ are the tail; they become quantiles of the fitted law, none above the largest."""
    log_w = (-0.6 * uniform(128, 1, seed=6).log()).sort(0).values
    w = (log_w - log_w[-1]).exp()
    shape, scale = (float(v) for v in generalised_pareto(w[-26:] - w[-27]))
    law = genpareto.ppf((np.arange(26) + 0.5) / 26, shape, scale=scale)
    wanted = torch.cat([w[:-26, 0], (w[-27] + torch.tensor(law)).clamp_max(1)])
    smooth = (pareto_smoothed(log_w)[0][:, 0] - log_w[-1]).exp()
    torch.testing.assert_close(smooth, wanted)


@pytest.mark.parametrize("n", [5, 26, 27, 41])
def test_the_generalised_pareto_fit_by_its_paper(n):
    """Zhang and Stephens (2009), section 2, a point of the grid after the other, and the prior of ten draws at ½."""
    x = np.sort(genpareto.rvs(0.4, scale=2.0, size=n, random_state=np.random.default_rng(n)))
    points, quartile = 30 + int(n**0.5), x[int(n / 4 + 0.5) - 1]
    theta, profile = [], []
    for j in range(1, points + 1):
        theta.append(1 / x[-1] + (1 - (points / (j - 0.5)) ** 0.5) / (3 * quartile))
        k = -np.mean(np.log1p(-theta[-1] * x))
        profile.append(n * (math.log(theta[-1] / k) + k - 1))
    weight = [1 / sum(math.exp(other - own) for other in profile) for own in profile]
    mean = sum(w * each for w, each in zip(weight, theta, strict=True))
    k = -np.mean(np.log1p(-mean * x))
    shape, scale = generalised_pareto(torch.tensor(x)[:, None])
    assert float(shape) == pytest.approx((-n * k + 5) / (n + 10), rel=1e-9)
    assert float(scale) == pytest.approx(k / mean, rel=1e-9)


def test_weights_of_which_nothing_can_be_said():
    equal, few, none = torch.zeros(100), torch.full((100,), NAN), torch.full((100,), -INF)
    few[:12] = normal(12).float()
    smooth, k = pareto_smoothed(torch.stack([equal, few, none], 1))
    assert k[0] == 0 and k[1:].isnan().all() and not smooth.isnan().any()
    assert pareto_smoothed(torch.zeros(10, 2))[1].isnan().all()
    effective = effective_size(torch.stack([equal, few, none], 1))
    assert effective[0] == pytest.approx(100) and 1 < effective[1] < 12 and effective[2] == 0
    assert (shares(none[:, None]) == 0).all() and log_evidence(none[:, None])[0] == -INF


def test_effective_size_and_evidence_by_hand():
    w = torch.tensor([[1.0], [2.0], [3.0], [0.0]])
    log_w = w.log() + 1000  # which alone would overflow
    assert effective_size(log_w)[0] == pytest.approx(36 / 14, rel=1e-4)
    torch.testing.assert_close(shares(log_w), w.double() / 6, rtol=1e-4, atol=0)
    assert float(log_evidence(log_w)[0]) == pytest.approx(1000 + math.log(6 / 4), rel=1e-6)


# ---------------------------------------------------------------------------------------------------------- algorithms


def test_resampling_draws_in_proportion_to_the_weights():
    w = torch.tensor([[0.0, NAN, 0.0], [1.0, NAN, 2.0], [3.0, NAN, NAN], [0.0, NAN, 5.0]]).log()  # too few for a tail
    index = resampled(w, uniform(40000, 3))
    for item, wanted in ((0, [0, 0.25, 0.75, 0]), (2, [0, 2 / 7, 0, 5 / 7])):
        share = torch.bincount(index[:, item], minlength=4) / 40000
        assert share == pytest.approx(wanted, abs=4 * 0.5 / 200)
        assert (share[torch.tensor(wanted) == 0] == 0).all()
    assert (index[:, 1] == -1).all()
    edge = resampled(w[:, :1], torch.tensor([[0.0], [0.25], [1 - 1e-16]], dtype=F64))
    assert edge[:, 0].tolist() == [1, 2, 2]


def test_a_chain_is_at_its_target():
    """Proposals of three values, with many chains: the law of the last state by powers of the transition matrix."""
    q, p = torch.tensor([0.6, 0.3, 0.1], dtype=F64), torch.tensor([0.1, 0.2, 0.7], dtype=F64)
    chains, steps = 20000, 8
    value = torch.multinomial(q, chains * steps, True, generator=torch.Generator().manual_seed(2)).view(steps, chains)
    states, rate = chained((p / q).log()[value] + 7, uniform(steps, chains))
    accept = torch.minimum(torch.ones(3, 3, dtype=F64), (p / q)[None] / (p / q)[:, None])
    T = q * accept
    T += torch.diag(1 - T.sum(1))
    torch.testing.assert_close(p @ T, p)
    for k in (0, 2, steps - 1):
        law = q @ torch.linalg.matrix_power(T, k)
        share = torch.bincount(value.gather(0, states[k : k + 1])[0], minlength=3) / chains
        assert share == pytest.approx(law.tolist(), abs=4 * 0.5 / chains**0.5)
    stepped = (states[1:] != states[:-1]).double().mean(0)
    torch.testing.assert_close(rate, stepped)


def test_a_chain_passes_over_failed_proposals():
    w = torch.tensor([[NAN, NAN, 0.0], [0.0, NAN, NAN], [NAN, NAN, 99.0], [-50.0, NAN, 0.0]])
    states, rate = chained(w, torch.full((4, 3), 0.5))
    assert states.T.tolist() == [[1, 1, 1, 1], [-1, -1, -1, -1], [0, 0, 2, 2]]
    assert rate.tolist() == pytest.approx([0, 0, 1 / 3])


# ---------------------------------------------------------------------------------------------- against the exact law


def far_off(conditional, mean=0.8, log_scale=0.4):
    """The same with a q that is wrong on purpose."""
    conditional.posterior.mean.data += mean
    conditional.posterior.log_scale.data.fill_(log_scale)
    return conditional


@pytest.mark.parametrize("name", ["planar", "implicit"])
def test_in_two_dimensions_refined_draws_pass_a_test_that_others_fail(name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        flow = exact(shaken(PLANE[name]().to(F64), size=0.8))
    place = torch.linspace(-12, 12, 4001, dtype=F64)
    with torch.no_grad():
        density = flow.log_prob(torch.stack([torch.full_like(place, 0.7), place], 1)).exp()
    mass = torch.cat([torch.zeros(1, dtype=F64), torch.cumulative_trapezoid(density, place)])
    y, observed = torch.tensor([[0.7, NAN]], dtype=F64), torch.tensor([[True, False]])
    q = far_off(viscos.condition(flow, y, observed, posterior="diagonal", solver=TIGHT))

    def p_value(draws):
        return kstest(draws[:, 0, 1], lambda v: np.interp(v, place, mass / mass[-1])).pvalue

    assert p_value(q.sample(200)) < 1e-6
    for found in (q.refine("sir", 200, proposals=1000), refined(q, propose(q, 1000), "imh", 200)):
        assert p_value(found.draws) > 1e-3
        assert found.ok.all() and (found.latents - flow.to_latent(found.draws[:, 0])[:, None]).abs().max() < 1e-9
        mean = float((density * place).sum() / density.sum())
        assert float(found.mean()[0, 1]) == pytest.approx(mean, abs=4 * float(found.draws[:, 0, 1].std()) / 20)
    assert float(found.diagnosis.evidence[0]) == pytest.approx(float(mass[-1].log()), abs=0.1)
    assert found.diagnosis.bound[0] < found.diagnosis.evidence[0]
    assert 0.3 < float(found.diagnosis.acceptance[0]) < 1 and int(found.diagnosis.distinct[0]) > 100


def test_of_an_affine_flow_refined_draws_pass_a_test_that_others_fail():
    d, n = 5, 300
    flow = AffineFlow(d)
    y, hidden = normal(2, d, seed=4), torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 0, 0]]).bool()
    q = far_off(viscos.condition(flow, y, ~hidden, posterior="diagonal", solver=TIGHT), mean=0.6, log_scale=0.3)
    gaussian = flow.gaussian()

    def p_values(draws):
        found = []
        for item in range(2):
            H, K = hidden[item], ~hidden[item]
            S, m = gaussian.covariance, gaussian.mean
            mean = m[H] + S[H][:, K] @ torch.linalg.solve(S[K][:, K], y[item, K] - m[K])
            covariance = S[H][:, H] - S[H][:, K] @ torch.linalg.solve(S[K][:, K], S[K][:, H])
            whitened = torch.linalg.solve(torch.linalg.cholesky(covariance), (draws[:, item, H] - mean).T)
            found += [kstest(row, norm.cdf).pvalue for row in whitened]
        return min(found)

    assert p_values(q.sample(n)) < 1e-6
    for found in (q.refine("imh", n, proposals=8 * n), refined(q, propose(q, 8 * n), "sir", n)):
        assert p_values(found.draws) > 1e-3
        assert torch.equal(found.draws[:, ~hidden], y[~hidden].expand(n, -1))
        assert torch.equal(found.mean()[~hidden], y[~hidden])


def test_refined_draws_and_what_the_weights_say_are_in_the_units_of_the_observation():
    flow = AffineFlow(3)
    y, observed = normal(2, 3, seed=4), torch.tensor([[True, False, True], [True, True, False]])
    center, scale = torch.tensor([100.0, -2.0, 0.5], dtype=F64), torch.tensor([10.0, 0.1, 2.0], dtype=F64)
    plain = viscos.condition(flow, y, observed, posterior="diagonal", solver=TIGHT)
    given = np.where(observed, y * scale + center, NAN)
    scaled = viscos.condition(flow, given, posterior="diagonal", solver=TIGHT, scaling=(center, scale))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        here, there = (q.refine("sir", 5, proposals=40) for q in (plain, scaled))
    assert isinstance(there.draws, np.ndarray) and there.ok.all()
    for ours, theirs in ((here.draws, there.draws), (here.mean(), there.mean())):
        assert np.allclose(theirs, ours * scale + center, atol=1e-9)
    assert (there.draws[:, observed] == given[observed]).all()
    shift = torch.where(observed, scale.log(), 0).sum(1)
    for ours, theirs in ((here.diagnosis, there.diagnosis), (plain.diagnose(16), scaled.diagnose(16))):
        for name in ("bound", "evidence"):
            torch.testing.assert_close(getattr(theirs, name), getattr(ours, name) - shift)
    assert np.allclose(scaled.bound(8), plain.bound(8) - shift)


def test_of_an_exact_q_every_proposal_is_accepted():
    """Its weights are all equal: one hidden entry, of which the law of the latent is worked out by hand."""
    flow = AffineFlow(3)
    y, observed = normal(2, 3, seed=4), torch.tensor([True, False, True])
    q = viscos.condition(flow, y, observed, posterior="diagonal", solver=TIGHT)
    a, x = flow.layers[0].A[:, 1].detach(), flow.to_latent(torch.where(observed, y, 0)).detach()
    # x = x₀ + a y₁ is standard normal: y₁ has mean −aᵀx₀/|a|² and variance 1/|a|²; its latent is x₀₁ + a₁ y₁.
    q.posterior.mean.data[:, 1] = x[:, 1] - a[1] * (x @ a) / (a @ a)
    q.posterior.log_scale.data[:, 1] = (a[1] / a.norm()).abs().log()
    found = q.refine("imh", 4, proposals=128)
    assert (found.diagnosis.acceptance > 0.999).all() and (found.diagnosis.distinct == 4).all()
    assert q.diagnose().words == ["good", "good"] and (q.diagnose().pareto_k < 0.1).all()
    torch.testing.assert_close(q.diagnose().evidence, flow.gaussian().log_prob_observed(y, observed.expand(2, 3)))


# ------------------------------------------------------------------------------------------------ what callers rely on


def problem(solver=TIGHT):
    flow = residual_flow("image")
    hidden = torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(1)) < 0.4
    hidden[1], hidden[2] = False, True
    y = normal(4, 1, 4, 4, seed=5).masked_fill(hidden, NAN)

    def of(rows, seed=0):
        picked = y[rows], ~hidden[rows]
        index = 10 * torch.tensor(rows)
        return viscos.condition(flow, *picked, posterior="diagonal", solver=solver, index=index, seed=seed)

    return flow, y, hidden, of


@pytest.mark.parametrize("method", ["sir", "imh"])
@pytest.mark.filterwarnings("ignore:refined draws")
def test_an_item_is_refined_alike_in_any_company(method):
    _, y, hidden, of = problem()
    together = of([0, 1, 2, 3]).refine(method, 3, proposals=40)
    again = of([0, 1, 2, 3]).refine(method, 3, proposals=40)
    assert torch.equal(together.draws, again.draws) and torch.equal(together.mean(), again.mean())
    for rows in ([3, 1], [2], [0]):
        other = of(rows).refine(method, 3, proposals=40)
        assert (other.draws - together.draws[:, rows]).abs().max() < 1e-8
        assert (other.mean() - together.mean()[rows]).abs().max() < 1e-8
        for name in ("bound", "pareto_k", "effective"):
            theirs, ours = getattr(other.diagnosis, name), getattr(together.diagnosis, name)[rows]
            torch.testing.assert_close(theirs, ours, equal_nan=True)
    assert not torch.allclose(of([0, 1, 2, 3], seed=1).refine(method, 3, proposals=40).draws, together.draws)
    assert torch.equal(together.draws[:, ~hidden], y[~hidden].expand(3, -1))
    assert torch.equal(together.draws[:, 1], y[1].expand(3, 1, 4, 4))  # nothing is missing: unchanged
    assert together.solution.evaluations.min() > 0


@pytest.mark.parametrize(("draws", "looked_at"), [(4, [15, 31, 47, 63]), (1, [63]), (3, [20, 41, 62])])
def test_a_chain_is_looked_at_at_equal_distances(draws, looked_at):
    """So that a draw is never the first proposal, which is one of q; and all proposals are paid for."""
    q = problem()[3]([0, 3])
    proposals = propose(q, 64)
    states, _ = chained(proposals.weight, item_uniform(q.seed, q.batch.index, 64, "accept"))
    found = refined(q, proposals, "imh", draws)
    wanted = torch.stack([proposals.clean[states[looked_at, item], item] for item in range(2)], 1)
    assert torch.equal(found.draws, wanted)
    spent = proposals.solution.evaluations.view(64, 2).sum(0)
    torch.testing.assert_close(found.solution.evaluations.view(draws, 2).sum(0).to(F64), spent.to(F64))


def test_the_mean_is_by_smoothed_weights():
    q = problem()[3]([0, 3])
    proposals = propose(q, 64)
    proposals = replace(proposals, weight=3 * normal(64, 2, seed=8))  # a few count for all
    smooth = pareto_smoothed(proposals.weight)[0]

    def mean(weight):
        return torch.einsum("kb,kb...->b...", weight.softmax(0), proposals.clean)

    found = refined(q, proposals, "sir", 2).mean()
    torch.testing.assert_close(found, mean(smooth))
    assert (found - mean(proposals.weight)).abs().max() > 1e-3


def test_too_few_draws_are_no_reason_for_trust():
    """The weight of one draw is even whatever q is; but not of an item whose weight is known without."""
    y = torch.tensor([[NAN, 8.0], [1.0, 2.0], [NAN, NAN]], dtype=F64)
    q = viscos.condition(AffineFlow(2), y)
    for draws in (1, 2, 3, 4):
        assert q.diagnose(draws).words == ["doubtful", "good", "good"]
        with pytest.warns(UserWarning, match="refined draws of 1 of 3 items are doubtful"):
            assert q.refine("imh", draws, proposals=draws).diagnosis.words[0] == "doubtful"


def test_everything_missing_is_a_sample_of_the_flow():
    flow, _, _, of = problem()
    q = of([2, 1])
    q.posterior.mean.data.fill_(9.0)  # q does not matter, see `impute`
    found = propose(q, 30)
    assert (found.weight[:, 0] == 0).all() and (found.weight[:, 1] == found.weight[0, 1]).all()
    assert found.diagnosis().words == ["good", "good"]
    wanted = flow.to_data(q.epsilon(30, "proposal")[:, 0]).value
    assert (found.y[:, 0] - wanted).abs().max() < 1e-8


def test_failed_proposals_are_never_drawn():
    _, _, hidden, of = problem()
    q = of([0, 3])
    right = q.objective.solver

    class Failing:
        tolerance = right.tolerance

        def solve(self, equation, start):
            found = right.solve(equation, start)
            rows = torch.arange(len(start))
            bad = (rows % 2 == 1) | ((rows // 2) % 2 == 0)  # the second item always, the first in every other draw
            status = torch.where(bad, int(Status.STALLED), found.status)
            return replace(found, status=status, value=torch.where(bad.view(-1, 1, 1, 1), 77.0, found.value))

    q.objective = replace(q.objective, solver=Failing())
    for method in ("sir", "imh"):
        with pytest.warns(UserWarning, match=r"1 of 2 items|2 of 2 items"):
            found = q.refine(method, 3, proposals=60)
        assert found.ok[:, 0].all() and not found.ok[:, 1].any()
        assert found.draws[:, 0].isfinite().all() and found.draws[:, 0].abs().max() < 50
        assert found.draws[:, 1, hidden[3]].isnan().all() and found.mean()[1, hidden[3]].isnan().all()
        d = found.diagnosis
        assert d.failed.tolist() == [0.5, 1] and d.bound[1] == d.evidence[1] == -INF and d.residual[1].isnan()
        assert d.verdicts()[1] == ("doubtful", "none of the draws could be completed")
        assert d.words[0] == "doubtful" and int(found.diagnosis.distinct[1]) == 0


def test_a_solve_that_ends_at_a_singular_jacobian_has_no_weight(monkeypatch):
    """There log|det G^HH| is −∞, and the weight would be infinite: the first item everywhere, the other once."""
    _, _, _, of = problem()

    def term(flow, y, hidden, probes, exact_below=None):
        found = torch.zeros(len(y), dtype=F64)
        found[::2], found[1] = INF, INF
        return found

    q = of([0, 3])
    monkeypatch.setattr("viscos.inference.proposals.log_evidence_term", term)
    monkeypatch.setattr("viscos.inference.elbo.log_evidence_term", term)
    for method in ("sir", "imh"):
        with pytest.warns(UserWarning, match="doubtful"):
            found = q.refine(method, 3, proposals=60)
        assert not found.ok[:, 0].any() and found.draws[:, 0].isnan().any() and found.ok[:, 1].all()
        d = found.diagnosis
        assert d.failed.tolist() == pytest.approx([1, 1 / 60]) and d.effective[1] > 1 and d.evidence[1].isfinite()
        assert d.evidence[0] == -INF and d.verdicts()[0][0] == "doubtful"
    bound = q.bound(8)
    assert bound[0] == -INF and bound[1].isfinite()


def test_refused():
    _, _, _, of = problem()
    q = of([0])
    for call, says in (
        (lambda: q.refine("gibbs"), "choose sir or imh"),
        (lambda: q.refine("sir", 9, proposals=8), "9 draws cannot be made of 8 proposals"),
        (lambda: q.refine("imh", 0), "number of draws must be a whole number, 1 or more, got 0"),
        (lambda: q.diagnose(0), "number of draws"),
    ):
        with pytest.raises(InputError, match=says):
            call()
    q.flow.dense_below = 8
    with pytest.raises(InputError, match=r"have 16; in Python, posterior.flow.dense_below = 16"):
        q.refine("imh")


# ---------------------------------------------------------------------------------------------------------- the verdict


def test_the_bound_is_of_what_is_drawn_where_nothing_is_observed():
    """Such an item is a sample of the flow itself, whatever q is: the bound of its evidence, which is 1, is exact."""
    flow, y, hidden = AffineFlow(4, seed=1), normal(2, 4), torch.tensor([True, False])[:, None].expand(2, 4)
    q = viscos.condition(flow, y, ~hidden, posterior=Diagonal(y), solver=TIGHT)
    with torch.no_grad():
        q.posterior.mean.add_(1.0)
    kept = [p.clone() for p in q.posterior.parameters()]
    assert q.bound()[0] == q.diagnose().bound[0] == 0
    assert abs(float(q.sample(400)[:, 0].mean(0).sub(flow.gaussian().mean).norm())) < 0.5
    q.fit(3)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(kept, q.posterior.parameters(), strict=True)), "nothing to learn"


def test_estimated_weights_say_their_error():
    """Against exact ones: the errors are as large as is said."""
    _, _, _, of = problem()
    q = of([0, 3])
    right = propose(q, 60)
    q.flow.dense_below = 4
    rough = propose(q, 60)
    assert (right.error == 0).all() and rough.error[0] == 0 < rough.error[1]  # four entries are hidden of the first
    error = (rough.weight - right.weight).square().mean(0).sqrt()
    torch.testing.assert_close(error, rough.error, rtol=0.5, atol=1e-9)
    alone = of([3])
    alone.flow.dense_below = 4
    alone = propose(alone, 60)
    torch.testing.assert_close(alone.weight[:, 0], rough.weight[:, 1], rtol=1e-6, atol=1e-6)


def diagnosis(k=0.2, effective=120.0, failed=0.0, error=0.0, refined=0):
    def of(v):
        return torch.tensor([v], dtype=F64)

    numbers = of(-2), of(-1.9), of(k), of(effective), of(failed), of(1e-4), of(error)
    return Diagnosis(*numbers, 128, refined, elsewhere=of(math.nan))


@pytest.mark.parametrize(
    ("change", "word", "reason"),
    [
        ({}, "good", "k̂ = 0.20, effective sample size 120 of 128"),
        ({"k": 0.55}, "fair", "k̂ = 0.55"),
        ({"k": 1.3, "effective": 127.0}, "good", "k̂ = 1.30, effective sample size 127 of 128"),  # as good as constant
        ({"k": 0.7}, "doubtful", "k̂ = 0.70"),
        ({"k": NAN, "effective": 127.0}, "good", "effective sample size 127 of 128"),
        ({"k": NAN}, "doubtful", "too few draws have a weight for k̂"),
        ({"effective": 80.0}, "fair", "effective sample size 80 of 128"),
        ({"effective": 60.0}, "doubtful", "effective sample size 60 of 128"),
        ({"effective": 0.0}, "doubtful", "none of the draws could be completed"),
        ({"failed": 0.05}, "fair", "5 % of the draws failed"),
        ({"failed": 0.2, "k": 0.6}, "doubtful", "20 % of the draws failed"),
        ({"error": 0.5}, "fair", "log-determinants are estimated, to ±0.5 nats"),
        ({"error": 3.0, "k": 0.9}, "doubtful", "log-determinants are estimated, to ±3 nats"),
        ({"effective": 8.0, "refined": 8}, "good", "k̂ = 0.20, effective sample size 8 of 128 proposals for 8 draws"),
        ({"effective": 5.0, "refined": 8}, "fair", "effective sample size 5 of 128 proposals for 8 draws"),
        ({"effective": 3.0, "refined": 8}, "doubtful", "effective sample size 3 of 128 proposals for 8 draws"),
    ],
)
def test_words(change, word, reason):
    found = diagnosis(**change)
    assert found.verdicts() == [(word, reason)] and found.counts()[word] == 1
    assert f"1 {word}" in repr(found)
    assert (found.first_doubtful() is not None) == (word == "doubtful")
    both = Diagnosis.joined([found, diagnosis(refined=found.refined)])
    assert both.words[0] == word and len(both.bound) == 2 and both.refined == found.refined


def test_a_q_that_is_too_narrow_is_doubtful_and_refining_it_warns():
    """The classic fault of the reverse divergence: the weights of a too narrow q have no variance."""
    flow = AffineFlow(4)
    y, observed = normal(1, 4, seed=4), torch.tensor([True, False, False, False])
    q = viscos.condition(flow, y, observed, posterior="diagonal", solver=TIGHT)
    q.posterior.log_scale.data.fill_(-1.5)
    assert q.diagnose().words == ["doubtful"]
    with pytest.warns(UserWarning, match="1 of 1 items are doubtful"):
        q.refine("sir", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        q.posterior.log_scale.data.fill_(0.1)
        q.refine("sir", 2)
