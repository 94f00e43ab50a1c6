"""The bound: its value against closed forms and quadrature, its gradient against central differences."""

import math

import pytest
import torch
from problems import (
    F64,
    KINDS,
    PLANE,
    AffineFlow,
    SmoothFlow,
    flow_named,
    masks,
    normal,
    residual_flow,
    shaken,
    within,
)
from torch import nn

import viscos
from viscos.core.batch import incomplete
from viscos.core.rng import generator
from viscos.flows import ClosedForm, Flow, iresnet
from viscos.inference import Objective
from viscos.linear import GMRES
from viscos.logdet import CLADE, NLADE, Exact
from viscos.posteriors import Amortised, Diagonal, DiagonalGaussian, Full, FullGaussian, Householder
from viscos.roots import LatentEquation, anderson, newton_krylov

TIGHT = Objective(anderson(1e-12, 200), Exact(), GMRES(1e-13, budget=500), path_gradient=False)


@pytest.fixture(autouse=True)
def seeded():
    """Layers draw their first weights from torch's own generator."""
    torch.manual_seed(0)


# -------------------------------------------------------------------------------------------- the affine flow, exactly


def exact_posterior(flow, y, hidden):
    """q(x^H | y^O) of an affine flow: y^O = R x + r with x ~ N(0, I) gives N(R⁺(y^O − r), I − R⁺R), restricted to H."""
    A, b = flow.layers[0].A.detach(), flow.layers[0].b.detach()
    J, d = torch.linalg.inv(A), len(b)
    mean, factor = torch.zeros_like(y), y.new_zeros(len(y), d, d)
    for k, H in enumerate(hidden):
        R = J[~H]
        plus = torch.linalg.pinv(R) if (~H).any() else y.new_zeros(d, 0)
        mean[k] = plus @ (y[k, ~H] + (J @ b)[~H])
        covariance = (torch.eye(d, dtype=F64) - plus @ R)[H][:, H]
        if H.any():
            L = torch.linalg.cholesky(covariance)
            padded = torch.zeros(d, d, dtype=F64)
            padded[H.nonzero(), H.nonzero().T] = L.tril(-1) + torch.diag_embed(L.diagonal().log())
            factor[k] = padded
    return mean, factor


def affine_problem(d, batch=4):
    flow = AffineFlow(d, seed=d)
    y = normal(batch, d, seed=3 * d)
    hidden = masks((d,), batch)["random"].clone()
    hidden[0], hidden[1] = True, False
    return flow, y, hidden


@pytest.mark.parametrize("d", [1, 2, 5, 12])
def test_at_the_exact_posterior_every_draw_has_the_evidence_for_its_weight(d):
    flow, y, hidden = affine_problem(d)
    batch = incomplete(y, ~hidden)
    mean, factor = exact_posterior(flow, y, hidden)
    q = FullGaussian(mean, hidden, factor)
    evidence = flow.gaussian().log_prob_observed(y, ~hidden)
    weight = TIGHT.log_weight(flow, batch, q, 3 * normal(6, len(y), d, seed=1), generator(0))
    assert not weight.isnan().any()
    assert (weight - evidence).abs().max() < 1e-6
    assert evidence[0] == 0  # nothing is observed
    assert weight[:, 1].sub(flow.log_prob(y)[1]).abs().max() < 1e-9  # nothing is hidden


@pytest.mark.parametrize("d", [3, 8])
def test_there_the_path_gradient_has_no_noise(d):
    flow, y, hidden = affine_problem(d)
    q = Full(y)
    mean, factor = exact_posterior(flow, y, hidden)
    q.mean.data.copy_(mean)
    q.factor.data.copy_(factor)
    batch = incomplete(y, ~hidden)
    objective = Objective(anderson(1e-12, 200), Exact(), GMRES(1e-13))
    step = objective.step(flow, batch, q(batch, flow), normal(1, len(y), d, seed=1), generator(0))
    grads = torch.autograd.grad(step.surrogate.sum(), list(q.parameters()))
    assert max(float(g.abs().max()) for g in grads) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("posterior", ["full", "householder"])
def test_the_fitted_bound_comes_near_the_evidence(posterior):
    """Within 1e-3 nats for the full posterior, which can be exact."""
    flow, y, hidden = affine_problem(6)
    evidence = flow.gaussian().log_prob_observed(y, ~hidden)
    conditional = viscos.condition(flow, y, ~hidden, posterior=posterior, lad="exact", solver=anderson(1e-9, 100))
    before = conditional.bound(4000)
    conditional.fit(200, learning_rate=5e-2)
    gap = evidence - conditional.bound(4000)
    print(f"{posterior}: gap {gap.tolist()}")
    noise = 1e-3  # of 4,000 draws, which may put the estimate above the evidence
    assert (gap <= evidence - before + noise).all() and (gap > -noise).all()
    assert (gap < (1e-3 if posterior == "full" else 0.5)).all()


def test_draws_have_the_moments_of_the_conditional_gaussian():
    flow, y, hidden = affine_problem(6)
    conditional = viscos.condition(flow, y, ~hidden, posterior="full", solver=anderson(1e-9, 100))
    mean, factor = exact_posterior(flow, y, hidden)
    conditional.posterior.mean.data.copy_(mean)
    conditional.posterior.factor.data.copy_(factor)
    draws = conditional.sample(3000)
    gaussian = flow.gaussian()
    wanted = gaussian.conditional(y, ~hidden)
    assert within(draws, wanted).all()
    assert torch.allclose(conditional.mean(2), wanted, atol=1e-6)  # antithetic, and the flow is affine
    S = gaussian.covariance
    for k, H in enumerate(hidden):
        if not H.any():
            continue
        gain = S[H][:, ~H] @ torch.linalg.inv(S[~H][:, ~H])
        covariance = S[H][:, H] - gain @ S[~H][:, H]
        centred = draws[:, k, H] - wanted[k, H]
        assert within(centred[:, :, None] * centred[:, None, :], covariance).all()


# ------------------------------------------------------------------------------------- nonlinear flows, by quadrature


def planar_problem(name, size=1.0):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = PLANE.get(name, lambda: iresnet((2,), blocks=(4,), channels=16, start="none"))()
        flow = shaken(plain.double(), size=0.3 if name in PLANE else size)
    flow = SmoothFlow(2, seed=1) if name == "smooth" else flow
    y = torch.tensor([[0.7, 0.0], [0.0, -0.4], [-1.5, 0.0]], dtype=F64)
    observed = torch.tensor([[True, False], [False, True], [True, False]])
    grid = torch.linspace(-30, 30, 20_001, dtype=F64)
    evidence = []
    with torch.no_grad():
        for item, o in zip(y, observed, strict=True):
            points = torch.where(o, item, grid[:, None])
            evidence.append(torch.trapezoid(flow.log_prob(points).exp(), grid).log())
    return flow, y, observed, torch.stack(evidence)


@pytest.mark.parametrize("name", ["iresnet", "smooth", *PLANE])
def test_the_bound_is_below_the_evidence_for_every_q(name):
    flow, y, observed, evidence = planar_problem(name)
    batch = incomplete(y, observed)
    noise = normal(500, 3, 2, seed=1)
    for seed, kind in enumerate([Diagonal, Diagonal, Householder, Householder, Full, Full]):
        posterior = kind(y)
        for k, p in enumerate(posterior.parameters()):
            p.data.add_((0.1 + 0.4 * seed) * normal(*p.shape, seed=10 * seed + k))
        weight = TIGHT.log_weight(flow, batch, posterior(batch, flow), noise, generator(0))
        assert not weight.isnan().any()
        standard_error = weight.std(0) / len(noise) ** 0.5
        assert (weight.mean(0) <= evidence + 4 * standard_error).all()
        # The weights themselves are unbiased: their mean is the evidence, whatever q is.
        if seed == 0:
            assert within(weight.exp(), evidence.exp()).all()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in ("iresnet", "implicit", "smooth", "continuous")))
        for name in ("iresnet", "smooth", *PLANE)
    ],
)
def test_the_fitted_gap_is_small(name, record_property):
    flow, y, observed, evidence = planar_problem(name)
    conditional = viscos.condition(flow, y, observed, posterior="full", lad="exact", solver=anderson(1e-8, 100))
    conditional.fit(150 if name not in PLANE else 40, learning_rate=1e-1)
    gap = evidence - conditional.bound(2000)
    record_property("gap", gap.tolist())
    print(f"{name}: gap {gap.tolist()}")
    assert (gap < (0.01 if name not in PLANE else 0.1)).all()
    assert (gap > -0.01).all()  # Monte Carlo: 2000 draws


# ------------------------------------------------------------------------------------------------------- the gradient


def gradient_problem(name):
    """A flow, a batch with every kind of mask, a posterior and common noise."""
    if name == "own":
        flow, shape = SmoothFlow(4), (4,)
    elif name in KINDS:
        flow = flow_named(name)
        shape = tuple(flow.shape)
    else:
        flow = residual_flow("image" if name != "vector" else "vector")
        shape = tuple(flow.shape)
    hidden = masks(shape)["one kind an item"]
    batch = incomplete(normal(3, *shape, seed=5), ~hidden)
    if name == "amortised":
        posterior = Amortised(shape, channels=(3, 4), gaussian=False, held_out=0.0).double()
    else:
        posterior = {"image": Diagonal, "vector": Full}.get(name, lambda like: Householder(like, 2))(batch.filled())
    with torch.no_grad():
        for k, p in enumerate(posterior.parameters()):
            p.add_(0.2 * normal(*p.shape, seed=k))
    return flow, batch, posterior, normal(2, 3, *shape, seed=9)


@pytest.mark.parametrize(
    "name",
    [pytest.param(kind, marks=[pytest.mark.slow] * (kind == "implicit")) for kind in KINDS if "image" not in kind],
)
def test_the_gradient_of_the_bound_of_every_flow(name):
    """Along random directions in all parameters of q and of the flow at once."""
    flow, batch, posterior, noise = gradient_problem(name)
    parameters = [p for p in (*posterior.parameters(), *flow.parameters()) if p.requires_grad]
    kept = [p.detach().clone() for p in parameters]
    step = TIGHT.step(flow, batch, posterior(batch, flow), noise, generator(0))
    assert step.ok.all()
    grads = torch.autograd.grad(step.surrogate.sum(), parameters, allow_unused=True)
    for seed in range(2):
        directions = [normal(*p.shape, seed=100 * seed + k) / p.numel() ** 0.5 for k, p in enumerate(parameters)]
        found = sum(float((g * v).sum()) for g, v in zip(grads, directions, strict=True) if g is not None)
        values = {}
        with torch.no_grad():
            for m in (-2, -1, 1, 2):
                for p, old, v in zip(parameters, kept, directions, strict=True):
                    p.copy_(old + m * 1e-4 * v)
                weight = TIGHT.log_weight(flow, batch, posterior(batch, flow), noise, generator(0))
                assert not weight.isnan().any()
                values[m] = float(weight.sum())
        difference = (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / 12e-4
        assert abs(found - difference) <= 1e-5 * max(1.0, abs(difference))


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("image", "vector")), "own", "amortised"]
)
def test_the_gradient_of_the_bound_against_central_differences(name):
    """In every parameter of q and of the flow, along a random direction, each item with its own weight."""
    flow, batch, posterior, noise = gradient_problem(name)
    weights = torch.tensor([1.0, -0.5, 2.0], dtype=F64)

    def bound():
        weight = TIGHT.log_weight(flow, batch, posterior(batch, flow), noise, generator(0))
        assert not weight.isnan().any()
        return float((weights * weight).sum())

    step = TIGHT.step(flow, batch, posterior(batch, flow), noise, generator(0))
    assert step.ok.all()
    total = (weights.repeat(2) * step.surrogate).sum()
    assert total.item() == pytest.approx(bound(), abs=1e-9)  # with `Exact` the surrogate has the value too
    parameters = [p for p in (*posterior.parameters(), *flow.parameters()) if p.requires_grad]
    grads = torch.autograd.grad(total, parameters, allow_unused=True)
    assert step.ok.all()  # the adjoint solves too
    e = 1e-3 if name != "amortised" else 1e-5  # no step over a kink of its ReLUs
    for k, (p, g) in enumerate(zip(parameters, grads, strict=True)):
        direction = normal(*p.shape, seed=100 + k)
        direction /= direction.norm()
        values = {}
        with torch.no_grad():
            kept = p.clone()
            for m in (-2, -1, 1, 2):
                p.copy_(kept + m * e * direction)
                values[m] = bound()
            p.copy_(kept)
        difference = (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * e)
        found = 0.0 if g is None else float((g * direction).sum())
        assert abs(found - difference) <= 1e-6 * max(1.0, abs(difference)), (k, tuple(p.shape))


def projected(objective, problem, seeds, draws):
    """Gradients of the mean surrogate along one direction for each parameter, for fresh noise and probes each time."""
    flow, batch, posterior, noise = problem
    parameters = [p for p in (*posterior.parameters(), *flow.parameters()) if p.requires_grad]
    runs = []
    for seed in seeds:
        fresh = normal(draws, *noise.shape[1:], seed=1000 + seed)
        step = objective.step(flow, batch, posterior(batch, flow), fresh, generator(seed, "probes"))
        grads = torch.autograd.grad(step.surrogate.sum() / draws, parameters, allow_unused=True)
        runs.append(
            torch.stack(
                [
                    torch.zeros((), dtype=F64) if g is None else (g * normal(*p.shape, seed=100 + k)).sum()
                    for k, (p, g) in enumerate(zip(parameters, grads, strict=True))
                ]
            )
        )
    return torch.stack(runs)


@pytest.mark.parametrize("name", [pytest.param("vector", marks=pytest.mark.slow), "own"])
def test_the_path_gradient_has_no_bias(name):
    """Both forms with the same noise: their difference is the score of q, whose mean is zero."""
    problem = gradient_problem(name)
    solver = (anderson(1e-8, 100), Exact(), GMRES(1e-10))
    plain = projected(Objective(*solver, path_gradient=False), problem, range(40), 20)
    path = projected(Objective(*solver, path_gradient=True), problem, range(40), 20)
    assert within(path - plain, torch.zeros(plain.shape[1], dtype=F64), slack=1e-7).all()
    assert float((path - plain).abs().max()) > 1e-3  # they do differ, draw by draw


@pytest.mark.slow
@pytest.mark.parametrize("lad", [CLADE(1), NLADE(1, tolerance=1e-10)], ids=["clade", "nlade"])
def test_probes_in_the_bound_have_no_bias(lad):
    problem = gradient_problem("vector")
    solver = anderson(1e-8, 100)
    exact = projected(Objective(solver, Exact(), GMRES(1e-10), path_gradient=False), problem, range(40), 20)
    probed = projected(Objective(solver, lad, GMRES(1e-10), path_gradient=False), problem, range(40), 20)
    assert within(probed - exact, torch.zeros(exact.shape[1], dtype=F64), slack=1e-7).all()


# -------------------------------------------------------------------------------------------------------- failed items


class Poisoned(ClosedForm):
    """A flow that gives NaN, and NaN gradients, for items whose first entry is beyond 100."""

    def __init__(self, flow):
        super().__init__()
        self.flow = flow

    def forward_and_ladj(self, y, generator=None):
        x, ladj = self.flow.forward_and_ladj(y)
        poison = torch.where(y.flatten(1)[:, 0] > 100, float("nan"), 1.0).to(y.dtype)
        return x * poison.view(-1, *[1] * (y.dim() - 1)), ladj * poison


class Lost(ClosedForm):
    """A flow whose value is known everywhere, but not together with a tangent where the first entry is beyond 100."""

    def __init__(self, flow):
        super().__init__()
        self.flow = flow

    def forward_and_ladj(self, y, generator=None):
        return self.flow.forward_and_ladj(y)

    def tangent(self, y, v):
        x, t = self.flow.tangent(y, v)
        return torch.where(y[:, :1] > 100, float("nan"), x) * 1.0, t * torch.where(y[:, :1] > 100, float("nan"), 1.0)


@pytest.mark.parametrize("lad", [Exact(), CLADE(), NLADE()], ids=["exact", "clade", "nlade"])
@pytest.mark.parametrize("bad", ["poisoned", "impossible", "lost"])
def test_a_failed_item_harms_no_one(bad, lad):
    """Its surrogate is zero; the gradients of all parameters are finite, and those of the batch without it."""
    inner = residual_flow("vector")
    y = normal(3, 5, seed=1)
    hidden = torch.tensor([[0, 1, 1, 0, 0], [0, 1, 0, 1, 1], [0, 0, 1, 1, 1]]).bool()
    solver = newton_krylov(1e-9)
    if bad in ("poisoned", "lost"):
        flow = Flow([Poisoned(inner) if bad == "poisoned" else Lost(inner)], inner.shape)
        y[1, 0] = 200.0
    else:
        flow = Flow([Saturated(inner)], inner.shape)
    batch = incomplete(y, ~hidden)
    noise = normal(2, 3, 5, seed=2)
    if bad == "impossible":
        noise[:, 1] = 50.0  # beyond the range of the flow
    objective = Objective(solver, lad, GMRES(1e-11))
    rows = torch.tensor([0, 2])

    def gradients(batch, noise):
        posterior = Full(batch.filled())
        step = objective.step(flow, batch, posterior(batch, flow), noise, generator(0))
        parameters = [p for p in (*posterior.parameters(), *flow.parameters()) if p.requires_grad]
        grads = torch.autograd.grad(step.surrogate.sum(), parameters, allow_unused=True)
        return step, [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]

    step, found = gradients(batch, noise)
    assert step.ok.view(2, 3).tolist() == [[True, False, True]] * 2
    assert (step.surrogate.view(2, 3)[:, 1] == 0).all()
    assert all(torch.isfinite(g).all() for g in found)
    assert torch.isfinite(step.y).all() and torch.equal(step.y.view(2, 3, 5)[:, ~hidden], y[~hidden].expand(2, -1))
    assert (found[0][1] == 0).all() and (found[1][1] == 0).all()
    if isinstance(lad, Exact):  # probes are drawn for the whole batch
        _, wanted = gradients(batch.select(rows), noise[:, rows])
        for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
            assert torch.allclose(a[rows] if k < 2 else a, b, atol=1e-7)


class Saturated(Poisoned):
    """A flow whose latents lie within (−20, 20)."""

    def forward_and_ladj(self, y, generator=None):
        x, ladj = self.flow.forward_and_ladj(y)
        t = torch.tanh(x / 20)
        return 20 * t, ladj + (1 - t.square()).clamp_min(1e-30).log().flatten(1).sum(1)


def test_a_failed_item_harms_no_inference_network():
    flow = Flow([Poisoned(residual_flow("image"))], (1, 4, 4))
    y = normal(3, 1, 4, 4, seed=1)
    y[1, 0, 0, 0] = 200.0
    observed = torch.ones(4, 4, dtype=torch.bool)
    observed[1:3, 1:] = False
    batch, noise, rows = incomplete(y, observed), normal(1, 3, 1, 4, 4, seed=2), torch.tensor([0, 2])
    network = Amortised((1, 4, 4), channels=(3, 4), gaussian=False, held_out=0.0).double()
    for k, p in enumerate(network.parameters()):
        p.data.add_(0.1 * normal(*p.shape, seed=k))
    parameters = [p for p in (*network.parameters(), *flow.parameters()) if p.requires_grad]

    def gradients(batch, noise):
        step = TIGHT.step(flow, batch, network(batch, flow), noise, generator(0))
        return step.ok, torch.autograd.grad(step.surrogate.sum(), parameters)

    ok, found = gradients(batch, noise)
    assert ok.tolist() == [True, False, True]
    for a, b in zip(found, gradients(batch.select(rows), noise[:, rows])[1], strict=True):
        assert torch.allclose(a, b, atol=1e-8)


def test_a_batch_in_which_all_fail_has_a_zero_gradient():
    flow = Flow([Poisoned(residual_flow("vector"))], (5,))
    y = normal(2, 5).index_fill(1, torch.tensor([0]), 200.0)
    batch = incomplete(y, torch.tensor([True, False, True, False, True]))
    posterior = Diagonal(batch.filled())
    step = Objective(newton_krylov(1e-9)).step(flow, batch, posterior(batch, flow), normal(1, 2, 5), generator(0))
    assert not step.ok.any()
    step.surrogate.sum().backward()
    assert all(p.grad is None or (p.grad == 0).all() for p in (*posterior.parameters(), *flow.parameters()))


class Starting:
    """A solver that keeps where it was to start."""

    tolerance = 1e-3

    def solve(self, equation, start):
        self.start = start
        return anderson().solve(equation, start)


def test_a_solve_starts_where_the_posterior_says():
    """Its guess of the completion, for each draw; for want of one, at the solution of the flow's skeleton."""
    flow, y, hidden = residual_flow("image"), normal(3, 1, 4, 4, seed=5), masks((1, 4, 4))["random"]
    batch, noise, guess = incomplete(y, ~hidden), normal(2, 3, 1, 4, 4, seed=6), normal(3, 1, 4, 4, seed=7)
    for start in (guess, None):
        q = DiagonalGaussian(torch.zeros_like(y), hidden, torch.zeros_like(y), start=start)
        solver = Starting()
        for call in (Objective(solver).step, Objective(solver).log_weight):
            call(flow, batch, q, noise, generator(0))
            if start is None:
                x = q.sample(noise).flatten(0, 1)
                wanted = LatentEquation.build(flow, y.repeat(2, 1, 1, 1), hidden.repeat(2, 1, 1, 1), x).start()
            else:
                wanted = torch.where(hidden, guess, 0).repeat(2, 1, 1, 1)
            assert torch.allclose(solver.start, wanted)


def test_nothing_hidden_is_maximum_likelihood():
    flow = residual_flow("vector")
    y = normal(3, 5)
    batch = incomplete(y, torch.ones(5, dtype=torch.bool))
    step = TIGHT.step(flow, batch, Diagonal(y)(batch, flow), normal(1, 3, 5), generator(0))
    assert torch.allclose(step.surrogate, flow.log_prob(y), atol=1e-10)
    assert torch.equal(step.y, y)
    parameters = [p for p in flow.parameters() if p.requires_grad]
    found = torch.autograd.grad(step.surrogate.sum(), parameters)
    wanted = torch.autograd.grad(flow.log_prob(y).sum(), parameters)
    for a, b in zip(found, wanted, strict=True):
        assert torch.allclose(a, b, atol=1e-9)


def test_everything_hidden_and_the_prior_for_q_is_a_weight_of_zero():
    flow = residual_flow("vector")
    batch = incomplete(torch.full((2, 5), math.nan, dtype=F64), torch.zeros(5, dtype=torch.bool))
    q = Diagonal(torch.zeros(2, 5, dtype=F64))(batch, flow)
    weight = TIGHT.log_weight(flow, batch, q, normal(4, 2, 5), generator(0))
    assert weight.abs().max() < 1e-9


def test_a_large_item_is_weighed_by_estimates_without_bias():
    """Beyond `exact_below`: the flow's own estimate and Lanczos quadrature, against the dense value."""
    flow = residual_flow("odd")
    hidden = masks((1, 5, 5))["random"][:1]
    batch = incomplete(normal(1, 1, 5, 5), ~hidden)
    wide = batch.select(torch.zeros(600, dtype=torch.long))
    noise = normal(1, 1, 1, 5, 5)
    q = Diagonal(batch.filled())(batch, flow)
    wanted = TIGHT.log_weight(flow, batch, q, noise, generator(0))
    objective = Objective(anderson(1e-8, 100))
    many = Diagonal(wide.filled())(wide, flow)
    found = objective.log_weight(flow, wide, many, noise.expand(1, 600, 1, 5, 5), generator(0), exact_below=1)
    assert within(found[0], wanted[0, 0])


def test_modules_are_left_as_they_were():
    flow, batch, posterior, noise = gradient_problem("vector")
    assert isinstance(posterior, nn.Module)
    before = {k: v.clone() for k, v in flow.state_dict().items()}
    TIGHT.step(flow, batch, posterior(batch, flow), noise, generator(0)).surrogate.sum().backward()
    assert all(torch.equal(v, before[k]) for k, v in flow.state_dict().items())
