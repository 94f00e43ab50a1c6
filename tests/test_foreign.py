"""Flows of other libraries: against the libraries themselves, quadrature and closed forms."""

from __future__ import annotations

import importlib
import math
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import nn

import viscos
from viscos.cli import main
from viscos.core.build import build
from viscos.core.errors import InputError
from viscos.flows import Affine, Flow, Whitening, wrap
from viscos.linear.gaussian import Gaussian
from viscos.runs import checkpoint

DTYPES = (torch.float32, torch.float64)


def shaken(model: nn.Module, seed: int = 0, size: float = 0.2) -> nn.Module:
    """The model with noise on all its parameters, so that nothing is the identity."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(size * torch.randn(p.shape, generator=generator).to(p))
    return model


def planar():
    nf = pytest.importorskip("normflows")
    return nf.NormalizingFlow(
        nf.distributions.DiagGaussian(2), [nf.flows.Planar((2,), act="leaky_relu") for _ in range(2)]
    )


def residual(d=2):
    nf = pytest.importorskip("normflows")
    net = nf.nets.LipschitzMLP([d, 16, d], init_zeros=False, lipschitz_const=0.9)
    return nf.NormalizingFlow(nf.distributions.DiagGaussian(d), [nf.flows.Residual(net)])


def maf(base="StandardNormal"):
    pytest.importorskip("nflows")
    from nflows import distributions, flows, transforms

    transform = transforms.MaskedAffineAutoregressiveTransform(2, 16)
    return flows.Flow(transform, getattr(distributions, base)([2]))


def spline():
    pytest.importorskip("nflows")
    from nflows import distributions, flows, transforms

    kind = transforms.MaskedPiecewiseRationalQuadraticAutoregressiveTransform
    return flows.Flow(kind(2, 16, tails="linear", tail_bound=4.0), distributions.DiagonalNormal([2]))


def zuko_flow(name, **settings):
    zuko = pytest.importorskip("zuko")
    return getattr(zuko.flows, name)(2, transforms=1, hidden_features=(16,), **settings)


MODELS = {
    "normflows planar": planar,
    "normflows residual": residual,
    "nflows maf": maf,
    "nflows spline": spline,
    "zuko nsf": lambda: zuko_flow("NSF"),
    "zuko naf": lambda: zuko_flow("NAF"),
}


def made(name: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return shaken(MODELS[name]()).to(dtype).eval()


def own_log_prob(model: nn.Module, y: torch.Tensor) -> torch.Tensor:
    """By the library, without viscos."""
    with torch.no_grad():
        return (model if hasattr(model, "log_prob") else model()).log_prob(y)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_the_library_agrees(name, dtype):
    model = made(name, dtype)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    flow = wrap(model)
    assert flow.shape == (2,) and not model.training
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in before.items())
    assert {id(p) for p in model.parameters()} == {id(p) for p in flow.parameters()}
    noise = torch.randn(6, 2, generator=torch.Generator().manual_seed(1), dtype=dtype)
    found = flow.to_data(noise)
    assert found.converged.all() and found.residual.max() <= (1e-8 if dtype == torch.float64 else 4e-4)
    y = found.value
    torch.testing.assert_close(flow.to_latent(y), noise, atol=5e-4 if dtype == torch.float32 else 1e-7, rtol=0)
    accuracy = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 1e-10, "rtol": 1e-10}
    torch.testing.assert_close(flow.log_prob(y).detach(), own_log_prob(model, y.detach()), **accuracy)
    general = flow.to_data(noise, viscos.roots.newton_krylov(tolerance=1e-5))
    torch.testing.assert_close(general.value, y, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_derivatives(name):
    flow = wrap(made(name, torch.float64))
    y = torch.randn(3, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    step = 1e-6
    columns = [
        (flow.to_latent(y + step * e) - flow.to_latent(y - step * e)) / (2 * step)
        for e in torch.eye(2, dtype=torch.float64)
    ]
    G = torch.stack(columns, -1).detach()  # central differences
    v = torch.tensor([0.3, -1.0], dtype=torch.float64).expand(3, 2)
    torch.testing.assert_close(flow.linearize(y)[1].mv(v), G @ v[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(flow.tangent(y, v)[1].detach(), G @ v[0], atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(flow.forward_and_ladj(y)[1], torch.linalg.slogdet(G)[1], atol=1e-5, rtol=1e-5)


def by_quadrature(model, value: float, dtype) -> tuple[float, float, float]:
    """log p(y₀), and mean and deviation of y₁ given y₀ = `value`, by a sum over a fine grid."""
    grid = torch.linspace(-12, 12, 24001, dtype=dtype)
    density = own_log_prob(model, torch.stack([torch.full_like(grid, value), grid], 1)).double()
    log_p = torch.logsumexp(density, 0) + math.log(24 / 24000)
    weight, grid = (density - density.logsumexp(0)).exp(), grid.double()
    mean = float((weight * grid).sum())
    return float(log_p), mean, float((weight * (grid - mean).square()).sum().sqrt())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("normflows planar", torch.float32), ("nflows maf", torch.float64), ("zuko nsf", torch.float32)],
)
def test_conditional_against_quadrature(name, dtype):
    model = made(name, dtype)
    y = torch.tensor([[0.4, float("nan")]], dtype=dtype)
    posterior = viscos.condition(wrap(model), y, torch.tensor([True, False]), posterior="full")
    posterior.fit(25, learning_rate=0.05)
    draws = posterior.sample(1000)
    assert (draws[:, 0, 0] == y[0, 0]).all() and bool(draws.isfinite().all())
    log_p, mean, deviation = by_quadrature(model, 0.4, dtype)
    assert float(draws[:, 0, 1].mean()) == pytest.approx(mean, abs=4 * deviation / math.sqrt(1000) + 0.03)
    assert float(draws[:, 0, 1].std()) == pytest.approx(deviation, rel=0.1)
    assert float(posterior.bound(100)[0]) == pytest.approx(log_p, abs=0.03)


def test_a_flow_that_swaps_its_entries():
    nf = pytest.importorskip("normflows")
    torch.manual_seed(0)
    layers = [*planar().flows, nf.flows.Permute(2, mode="swap")]
    model = shaken(nf.NormalizingFlow(nf.distributions.DiagGaussian(2), layers), size=0.1)
    y, observed = torch.tensor([[0.4, 0.0]]), torch.tensor([True, False])
    posterior = viscos.condition(wrap(model), y, observed, posterior="full", partition="maxvol")
    log_p, mean, deviation = by_quadrature(model, 0.4, torch.float32)
    draws = posterior.fit(25, learning_rate=0.05).sample(500)[:, 0, 1]
    assert float(draws.mean()) == pytest.approx(mean, abs=4 * deviation / math.sqrt(500) + 0.03)
    assert log_p - 0.1 < float(posterior.bound(100)[0]) < log_p + 0.02  # q is a Gaussian, the posterior has a kink


def test_a_random_log_determinant_is_replaced():
    flow = wrap(made("normflows residual", torch.float64))
    assert not flow.layers[0].exact  # in two dimensions the library is exact itself
    torch.manual_seed(0)
    flow = wrap(shaken(residual(3)).double())
    assert flow.layers[0].exact
    y = torch.randn(2, 3, dtype=torch.float64)
    dense = torch.stack([torch.autograd.functional.jacobian(flow.to_latent, one[None])[0, :, 0] for one in y])
    expected = flow.base_log_prob(flow.to_latent(y)) + torch.linalg.slogdet(dense)[1]
    torch.testing.assert_close(flow.log_prob(y), expected)
    torch.testing.assert_close(flow.log_prob(y), flow.log_prob(y), rtol=0, atol=0)


def class_conditional():
    nf = pytest.importorskip("normflows")
    return nf.ClassCondFlow(nf.distributions.ClassCondDiagGaussian(2, 3), planar().flows)


def class_base():
    nf = pytest.importorskip("normflows")
    return nf.NormalizingFlow(nf.distributions.ClassCondDiagGaussian(2, 3), planar().flows)


def with_base(name, *arguments):
    nf = pytest.importorskip("normflows")
    return nf.NormalizingFlow(getattr(nf.distributions, name)(*arguments).float(), planar().flows)


def conditional_normflow():
    nf = pytest.importorskip("normflows")
    return nf.ConditionalNormalizingFlow(nf.distributions.DiagGaussian(2), planar().flows)


def multiscale():
    nf = pytest.importorskip("normflows")
    base = [nf.distributions.DiagGaussian((2, 2, 2)), nf.distributions.DiagGaussian((2, 2, 2))]
    return nf.MultiscaleFlow(base, [[nf.flows.Squeeze()], [nf.flows.Squeeze()]], [nf.flows.Merge()])


def squeezed():
    nf = pytest.importorskip("normflows")
    return nf.NormalizingFlow(nf.distributions.DiagGaussian((4, 2, 2)), [nf.flows.Squeeze()])


def untrained_actnorm():
    nf = pytest.importorskip("normflows")
    return nf.NormalizingFlow(nf.distributions.DiagGaussian(2), [*planar().flows, nf.flows.ActNorm((2,))])


def tanh_planar():
    nf = pytest.importorskip("normflows")
    return nf.NormalizingFlow(nf.distributions.DiagGaussian(2), [nf.flows.Planar((2,))])


def conditional_nflow():
    pytest.importorskip("nflows")
    from nflows import distributions, flows, transforms

    transform = transforms.MaskedAffineAutoregressiveTransform(2, 8, context_features=3)
    return flows.Flow(transform, distributions.StandardNormal([2]))


def mixture():
    return pytest.importorskip("zuko").flows.GMM(2)


REFUSED = [
    (class_conditional, "class-conditional"),
    (class_base, "class-conditional"),
    (conditional_normflow, "takes a context"),
    (lambda: with_base("UniformGaussian", 2, [1]), "not a diagonal Gaussian"),
    (lambda: with_base("GaussianMixture", 3, 2), "not a diagonal Gaussian"),
    (multiscale, "latents are a list of 2"),
    (squeezed, "must have the same shape"),
    (untrained_actnorm, "by its first batch"),
    (tanh_planar, "no algebraic inverse"),
    (conditional_nflow, "takes a context"),
    (lambda: zuko_flow("NSF", context=3), "if it takes a context"),
    (lambda: zuko_flow("NCSF"), "a BoxUniform, is not a diagonal Gaussian"),
    (lambda: zuko_flow("UNAF"), "differentiated only once"),
    (mixture, "no `transform` and `base`"),
    (lambda: 3, "an object of type int is not a flow"),
    (lambda: nn.Linear, "the class Linear is not a flow"),
]


@pytest.mark.parametrize(("make", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_refusals(make, says):
    with pytest.raises(InputError, match=r"^[^\n]+$") as caught:
        flow = wrap(make())
        flow.log_prob(torch.randn(4, *(flow.shape or (2,)), generator=torch.Generator().manual_seed(0)))
    assert says in str(caught.value)


def test_an_untrained_layer_is_left_as_it_was():
    model = untrained_actnorm()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(InputError):
        wrap(model)
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in before.items())


class Stretch(nn.Module):
    """x = A y + b with a triangular A, and the ways to get it wrong."""

    def __init__(self, d: int = 3) -> None:
        super().__init__()
        A = torch.eye(d).mul(2) + torch.ones(d, d).tril(-1)
        self.A, self.b = nn.Parameter(A), nn.Parameter(torch.arange(d).float())

    def forward(self, y):
        return y @ self.A.T + self.b, self.A.diagonal().log().sum().expand(len(y))

    def inverse(self, x):
        return torch.linalg.solve_triangular(self.A, (x - self.b).T, upper=False).T

    def wrong_sign(self, y):
        return self(y)[0], -self(y)[1]

    def transposed(self, y):
        return self(y)[0], self(y)[1] + 1

    def swapped(self, y):
        x = torch.sinh(y)
        return x, -torch.cosh(torch.asinh(y)).log().sum(1)

    def random(self, y):
        return self(y + torch.rand_like(y))[0], self(y)[1]

    def one_number(self, y):
        return self(y)[0], self(y)[1].sum()

    def shorter(self, y):
        return self(y)[0][:, 1:], self(y)[1]

    def doubled(self, y):
        return self(y)[0].double(), self(y)[1]

    def alone(self, y):
        return self(y)[0]

    def batch_norm(self, y):
        return (y - y.mean(0)) / y.std(0), -y.std(0).log().sum().expand(len(y))

    def raising(self, y):
        raise IndexError("no such\nlayer")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_function_with_its_inverse(dtype):
    model = Stretch().to(dtype)
    base = (torch.tensor([1.0, 0.0, -1.0]), 0.5)
    flow = wrap(model, (3,), to_data=model.inverse, base=base)
    covariance = 0.25 * torch.linalg.inv(model.A) @ torch.linalg.inv(model.A).T
    mean = model.inverse(base[0].to(dtype)[None] + 0)[0]
    exact = torch.distributions.MultivariateNormal(mean, covariance)
    y = torch.randn(4, 3, dtype=dtype)
    torch.testing.assert_close(flow.log_prob(y), exact.log_prob(y), atol=1e-4, rtol=1e-4)
    found = flow.to_data(flow.to_latent(y))
    assert found.converged.all() and not found.fallback.any() and float(found.evaluations.max()) == 1
    torch.testing.assert_close(found.value, y, atol=1e-5, rtol=1e-5)
    given = torch.distributions.Normal(torch.zeros(3, dtype=dtype), 2.0)
    with pytest.raises(InputError, match="Normal, is not a diagonal Gaussian"):  # no density of an item
        wrap(model, (3,), base=given).log_prob(y)
    independent = torch.distributions.Independent(given, 1)
    torch.testing.assert_close(
        wrap(model, (3,), base=independent).log_prob(y), independent.log_prob(model(y)[0]) + model(y)[1]
    )


def test_a_function_that_takes_double_precision_alone():
    """It closes over numbers of that precision, which no module shows."""
    A = Stretch().A.detach().double()
    log_det = torch.linalg.slogdet(A)[1]

    def to_latent(y):
        return y @ A.T, log_det.expand(len(y))

    def to_data(x):
        return x @ torch.linalg.inv(A).T

    flow = wrap(to_latent, (3,), to_data=to_data)
    y = torch.randn(4, 3, dtype=torch.float64)
    exact = torch.distributions.MultivariateNormal(torch.zeros(3).double(), torch.linalg.inv(A.T @ A))
    torch.testing.assert_close(flow.log_prob(y), exact.log_prob(y))
    with pytest.raises(InputError, match="wrong sign"):
        wrap(lambda y: (to_latent(y)[0], -to_latent(y)[1]), (3,), to_data=to_data)
    with pytest.raises(InputError, match="raised RuntimeError for latents of shape"):
        wrap(to_latent, (3,), to_data=lambda x: x @ A.half())


def test_an_inverse_that_is_off_is_verified_as_one_that_is_not():
    """Up to 1e-4 times max(1, |x|): at 10,000 a float has not four digits after the point."""
    model = Stretch()
    flow = wrap(model, (3,), to_data=lambda x: 1.01 * model.inverse(x))
    x = torch.tensor([[0.5, 1.0, -1.0], [1e4, 1.3e4, -0.7e4]]) + 0.1
    found = flow.inverse(x)
    assert found.fallback.all() and found.converged.all(), found.residual
    torch.testing.assert_close(found.value, model.inverse(x), rtol=1e-5, atol=1e-4)


def test_a_method_brings_its_module():
    model = Stretch()
    flow = wrap(model.forward, (3,), to_data=model.inverse)
    assert len(list(flow.parameters())) == 2
    with pytest.raises(InputError, match="convert one of them"):
        flow.log_prob(torch.zeros(1, 3, dtype=torch.float64))
    with pytest.raises(InputError, match=r"items of shape \(3,\), got \(2,\)"):
        flow.log_prob(torch.zeros(1, 2))
    twin = wrap(Stretch(), (3,))
    with torch.no_grad():
        model.b += 1
    twin.load_state_dict(flow.state_dict())
    torch.testing.assert_close(twin.log_prob(torch.ones(1, 3)), flow.log_prob(torch.ones(1, 3)))
    assert not flow.train().layers[0].training
    assert wrap(flow) is flow
    with pytest.raises(InputError, match=r"items of shape \(3,\), and shape=\(2,\)"):
        wrap(flow, (2,))


def test_without_an_inverse_or_a_shape():
    flow = wrap(Stretch())
    y = torch.randn(4, 3)
    posterior = viscos.condition(flow, y, torch.tensor([True, False, True]), posterior="full")
    assert not flow.unexamined()  # the first data were used
    found = flow.to_data(flow.to_latent(y))
    assert found.converged.all()
    torch.testing.assert_close(found.value, y, atol=1e-4, rtol=1e-4)
    assert posterior.sample(2).isfinite().all()


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("wrong_sign", "wrong sign"),
        ("transposed", "not that of its Jacobian"),
        ("random", "another latent for the same data"),
        ("one_number", "one number an item, (4,)"),
        ("shorter", "has shape (4, 2) where (4, 3)"),
        ("doubled", "is torch.float64 where torch.float32"),
        ("alone", "returned a tensor of shape (4, 3); it must return"),
        ("batch_norm", "in another batch"),
        ("raising", "raised IndexError for data of shape (4, 3): no such layer"),
    ],
)
def test_what_is_wrong_with_a_function(method, says):
    model = Stretch()
    flow = wrap(getattr(model, method))
    with pytest.raises(InputError) as caught:
        flow.log_prob(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("method", "says"), [("transposed", "not that of its Jacobian"), ("random", "another latent")])
def test_a_function_is_examined_at_data_with_holes_too(method, says):
    y = torch.tensor([[0.3, math.nan, -0.2], [math.nan, 0.5, 0.1]])
    with pytest.raises(InputError, match=says):
        viscos.condition(getattr(Stretch(), method), y)


def test_a_function_that_could_not_be_examined_is_named():
    def logarithms(y):
        return y.log(), -y.log().sum(1)

    y = torch.tensor([[0.3, math.nan], [math.nan, 0.5]])
    with pytest.warns(UserWarning, match="no finite latents where the holes of y are zero"):
        viscos.condition(logarithms, y)
    posterior = viscos.condition(logarithms, y, guess=torch.ones(2, 2))
    assert not posterior.flow.unexamined()


def test_directions():
    model = Stretch()
    with pytest.raises(InputError, match="the directions are swapped"):
        wrap(model.swapped, (3,), to_data=torch.asinh)
    with pytest.raises(InputError, match="is not the inverse of to_latent"):
        wrap(model, (3,), to_data=lambda x: model.inverse(x) + 3)
    wrap(model.wrong_sign, (3,), check=False)
    with pytest.raises(InputError, match="to_data and base are for functions"):
        wrap(planar(), to_data=model.inverse)
    with pytest.raises(InputError, match="scale of base"):
        wrap(model, (3,), base=(0.0, -1.0))


def whitened(model: nn.Module, dtype: torch.dtype = torch.float64) -> tuple[Flow, Whitening]:
    """The flow of a library behind a layer that whitens correlated data."""
    whitening = Whitening((2,)).to(dtype)
    whitening.set_gaussian(
        Gaussian(torch.tensor([1.0, -2.0]).double(), torch.tensor([[2.0, 0.8], [0.8, 0.5]]).double())
    )
    return Flow([whitening, wrap(model)], (2,)), whitening


@pytest.mark.parametrize("name", ["zuko nsf", "normflows residual", "nflows maf"])
def test_a_wrapped_flow_stands_behind_a_whitening_layer(name):
    """Density, both directions, products and parameters are those of the whitened data's."""
    model = made(name, torch.float64)
    flow, whitening = whitened(model)
    y = whitening.inverse(torch.randn(5, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)).value
    white = (y - whitening.mean) @ whitening.W
    log_p = own_log_prob(model, white) + torch.linalg.slogdet(whitening.W)[1]
    torch.testing.assert_close(flow.log_prob(y).detach(), log_p, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(flow.to_latent(y), wrap(model).to_latent(white))
    x = flow.to_latent(y).detach()
    found = flow.to_data(x)
    assert found.converged.all() and torch.equal(found.evaluations, wrap(model).to_data(x).evaluations)
    torch.testing.assert_close(found.value, y, atol=1e-6, rtol=1e-6)
    G = torch.stack([torch.autograd.functional.jacobian(flow.to_latent, one[None])[0, :, 0] for one in y])
    torch.testing.assert_close(flow.linearize(y)[1].mv(y), (G @ y.unsqueeze(-1)).squeeze(-1))
    torch.testing.assert_close(flow.tangent(y, y)[1], (G @ y.unsqueeze(-1)).squeeze(-1))
    torch.testing.assert_close(flow.linearize(y)[1].inverse().mv(y), torch.linalg.solve(G, y), atol=1e-6, rtol=1e-6)
    assert {id(p) for p in model.parameters()} == {id(p) for p in flow.parameters()}


def test_a_wrapped_flow_behind_a_whitening_layer_is_conditioned():
    """Against a sum over a fine grid."""
    flow, _ = whitened(made("zuko nsf", torch.float64))
    y, observed = torch.tensor([[1.5, float("nan")]], dtype=torch.float64), torch.tensor([True, False])
    posterior = viscos.condition(flow, y, observed, posterior="full").fit(25, learning_rate=0.05)
    grid = torch.linspace(-12, 12, 24001, dtype=torch.float64)
    with torch.no_grad():
        density = flow.log_prob(torch.stack([torch.full_like(grid, 1.5), grid], 1))
    weight = (density - density.logsumexp(0)).exp()
    mean = float((weight * grid).sum())
    deviation = float((weight * (grid - mean).square()).sum().sqrt())
    draws = posterior.sample(500)
    assert (draws[:, 0, 0] == 1.5).all() and bool(draws.isfinite().all())
    assert float(draws[:, 0, 1].mean()) == pytest.approx(mean, abs=4 * deviation / math.sqrt(500) + 0.02)
    assert float(draws[:, 0, 1].std()) == pytest.approx(deviation, rel=0.15)


def test_a_function_in_a_chain_is_examined_at_the_data_that_it_gets():
    shift = Affine((3,), learn=False)
    shift.set_moments(torch.full((3,), 5.0), torch.ones(3))
    seen = []

    def function(y):
        seen.append(y.detach())
        return 2 * y, y.new_full((len(y),), 3 * math.log(2))

    flow = Flow([shift, wrap(function)], (3,))
    y = 5 + torch.randn(6, 3)
    assert flow.unexamined()
    flow.check(y)
    assert not flow.unexamined() and torch.equal(seen[0], y[:4] - 5)
    wrong = Flow([shift, wrap(lambda y: (2 * y, y.new_zeros(len(y))))], (3,))
    with pytest.raises(InputError, match="not that of its Jacobian"):
        wrong.log_prob(y)


def test_a_bijection_of_viscos_is_wrapped_as_it_is():
    layer = Affine((3,))
    flow = wrap(layer, (3,))
    assert isinstance(flow, Flow) and flow.layers[0] is layer and flow.shape == (3,)


# The command line.

FACTORIES = """
import torch
from torch import nn

import viscos

class Stretch(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(d))

    def forward(self, y):
        return y * self.log_scale.exp(), self.log_scale.sum().expand(len(y))

def two():
    return Stretch(2)

def double():
    return Stretch(2).double()

def any_size(shape):
    return viscos.flows.wrap(Stretch(shape[0]), shape)

def fixed():
    return viscos.flows.wrap(Stretch(2), (2,))

def picture():
    class Picture(Stretch):
        def forward(self, y):
            x, ladj = super().forward(y)
            return x, ladj * 16
    return viscos.flows.wrap(Picture(1), (1, 4, 4))

def spline():
    import zuko
    return zuko.flows.NSF(2, transforms=1, hidden_features=(8,))

def number():
    return 3

def function():
    return lambda y: (y, y.new_zeros(len(y)))

def raises():
    raise KeyError("weights")

def needs(a, b):
    return None
"""
TINY = ("threads=1", "steps=2", "samples=2", "draws=2")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a module of factories and a table with holes."""
    monkeypatch.chdir(tmp_path)
    Path("factories.py").write_text(FACTORIES)
    Path("needy.py").write_text("import a_package_that_is_not_there")
    table = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    np.save("whole.npy", table)
    table[::2, 1] = np.nan
    np.savez("table.npz", table)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("factories", "needy"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def imputed(*words: str) -> dict[str, np.ndarray]:
    assert main(["impute", "flow=foreign", *words, *TINY]) == 0
    (run,) = Path("outputs/impute").glob("*")
    return dict(np.load(run / "completions.npz"))


def test_impute_a_table(folder):
    torch.save({"log_scale": torch.tensor([0.0, 1.0])}, "weights.pt")
    done = imputed("flow.factory=factories:two", "checkpoint=weights.pt", "input=table.npz")
    given = np.load("table.npz")["arr_0"]
    known = ~np.isnan(given)
    assert done["draws"].shape == (2, 5, 2) and done["solved"].all() and np.isfinite(done["draws"]).all()
    assert (done["draws"][:, known] == given[known]).all()
    assert str(folder) not in sys.path


def test_the_weights_are_used(folder):
    torch.save({"log_scale": torch.tensor([0.0, 9.0])}, "weights.pt")  # the second entry is nearly constant
    done = imputed("flow.factory=factories:two", "checkpoint=weights.pt", "input=table.npz")
    assert np.abs(done["draws"][:, ::2, 1]).max() < 0.01


def test_impute_with_zuko(folder):
    zuko = pytest.importorskip("zuko")
    model = shaken(zuko.flows.NSF(2, transforms=1, hidden_features=(8,)))
    torch.save({"state_dict": model.state_dict()}, "weights.pt")
    done = imputed("flow.factory=factories:spline", "checkpoint=weights.pt", "input=whole.npy", "missing=0.5")
    assert done["solved"].all() and not done["observed"].all()


def test_a_factory_that_takes_a_shape(folder):
    torch.save({"log_scale": torch.tensor([0.0, 9.0])}, "weights.pt")  # of what was wrapped
    done = imputed("flow.factory=factories:any_size", "checkpoint=weights.pt", "input=table.npz")
    assert np.abs(done["draws"][:, ::2, 1]).max() < 0.01


@pytest.mark.parametrize("factory", ["two", "double", "any_size"])
def test_impute_a_sheet(folder, factory):
    """A CSV is completed as one, and only in its empty cells, by a flow of either precision."""
    Path("sheet.csv").write_text("a,b\n0.1234567890123,\n,2e0\n0.5,0.25\n")
    done = imputed(f"flow.factory=factories:{factory}", "checkpoint=null", "input=sheet.csv")
    assert done["draws"].shape == (2, 3, 2) and done["solved"].all()
    (written,) = Path("outputs/impute").glob("*/completed.csv")
    rows = [line.split(",") for line in written.read_text().splitlines()]
    assert rows[0] == ["a", "b"] and rows[1][0] == "0.1234567890123" and rows[2][1] == "2e0"
    assert float(rows[1][1]) == pytest.approx(done["mean"][0, 1]) and rows[3] == ["0.5", "0.25"]


def test_impute_pictures(folder):
    pictures = np.random.default_rng(1).random((2, 4, 4)).astype(np.float32)
    np.save("pictures.npy", pictures)
    done = imputed("flow.factory=factories:picture", "checkpoint=null", "input=pictures.npy", "mask=half")
    assert done["draws"].shape == (2, 2, 1, 4, 4) and (done["draws"][:, :, 0, :, :2] == pictures[:, :, :2]).all()
    assert list(Path("outputs").rglob("completions.png"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("flow.factory=nowhere:make", "there is no module 'nowhere'"),
        ("flow.factory=needy:make", "importing needy raised ModuleNotFoundError: No module named 'a_package"),
        ("flow.factory=factories:nothing", "factories has no function 'nothing'"),
        ("flow.factory=factories", "write module:function"),
        ("flow.factory=factories:raises", "factories:raises raised KeyError: 'weights' ("),
        ("flow.factory=factories:needs", "needs a, b"),
        ("flow.factory=factories:number", "an object of type int is not a flow"),
        ("flow.factory=factories:two checkpoint=other.pt", "does not fit what factories:two returned"),
        ("flow.factory=factories:two checkpoint=text.pt", "cannot be read as a state dict"),
        ("flow.factory=factories:two checkpoint=nested.pt", "holds a dict of epoch, model"),
        ("flow.factory=factories:two checkpoint=none.pt", "no run folder or checkpoint file 'none.pt'"),
        ("flow.factory=factories:function checkpoint=other.pt", "takes no state dict; say checkpoint=null"),
        ("flow.factory=factories:two input=null", "give input="),
        ("flow.factory=factories:fixed input=wide.npy missing=0.5", "wide.npy has 3 columns, the flow takes 2"),
        ("flow.factory=factories:any_size input=picture.png", "which only an array or a table tells"),
        (
            "flow.factory=factories:any_size input=deep.npy missing=0.5",
            "takes items of shape (2, 1, 1, 2); from",
        ),
        ("flow.factory=factories:two posterior=amortised", "take posterior=householder"),
    ],
)
def test_impute_refuses(folder, words, says, capsys):
    torch.save({"other": torch.ones(2)}, "other.pt")
    torch.save({"epoch": 3, "model": {"log_scale": torch.ones(2)}}, "nested.pt")
    Path("text.pt").write_text("nothing")
    np.save("wide.npy", np.zeros((2, 3), np.float32))
    np.save("deep.npy", np.zeros((3, 2, 1, 1, 2), np.float32))
    settings = {"checkpoint": "null", "input": "table.npz"} | dict(word.split("=", 1) for word in words.split())
    status = main(["impute", "flow=foreign", *(f"{key}={value}" for key, value in settings.items()), *TINY])
    lines = capsys.readouterr().err.splitlines()
    assert status == 2 and len(lines) == 1 and says in lines[0]
    assert not Path("outputs").exists()


def test_damaged_weights_are_refused(folder, capsys):
    """Also where the damage is in the numbers, of which torch reads any."""
    weights = torch.arange(2.0) + 3
    torch.save({"log_scale": weights}, "weights.pt")
    content = bytearray(Path("weights.pt").read_bytes())
    content[content.index(weights.numpy().tobytes()) + 2] ^= 1
    Path("damaged.pt").write_bytes(content)
    words = ["impute", "flow=foreign", "flow.factory=factories:two", "input=table.npz", *TINY]
    assert main([*words, "checkpoint=damaged.pt"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'damaged.pt' is damaged" in line and "is not as it was written" in line
    torch.save({"log_scale": weights}, "old.pt", _use_new_zipfile_serialization=False)
    assert main([*words, "checkpoint=old.pt"]) == 0


def test_a_run_that_goes_on_runs_no_factory_unless_it_is_named_again(folder, capsys):
    """What its own file allows counts for nothing: it may be somebody else's."""
    words = ("flow.factory=factories:two", "checkpoint=null", "input=table.npz")
    assert main(["impute", "flow=foreign", *words, *TINY]) == 0
    (run,) = Path("outputs/impute").glob("*")
    cfg = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(cfg | {"allow": "factories"}))
    (run / "metrics.json").unlink()  # so that there is something left to do
    sys.modules.pop("factories", None)
    for given in ([], ["allow=null"], ["allow=factory"], ["allow=[others]"]):
        capsys.readouterr()
        assert main(["impute", f"resume={run}", *given]) == 2
        assert "flow.factory=factories:two is code, which would be run; if you trust it, say allow=factories" in (
            capsys.readouterr().err
        )
    assert "factories" not in sys.modules
    assert main(["impute", f"resume={run}", "allow=factories"]) == 0 and (run / "metrics.json").is_file()


def test_only_the_command_line_names_a_factory(folder):
    description = {"factory": "factories:two"}
    with pytest.raises(InputError, match="conditioned here, not trained"):
        build(description, Flow, (2,))
    state = {
        "config": {"flow": description, "posterior": {}, "classifier": "latents"},
        "shape": [2],
        "classes": 0,
        "parts": {"posterior": None},
    }
    checkpoint.save("run.pt", state)
    with pytest.raises(InputError, match="conditioned here, not trained"):
        viscos.load("run.pt")
    assert main(["impute", "flow=iresnet", "checkpoint=run.pt", "input=table.npz", "threads=1"]) == 2
    assert main(["impute", "checkpoint=null", "threads=1"]) == 2
    assert "factories" not in sys.modules


def test_a_function_without_a_gradient_is_told_from_one_with_a_single_one():
    def doubled(y):
        with torch.no_grad():
            return 2 * y, y.new_full((len(y),), 3 * math.log(2))

    with pytest.raises(InputError, match="carries no gradient; conditioning differentiates it"):
        viscos.flows.wrap(doubled, (3,)).log_prob(torch.zeros(2, 3))


def test_a_flow_that_is_wrapped_stays_as_it_was():
    flow = Flow([Affine((3,))])
    assert viscos.flows.wrap(flow, (3,)).shape == (3,) and flow.shape is None
    assert viscos.flows.wrap(flow).layers is flow.layers


class Turned(nn.Module):
    """x = W y, by a matrix that is learnt."""

    def __init__(self):
        super().__init__()
        self.W = nn.Parameter(torch.eye(3) + 0.1 * torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))

    def forward(self, y):
        return y @ self.W.T, torch.linalg.slogdet(self.W)[1].expand(len(y))


ROWS, SEEN = torch.arange(12.0).view(4, 3).sin(), torch.tensor([True, False, True])


def test_a_model_in_use_elsewhere_is_not_written_to():
    """A graph that holds its parameters goes on, and nobody's random numbers are drawn twice."""
    model, y = Turned(), ROWS.clone()
    loss, state = (model(y)[0] ** 2).sum(), torch.get_rng_state()
    version = model.W._version
    viscos.condition(model, y, SEEN)
    assert model.W._version == version and torch.equal(torch.get_rng_state(), state)
    loss.backward()


def test_a_model_conditioned_by_several_threads():
    model, errors = Turned(), []

    def work():
        try:
            viscos.condition(model, ROWS, SEEN).fit(steps=5)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not errors


def test_autocast_of_the_caller_does_not_matter():
    plain = viscos.condition(Turned(), ROWS, SEEN)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        posterior = viscos.condition(Turned(), ROWS, SEEN)
        draws = posterior.sample(3)
        assert torch.equal(draws, plain.sample(3)) and torch.equal(posterior.bound(), plain.bound())
        assert torch.equal(posterior.log_prob(draws), plain.log_prob(draws))
        assert torch.equal(posterior.diagnose().bound, plain.diagnose().bound)
        assert torch.equal(posterior.refine(n=2).draws, plain.refine(n=2).draws)
        assert torch.equal(posterior.fit(steps=3).mean(), plain.fit(steps=3).mean())


def test_an_item_of_one_axis_may_be_a_number():
    assert wrap(Turned(), 3).shape == (3,)


def waves(d, sign=1.0, detached=False):
    """y + ½ sin y, and its log-determinant, or something like it."""

    def to_latent(y):
        ladj = sign * (1 + 0.5 * y.cos()).log().flatten(1).sum(1)
        return y + 0.5 * y.sin(), ladj.detach() if detached else ladj

    return to_latent, (d,)


@pytest.mark.parametrize("d", [64, 65, 300])
def test_a_log_determinant_of_another_sign_is_refused_whatever_the_size(d):
    wrong = lambda y: (2 * y, y.new_full((len(y),), -d * math.log(2)))  # noqa: E731
    with pytest.raises(InputError, match=r"log\|det\|"):
        wrap(wrong, (d,), to_data=lambda x: x / 2)
    right = wrap(lambda y: (2 * y, y.new_full((len(y),), d * math.log(2))), (d,), to_data=lambda x: x / 2)
    assert not right.unexamined()


@pytest.mark.parametrize("d", [16, 17, 64, 65])
def test_a_log_determinant_without_its_gradient_is_made_good_or_refused(d):
    y = torch.linspace(-2, 2, d)[None].repeat(2, 1)
    right = wrap(*waves(d))
    right.check(y)
    assert not right.layers[0].exact
    flow = wrap(*waves(d, detached=True))
    if d > 64:
        with pytest.raises(InputError, match="has no gradient"):
            flow.check(y)
        return
    flow.check(y)
    slopes = []
    for one in (right, flow):
        point = y.clone().requires_grad_()
        slopes.append(torch.autograd.grad(one.log_prob(point).sum(), point)[0])
    torch.testing.assert_close(*slopes, rtol=0, atol=1e-4)


def test_a_fit_leaves_the_gradients_of_what_a_function_holds():
    net = nn.Linear(2, 2)
    flow = wrap(lambda y: (net(y), torch.linalg.slogdet(net.weight)[1].expand(len(y))), (2,))
    viscos.condition(flow, torch.tensor([[0.5, torch.nan]])).fit(steps=2)
    assert net.weight.grad is None and net.bias.grad is None


def test_layers_of_a_constant_determinant_are_one_for_each_item():
    nf = pytest.importorskip("normflows")
    flow = nf.flows.AffineConstFlow((2,))
    with torch.no_grad():
        flow.s.fill_(0.7), flow.t.fill_(0.2)
    model, y = nf.NormalizingFlow(nf.distributions.DiagGaussian(2), [flow]), torch.randn(5, 2)
    torch.testing.assert_close(wrap(model).log_prob(y), model.log_prob(y))


def test_a_flow_of_buffers_alone_has_their_precision():
    flow = Flow([Whitening((2,))], (2,))
    assert np.isfinite(viscos.condition(flow, np.array([[0.5, np.nan]])).sample(2)).all()
    with pytest.raises(InputError, match="convert one of them"):
        viscos.condition(flow, torch.tensor([[0.5, torch.nan]], dtype=torch.float64))
