"""Mixtures over x^H against torch's own, the gradient of the bound with them, and conditionals of two modes."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from problems import F64, SmoothFlow, masks, normal, residual_flow
from scipy.stats import wasserstein_distance
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

import viscos
from viscos.commands.assemble.choice import Asked, Choice
from viscos.core.batch import incomplete
from viscos.core.choices import description
from viscos.core.errors import InputError
from viscos.core.rng import generator
from viscos.flows import Bijection, Flow
from viscos.inference import Objective, complete
from viscos.linear import GMRES
from viscos.logdet import Exact
from viscos.posteriors import Amortised, Diagonal, DiagonalGaussian, GaussianMixture, Mixture
from viscos.posteriors.mixture import places_of
from viscos.roots import anderson

SHAPE = (2, 3)
HIDDEN = torch.tensor(
    [[[0, 1, 0], [1, 0, 1]], [[0, 0, 0], [0, 0, 0]], [[1, 1, 1], [1, 1, 1]], [[0, 0, 1], [0, 0, 0]]]
).bool()


@pytest.fixture(autouse=True)
def seeded():
    """Layers draw their first weights from torch's own generator."""
    torch.manual_seed(0)


def mixture(batch=4, shape=SHAPE, hidden=HIDDEN, components=3):
    mean, log_scale = 2 * normal(batch, components, *shape, seed=1), 0.4 * normal(batch, components, *shape, seed=2)
    return GaussianMixture(mean, hidden, log_scale - 1, normal(batch, components, seed=3))


def reference(q, item):
    """The same distribution of the hidden entries of an item, by torch."""
    H = q.hidden[item]
    each = Independent(Normal(q.mean[item][:, H], q.log_scale[item][:, H].exp()), 1)
    return MixtureSameFamily(Categorical(logits=q.logit[item]), each)


def test_the_density_against_torchs_own():
    q, x = mixture(), 2 * normal(5, 4, *SHAPE, seed=4)
    found = q.log_prob(torch.where(HIDDEN, x, math.nan))
    for item, H in enumerate(HIDDEN):
        wanted = reference(q, item).log_prob(x[:, item][:, H]) if H.any() else torch.zeros(5, dtype=F64)
        assert torch.allclose(found[:, item], wanted, atol=1e-10)
    noise = normal(5, 4, *SHAPE, seed=5)
    assert torch.equal(q.log_prob(q.sample(noise)), q.log_prob_of_noise(noise))


def test_draws_have_the_mixtures_law():
    """Each hidden entry by the distance of Kolmogorov; and entries jointly, by the mean of the density."""
    q, noise = mixture(), normal(20_000, 4, *SHAPE, seed=6)
    x = q.sample(noise)
    assert (x[:, ~HIDDEN] == 0).all() and torch.equal(x, q.sample(noise))
    weight = q.logit.softmax(1)
    for item, H in enumerate(HIDDEN):
        for place in H.nonzero().tolist():
            at = (item, slice(None), *place)
            own = x[(slice(None), item, *place)].sort().values
            each = Normal(q.mean[at], q.log_scale[at].exp()).cdf(own[:, None])
            wanted = (weight[item] * each).sum(1)
            steps = torch.arange(1, len(own) + 1, dtype=F64) / len(own)
            assert (steps - wanted).abs().max() < 1.9 / len(own) ** 0.5  # one in a thousand is beyond
        if H.any():
            law = reference(q, item)
            density, other = (law.log_prob(v).exp() for v in (x[:, item][:, H], law.sample((20_000,))))
            error = ((density.var() + other.var()) / 20_000) ** 0.5
            assert (density.mean() - other.mean()).abs() < 4 * error


def test_single_precision_keeps_the_far_ends():
    one = torch.ones(1, 1, dtype=torch.bool)
    q = GaussianMixture(torch.zeros(1, 2, 1), one, torch.zeros(1, 2, 1), torch.tensor([[0.0, 20.0]]))
    x = q.sample(torch.tensor([-9.0, -4.0, 0.0, 4.0, 9.0]).view(5, 1, 1))
    assert x.isfinite().all() and x[1:4].flatten().tolist() == pytest.approx([-4.0, 0.0, 4.0], abs=1e-3)


@pytest.mark.parametrize("draws", [3, 8])
def test_what_draws_count_gives_expectations_and_their_gradients(draws):
    """Of a function of one latent, against quadrature of the density, in every parameter."""
    one = torch.ones(2, 1, dtype=torch.bool)
    q = mixture(2, (1,), one)
    leaves = [v.requires_grad_() for v in (q.mean, q.log_scale, q.logit)]
    grid = torch.linspace(-15, 15, 6001, dtype=F64)
    density = q.log_prob(grid[:, None, None].expand(-1, 2, 1)).exp()
    wanted = torch.autograd.grad(torch.trapezoid(density * grid.sin()[:, None], grid, dim=0).sum(), leaves)
    found = []
    for seed in range(400):
        x, counts = q.reparametrised(normal(draws, 2, 1, seed=seed))
        assert torch.allclose(counts.mean(0), torch.ones(2, dtype=F64))
        found.append(torch.autograd.grad((x[..., 0].sin() * counts).mean(0).sum(), leaves))
    for each, truth in zip(zip(*found, strict=True), wanted, strict=True):
        each = torch.stack(each)
        assert ((each.mean(0) - truth).abs() <= 4 * each.std(0) / 20 + 1e-9).all()
        assert truth.abs().max() > 0.02


def test_the_path_density_moves_with_the_draw_alone():
    q, noise = mixture(), normal(3, 4, *SHAPE, seed=6)
    for v in (q.mean, q.log_scale, q.logit):
        v.requires_grad_()
    x = q.reparametrised(noise)[0].detach().requires_grad_()
    value = q.log_prob_path(noise, x)
    assert torch.allclose(value, q.log_prob(x))
    (found,) = torch.autograd.grad(value.sum(), x)
    (wanted,) = torch.autograd.grad(q.log_prob(x).sum(), x)
    assert torch.allclose(found, wanted)
    assert not q.log_prob_path(noise, x.detach()).requires_grad and q.log_prob(x.detach()).requires_grad


# ---------------------------------------------------------------------------------------------------------- the bound


def counted_weight(flow, batch, posterior, noise):
    """Σ_c π_c E_c[log p(y) − log|det G^HH| − log q(x^H)] over the same draws, from dense Jacobians."""
    q = posterior(batch, flow)
    x, counts = q.reparametrised(noise)
    total = x.new_zeros(len(batch))
    for k in range(len(noise)):
        done = complete(flow, batch.filled(), batch.hidden, x[k], anderson(1e-12, 200))
        assert done.solution.converged.all()
        log_q = q.log_prob(x[k : k + 1])[0]
        for item, H in enumerate(batch.hidden):
            if H.all():
                continue  # a sample of the flow itself, whatever q is
            jacobian = torch.autograd.functional.jacobian(lambda v: flow.to_latent(v)[0], done.y[item][None])
            block = jacobian.view(H.numel(), -1)[H.flatten()][:, H.flatten()]
            log_p = flow.log_prob(done.y[item][None])[0]
            weight = log_p - (torch.linalg.slogdet(block)[1] if H.any() else 0) - log_q[item]
            total[item] += counts[k, item] * weight
    return total


@pytest.mark.parametrize(("name", "draws"), [("own", 3), pytest.param("vector", 5, marks=pytest.mark.slow)])
def test_the_gradient_of_the_bound_against_central_differences(name, draws):
    flow = SmoothFlow(4) if name == "own" else residual_flow("vector")
    d = 4 if name == "own" else 5
    hidden = masks((d,))["one kind an item"]
    batch, noise = incomplete(normal(3, d, seed=5), ~hidden), normal(draws, 3, d, seed=9)
    posterior = Mixture(batch.filled(), 3)
    with torch.no_grad():
        for k, p in enumerate(posterior.parameters()):
            p.add_(0.3 * normal(*p.shape, seed=k))
    tight = Objective(anderson(1e-12, 200), Exact(), GMRES(1e-13, budget=500), path_gradient=False)
    step = tight.step(flow, batch, posterior(batch, flow), noise, generator(0))
    with torch.no_grad():
        value = counted_weight(flow, batch, posterior, noise)
    assert torch.allclose(step.surrogate.view(draws, 3).sum(0), value, atol=1e-8)  # `Exact` has the value too
    groups = [[p] for p in posterior.parameters()] + [[p for p in flow.parameters() if p.requires_grad]]
    every = iter(torch.autograd.grad(step.surrogate.sum(), [p for group in groups for p in group]))
    for k, group in enumerate(groups):
        grads = [next(every) for _ in group]
        directions, kept = [normal(*p.shape, seed=100 + k) for p in group], [p.detach().clone() for p in group]
        e, values = 1e-4, []
        with torch.no_grad():
            for sign in (1, -1, 0):
                for p, old, v in zip(group, kept, directions, strict=True):
                    p.copy_(old + sign * e * v)
                values.append(float(counted_weight(flow, batch, posterior, noise).sum()) if sign else 0.0)
        found = sum(float((g * v).sum()) for g, v in zip(grads, directions, strict=True))
        assert found == pytest.approx((values[0] - values[1]) / (2 * e), rel=1e-5, abs=1e-5)


def test_a_network_serves_whatever_filled_its_holes_in_training():
    """`gaussian` of the choice as it is leaves that open; one that says it asks for such a network alone."""
    mixture = description("posterior", "amortised_mixture")
    trained = SimpleNamespace(
        cfg={"posterior": mixture | {"gaussian": True}}, model=SimpleNamespace(posterior="network")
    )
    for said, taken in ((mixture, True), (mixture | {"gaussian": True}, True), (mixture | {"gaussian": False}, False)):
        choice = Choice(trained, Asked(said, "same", None, None))
        if taken:
            assert choice.posterior(torch.zeros(1, 2)) == "network"
        else:
            with pytest.raises(InputError, match=r"trained with another posterior.gaussian, True"):
                choice.posterior(torch.zeros(1, 2))


class Well(Bijection):
    """x = (y₁ − y₂² + 2, y₂ + 0.2): given y₁ = 0, y₂ has two modes, near ±√2."""

    def forward(self, y):
        return torch.stack([y[:, 0] - y[:, 1].square() + 2, y[:, 1] + 0.2], 1)


GRID = torch.linspace(-6, 6, 4001, dtype=F64)


def conditional_of_the_well():
    points = torch.stack([torch.zeros_like(GRID), GRID], 1)
    density = Flow([Well()], (2,)).log_prob(points).exp()
    return density / torch.trapezoid(density, GRID)


def distance(draws, density):
    """Wasserstein-1 between draws (K,) and the conditional on the grid."""
    return wasserstein_distance(draws.numpy(), GRID.numpy(), None, np.asarray(density))


@pytest.fixture(scope="module")
def wells():
    """Draws of y₂ given y₁ = 0, by a Gaussian and by a mixture, each fitted."""
    torch.manual_seed(0)
    y, observed, draws = torch.zeros(1, 2, dtype=F64), torch.tensor([True, False]), {}
    for name in ("diagonal", "mixture"):
        fitted = viscos.condition(Flow([Well()], (2,)), y, observed, posterior=name, lad="exact")
        draws[name] = fitted.fit(100, learning_rate=5e-2).sample(2000)[:, 0, 1]
    return draws


def test_a_fit_finds_both_modes(wells):
    density = conditional_of_the_well()
    left = torch.trapezoid(torch.where(GRID < 0, density, 0), GRID)
    assert 0.55 < left < 0.75
    share = float((wells["mixture"] < 0).double().mean())
    assert share == pytest.approx(float(left), abs=0.05)
    assert min(float((wells["diagonal"] < 0).double().mean()), float((wells["diagonal"] > 0).double().mean())) < 0.25
    assert distance(wells["mixture"], density) < distance(wells["diagonal"], density) / 3


def test_an_items_draws_and_fit_do_not_depend_on_its_company():
    flow = Flow([Well()], (2,))
    y, observed = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=F64), torch.tensor([True, False])
    both = viscos.condition(flow, y, observed, posterior="mixture").fit(3).sample(4)
    one = viscos.condition(flow, y[1:], observed, posterior="mixture", index=torch.tensor([1])).fit(3).sample(4)
    assert torch.allclose(both[:, 1:], one, atol=1e-9)


# ---------------------------------------------------------------------------------------------------- where it begins


def batch_of(hidden=HIDDEN):
    return incomplete(torch.where(hidden, math.nan, normal(4, *SHAPE)), ~hidden)


def test_a_fresh_mixture_is_about_the_standard_normal():
    batch = batch_of()
    q = Mixture(batch.filled(), 4)(batch, SmoothFlow(6))
    x = q.sample(normal(20_000, 4, *SHAPE, seed=6))[:, HIDDEN]
    assert x.mean(0).abs().max() < 0.05 and (x.var(0) - 1).abs().max() < 0.05
    places, scale = places_of(1, torch.zeros(3))
    assert (places == 0).all() and scale == 1


def test_it_takes_over_a_mixture_and_a_gaussian():
    batch, posterior = batch_of(), Mixture(batch_of().filled(), 3)
    posterior.begin(mixture())
    x = 2 * normal(5, 4, *SHAPE, seed=7)
    assert torch.allclose(posterior(batch, SmoothFlow(6)).log_prob(x), mixture().log_prob(x))
    gaussian = DiagonalGaussian(3 + normal(4, *SHAPE, seed=1), HIDDEN, 0.3 * normal(4, *SHAPE, seed=2) - 1)
    posterior.begin(gaussian)
    q = posterior(batch, SmoothFlow(6))
    draws, wanted = (each.sample(normal(20_000, 4, *SHAPE, seed=6)) for each in (q, gaussian))
    assert (draws.mean(0) - wanted.mean(0)).abs().max() < 0.05
    assert (draws.std(0) - wanted.std(0)).abs().max() < 0.05
    assert len({tuple(row.tolist()) for row in q.mean[0].flatten(1)}) == 3  # no two components are the same
    moved = torch.full((4, *SHAPE), 5.0, dtype=F64)
    posterior.center(moved)
    assert torch.allclose(posterior(batch, SmoothFlow(6)).expectation(), torch.where(HIDDEN, moved, 0))
    other = Diagonal(batch.filled())
    other.begin(mixture())
    assert torch.allclose(other(batch, SmoothFlow(6)).expectation(), mixture().expectation())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Mixture(torch.zeros(1, 2), 0), "posterior.components is 0; give 1 or more"),
        (lambda: mixture().reparametrised(normal(2, 4, *SHAPE)), "mixture of 3 components .* got 2; take samples=3"),
        (lambda: Mixture(batch_of().filled(), 4).begin(mixture()), "begins at a mixture of 3; take posterior.comp"),
        (lambda: Amortised((2,), components=0), "posterior.components is 0; give 1 or more"),
        (
            lambda: Amortised((2,), components=3)(incomplete(torch.zeros(1, 2), torch.tensor([True, False])), None),
            "taught by regression; take posterior.components=1",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("posterior", ["mixture", "network"])
def test_gradients_are_finite_whatever_is_hidden(posterior):
    values = torch.where(HIDDEN, math.nan, normal(4, *SHAPE, dtype=torch.float32)).unsqueeze(1)
    batch = incomplete(values, ~HIDDEN.unsqueeze(1))
    network = Amortised((1, *SHAPE), width=4, held_out=0.0, regressed=True, components=3)
    module = Mixture(batch.filled(), 3) if posterior == "mixture" else network
    noise = normal(3, 4, 1, *SHAPE, dtype=torch.float32)
    q = module(batch, Flow([Bijection()]))
    x, counts = q.reparametrised(noise)
    ((x.square().flatten(2).sum(2) - q.log_prob(x)) * counts).sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in module.parameters())


# --------------------------------------------------------------------------------------------------------- by a network


def test_a_taught_network_holds_both_modes():
    """Pairs of y₁ and x₂ = ±(1 + y₁) + 0.1 ε, three in ten of them below: against the true law's entropy."""
    g = torch.Generator().manual_seed(0)
    known = torch.rand(512, 1, generator=g)
    sign = torch.where(torch.rand(512, 1, generator=g) < 0.3, -1.0, 1.0)
    pairs = torch.cat([known, sign * (1 + known) + 0.1 * torch.randn(512, 1, generator=g)], 1)
    batch = incomplete(pairs, torch.tensor([True, False]))
    losses = {}
    for components in (1, 4):
        network = Amortised((2,), width=8, gaussian=False, held_out=0.0, regressed=True, components=components)
        optimizer = torch.optim.Adam(network.parameters(), 1e-2)
        for _ in range(200):
            optimizer.zero_grad()
            loss = network.teach(batch, pairs, Flow([Bijection()])) / len(batch)
            loss.backward()
            optimizer.step()
        losses[components] = loss.item()
    entropy = math.log(0.1) + 0.5 * math.log(2 * math.pi * math.e) - 0.3 * math.log(0.3) - 0.7 * math.log(0.7)
    assert losses[4] == pytest.approx(entropy, abs=0.15) and losses[1] > entropy + 1
    below = network(batch, Flow([Bijection()])).sample(torch.randn(100, 512, 2, generator=g))[..., 1] < 0
    assert float(below.double().mean()) == pytest.approx(0.3, abs=0.04)
