"""Continuous flows: flow matching against closed forms, the integrators' order, and the commands that use them."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from problems import F64, flow_named, normal, within

from viscos.cli import main
from viscos.commands.assemble.plan import started
from viscos.core.batch import incomplete
from viscos.core.choices import description
from viscos.core.errors import InputError
from viscos.core.rng import ItemGenerators, RowGenerator, generator, standard_normal, uniform
from viscos.core.solution import Status
from viscos.flows import Bijection, Continuous, continuous
from viscos.flows.families.continuous.runge_kutta import METHODS
from viscos.flows.families.continuous.steps import IntegratorStep
from viscos.flows.families.continuous.unet import UNetVelocity
from viscos.flows.families.continuous.velocity import Velocity
from viscos.inference import impute
from viscos.linear import dense
from viscos.linear.gaussian import Gaussian
from viscos.posteriors import Diagonal
from viscos.roots import anderson
from viscos.runs.trained import Saved, Trained

ROOT = torch.tensor([[1.2, 0.0], [0.5, 0.4]], dtype=F64)
LAW = Gaussian(torch.tensor([0.3, -1.0], dtype=F64), ROOT @ ROOT.T)


class Exact(Velocity):
    """The velocity of a Gaussian N(0, Σ): z = y cos θ + ε sin θ has the covariance C = Σ cos² + sin², and
    E[dz/dθ | z] = sin θ cos θ (I − Σ) C⁻¹ z."""

    def __init__(self, covariance):
        super().__init__()
        self.covariance = covariance

    def forward(self, z, t):
        s, c = (0.5 * math.pi * t).sin().view(-1, 1, 1), (0.5 * math.pi * t).cos().view(-1, 1, 1)
        eye = torch.eye(z.shape[1], dtype=z.dtype)
        A = s * c * (eye - self.covariance) @ torch.linalg.inv(self.covariance * c.square() + eye * s.square())
        return (A @ z.unsqueeze(-1)).squeeze(-1)


def angles(steps, grid=1.0):
    return [0.5 * math.pi * (k / steps) ** grid for k in range(steps + 1)]


@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("midpoint", 2), ("rk4", 4)])
def test_half_the_step_has_the_error_of_the_order(method, order):
    """dz/dθ = z cos θ, whose solution is z₀ exp(sin θ)."""
    errors = []
    for steps in (8, 16, 32):
        z = torch.ones(1, 1, dtype=F64)
        for a, b in itertools.pairwise(angles(steps)):
            z = z + METHODS[method].increment(lambda y, angle: y * math.cos(angle), z, a, b)
        errors.append(abs(float(z) - math.e))
    for coarse, fine in itertools.pairwise(errors):
        assert math.log2(coarse / fine) == pytest.approx(order, abs=0.35)


def test_the_exact_velocity_of_a_gaussian_gives_its_density():
    y = normal(8, 2) @ ROOT.T
    flow = Continuous([], Exact(LAW.covariance), (2,), angles(12), "rk4")
    truth = torch.distributions.MultivariateNormal(torch.zeros(2, dtype=F64), LAW.covariance).log_prob(y)
    assert torch.allclose(flow.log_prob(y), truth, atol=1e-4)


def test_flow_matching_recovers_a_gaussian():
    """A network that is trained on draws of a 2-D Gaussian has its density, and its draws."""
    torch.manual_seed(0)
    flow = continuous((2,), method="midpoint", width=32, start="standardise", grid=1.3)
    root, mean = ROOT.float(), LAW.mean.float()
    flow.layers[0].set_moments(mean, LAW.covariance.diagonal().sqrt().float())
    optimizer = torch.optim.Adam(flow.parameters(), 5e-3)
    for step in range(600):
        g = generator(0, "fit", step)
        y = mean + torch.randn(256, 2, generator=g) @ root.T
        optimizer.zero_grad()
        flow.matching_loss(y, g).mean().backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * (1 - step / 600)
    y = mean + normal(400, 2, seed=3, dtype=torch.float32) @ root.T
    truth = torch.distributions.MultivariateNormal(LAW.mean, LAW.covariance).log_prob(y.double())
    with torch.no_grad():
        error = flow.log_prob(y).double() - truth
    assert error.mean().abs() < 0.03 and error.std() < 0.15
    found = flow.to_data(normal(4000, 2, seed=4, dtype=torch.float32))
    assert found.converged.all()
    assert torch.allclose(found.value.T.cov().double(), LAW.covariance, atol=0.12)


def test_the_gradient_of_the_loss_is_that_of_the_closed_form():
    """E |F − dz/dθ|² has the gradient of E |F − E[dz/dθ | z]|²; here F(z, θ) = B z and the data are Gaussian."""
    covariance, B = LAW.covariance, torch.nn.Parameter(0.3 * normal(2, 2, seed=1))

    class Linear(Velocity):
        def forward(self, z, t):
            return z @ B.T

    flow = Continuous([], Linear(), (2,), angles(4), "euler")
    angle = torch.linspace(0, 0.5 * math.pi, 2001, dtype=F64)[:, None, None]
    s, c, eye = angle.sin(), angle.cos(), torch.eye(2, dtype=F64)
    C, A = covariance * c.square() + eye * s.square(), s * c * (eye - covariance)  # E[z zᵀ], E[(dz/dθ) zᵀ]
    wanted = torch.trapezoid(B.detach() @ C - A, angle[:, :1, :1].squeeze(), dim=0) * 2 / math.pi  # 2/d with d = 2
    found = []
    for k in range(60):
        g = generator(k, "loss")
        y = standard_normal(torch.empty(4000, 2, dtype=F64), g) @ ROOT.T
        found.append(torch.autograd.grad(flow.matching_loss(y, g).mean(), B)[0])
    assert within(torch.stack(found), wanted).all()


def test_weights_of_the_loss():
    """Each entry's square by itself, and any weights by those."""
    flow = flow_named("continuous, image", torch.float32)
    y = normal(3, *flow.shape, dtype=torch.float32)
    d = y[0].numel()
    one_hot = torch.eye(d).view(d, 1, *flow.shape)
    with torch.no_grad():
        each = [d * flow.matching_loss(y, generator(0), one.expand_as(y)) for one in one_hot]
        squares = torch.stack(each, 1)  # (3, d)
        assert torch.allclose(flow.matching_loss(y, generator(0)), squares.mean(1))
        weights = normal(3, d, seed=7, dtype=torch.float32).square()
        found = flow.matching_loss(y, generator(0), weights.view_as(y))
    assert torch.allclose(found, (weights * squares).mean(1))


def test_what_holes_are_filled_with_does_not_narrow_a_flow_that_observed_entries_teach():
    """Independent standard columns, one of two observed by chance and the other filled by its mean, and F(z, θ) = B z.

    Only the observed entry counts: of z = y cos θ + ε sin θ there, the best B is that of the columns' own law, 0 on the
    diagonal, in closed form. Where all count alike the flow learns the variance of the filled columns, a half.
    """
    B = torch.nn.Parameter(0.3 * normal(2, 2, seed=1))

    class Linear(Velocity):
        def forward(self, z, t):
            return z @ B.T

    flow = Continuous([], Linear(), (2,), angles(4), "euler")
    angle = torch.linspace(0, 0.5 * math.pi, 2001, dtype=F64)[:, None, None]
    s2, c2 = angle.sin().square(), angle.cos().square()
    eye = torch.eye(2, dtype=F64)
    each = torch.stack([B.detach()[i] @ (s2 * eye + c2 * torch.diag(eye[i])) for i in range(2)], 1)  # E[dz/dθ zᵀ] = 0
    wanted = torch.trapezoid(each, angle[:, :1, :1].squeeze(), dim=0) * 2 / math.pi  # half of the items, 2 a square
    observed = torch.arange(4000)[:, None] % 2 == torch.arange(2)
    found, narrow = [], []
    for k in range(60):
        g = generator(k, "loss")
        y = torch.where(observed, standard_normal(torch.empty(4000, 2, dtype=F64), g), 0)
        found.append(torch.autograd.grad(flow.matching_loss(y, g, 2 * observed.double()).mean(), B)[0])
        narrow.append(torch.autograd.grad(flow.matching_loss(y, g).mean(), B)[0])
    assert within(torch.stack(found), wanted).all()
    assert not within(torch.stack(narrow), wanted).all()


def test_a_lower_precision_is_for_matching_alone():
    flow = flow_named("continuous, image", torch.float32)
    y = normal(3, *flow.shape, dtype=torch.float32)

    def figures():
        loss = flow.matching_loss(y, generator(0))
        (gradient,) = torch.autograd.grad(loss.sum(), flow.velocity.enter.weight)
        return loss.detach(), gradient, flow.log_prob(y).detach()

    full = figures()
    flow.autocast(torch.bfloat16)
    low = figures()
    assert low[0].dtype == torch.float32 and torch.equal(low[2], full[2])
    for a, b in zip(low[:2], full[:2], strict=True):
        assert 0 < float((a - b).norm() / b.norm()) < 0.05


def test_a_new_flow_is_its_first_layer():
    flow = continuous((1, 4, 4), start="gaussian").double()
    root = torch.eye(16, dtype=F64) + 0.2 * normal(16, 16) / 4
    law = Gaussian(normal(16, seed=1), root @ root.T)
    flow.layers[0].set_gaussian(law)
    y = normal(3, 1, 4, 4, seed=2)
    truth = torch.distributions.MultivariateNormal(law.mean, law.covariance).log_prob(y.flatten(1))
    assert torch.allclose(flow.log_prob(y), truth, atol=1e-10)


def test_the_steps_share_one_network():
    flow = continuous((1, 4, 4), steps=5, width=4)
    assert len([key for key in flow.state_dict() if key.endswith("leave.weight")]) == 1
    twin = continuous((1, 4, 4), steps=5, width=4)
    with torch.no_grad():
        for p in flow.parameters():
            p.add_(0.1)
    twin.load_state_dict(flow.state_dict())
    y = normal(2, 1, 4, 4, dtype=torch.float32)
    assert torch.equal(twin.to_latent(y), flow.to_latent(y))
    assert not torch.equal(continuous((1, 4, 4), steps=5, width=4).to_latent(y), flow.to_latent(y))


def test_the_inverse_counts_evaluations_of_the_network():
    """In whole forward passes; the last one only checks the result, and is not counted."""
    flow, calls = flow_named("continuous, image", torch.float32), 0
    steps = [layer for layer in flow.layers if isinstance(layer, IntegratorStep)]

    def count(*_):
        nonlocal calls
        calls += 1

    flow.velocity.register_forward_hook(count)
    x = normal(1, *flow.shape, dtype=torch.float32)
    found = flow.to_data(x)
    assert found.converged.all()
    own = 2 * len(steps)  # of a pass of midpoint steps
    assert float(found.evaluations) == pytest.approx((calls - own) / own)


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 5, 7), (2, 6, 4), (1, 9, 13)], ids=str)
def test_the_products_of_the_network_are_those_of_automatic_differentiation(shape):
    """Where scales have odd sizes too, and for a part of the batch."""
    torch.manual_seed(1)
    network = UNetVelocity(shape, 3).double()
    with torch.no_grad():
        network.leave.weight.normal_(0, 0.2)
    z, v, t = normal(3, *shape), normal(3, *shape, seed=1), torch.tensor([0.3], dtype=F64)
    value, G = network.linearize(z, t)
    truth, own = Velocity.linearize(network, z, t)
    assert torch.allclose(value, truth, atol=1e-12)
    for product, truth_of in ((G.mv, own.mv), (G.rmv, own.rmv)):
        assert torch.allclose(product(v), truth_of(v), atol=1e-12)
    pair = network.tangent(z, v, t)
    assert torch.allclose(pair[0], truth, atol=1e-12) and torch.allclose(pair[1], own.mv(v), atol=1e-12)
    weights, u = list(network.parameters()), normal(3, *shape, seed=2)
    found, wanted = (
        torch.autograd.grad((fn(z, v, t)[1] * u).sum(), weights, materialize_grads=True)
        for fn in (network.tangent, lambda *x: Velocity.tangent(network, *x))
    )
    for a, b in zip(found, wanted, strict=True):
        assert torch.allclose(a, b, atol=1e-10)
    part = torch.tensor([2, 0])
    assert torch.allclose(G.select(part).rmv(v[part]), own.rmv(v)[part], atol=1e-12)
    assert torch.allclose(G.select(part).mv(v[part]), own.mv(v)[part], atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_the_products_of_a_step_are_those_of_automatic_differentiation(method):
    step = IntegratorStep(flow_named("continuous, image").velocity, 0.2, 0.9, method)
    y, v = normal(2, 1, 4, 4), normal(2, 1, 4, 4, seed=1)
    x, G = step.linearize(y)
    truth, own = Bijection.linearize(step, y)
    assert torch.allclose(x, truth, atol=1e-12) and not torch.allclose(own.mv(v), v, atol=1e-3)
    for product, wanted in ((G.mv, own.mv), (G.rmv, own.rmv)):
        assert torch.allclose(product(v), wanted(v), atol=1e-12)
    pair = step.tangent(y, v)
    assert torch.allclose(pair[0], truth, atol=1e-12) and torch.allclose(pair[1], own.mv(v), atol=1e-12)
    one = torch.tensor([1])
    assert torch.allclose(G.select(one).rmv(v[one]), own.rmv(v)[one], atol=1e-12)


def test_an_inverse_that_there_is_none_of_is_marked():
    class Folding(Velocity):
        def forward(self, z, t):
            return -2 * z.abs()

    flow = Continuous([], Folding(), (2,), [0.0, 1.0], "euler")  # y − 2|y| ≤ y has no positive value
    found = flow.to_data(torch.ones(1, 2, dtype=F64))
    assert int(found.status) != Status.CONVERGED


def test_estimates_of_the_log_determinant():
    """By the series, where an item is too large to be written out; without bias to what the cut leaves."""
    flow = flow_named("continuous, image")
    step = flow.layers[-1]
    y = normal(2, *flow.shape, seed=1)
    _, G = step.linearize(y)
    truth = torch.linalg.slogdet(dense(G, y))[1]
    assert torch.allclose(step.estimate(G, y, generator(0)), truth, atol=1e-12)
    step.value_exact_below = 0
    found = torch.stack([step.estimate(G, y, generator(k, "probe")) for k in range(100)])
    assert within(found, truth, slack=1e-4).all()


@pytest.mark.parametrize("slope", [0.3, 3.0])
def test_the_log_determinant_of_a_steep_step(slope):
    """Where its series diverges, by Lanczos quadrature."""
    A = slope * torch.linalg.qr(normal(12, 12, seed=3))[0]

    class Linear(Velocity):
        def forward(self, z, t):
            return z @ A.T

    step, y = IntegratorStep(Linear(), 0.0, 1.0, "euler"), normal(2, 12)
    step.value_exact_below = 0
    _, G = step.linearize(y)
    found = torch.stack([step.estimate(G, y, generator(k, "probe")) for k in range(200)])
    truth = torch.linalg.slogdet(torch.eye(12, dtype=F64) + A)[1].expand(2)
    assert within(found, truth, slack=1e-3).all()


def test_the_density_of_an_item_does_not_depend_on_a_steep_neighbour():
    """Whose log-determinant takes more probes, at each step."""
    A = torch.linalg.qr(normal(12, 12, seed=3))[0]

    class Steeper(Velocity):
        def forward(self, z, t):
            return (0.4 + z.square().mean(1, keepdim=True)) * (z @ A.T)

    flow = Continuous([], Steeper(), (12,), [0.0, 0.5, 1.0], "euler")
    for step in flow.layers:
        step.exact_below = step.value_exact_below = 0
    y, index = normal(3, 12) * torch.tensor([[0.1], [4.0], [0.2]], dtype=F64), torch.arange(3)

    def density(rows):
        return flow.log_prob(y[rows], ItemGenerators(0, index[rows], 1, 0))

    together, calm = density(index), y * torch.tensor([[1.0], [0.05], [1.0]], dtype=F64)
    torch.testing.assert_close(together, torch.cat([density(index[k : k + 1]) for k in index]))
    one, other = (flow.log_prob(v, generator(1)) for v in (y, calm))
    torch.testing.assert_close(one[[0, 2]], other[[0, 2]])


def test_random_numbers_do_not_depend_on_how_a_batch_is_cut():
    like = torch.empty(6, 2, dtype=F64)
    for draw in (uniform, standard_normal):
        whole = draw(like, generator(3))
        part = draw(like[2:5], RowGenerator(generator(3), 6, slice(2, 5)))
        assert torch.equal(whole[2:5], part)
        index = torch.arange(6)
        each = draw(like, ItemGenerators(0, index, 1, 0))
        assert torch.equal(draw(like[:2], ItemGenerators(0, index[:2], 1, 0)), each[:2])
    assert uniform(like, generator(3)).shape == (6,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": (4, 4)}, "vectors \\(d,\\) or images"),
        ({"shape": (4,), "method": "heun"}, "flow.method is 'heun'; choose one of euler, midpoint, rk4"),
        ({"shape": (4,), "start": "zero"}, "flow.start is 'zero'"),
        ({"shape": (4,), "steps": 0}, "must be positive, got 0"),
    ],
)
def test_refused_architectures(arguments, message):
    with pytest.raises(InputError, match=message):
        continuous(**arguments)


# ------------------------------------------------------------------------------------------- the noise of training


def test_a_flow_begins_as_suits_its_data_where_nothing_is_said():
    flow = description("flow", "continuous")
    usual = {"grey": ((1, 8, 8), False), "colour": ((3, 8, 8), False), "table": ((4,), True), "points": ((2,), False)}
    begun = {name: started(flow, shape, table=table)["start"] for name, (shape, table) in usual.items()}
    assert begun == {"grey": "standardise", "colour": "gaussian", "table": "gaussian", "points": "standardise"}
    assert started(flow | {"start": "none"}, (3, 8, 8), table=True)["start"] == "none"


@pytest.mark.parametrize("start", ["standardise", "gaussian", "none"])
def test_a_new_flow_takes_noise_off_as_its_gaussian_does(start):
    """y − noise² S⁻¹ (y − μ) with S the covariance of noisy data; times cos² θ, at tan θ = 0.1, which is 0.99."""
    flow, noise, y = continuous((2,), steps=2, width=8, start=start).double(), 0.2, normal(6, 2, seed=1)
    law = {
        "standardise": Gaussian(LAW.mean, LAW.covariance.diagonal().diag()),
        "gaussian": LAW,
        "none": Gaussian(torch.zeros(2), torch.eye(2)),
    }[start]
    if start == "gaussian":
        flow.layers[0].set_gaussian(law)
    elif start == "standardise":
        flow.layers[0].set_moments(law.mean, law.covariance.diagonal().sqrt())
    step = noise**2 * (y - law.mean) @ torch.linalg.inv(law.covariance)
    assert torch.allclose(flow.denoised(y, noise), y - step / 1.01, atol=1e-12)
    assert torch.equal(flow.denoised(y, 0.0), y)


def test_the_exact_velocity_takes_noise_off_as_its_gaussian_does():
    """With tan² θ added to the covariance, since the score is read a little after the beginning."""
    flow, y = Continuous([], Exact(LAW.covariance), (2,), angles(4), "rk4"), normal(6, 2) @ ROOT.T
    wanted = y - 0.3**2 * y @ torch.linalg.inv(LAW.covariance + 0.01 * torch.eye(2, dtype=F64))
    assert torch.allclose(flow.denoised(y, 0.3), wanted, atol=1e-12)


def test_completions_are_cleaned_where_they_were_hidden_and_the_flow_can():
    flow, y, hidden = flow_named("continuous, image"), normal(3, 1, 4, 4), normal(3, 1, 4, 4, seed=1) > 0
    clean = flow.cleaned(y, hidden, 0.2)
    assert torch.equal(clean[~hidden], y[~hidden]) and torch.equal(clean[hidden], flow.denoised(y, 0.2)[hidden])
    assert not torch.equal(clean, y) and flow.cleaned(y, hidden, 0.0) is y
    assert flow_named("image").cleaned(y, hidden, 0.2) is y


@pytest.mark.parametrize(("noise", "taken"), [(0.2, 0.2), ("uniform", 0.0), (None, 0.0)])
def test_a_run_takes_off_the_noise_of_its_training(noise, taken):
    """Where it is asked to and the flow can; one that was dequantised, or came without data, has none to take off."""
    cfg = {} if noise is None else {"dataset": {"noise": noise}}
    of = {name: SimpleNamespace(flow=flow_named(name)) for name in ("continuous, image", "image")}
    can, cannot = (Trained(cfg=cfg, state={}, path=Path("run"), model=model) for model in of.values())
    assert can.taken_off(True) == taken and can.taken_off(False) == 0
    assert cannot.taken_off(True) == Saved(cfg=cfg, state={}, path=Path("run")).taken_off(True) == 0


def test_noise_is_taken_off_hidden_entries_of_draws_alone():
    flow = flow_named("continuous, image")
    observed = torch.rand(3, 1, 4, 4, generator=generator(0)) < 0.5
    batch = incomplete(normal(3, 1, 4, 4, seed=2), observed)
    q = Diagonal(batch.filled())
    noisy, clean, sure = (impute(flow, q, batch, solver, draws=2, noise=0.2 * k) for k, solver in enumerate(SOLVERS))
    assert noisy.ok.all() and clean.ok.all()
    assert torch.equal(clean.draws[:, observed], batch.values[observed].expand(2, -1))
    assert torch.equal(clean.latents, noisy.latents)
    for draw, after in zip(noisy.draws, clean.draws, strict=True):
        assert torch.equal(after[~observed], flow.denoised(draw, 0.2)[~observed])
        assert not torch.allclose(after[~observed], draw[~observed], atol=1e-3)
    assert not sure.ok.any() and sure.draws[:, ~observed].isnan().all()
    assert torch.equal(sure.draws[:, observed], clean.draws[:, observed])


SOLVERS = anderson(), anderson(), anderson(tolerance=1e-30, budget=1, newton_budget=1)


# ------------------------------------------------------------------------------------------------------------ commands

FLOW = ("flow=continuous", "flow.steps=2", "flow.method=euler", "flow.width=4")
TINY = (*FLOW, "threads=1", "train_items=32", "test_items=8")


def figures(folder):
    return json.loads((folder / "metrics.json").read_text())


def run_of(command):
    (folder,) = Path("outputs", command).glob("*")
    return folder


def test_train_and_impute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *TINY, "missing=0", "max_steps=3", "batch_size=8", "accumulate=2"]) == 0
    run = run_of("train")
    record = figures(run)
    assert record["steps"] == 5 and 0 < record["bits_per_dim"]["value"] < 20
    assert record["bits_per_dim"]["items"] == 8 and "one probe" in record["bits_per_dim"]["how"]
    assert (run / "samples.png").is_file()
    words = ["threads=1", "missing=0.5", "items=2", "steps=1", "samples=2", "draws=2", "lad=nlade", "proposals=0"]
    assert main(["impute", f"checkpoint={run}", *words]) == 0
    record = figures(run_of("impute"))
    assert record["solver"]["failed"] == 0 and record["bound"]["how"] == "log-determinants written out"


def test_what_flow_matching_cannot_be_trained_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *TINY, "missing=0.5", "teach=bound"]) == 2
    assert "learns from completions; take teach=regression or both" in capsys.readouterr().err
