"""`viscos.condition`, completions and their random numbers: what a caller can rely on."""

import math
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from problems import F64, AffineFlow, SmoothFlow, masks, normal, residual_flow, within
from torch.distributions import Normal, kl_divergence

import viscos
from viscos.core.batch import incomplete
from viscos.core.errors import InputError
from viscos.core.rng import ItemGenerators, generator, item_noise
from viscos.core.solution import Solution, Status
from viscos.flows import Affine, Bijection, ClosedForm, Flow, Mix, iresnet
from viscos.inference import Completions, complete, impute
from viscos.inference.judging import Best
from viscos.inference.laplace import laplace
from viscos.linear.gaussian import Gaussian
from viscos.posteriors import Amortised, Diagonal
from viscos.roots import Anderson, ByFlow, Fallback, Path, RootFinder, anderson, auto, hasty, newton_krylov, path

TIGHT = anderson(1e-9, 100)


@pytest.fixture(autouse=True)
def seeded():
    """Layers draw their first weights from torch's own generator."""
    torch.manual_seed(0)


def problem(batch=3, dtype=F64, pattern="one kind an item"):
    """Items with some, with none, and with all of their entries hidden; hidden values are garbage."""
    flow = residual_flow("image", dtype)
    hidden = masks((1, 4, 4), batch)[pattern]
    y = torch.where(hidden, float("nan"), normal(batch, 1, 4, 4, seed=5, dtype=dtype))
    return flow, y, hidden


# ------------------------------------------------------------------------------------------------------ random numbers


def test_generators_are_keyed_by_purpose():
    def first(*key):
        return float(torch.rand((), generator=generator(*key)))

    values = [first(0), first(1), first(0, "mask"), first(0, "mask", 1), first(0, 1), first(0, "1"), first(-1)]
    assert len(set(values)) == len(values)
    assert first(3, "mask", 2) == first(3, "mask", 2)


def test_the_noise_of_an_item_does_not_depend_on_its_company():
    like = torch.zeros(1, dtype=F64)
    index = torch.tensor([7, 3, 11])
    noise = item_noise(5, index, 4, (2, 3), like)
    assert noise.shape == (4, 3, 2, 3) and noise.dtype == F64
    assert torch.equal(item_noise(5, index.flip(0), 4, (2, 3), like), noise.flip(1))
    assert torch.equal(item_noise(5, index[1:2], 4, (2, 3), like), noise[:, 1:2])
    assert torch.equal(item_noise(5, index, 2, (2, 3), like, first=2), noise[2:])
    assert not torch.equal(item_noise(6, index, 4, (2, 3), like), noise)
    many = item_noise(0, torch.arange(500), 4, (3,), like)
    assert within(many.flatten(0, 1), torch.zeros(3, dtype=F64)).all()
    assert within(many.flatten(0, 1).square(), torch.ones(3, dtype=F64)).all()
    assert within((many[0] * many[1]), torch.zeros(3, dtype=F64)).all()


# --------------------------------------------------------------------------------------------------------- completions


@pytest.mark.parametrize(
    ("solver", "dtype"),
    [(solver, dtype) for solver in ("anderson", "newton_krylov") for dtype in (F64, torch.float32)]
    + [pytest.param("paper", F64, marks=pytest.mark.slow)],  # the commands complete by it in single precision
)
def test_observed_entries_come_back_bit_for_bit(solver, dtype):
    flow, y, hidden = problem(dtype=dtype)
    conditional = viscos.condition(flow, y, ~hidden, solver=solver)
    conditional.fit(2)
    draws = conditional.sample(3)
    assert draws.shape == (3, *y.shape) and draws.dtype == dtype and not draws.requires_grad
    assert torch.isfinite(draws).all()
    for completed in (*draws, conditional.mean(), conditional.completions(1).draws[0]):
        assert torch.equal(completed[~hidden], y[~hidden])
    assert torch.equal(draws[:, 1], y[1].expand(3, 1, 4, 4))  # nothing is missing: unchanged
    assert not torch.equal(draws[0][hidden], draws[1][hidden])


def test_the_latents_of_the_draws_are_those_of_the_completions():
    flow, y, hidden = problem()
    found = viscos.condition(flow, y, ~hidden, posterior="diagonal", solver=TIGHT).completions(2)
    assert found.ok.all()
    assert torch.allclose(found.latents, flow.to_latent(found.draws.flatten(0, 1)).view_as(found.draws))
    noise = item_noise(0, torch.arange(3), 2, (1, 4, 4), y)
    assert (found.latents - noise)[:, hidden].abs().max() < 1e-8  # q begins at the standard normal


def test_an_item_with_everything_missing_is_a_sample_of_the_flow():
    """Whatever q has become: the flow's own distribution needs no inference."""
    flow, y, hidden = problem()
    conditional = viscos.condition(flow, y, ~hidden, solver=TIGHT, seed=4)
    conditional.posterior.mean.data.fill_(9.0)
    noise = item_noise(4, torch.tensor([2]), 3, (1, 4, 4), y)
    wanted = flow.to_data(noise[:, 0]).value
    assert (conditional.sample(3)[:, 2] - wanted).abs().max() < 1e-8


def test_the_same_seed_gives_the_same_draws_in_any_batch_and_order():
    flow, y, hidden = problem(batch=5, pattern="random")
    index = torch.tensor([40, 10, 30, 20, 50])

    def draws(rows, seed=0):
        picked = (y[rows], ~hidden[rows])
        q = viscos.condition(flow, *picked, posterior="diagonal", solver=TIGHT, index=index[rows], seed=seed)
        return q.sample(3)

    together = draws([0, 1, 2, 3, 4])
    assert torch.equal(draws([0, 1, 2, 3, 4]), together)  # the same run, bit for bit
    for rows in ([3, 1, 0, 4, 2], [2], [4, 0]):
        assert (draws(rows) - together[:, rows]).abs().max() < 1e-8
    assert not torch.allclose(draws([0, 1, 2, 3, 4], seed=1), together, equal_nan=True)
    q = viscos.condition(flow, y, ~hidden, posterior="diagonal", solver=TIGHT, index=index)
    assert (torch.cat([q.sample(1), q.sample(2)]) - together).abs().max() < 1e-8  # new draws go on where the last ended


def test_a_posterior_without_parameters_cannot_be_fitted():
    class Fixed(Diagonal):
        def parameters(self, recurse=True):
            return iter(())

    flow, y, hidden = problem(batch=1, pattern="random")
    with pytest.raises(InputError, match="a Fixed has no parameters to fit"):
        viscos.condition(flow, y, ~hidden, posterior=Fixed(y)).fit(steps=1)


def test_estimated_densities_of_an_item_do_not_depend_on_its_company():
    flow, y, hidden = problem(batch=4, pattern="random")
    flow.dense_below = 2
    index = torch.tensor([40, 10, 30, 20])

    def densities(rows):
        picked = y[rows], ~hidden[rows]
        q = viscos.condition(flow, *picked, posterior="diagonal", solver=TIGHT, index=index[rows])
        return q.bound(3), q.log_prob(torch.where(hidden, 0.1, y)[rows])

    together = densities([0, 1, 2, 3])
    for rows in ([2, 3], [1]):
        for alone, every in zip(densities(rows), together, strict=True):
            torch.testing.assert_close(alone, every[rows], rtol=1e-6, atol=1e-6)


def test_the_same_run_is_the_same_bit_for_bit():
    flow, y, hidden = problem()

    def run():
        q = viscos.condition(flow, y, ~hidden, posterior="householder").fit(5)
        return q.sample(2), q.mean(4), q.bound(4)

    for a, b in zip(run(), run(), strict=True):
        assert torch.equal(a, b)


def test_looking_does_not_change_what_is_drawn():
    flow, y, hidden = problem()
    one, two = (viscos.condition(flow, y, ~hidden) for _ in range(2))
    one.mean(2)
    one.bound(2)
    assert torch.equal(one.sample(1), two.sample(1))


def test_antithetic_draws_come_in_pairs():
    flow, y, hidden = problem()
    found = viscos.condition(flow, y, ~hidden, solver=TIGHT).completions(5, antithetic=True)
    assert found.draws.shape[0] == 5
    assert (found.latents[0] + found.latents[1])[hidden].abs().max() < 1e-8
    assert (found.latents[2] + found.latents[3])[hidden].abs().max() < 1e-8


def test_failed_items_are_marked_and_never_filled():
    flow, y, hidden = problem(pattern="random")
    hopeless = viscos.condition(flow, y, ~hidden, solver=Anderson(1e-12, budget=2))
    found = hopeless.completions(2)
    assert not found.ok.any()
    assert (found.solution.status == Status.BUDGET).all()
    assert found.draws[:, hidden].isnan().all() and found.latents.isnan().all()
    assert torch.equal(found.draws[:, ~hidden], y[~hidden].expand(2, -1))
    mean = hopeless.mean()
    assert mean[hidden].isnan().all() and torch.equal(mean[~hidden], y[~hidden])
    assert (hopeless.bound() == -torch.inf).all()


def test_a_failed_item_leaves_its_neighbours_right():
    class Poisoned(ClosedForm):
        def __init__(self, flow):
            super().__init__()
            self.flow = flow

        def forward_and_ladj(self, y, generator=None):
            x, ladj = self.flow.forward_and_ladj(y)
            poison = torch.where(y.flatten(1)[:, 0] > 100, float("nan"), 1.0).to(y.dtype)
            return x * poison.view(-1, 1, 1, 1), ladj * poison

    flow, y, hidden = problem(pattern="random")
    hidden[:, 0, 0, 0] = False
    y = torch.where(hidden, float("nan"), normal(3, 1, 4, 4, seed=5))
    y[1, 0, 0, 0] = 200.0
    q = viscos.condition(Flow([Poisoned(flow)]), y, ~hidden, posterior="diagonal", solver=TIGHT)
    with pytest.warns(UserWarning, match="33 % of the draws could not be completed"):
        q.fit(1)
    draws = q.sample(2)
    assert draws[:, 1][:, hidden[1]].isnan().all() and torch.equal(draws[0, 1][~hidden[1]], y[1][~hidden[1]])
    rows = torch.tensor([0, 2])
    alone = viscos.condition(
        Flow([Poisoned(flow)]), y[rows], ~hidden[rows], posterior="diagonal", solver=TIGHT, index=rows
    ).fit(1)
    assert (alone.sample(2) - draws[:, rows]).abs().max() < 1e-6
    assert q.bound(2).isfinite().tolist() == [True, False, True]
    assert all(torch.isfinite(p).all() for p in q.posterior.parameters())


def test_the_mean_is_over_the_draws_that_were_solved():
    draws = torch.tensor([[[1.0, 2.0]], [[1.0, float("nan")]], [[1.0, 4.0]]])
    status = torch.tensor([0, int(Status.BUDGET), 0])
    found = Completions(draws, draws, Solution(draws[:, 0], status, torch.zeros(3), torch.ones(3)))
    assert found.mean().tolist() == [[1.0, 3.0]]
    assert found.ok.tolist() == [[True], [False], [True]]


def test_impute_with_an_inference_network():
    flow, y, hidden = problem(dtype=torch.float32)
    network = Amortised((1, 4, 4), gaussian=False)
    network.prepare(torch.full((1, *network.shape), 0.5), torch.ones(1, *network.shape, dtype=torch.bool), None)
    batch = incomplete(y, ~hidden, torch.arange(3))
    found = impute(flow, network, batch, newton_krylov(), draws=2, seed=1)
    assert found.ok.all()
    assert torch.equal(found.draws[:, ~hidden], y[~hidden].expand(2, -1))
    with pytest.raises(InputError, match=r"for items \(1, 4, 4\), got \(5,\)"):
        viscos.condition(AffineFlow(5), normal(1, 5), torch.ones(1, 5).bool(), posterior=network)


class Half(Bijection):
    """x = (exp y₁, y₂): no y has a latent with x₁ < 0, whatever y₂."""

    def forward(self, y):
        return torch.stack([y[:, 0].exp(), y[:, 1]], 1)


def halves(index, draws=8):
    """Draws of y₁ given y₂, by a standard normal q, of which one half has no y₁."""
    values, observed = torch.zeros(len(index), 2, dtype=F64), torch.tensor([False, True]).expand(len(index), 2)
    batch = incomplete(values, observed, index)
    return impute(Flow([Half()], (2,)), Diagonal(values), batch, newton_krylov(1e-9), draws=draws, seed=3)


def test_what_cannot_be_solved_is_drawn_anew_and_the_draws_are_of_the_rest_of_q():
    done = halves(torch.arange(300))
    attempts, ok = done.solution.attempts, done.solution.converged
    share = torch.stack([(attempts == k) & ok for k in (1, 2, 3, 4)] + [~ok], 1).to(F64)
    assert within(share, torch.tensor([1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 16], dtype=F64)).all()
    x = done.latents[..., 0][done.ok]  # the base's own law of x₁, given x₁ > 0, to which q's is equal
    assert x.min() > 0 and within(x[:, None], torch.tensor([math.sqrt(2 / math.pi)], dtype=F64)).all()
    assert within((x[:, None] ** 2), torch.ones(1, dtype=F64)).all()
    assert torch.equal(done.draws[..., 0].isnan(), ~done.ok) and (done.draws[..., 1] == 0).all()
    record = done.solution.record()
    assert record["failed"] == float((~ok).double().mean()) and record["drawn_anew"] == float(
        (attempts > 1).double().mean()
    )


def test_a_second_solver_counts_wherever_it_was_needed():
    first = Solution(
        torch.zeros(3), torch.tensor([0, 1, 1]), torch.zeros(3), torch.ones(3), torch.tensor([True, True, False])
    )
    again = Solution(torch.ones(2), torch.tensor([0, 2]), torch.ones(2), torch.ones(2), torch.tensor([False, True]))
    found = first.retried(torch.tensor([1, 2]), again)
    assert found.fallback.tolist() == [True, True, True] and found.attempts.tolist() == [1, 2, 2]
    assert found.status.tolist() == [0, 0, 2] and found.value.tolist() == [0, 1, 1]
    assert found.evaluations.tolist() == [1, 2, 2]


@dataclass(frozen=True)
class Counted:
    """A solver that counts the items that it gets."""

    solver: RootFinder
    items: list[int]

    @property
    def tolerance(self):
        return self.solver.tolerance

    def solve(self, equation, start):
        self.items.append(len(start))
        return self.solver.solve(equation, start)


@pytest.mark.parametrize("anew", [True, False])
def test_what_would_begin_a_solve_anew_is_left_to_the_last_attempt_of_a_draw(anew):
    first, second = (Counted(newton_krylov(1e-9), []) for _ in range(2))
    values, observed = torch.zeros(64, 2, dtype=F64), torch.tensor([False, True]).expand(64, 2)
    batch = incomplete(values, observed, torch.arange(64))
    pair = Fallback(first, second, anew=anew)
    done = impute(Flow([Half()], (2,)), Diagonal(values), batch, ByFlow(path(), pair), draws=8, seed=3)
    attempts, failed = done.solution.attempts, int((~done.ok).sum())
    left = [int((attempts > k).sum()) for k in (1, 2, 3)]
    assert first.items == [64 * 8, *left]
    assert second.items == ([failed] if anew else [*left, failed])
    assert torch.equal(done.draws.isnan(), halves(torch.arange(64)).draws.isnan())


def test_only_what_begins_anew_is_left_out_of_a_hasty_solver():
    usual = auto()
    assert hasty(usual, deep=True) == Path() == hasty(path(), deep=True)
    assert hasty(usual, deep=False) is usual.other and isinstance(usual.other, Fallback)
    assert hasty(newton_krylov(), deep=True) == newton_krylov()


def test_a_draw_made_anew_depends_on_nothing_but_its_item_and_its_number():
    done, alone = halves(torch.arange(20)), halves(torch.tensor([11]))
    fewer = halves(torch.tensor([4, 11]), draws=5)
    assert int(alone.solution.attempts.max()) > 2
    torch.testing.assert_close(alone.latents, done.latents[:, 11:12], rtol=0, atol=1e-12, equal_nan=True)
    torch.testing.assert_close(fewer.latents[:, 1:], done.latents[:5, 11:12], rtol=0, atol=1e-12, equal_nan=True)
    x = done.latents[..., 0][done.ok]
    assert len(x.unique()) == len(x)


# ------------------------------------------------------------------------------------------------------------- fitting


def test_fitting_leaves_the_flow_as_it_was():
    flow, y, hidden = problem()
    before = {k: v.clone() for k, v in flow.state_dict().items()}
    wanted = [p.requires_grad for p in flow.parameters()]
    told = []
    q = viscos.condition(flow, y, ~hidden)
    assert q.fit(3, progress=lambda step, figures: told.append((step, figures))) is q
    assert all(torch.equal(v, before[k]) for k, v in flow.state_dict().items())
    assert [p.requires_grad for p in flow.parameters()] == wanted and all(p.grad is None for p in flow.parameters())
    assert [step for step, _ in told] == [0, 1, 2]
    assert all(f["failed"] == 0 and f["residual"] <= 1e-3 and f["evaluations"] >= 1 for _, f in told)
    with pytest.raises(RuntimeError, match="stop"):
        q.fit(2, progress=lambda *_: (_ for _ in ()).throw(RuntimeError("stop")))
    assert [p.requires_grad for p in flow.parameters()] == wanted  # also when it was interrupted


class Recording:
    """An objective that keeps the noise of every step, and the state of its probes' generators."""

    def __init__(self, objective):
        self.objective, self.solver, self.noise, self.probes = objective, objective.solver, [], []

    def step(self, flow, batch, q, noise, generators):
        self.noise.append(noise)
        self.probes.append([row.get_state() for row in generators.rows])
        return self.objective.step(flow, batch, q, noise, generators)

    def log_weight(self, *args, **how):
        return self.objective.log_weight(*args, **how)


def test_every_step_of_a_fit_has_random_numbers_of_its_own():
    """Also those of a fit that goes on."""
    flow, y, hidden = problem()
    q = viscos.condition(flow, y, ~hidden, seed=3)
    q.objective = seen = Recording(q.objective)
    q.fit(2, samples=2).fit(1, samples=2)
    wanted = item_noise(3, torch.arange(3), 6, (1, 4, 4), y, purpose="fit")
    assert torch.equal(torch.cat(seen.noise), wanted)
    for key, states in enumerate(seen.probes):
        mine = ItemGenerators(3, torch.arange(3), 2, key).rows
        assert all(torch.equal(a, b.get_state()) for a, b in zip(states, mine, strict=True))
    assert not torch.equal(seen.probes[0][0], seen.probes[1][0])


@pytest.mark.parametrize("decay", [True, False])
def test_the_rate_of_a_fit_falls_along_a_cosine(decay):
    """Far from the optimum of an affine flow every gradient points the same way, and a step of Adam is the rate."""
    q = viscos.condition(AffineFlow(2), normal(1, 2), torch.tensor([True, False]), posterior="diagonal", lad="exact")
    q.fit(1).posterior.mean.data.fill_(1e4)  # the first fit begins near the mode
    means = [q.posterior.mean.detach()[0, 1].clone()]
    q.fit(8, learning_rate=0.1, decay=decay, progress=lambda *_: means.append(q.posterior.mean.detach()[0, 1].clone()))
    moves = (torch.stack(means).diff().abs() / 0.1).tolist()
    wanted = [0.5 * (1 + math.cos(math.pi * k / 8)) if decay else 1.0 for k in range(8)]
    assert moves == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize(
    ("name", "lad"),
    [("diagonal", "auto"), ("diagonal", "nlade"), ("householder", "clade"), ("full", "exact")],
)
def test_fitting_raises_the_bound(name, lad):
    flow = SmoothFlow(4)
    y, observed = normal(2, 4), torch.tensor([[True, True, False, False], [False, True, False, True]])
    q = viscos.condition(flow, y, observed, posterior=name, lad=lad)
    q.posterior.mean.data.fill_(1.0)
    before = q.bound(200)
    after = q.fit(60, learning_rate=5e-2).bound(200)
    assert (after > before).all()


class Elementwise(ClosedForm):
    """x₁ = y₁ and x₂ = u(y₂)."""

    def __init__(self, u):
        super().__init__()
        self.u = u

    def forward_and_ladj(self, y, generator=None):
        value, slope = torch.func.jvp(self.u, (y[:, 1],), (torch.ones_like(y[:, 1]),))
        return torch.stack([y[:, 0], value], 1), slope.abs().log()


PLANE = torch.tensor([[0.3, 0.0], [-1.0, 0.0]], dtype=F64), torch.tensor([True, False])


def test_failed_draws_enter_the_bound():
    """x₂ = tanh(y₂) reaches latents in (−1, 1) alone: of p₀(y₁) the flow has erf(1/√2), and that q may not exceed."""
    y, observed = PLANE
    q = viscos.condition(Flow([Elementwise(torch.tanh)], (2,)), y, observed, posterior="diagonal", solver=TIGHT)
    share = math.erf(0.5**0.5)
    wanted = -0.5 * y[:, 0].square() - 0.5 * math.log(2 * math.pi) + math.log(share)
    slack = 4 * ((1 - share) / (share * 2000)) ** 0.5
    assert (q.bound(2000) - wanted).abs().max() < slack < -math.log(share) / 2  # as it is for q = p₀ within (−1, 1)
    assert torch.equal(q.bound(2000), q.bound(2000))


def far():
    """An affine flow, an observation whose latents lie far from zero, and log p(y^O)."""
    flow, observed = AffineFlow(5), torch.tensor([True, False, True, False, True])
    y, on = 20 * normal(3, 5), observed.nonzero().flatten()
    shift = flow.to_latent(torch.zeros(1, 5, dtype=F64))
    W = flow.to_latent(torch.eye(5, dtype=F64)) - shift  # x = y W + shift
    mean, covariance = -(shift @ torch.linalg.inv(W))[0], torch.linalg.inv(W @ W.T)
    law = torch.distributions.MultivariateNormal(mean[on], covariance[on][:, on])
    return flow, y, observed, law.log_prob(y[:, on])


@pytest.mark.parametrize("posterior", ["diagonal", "householder", "full"])
def test_a_fit_arrives(posterior):
    flow, y, observed, wanted = far()
    q = viscos.condition(flow, y, observed, posterior=posterior)
    assert (q.bound(64) < wanted - 5).any()
    assert (q.fit(60).bound(200) - wanted).abs().max() < 0.05


def test_where_a_fit_begins_does_not_depend_on_neighbours():
    """On how much of them is hidden, and on how many steps they take to their mode."""
    flow = viscos.flows.iresnet((80,), start="none", blocks=[2]).double().eval()
    y, observed = 3 * normal(3, 80), torch.arange(80) >= torch.tensor([5, 75, 60])[:, None]
    index, hidden, found = torch.arange(3), ~observed, []
    for rows in (index[:1], index[1:2], index):
        done = complete(flow, y[rows] * observed[rows], hidden[rows], 0 * y[rows], TIGHT)
        probes = ItemGenerators(0, index[rows], 1, -1)
        found.append(laplace(flow, done.y, hidden[rows], done.preconditioner, probes))
    for alone, row in zip(found[:2], index, strict=False):
        assert torch.allclose(alone.mean[0], found[2].mean[row], atol=1e-12)
        assert torch.allclose(alone.log_scale[0], found[2].log_scale[row], atol=1e-10)


def test_a_fit_that_has_not_arrived_says_so():
    flow, y, observed, _ = far()
    q = viscos.condition(flow, y, observed, posterior="diagonal").fit(10)
    q.posterior.mean.data.fill_(30.0)
    with pytest.warns(UserWarning, match="the bound was still rising when the fit ended"):
        q.fit(10)


def test_a_fit_never_ends_worse_than_it_began():
    flow, y, observed, _ = far()
    q = viscos.condition(flow, y, observed).fit(10)
    before = q.log_weight(8, "judge", 32).mean(0)
    kept = [p.detach().clone() for p in q.posterior.parameters()]
    q.fit(3, learning_rate=30.0)  # the noise by which it is judged is always the same
    assert torch.equal(q.log_weight(8, "judge", 32).mean(0), before)
    assert all(torch.equal(p, old) for p, old in zip(q.posterior.parameters(), kept, strict=True))


def test_a_fit_says_that_draws_fail_and_that_a_latent_has_several_completions():
    y, observed = PLANE
    folded, bounded = (Flow([Elementwise(u)], (2,)) for u in (lambda t: t**3 - t, lambda t: 0.5 * torch.tanh(t)))
    with pytest.warns(UserWarning, match=r"sign of det G\^HH changes over the draws of 2 of 2 items"):
        viscos.condition(folded, y, observed, posterior="diagonal").fit(1)
    with pytest.warns(UserWarning, match=r"\d+ % of the draws could not be completed"):
        viscos.condition(bounded, y, observed, posterior="diagonal").fit(1)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_fit_needs_no_mode_of_the_caller(mode):
    flow, y, observed, _ = far()
    wanted = viscos.condition(flow, y, observed).fit(3).bound(4)
    with mode():
        q = viscos.condition(flow, y.clone(), observed.clone())
        assert torch.equal(q.fit(3).bound(4), wanted)


# ------------------------------------------------------------------------------------------------------------ refusals


def refused():
    good = {"y": normal(2, 5), "observed": torch.ones(2, 5, dtype=torch.bool)}
    return {
        "name of the posterior": (good | {"posterior": "gaussian"}, "posterior is 'gaussian'; choose one of auto, dia"),
        "amortised by name": (good | {"posterior": "amortised"}, "or give an object"),
        "name of the solver": (good | {"solver": "newton"}, "solver is 'newton'; choose one of anderson"),
        "name of the estimator": (good | {"lad": "hutchinson"}, "lad is 'hutchinson'; choose one of auto"),
        "shape of the data": (good | {"y": normal(2, 4)}, r"items of shape \(5,\), got \(4,\)"),
        "no batch axis": (good | {"y": normal(5)}, r"one item of shape \(5,\), without a batch axis; give y\[None\]"),
        "dtype of the data": (good | {"y": normal(2, 5).float()}, "data are torch.float32, the flow is torch.float64"),
        "whole numbers": (good | {"y": torch.ones(2, 5, dtype=torch.long)}, "floating point"),
        "words": (good | {"y": [["a"] * 5]}, "y must be a tensor or an array of numbers, got list"),
        "half precision": (good | {"y": normal(2, 5).half()}, r"y is torch.float16.*take y.float\(\) and flow.float"),
        "dtype of the mask": (good | {"observed": torch.ones(2, 5)}, "observed must be bool"),
        "shape of the mask": (good | {"observed": torch.ones(2, 4, dtype=torch.bool)}, "one mask for each item"),
        "a mask of another batch": (good | {"observed": torch.ones(3, 5, dtype=torch.bool)}, "one mask for each item"),
        "an observed NaN": (good | {"y": torch.full((2, 5), torch.nan, dtype=F64)}, "item 0 has 5 observed values"),
        "length of the index": (good | {"index": torch.arange(3)}, "index"),
        "dtype of the index": (good | {"index": torch.tensor([0.5, 1.0])}, "index"),
        "shape of the guess": (
            good | {"guess": normal(5)},
            r"guess is torch.float64 of shape \(5,\); give torch.float64",
        ),
        "dtype of the guess": (good | {"guess": normal(2, 5).float()}, "guess is torch.float32"),
        "a guess that is none": (
            good | {"guess": torch.full((2, 5), torch.nan, dtype=F64), "observed": torch.arange(5) > 0},
            "the guess of item 0 is not finite",
        ),
        "a guess for a network": (
            good | {"guess": normal(2, 5), "posterior": Amortised((5,), gaussian=False).double()},
            "a guess of its own",
        ),
        "posterior of another batch": (good | {"posterior": Diagonal(normal(3, 5))}, "for a batch of shape"),
    }


@pytest.mark.parametrize("name", list(refused()))
def test_refusals(name):
    arguments, message = refused()[name]
    flow = residual_flow("vector")
    with pytest.raises(InputError, match=message) as caught:
        viscos.condition(flow, arguments.pop("y"), arguments.pop("observed"), **arguments).sample(1)
    assert "\n" not in str(caught.value)


def test_refused_numbers():
    q = viscos.condition(residual_flow("vector"), normal(2, 5), torch.ones(5, dtype=torch.bool))
    refused = {
        lambda: q.fit(-1): "steps must be a whole number, 0 or more, got -1",
        lambda: q.fit(1e1): "steps must be a whole number, 0 or more, got 10.0",
        lambda: q.fit(1, samples=0): "samples must be a whole number, 1 or more, got 0",
        lambda: q.fit(1, samples=2.5): "samples must be a whole number",
        lambda: q.fit(1, learning_rate=0.0): "fit needs learning_rate > 0, got 0.0",
        lambda: q.refine(n=2.5): "the number of draws must be a whole number",
        lambda: q.refine(proposals=True): "proposals must be a whole number",
    }
    for call, says in refused.items():
        with pytest.raises(InputError, match=says):
            call()
    assert q.sample(np.int64(3)).shape == (3, 2, 5)
    for n in (0, (5,), 2.0):
        with pytest.raises(InputError, match="a whole number, 1 or more, got") as caught:
            q.sample(n)
        assert repr(n) in str(caught.value)


def test_a_model_of_another_library_is_wrapped():
    y, observed = PLANE
    double = viscos.condition(lambda y: (2 * y, y.new_full((len(y),), 2 * math.log(2))), y, observed, solver=TIGHT)
    flow = Flow([Elementwise(lambda t: 2 * t)], (2,))
    assert torch.allclose(double.sample(3)[..., 1], viscos.condition(flow, y, observed, solver=TIGHT).sample(3)[..., 1])
    for nothing in ("outputs/run", None, torch.nn.Linear(2, 2).double()):
        with pytest.raises(InputError):
            viscos.condition(nothing, y, observed).sample()


@pytest.mark.parametrize("partition", ["same", "maxvol"])
@pytest.mark.parametrize("posterior", ["diagonal", "householder", "full"])
def test_a_posterior_begins_at_a_guess(posterior, partition):
    """An antithetic pair of draws of an affine flow has the guess as its mean."""
    flow, observed = AffineFlow(5), torch.tensor([True, False, False, True, False])
    y, guess = normal(2, 5), normal(2, 5, seed=1)
    q = viscos.condition(flow, y, observed, posterior=posterior, partition=partition, guess=guess, solver=TIGHT)
    assert torch.allclose(q.mean(2), torch.where(observed, y, guess), atol=1e-7)


def test_one_mask_serves_every_item():
    flow, y = residual_flow("image"), normal(2, 1, 4, 4)
    mask = torch.rand(4, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    wanted = viscos.condition(flow, y, mask.expand(2, 1, 4, 4)).sample(1)
    for observed in (mask, mask[None]):
        assert torch.equal(viscos.condition(flow, y, observed).sample(1), wanted)


# ------------------------------------------------------------------------------------------------------------ examples


def test_the_example_of_a_first_page():
    flow = iresnet((1, 8, 8), blocks=(2,), channels=8, start="none")
    y = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    observed = torch.ones(8, 8, dtype=torch.bool)
    observed[2:6, 2:6] = False
    posterior = viscos.condition(flow, y, observed, posterior="householder", solver="anderson", lad="auto")
    posterior.fit(steps=5)
    draws = posterior.sample(16)
    assert draws.shape == (16, 2, 1, 8, 8) and torch.isfinite(draws).all()
    assert posterior.mean().shape == (2, 1, 8, 8)
    assert posterior.bound().shape == (2,) and torch.isfinite(posterior.bound()).all()


def test_a_flow_of_ones_own_needs_one_method():
    class Shear(ClosedForm):
        def forward_and_ladj(self, y, generator=None):
            return torch.stack([y[:, 0], y[:, 1] + y[:, 0] ** 2], 1), torch.zeros(len(y))

    y, observed = torch.tensor([[0.5, 0.0], [0.0, 1.0]]), torch.tensor([[True, False], [False, True]])
    flow = Flow([Shear()])
    posterior = viscos.condition(flow, y, observed).fit(steps=20)
    assert posterior.sample(16).shape == (16, 2, 2)
    assert (flow.to_data(flow.to_latent(y)).value - y).abs().max() < 1e-5


def test_what_judges_a_fit_knows_an_exact_posterior_from_a_lucky_one():
    """Weights that are constant are those of an exact q, though a few others may have a higher mean by chance."""
    exact, lucky = torch.zeros(8, 1, dtype=F64), torch.linspace(-1.0, 1.2, 8, dtype=F64)[:, None]
    assert float(lucky.mean()) > 0
    for begun, offered in ((exact, lucky), (lucky, exact)):
        p = torch.nn.Parameter(torch.zeros(1, 1))
        best = Best([p], begun, each=True, exact=True)
        p.data.fill_(1.0)
        best.offer(offered)
        best.restore()
        assert torch.equal(best.weight, exact) and float(p.detach()) == float(offered is exact)
    worse = Best([p], exact, each=True, exact=True)
    worse.offer(exact - 3)  # as steady, and clearly lower
    assert torch.equal(worse.weight, exact)
    failed = torch.full_like(exact, float("nan"))
    hopeless = Best([p], failed, each=True, exact=True)
    hopeless.offer(failed)
    hopeless.offer(lucky)
    assert torch.equal(hopeless.weight, lucky)


def test_a_fit_keeps_what_is_exact():
    """A q beside it that a few draws flatter has weights that vary, whatever their mean is."""
    mix = Mix(2).double()
    mix.W.data = torch.tensor([[1.0, 0.0], [-0.5, 1.0]], dtype=F64)
    known = 1.25**0.5 * normal(150, seed=1)
    y = torch.stack([torch.full_like(known, float("nan")), known], 1)
    q = viscos.condition(Flow([mix], (2,)), y, posterior="diagonal").fit(60).posterior
    exact = Normal(0.4 * known, 0.8**0.5)  # of y₀ beside y₁, and x₀ is y₀
    found = Normal(q.mean[:, 0].detach(), q.log_scale[:, 0].detach().exp())
    assert float(kl_divergence(found, exact).max()) < 1e-3


def test_a_flow_that_was_made_under_inference_mode_is_refused_before_it_is_fitted():
    with torch.inference_mode():
        flow = viscos.flows.iresnet((3,), blocks=[1])
    q = viscos.condition(flow, torch.tensor([[1.0, float("nan"), 2.0]]))
    with pytest.raises(InputError, match=r"the flow was made under torch\.inference_mode"):
        q.fit(2)


def test_the_curvature_is_estimated_beyond_64_hidden_entries():
    """The mean over 200 items alike, of 8 probes each, is the diagonal of MᵀM within the noise of the probes."""
    d, hidden = 100, torch.arange(100) < 80
    flow, y, index = AffineFlow(d), normal(1, d).expand(200, d), torch.arange(200)
    A = flow.layers[0].A.detach()
    M = A[~hidden][:, hidden] @ torch.linalg.inv(A[hidden][:, hidden])
    masks = hidden.expand(200, d)
    inverse = flow.skeleton(y).inverse_block(masks)
    q = laplace(flow, y, masks, inverse, ItemGenerators(0, index, 1, -1))
    found = torch.expm1(-2 * q.log_scale)[:, hidden]
    error = found.std(0) / 200**0.5
    assert ((found.mean(0) - M.square().sum(0)).abs() < 5 * error + 1e-3).all()


def test_what_estimated_weights_vary_by_does_not_choose_the_posterior():
    """In 40 entries that hang together log-determinants are estimated in a fit, each by as much as a poor q costs."""

    class Together(Bijection):
        def __init__(self):
            super().__init__()
            self.A = torch.nn.Parameter(normal(40, 40, seed=3).float() / 40**0.5 + 1.5 * torch.eye(40))

        def forward(self, y):
            return y @ self.A.T

    flow = Flow([Together()], (40,))
    A = flow.layers[0].A.detach().double()
    gaussian = Gaussian(torch.zeros(40), torch.linalg.inv(A.T @ A))
    y = torch.linalg.solve(A, normal(40, 6, seed=4)).T
    observed = ~masks((40,), 6)["random"]
    q = viscos.condition(flow, y.float(), observed, posterior="full").fit(60)
    lost = gaussian.log_prob_observed(y, observed) - q.bound(64)
    assert float(lost.max()) < 0.3, lost


def test_a_steep_entry_is_no_reason_for_a_draw_to_fail():
    """One entry of 64 is a thousand times as dense: float32 holds that, and the bound is told by estimates too."""
    flow = Flow([Affine((64,))], (64,))
    with torch.no_grad():
        flow.layers[0].log_scale[5] = math.log(1e-3)
    y, observed = torch.zeros(1, 64), (torch.arange(64) >= 44)[None]
    posterior = viscos.condition(flow, y, observed, posterior="diagonal")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior.fit(20)
    exact = posterior.diagnose(16)
    flow.dense_below = 16
    estimated = posterior.diagnose(16)
    assert float(estimated.failed) == 0
    torch.testing.assert_close(estimated.bound, exact.bound, atol=1e-2, rtol=0)
