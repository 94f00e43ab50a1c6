"""Every flow: both directions, Jacobian, log-determinant, its gradient, and that a saved one is the same elsewhere."""

import contextlib
import copy
import dataclasses
import pickle
import subprocess
import sys

import pytest
import torch
from problems import (
    ARCHITECTURES,
    F64,
    KINDS,
    LONG,
    OWN,
    ROULETTE,
    data,
    dense_jacobian,
    exact,
    flow_named,
    normal,
    orthogonal,
    residual_flow,
    shaken,
    within,
)

import viscos
from viscos.core.errors import InputError
from viscos.core.rng import generator
from viscos.core.solution import Status, item_max
from viscos.flows import (
    Affine,
    Bijection,
    ClosedForm,
    Flow,
    Residual,
    Reversed,
    Series,
    Squeeze,
    Whitening,
    iresnet,
    sylvester,
)
from viscos.flows.layers.branch import Branch
from viscos.flows.layers.lipschitz import BoundedLinear
from viscos.flows.layers.series import rademacher
from viscos.flows.skeleton import AffineSkeleton, DenseSkeleton, estimated_skeleton
from viscos.inference import complete
from viscos.linear import Block, Diagonal, Matrix, Product, dense
from viscos.linear.gaussian import Gaussian
from viscos.roots import newton_krylov

NAMES = [*ARCHITECTURES, *KINDS, *OWN]
LARGE = ("squeezed", "not square", "odd")  # more than 16 entries: the series is used
DTYPES = pytest.mark.parametrize("dtype", [F64, torch.float32], ids=["double", "single"])


@pytest.fixture(autouse=True)
def seeded():
    """Layers draw their first weights from torch's own generator."""
    torch.manual_seed(0)


@pytest.fixture
def unrolled(monkeypatch):
    """Reversed layers as so many plain iterations, which may be differentiated twice: their independent answer."""

    def forward(self, y):
        x = y
        for _ in range(150):
            x = y - self.residual.branch(x)
        return x

    @contextlib.contextmanager
    def patched():
        with monkeypatch.context() as m:
            m.setattr(Reversed, "forward", forward)
            yield

    return patched


@DTYPES
@pytest.mark.parametrize("name", NAMES)
def test_both_directions(name, dtype):
    flow = flow_named(name, dtype)
    tolerance = 1e-9 if dtype == F64 else 1e-5
    y = data(flow)
    x = flow.to_latent(y).detach()
    assert x.shape == y.shape and x.dtype == y.dtype
    back = flow.to_data(x)
    assert back.converged.all(), back
    # What an error of the latent in its last places does to the datum: ‖J‖ |x|.
    amplified = torch.linalg.matrix_norm(torch.linalg.inv(dense_jacobian(flow.to_latent, y)), ord=float("inf"))
    assert ((back.value - y).flatten(1).abs().amax(1) < tolerance * (amplified * item_max(x)).clamp_min(1)).all()
    z = normal(3, *flow.shape, seed=6, dtype=dtype)
    found = flow.to_data(z)
    assert found.converged.all(), found
    amplified = torch.linalg.matrix_norm(dense_jacobian(flow.to_latent, found.value), ord=float("inf"))
    error = (flow.to_latent(found.value) - z).flatten(1).abs().amax(1)
    assert (error < tolerance * (amplified * item_max(found.value)).clamp_min(1)).all()
    assert (found.evaluations >= 0).all() and not found.value.requires_grad


@pytest.mark.parametrize("name", ["squeezed", "vector"])
def test_the_inverse_by_a_root_finder_is_the_inverse_by_layers(name):
    flow = flow_named(name)
    x = normal(3, *flow.shape, seed=6)
    found = flow.to_data(x, newton_krylov(1e-10))
    assert found.converged.all()
    assert (found.value - flow.to_data(x).value).abs().max() < 1e-8


@pytest.mark.parametrize("name", NAMES)
def test_the_jacobian(name):
    flow = flow_named(name)
    y = data(flow)
    G = dense_jacobian(flow.to_latent, y)
    x, operator = flow.linearize(y)
    assert torch.allclose(x, flow.to_latent(y), atol=1e-12) and not x.requires_grad
    assert torch.allclose(dense(operator, y), G, atol=1e-11)
    assert torch.allclose(dense(operator.T, y), G.mT, atol=1e-11)
    J = operator.inverse()
    assert torch.allclose(dense(J, y), torch.linalg.inv(G), atol=1e-7)
    assert torch.allclose(dense(J.T, y), torch.linalg.inv(G).mT, atol=1e-7)
    index = torch.tensor([2, 0])
    assert torch.allclose(dense(operator.select(index), y), G[index], atol=1e-11)
    assert torch.allclose(dense(operator.select(index).inverse(), y), torch.linalg.inv(G)[index], atol=1e-7)
    v = normal(*y.shape, seed=7)
    x, Gv = flow.tangent(y, v)
    assert torch.allclose(x, flow.to_latent(y), atol=1e-12)
    assert torch.allclose(Gv.flatten(1), (G @ v.flatten(1).unsqueeze(-1)).squeeze(-1), atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_the_tangent_is_differentiable(name, unrolled):
    """d/dθ of uᵀ G v, and d/dy, against automatic differentiation twice."""
    flow = flow_named(name)
    y, v, u = data(flow), data(flow, seed=7), data(flow, seed=8)
    variables = [y.requires_grad_(), *(p for p in flow.parameters() if p.requires_grad)]
    found = torch.autograd.grad((u * flow.tangent(y, v)[1]).sum(), variables, allow_unused=True)
    with unrolled():
        (pulled,) = torch.autograd.grad((u * flow.to_latent(y)).sum(), y, create_graph=True)
        wanted = torch.autograd.grad((pulled * v).sum(), variables, allow_unused=True)
    for a, b in zip(found, wanted, strict=True):
        a = torch.zeros(()) if a is None else a
        b = torch.zeros(()) if b is None else b
        assert torch.allclose(a, b.to(a), atol=1e-9)


@DTYPES
@pytest.mark.parametrize("name", NAMES)
def test_the_log_determinant_written_out(name, dtype):
    flow = flow_named(name, dtype)
    y = data(flow)
    G = dense_jacobian(flow.to_latent, y)
    x, ladj = flow.forward_and_ladj(y)
    tolerance = 1e-9 if dtype == F64 else 2e-4
    assert torch.allclose(x, flow.to_latent(y), atol=1e-5)
    assert torch.allclose(ladj, torch.linalg.slogdet(G)[1], atol=tolerance)
    density = torch.distributions.Normal(0, 1).log_prob(x).flatten(1).sum(1) + ladj
    assert torch.allclose(flow.log_prob(y), density, atol=tolerance)


def test_the_density_integrates_to_one():
    flow = shaken(iresnet((1,), blocks=(3,), channels=8, start="standardise").double(), size=0.6)
    grid = torch.linspace(-40, 40, 40_001, dtype=F64)
    with torch.no_grad():
        assert torch.trapezoid(flow.log_prob(grid[:, None]).exp(), grid).item() == pytest.approx(1, abs=1e-6)


def many(y, copies):
    """One item many times over: the batch gives as many independent probes."""
    return y[:1].expand(copies, *y.shape[1:]).clone()


@pytest.mark.parametrize("name", LARGE)
def test_the_log_determinant_by_its_series(name):
    """Sixty terms leave no bias that 2000 probes could see."""
    flow = residual_flow(name)
    y = data(flow)
    truth = torch.linalg.slogdet(dense_jacobian(flow.to_latent, y[:1]))[1]
    with torch.no_grad():
        estimates = flow.forward_and_ladj(many(y, 2000))[1]
    assert estimates.std() > 0
    assert within(estimates, truth)


@pytest.mark.parametrize("name", ["squeezed", "odd"])
def test_russian_roulette_has_no_bias(name):
    """One term and a random number of further ones; cut at one term the series is biased."""
    flow, cut = residual_flow(name, series=ROULETTE), residual_flow(name, series=Series(terms=1))
    y = data(flow)
    truth = torch.linalg.slogdet(dense_jacobian(flow.to_latent, y[:1]))[1].item()
    copies = many(y, 40)

    def estimates(flow):
        means = []
        with torch.no_grad():
            for k in range(150):
                total, z, g = 0.0, copies, generator(k, "roulette")
                for layer in flow.layers:
                    z, ladj = layer.forward_and_ladj(z, g)
                    total = total + ladj
                means.append(total.mean())
        return torch.stack(means)

    assert within(estimates(flow), torch.tensor(truth))
    assert not within(estimates(cut), torch.tensor(truth))


def test_the_law_of_the_roulette():
    """The expected weight of every term is one."""
    series = Series(terms=2, roulette=1.5)
    weights = torch.zeros(4000, 6, dtype=F64)
    for k in range(len(weights)):
        drawn = torch.tensor(series.coefficients(generator(k, "law"))[:6], dtype=F64)
        weights[k, : len(drawn)] = drawn
    assert (weights[:, :2] == 1).all()
    assert within(weights[:, 2:], torch.ones(4, dtype=F64)).all()
    lengths = torch.tensor([len(series.coefficients(generator(k, "length"))) for k in range(4000)], dtype=F64)
    assert within(lengths, torch.tensor(3.5))


def test_all_basis_probes_give_the_series_itself(monkeypatch):
    """With an exact trace the value of a long series is the log-determinant, to rounding."""
    d = 6
    H = normal(2, d, d, seed=1)
    H = 0.6 * H / torch.linalg.matrix_norm(H, ord=2)[:, None, None]
    basis = iter(torch.eye(d, dtype=F64) * d**0.5)
    monkeypatch.setattr("viscos.flows.layers.series.rademacher", lambda like, g: next(basis).expand_as(like))
    value = Series(terms=120, count=d).value(Matrix(H), normal(2, d), generator(0))
    assert torch.allclose(value, torch.linalg.slogdet(torch.eye(d, dtype=F64) + H)[1], atol=1e-12)


def test_rademacher_probes():
    mask = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    v = rademacher(torch.zeros(3, 4, dtype=F64), generator(0), mask)
    assert (v[mask].abs() == 1).all() and (v[~mask] == 0).all() and v.dtype == F64
    samples = torch.stack([rademacher(torch.zeros(3, dtype=F64), generator(k)) for k in range(2000)])
    outer = samples[:, :, None] * samples[:, None, :]
    assert within(outer, torch.eye(3, dtype=F64)).all()


def log_det_gradients(flow, y, weights):
    """Σᵢ wᵢ log|det G(yᵢ)| and its gradients by y and the parameters, by automatic differentiation of `slogdet`."""
    y = y.clone().requires_grad_()
    G = torch.stack(
        [
            torch.autograd.functional.jacobian(
                lambda v: flow.to_latent(v[None]).flatten(), v, create_graph=True
            ).flatten(1)
            for v in y
        ]
    )
    variables = [y, *(p for p in flow.parameters() if p.requires_grad)]
    grads = torch.autograd.grad((weights * torch.linalg.slogdet(G)[1]).sum(), variables, allow_unused=True)
    return [torch.zeros_like(v) if g is None else g for g, v in zip(grads, variables, strict=True)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * name.startswith("implicit")) for name in NAMES]
)
def test_the_surrogate_written_out_has_the_right_gradient(name, unrolled):
    """Of a sum in which each item has its own weight."""
    flow = flow_named(name)
    y, weights = data(flow), torch.tensor([1.0, -2.0, 0.3], dtype=F64)
    with unrolled():
        wanted = log_det_gradients(flow, y, weights)
    z = y.clone().requires_grad_()
    variables = [z, *(p for p in flow.parameters() if p.requires_grad)]
    x, surrogate = flow.forward_and_ladj_surrogate(z, generator(0))
    assert torch.allclose(x, flow.to_latent(y), atol=1e-12)
    found = torch.autograd.grad((weights * surrogate).sum(), variables, allow_unused=True)
    for a, b in zip(found, wanted, strict=True):
        assert torch.allclose(torch.zeros_like(b) if a is None else a, b, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("series", [LONG, ROULETTE], ids=["long", "roulette"])
@pytest.mark.parametrize("name", ["squeezed", "not square"])
def test_the_surrogate_by_probes_has_no_bias(name, series):
    """Each item with its own weight; all gradients projected on one random direction for each variable."""
    flow = residual_flow(name, series=series)
    y, weights = data(flow, batch=2), torch.tensor([1.0, -2.0], dtype=F64)
    wanted = log_det_gradients(flow, y, weights)
    directions = [normal(*w.shape, seed=50 + k) for k, w in enumerate(wanted)]
    truth = torch.stack([(w * v).sum() for w, v in zip(wanted, directions, strict=True)])
    copies = 20
    runs = []
    for k in range(60):
        z = y.repeat(copies, *[1] * (y.dim() - 1)).requires_grad_()
        variables = [z, *(p for p in flow.parameters() if p.requires_grad)]
        _, surrogate = flow.forward_and_ladj_surrogate(z, generator(k, "surrogate"))
        grads = torch.autograd.grad((weights.repeat(copies) * surrogate).sum() / copies, variables, allow_unused=True)
        grads = [torch.zeros_like(v) if g is None else g for g, v in zip(grads, variables, strict=True)]
        grads[0] = grads[0].view(copies, *y.shape).sum(0)
        runs.append(torch.stack([(g * v).sum() for g, v in zip(grads, directions, strict=True)]))
    assert within(torch.stack(runs), truth, errors=4).all()


@pytest.mark.parametrize("name", list(OWN))
def test_the_skeleton_of_a_flow_of_which_nothing_is_known(name):
    """The flow linearised at one point; where a block is singular, its pseudo-inverse."""
    flow = flow_named(name)
    y, z = data(flow), data(flow, seed=9)
    skeleton = flow.skeleton(y)
    hidden = torch.rand(y.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    G = dense_jacobian(flow.to_latent, y)
    linear = flow.to_latent(y) + (G @ (z - y).unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(skeleton.apply(z), linear, atol=1e-10)
    block = dense(Block(Matrix(G), hidden), y)
    assert torch.allclose(dense(skeleton.inverse_block(hidden), y), torch.linalg.inv(block), atol=1e-10)
    turned = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=F64).expand(2, 2, 2)
    first = torch.tensor([[True, False], [True, True]])
    inverse = dense(DenseSkeleton(turned, turned[0], turned[0]).inverse_block(first), turned[0])
    assert torch.allclose(inverse[0], torch.tensor([[0.0, 0.0], [0.0, 1.0]], dtype=F64))
    assert torch.allclose(inverse[1], turned[1])


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_the_skeleton(name):
    """The flow with its residual branches dropped; its block has an inverse."""
    flow = flow_named(name)
    y = data(flow)
    skeleton = flow.skeleton(y)
    hidden = torch.rand(y.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    bare = Flow([layer for layer in flow.layers if not isinstance(layer, Residual)], flow.shape)
    assert torch.allclose(skeleton.apply(y), bare.to_latent(y), atol=1e-11)
    diagonal = dense_jacobian(bare.to_latent, y).diagonal(dim1=1, dim2=2)
    inverse = skeleton.inverse_block(hidden)
    if skeleton.W is None:
        assert torch.allclose(inverse.mv(y).flatten(1), y.flatten(1) / diagonal, atol=1e-10)
    else:  # by factors, or by an inner iteration to a hundredth
        iterative = Product([Diagonal(1 / skeleton.scale, len(y)), skeleton._iterative_inverse(hidden)], y.shape)
        v = torch.where(hidden, y, 0)
        H = hidden.flatten(1)
        block = dense(Block(Matrix(dense_jacobian(bare.to_latent, y), y.shape), hidden), y)
        wanted = torch.linalg.solve(block, v.flatten(1)) * H
        assert torch.allclose(inverse.mv(v).flatten(1), wanted, atol=1e-5)
        assert ((iterative.mv(v).flatten(1) - wanted).norm(dim=1) < 0.05 * wanted.norm(dim=1)).all()
    assert inverse.shape == y.shape and inverse.select(torch.tensor([1])).shape == y[:1].shape


def test_the_block_of_a_skeleton_is_inverted_by_an_items_own_holes(monkeypatch):
    """Factors or an inner iteration, whatever the other items have: each alone and beside the others."""
    monkeypatch.setattr("viscos.flows.skeleton._LARGEST", 2)
    W = torch.eye(6, dtype=F64) + 0.2
    skeleton = AffineSkeleton(torch.full((1, 6), 2.0, dtype=F64), torch.zeros(1, 6, dtype=F64), W, torch.linalg.inv(W))
    hidden = torch.zeros(4, 6, dtype=torch.bool)
    hidden[0, :2] = hidden[1, :5] = hidden[2, :3] = hidden[3, 4] = True
    v = torch.where(hidden, torch.randn(4, 6, dtype=F64, generator=torch.Generator().manual_seed(0)), 0)
    whole = skeleton.inverse_block(hidden).mv(v)
    for item in range(4):
        alone = skeleton.inverse_block(hidden[item : item + 1]).mv(v[item : item + 1])
        assert torch.allclose(whole[item], alone[0], rtol=0, atol=1e-14)
        h = hidden[item]
        wanted = torch.linalg.solve(2 * W[h][:, h], v[item, h])
        assert torch.allclose(whole[item, h], wanted, atol=1e-12 if item != 2 else 0.1)


def test_the_skeleton_of_many_entries_is_estimated_and_never_singular():
    class Wide(ClosedForm):
        def forward_and_ladj(self, y, generator=None):
            scale = torch.linspace(1e-9, 2, 40, dtype=y.dtype)
            return y * scale, scale.log().sum().expand(len(y))

    skeleton = estimated_skeleton(Wide(), normal(2, 40), dense_below=16)
    assert (skeleton.scale >= 0.1 * 0.9).all()
    assert torch.allclose(skeleton.scale[:, 20:], torch.linspace(1e-9, 2, 40, dtype=F64)[20:].expand(2, 20))


# --------------------------------------------------------------------------------------------------------- behaviour


@pytest.mark.parametrize("series", [LONG, ROULETTE], ids=["long", "roulette"])
@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_two_calls_are_equal(name, series):
    flow = residual_flow(name, series=series)
    y = data(flow)
    assert torch.equal(flow.log_prob(y), flow.log_prob(y))
    with torch.no_grad():
        first, second = flow.log_prob(y), flow.log_prob(y)
        assert torch.equal(first, second)
        assert torch.equal(flow.to_latent(y), flow.to_latent(y))
    flow.train()
    assert torch.equal(flow.log_prob(y), flow.eval().log_prob(y))
    assert torch.allclose(flow.log_prob(y), first, atol=1e-12)
    assert torch.equal(flow.to_data(y).value, flow.to_data(y).value)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_one_and_views(name):
    flow = flow_named(name)
    y = data(flow, batch=4)
    x, ladj = flow.forward_and_ladj(y)
    strided = torch.stack([y, y], -1)[..., 0]
    assert not strided.is_contiguous()
    for batch, rows in ((y[1:2], [1]), (strided, [0, 1, 2, 3]), (y.flip(0)[::2], [3, 1])):
        again, log_det = flow.forward_and_ladj(batch)
        assert torch.allclose(again, x[rows], atol=1e-12)
        assert torch.allclose(log_det, ladj[rows], atol=1e-11)
        _, G = flow.linearize(batch)
        assert G.rmv(batch).shape == G.mv(batch).shape == batch.shape
        assert torch.allclose(flow.to_data(again.detach()).value, y[rows], atol=1e-8)


ELSEWHERE = """
import torch
from viscos.flows import Series, iresnet
torch.set_num_threads(1)
for record in torch.load({path!r}, weights_only=True):
    flow = iresnet(**record["arguments"], series=Series(terms=60)).to(record["y"].dtype)
    flow.load_state_dict(record["state"])
    # A library of linear algebra may round by the alignment of its memory, so: to a few units in the last place.
    few = 64 * torch.finfo(record["y"].dtype).eps
    for value, saved in ((flow.log_prob(record["y"]), record["log_prob"]), (flow.to_latent(record["y"]), record["x"])):
        print(torch.allclose(value, saved, rtol=few, atol=few))
"""


def test_saved_and_loaded_in_a_new_process(tmp_path):
    records, path = [], str(tmp_path / "flows.pt")
    for name, dtype in (("squeezed", torch.float32), ("not square", F64)):
        flow = residual_flow(name, dtype)
        y = data(flow)
        record = {"arguments": ARCHITECTURES[name], "state": flow.state_dict(), "y": y}
        records.append(record | {"x": flow.to_latent(y).detach(), "log_prob": flow.log_prob(y).detach()})
    torch.save(records, path)
    done = subprocess.run([sys.executable, "-c", ELSEWHERE.format(path=path)], capture_output=True, text=True)
    assert done.stdout.split() == ["True"] * 4, done.stderr


@DTYPES
@pytest.mark.parametrize("name", KINDS)
def test_a_saved_flow_is_loaded_into_a_fresh_one(tmp_path, name, dtype):
    flow = flow_named(name, dtype)
    torch.save(flow.state_dict(), tmp_path / "flow.pt")
    fresh = exact(KINDS[name]().to(dtype))
    fresh.load_state_dict(torch.load(tmp_path / "flow.pt", weights_only=True))
    y = data(flow)
    assert torch.equal(fresh.to_latent(y), flow.to_latent(y))
    assert torch.equal(fresh.log_prob(y), flow.log_prob(y))
    x = flow.to_latent(y).detach()
    assert torch.equal(fresh.to_data(x).value, flow.to_data(x).value)


def test_actnorm_initialises_once_and_never_after_loading():
    flow = iresnet((1, 4, 4), blocks=(2,), channels=6, start="none", first_squeeze=False).double()
    y = 3 + 2 * normal(64, 1, 4, 4)
    flow.to_latent(y)
    assert not any(bool(layer.initialized) for layer in flow.layers if isinstance(layer, Affine))
    flow.initialize(y)
    assert all(bool(layer.initialized) for layer in flow.layers if isinstance(layer, Affine))
    x = flow.to_latent(y)
    assert x.mean().abs() < 1e-6 and (x.std(correction=0) - 1).abs() < 1e-6
    loaded = iresnet((1, 4, 4), blocks=(2,), channels=6, start="none", first_squeeze=False).double()
    loaded.load_state_dict(flow.state_dict())
    for layer in loaded.layers:
        if isinstance(layer, Affine):
            assert "initialized" in dict(layer.named_buffers()) and bool(layer.initialized)
    loaded.initialize(100 * y)
    assert torch.equal(loaded.to_latent(y), x)


@pytest.mark.parametrize("shape", [(5,), (2, 4, 4), (1, 1, 6)])
def test_a_constant_entry_gives_no_nan(shape):
    flow = iresnet(shape, blocks=(1,), channels=6, start="standardise", first_squeeze=False)
    y = torch.rand(8, *shape, generator=torch.Generator().manual_seed(0))
    y.flatten(1)[:, 0] = 0.5
    flow.initialize(y)
    assert torch.isfinite(flow.log_prob(y)).all()
    assert torch.isfinite(flow.to_data(flow.to_latent(y)).value).all()
    flow = iresnet(shape, blocks=(1,), channels=6, start="standardise", first_squeeze=False)
    flow.initialize(y[:1])  # one item has no deviation at all
    assert torch.isfinite(flow.log_prob(y)).all()
    with pytest.raises(InputError, match="never be observed"):
        Affine(shape).set_moments(torch.full(shape, float("nan")), torch.ones(shape))


def test_the_whitening_layer_is_the_gaussian():
    root = orthogonal(6, 0) @ torch.diag(torch.linspace(0.5, 2, 6, dtype=F64))
    gaussian = Gaussian(normal(6, seed=1), root @ root.T)
    layer = Whitening((1, 2, 3)).double()
    layer.set_gaussian(gaussian)
    y = normal(5, 1, 2, 3, seed=2)
    normal_law = torch.distributions.MultivariateNormal(gaussian.mean, gaussian.covariance)
    assert torch.allclose(Flow([layer], (1, 2, 3)).log_prob(y), normal_law.log_prob(y.flatten(1)), atol=1e-10)
    assert torch.allclose(layer.inverse(layer(y)).value, y, atol=1e-11)
    assert bool((torch.linalg.eigvalsh(layer.W) > 0).all()) and torch.allclose(layer.W, layer.W.T, atol=1e-14)


@pytest.mark.parametrize("way", ["converted", "loaded"])
def test_whitening_from_single_precision_is_exact_in_double(way):
    root = orthogonal(6, 0) @ torch.diag(torch.linspace(0.01, 2, 6, dtype=F64))
    single = Whitening((6,))
    single.set_gaussian(Gaussian(normal(6, seed=1), root @ root.T))
    if way == "converted":
        layer = single.double()
    else:
        layer = Whitening((6,)).double()
        layer.load_state_dict(single.state_dict())
    assert (layer.W @ layer.W_inverse - torch.eye(6, dtype=F64)).abs().max() < 1e-11
    assert abs(float(layer.log_det - torch.linalg.slogdet(layer.W)[1])) < 1e-12
    assert Flow([layer], (6,)).to_data(normal(3, 6)).converged.all()


def nearly_singular():
    """y = x − 0.99 x, turned round: g(y) = 100 y, of which a plain iteration finds a hundredth each step."""
    linear = BoundedLinear(1, 1, 0.99).double()
    linear.weight.data.fill_(-0.99)
    linear.bias.data.zero_()
    linear.renormalize(5)
    return Reversed(Residual(Branch([linear], "lipswish", flat=True, first=True), Series()))


def test_a_reversed_layer_is_right_where_its_contraction_is_hardly_one():
    layer, y = nearly_singular(), torch.tensor([[1.0], [-3.0]], dtype=F64)
    assert (layer(y) - 100 * y).abs().max() < 1e-8
    x, G = layer.linearize(y)
    assert (x - 100 * y).abs().max() < 1e-8
    assert all((product(y) - 100 * y).abs().max() < 1e-6 for product in (G.mv, G.rmv))


def test_what_a_reversed_layer_cannot_solve_reaches_every_solve_around_it(monkeypatch):
    layer, y = nearly_singular(), torch.tensor([[1.0], [2.0]], dtype=F64)
    whole = Residual.inverse

    def failing(self, x):
        found = whole(self, x)
        return dataclasses.replace(found, status=torch.where(x[:, 0] > 0, int(Status.BUDGET), found.status))

    monkeypatch.setattr(Residual, "inverse", failing)
    assert layer(y).isnan().all() and layer.linearize(y)[0].isnan().all()
    assert layer.tangent(y, torch.ones_like(y))[0].isnan().all()
    hidden = torch.ones(2, 1, dtype=torch.bool)
    found = complete(Flow([layer], (1,)), y, hidden, 100 * y, newton_krylov()).solution
    assert not found.converged.any()


def test_a_squeeze_is_undone():
    y = normal(2, 3, 4, 6)
    down, up = Squeeze(), Squeeze(undo=True)
    assert down(y).shape == (2, 12, 2, 3) and torch.equal(up(down(y)), y)
    assert torch.equal(down.inverse(down(y)).value, y)


def test_a_latent_coordinate_belongs_to_its_datum():
    """Assumption A0: with the branches dropped, each entry of the latent moves with its own entry of the data."""
    flow = flow_named("squeezed")
    bare = Flow([layer for layer in flow.layers if not isinstance(layer, Residual)], flow.shape)
    J = dense_jacobian(bare.to_latent, data(flow))
    assert torch.equal(J, torch.diag_embed(J.diagonal(dim1=1, dim2=2)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": (4, 4)}, "vectors \\(d,\\) or images"),
        ({"shape": (5,), "activation": "relu"}, "flow.activation is 'relu'"),
        ({"shape": (5,), "start": "zero"}, "flow.start is 'zero'"),
        ({"shape": (5,), "coefficient": 1.0}, "between 0 and 1"),
        ({"shape": (1, 6, 6), "blocks": (1, 1)}, "6 × 6 cannot be squeezed 2 times"),
        ({"shape": (1, 5, 5)}, "cannot be squeezed 1 times"),
    ],
)
def test_refused_architectures(arguments, message):
    with pytest.raises(InputError, match=message):
        iresnet(**arguments)


def test_refused_data():
    flow = iresnet((5,), blocks=(1,), channels=4, start="none")
    for y, message in [
        (torch.zeros(2, 4), r"shape \(5,\), got \(4,\)"),
        (torch.zeros(2, 5, dtype=torch.long), "floating point"),
        (torch.zeros(2, 5, dtype=F64), "float64, the flow is torch.float32"),
    ]:
        with pytest.raises(InputError, match=message):
            flow.log_prob(y)
    with pytest.raises(NotImplementedError, match="must define forward\\(y\\)"):
        Flow([Bijection()]).log_prob(torch.zeros(1, 2))
    with pytest.raises(NotImplementedError, match="must define forward_and_ladj"):
        Flow([ClosedForm()]).log_prob(torch.zeros(1, 2))


# ------------------------------------------------------------------------------------------------------------ errata


def test_erratum_1_the_inverse_of_a_residual_layer():
    """(I + ∇h)⁻¹ = Σ_j (−∇h)^j: partial sums of the paper's −(∇h)^j do not go there."""
    flow = flow_named("image")
    y = data(flow, batch=1)
    branch = flow.layers[0].branch
    H = dense_jacobian(branch, y)[0]
    truth = torch.linalg.inv(torch.eye(16, dtype=F64) + H)
    powers = [torch.linalg.matrix_power(H, j) for j in range(200)]
    assert torch.allclose(sum((-1) ** j * p for j, p in enumerate(powers)), truth, atol=1e-10)
    assert not torch.allclose(-sum(powers), truth, atol=1e-2)
    _, operator = flow.layers[0].linearize(y)
    assert torch.allclose(dense(operator.inverse(), y)[0], truth, atol=1e-9)


def test_erratum_3_the_log_determinant_by_singular_values():
    """2 log|det A| = Σ_i 2 log σ_i."""
    A = dense_jacobian(flow_named("odd").to_latent, data(flow_named("odd")))
    values = torch.linalg.svdvals(A)
    assert torch.allclose(2 * torch.linalg.slogdet(A)[1], (2 * values.log()).sum(1), atol=1e-10)
    assert torch.allclose(torch.linalg.slogdet(A @ A.mT)[1], (2 * values.log()).sum(1), atol=1e-10)


@pytest.mark.slow
def test_log_prob_of_a_large_flow_has_the_gradient_of_the_exact_one() -> None:
    """Where log|det G| is estimated by the series, `log_prob` still carries a gradient, unbiased over many probes."""
    torch.manual_seed(0)
    series = Series(terms=60, count=400)
    flow = iresnet((1, 4, 5), blocks=(2,), channels=4, start="none", series=series, first_squeeze=False).double()
    for layer in flow.layers:
        if isinstance(layer, Residual):
            for bounded in layer.branch.maps:
                bounded.weight.data.mul_(5)
    flow.renormalize(100)
    y = torch.randn(2, 1, 4, 5, dtype=torch.float64)
    parameters = list(flow.parameters())
    estimated = torch.autograd.grad(flow.log_prob(y).sum(), parameters, allow_unused=True)
    for layer in flow.layers:
        if isinstance(layer, Residual):
            layer.exact_below = 100
    exact = torch.autograd.grad(flow.log_prob(y).sum(), parameters, allow_unused=True)
    pairs = [(a.flatten(), b.flatten()) for a, b in zip(estimated, exact, strict=True) if b is not None]
    one, other = (torch.cat(side) for side in zip(*pairs, strict=True))
    assert float((one - other).norm() / other.norm()) < 0.02


def test_the_density_of_an_item_does_not_depend_on_its_place():
    """Above what is written out it is an estimate: by the same probes for every item, unless a caller has others."""
    flow = iresnet((24,), blocks=2, channels=8, start="none").double()
    y = normal(1, 24).expand(5, 24)
    with torch.no_grad():
        alike = flow.log_prob(y)
        torch.testing.assert_close(alike, alike[:1].expand(5))
        torch.testing.assert_close(flow.log_prob(y[:1]), alike[:1])
        apart = flow.log_prob(shake := y.clone(), torch.Generator().manual_seed(3))
        assert len(set(apart.tolist())) == 5 and torch.equal(shake, y)


@pytest.mark.parametrize("name", [name for name in (*ARCHITECTURES, *OWN) if len(flow_named(name).shape) == 1])
def test_no_vectors_at_all(name):
    flow = flow_named(name)
    nothing = data(flow)[:0]
    assert flow.log_prob(nothing).shape == (0,)
    assert flow.to_data(nothing).value.shape == nothing.shape


@pytest.mark.parametrize("reflections", [0, 3])
def test_a_sylvester_flow_is_pickled_and_copied(reflections):
    """Its orthogonal matrices have a class of torch's own making, which no pickle holds."""
    flow = sylvester((5,), layers=2, reflections=reflections).double().eval()
    frozen = next(flow.layers[1].parameters()).requires_grad_(False)
    assert not frozen.requires_grad
    y, before = normal(3, 5), torch.random.get_rng_state()
    for again in (pickle.loads(pickle.dumps(flow)), copy.deepcopy(flow)):
        assert torch.equal(again.to_latent(y), flow.to_latent(y)) and not again.training
        assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in flow.parameters()]
        assert not {id(p) for p in again.parameters()} & {id(p) for p in flow.parameters()}
    assert torch.equal(torch.random.get_rng_state(), before)


class Wave(Bijection):
    """y + ½ sin(A y), whose log-determinant is estimated."""

    def __init__(self, d):
        super().__init__()
        start = torch.randn(d, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        self.A = torch.nn.Parameter(0.8 * start / start.norm(2))

    def forward(self, y):
        return y + 0.5 * torch.sin(y @ self.A)


def test_the_gradient_of_log_prob_is_that_of_the_likelihood_and_not_of_one_probe():
    flow, y = Flow([Wave(17)], (17,)), normal(3, 17)
    assert torch.equal(flow.log_prob(y), flow.log_prob(y))
    torch.manual_seed(0)
    (parameter,), found = flow.parameters(), []
    for _ in range(400):
        found.append(torch.autograd.grad(flow.log_prob(y).sum(), parameter)[0])
    flow.layers[0].exact_below = 17
    (wanted,) = torch.autograd.grad(flow.log_prob(y).sum(), parameter)
    found = torch.stack(found)
    error = found.std(0) / len(found) ** 0.5
    assert error.min() > 0 and ((found.mean(0) - wanted) / error).abs().max() < 5


def test_gradients_of_log_prob_by_given_probes_are_the_same_at_every_call():
    flow, y = Flow([Wave(17)], (17,)), normal(3, 17)
    state, (parameter,) = torch.get_rng_state(), flow.parameters()
    one, other = (torch.autograd.grad(flow.log_prob(y, generator(1)).sum(), parameter)[0] for _ in range(2))
    assert torch.equal(one, other) and torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("d", [16, 17])
def test_an_estimate_has_no_second_derivative(d):
    flow, y = Flow([Wave(d)], (d,)), normal(1, d).requires_grad_()
    (slope,) = torch.autograd.grad(flow.log_prob(y, generator(0)).sum(), y, create_graph=True)
    if d == 16:
        assert torch.autograd.grad(slope.sum(), y)[0].isfinite().all()
        return
    for wanted in (y, *flow.parameters()):
        with pytest.raises(RuntimeError, match="first derivative alone"):
            torch.autograd.grad(slope.sum(), wanted, retain_graph=True)


@pytest.mark.parametrize("flow", [Flow([Wave(20)], (20,)), viscos.flows.continuous(20, steps=2, width=8).double()])
def test_a_flow_works_in_inference_mode(flow):
    y = normal(2, 20)
    with torch.no_grad():
        wanted = flow.log_prob(y), flow.to_data(y).value
    with torch.inference_mode():
        made_there = y.clone()
        for point in (y, made_there):
            assert torch.equal(flow.log_prob(point), wanted[0])
            assert torch.equal(flow.to_data(point).value, wanted[1])


@pytest.mark.parametrize("name", ["iresnet", "continuous", "glow", "realnvp"])
def test_no_images_have_no_densities_and_no_latents(name):
    flow = getattr(viscos.flows, name)((1, 4, 4))
    y = torch.zeros(0, 1, 4, 4)
    assert flow.log_prob(y).shape == (0,)
    assert flow.to_latent(y).shape == flow.to_data(y).value.shape == y.shape


@pytest.mark.parametrize("method", ["to_latent", "to_data"])
def test_what_is_not_of_the_flows_shape_is_refused_both_ways(method):
    with pytest.raises(InputError, match=r"takes items of shape \(3,\), got \(1,\)"):
        getattr(viscos.flows.planar(3), method)(torch.zeros(2, 1))


def test_a_flow_that_starts_as_a_gaussian_takes_it_from_its_first_batch_and_from_no_other():
    y = normal(500, 2) @ torch.tensor([[3e-3, 1e-3], [0, 2e-3]], dtype=torch.float64) + 10
    flow = viscos.flows.continuous(2, steps=2, width=8, start="gaussian").double()
    z = flow.layers[0].initialize(y)
    assert z.mean(0).abs().max() < 1e-6
    torch.testing.assert_close(z.T.cov(correction=0), torch.eye(2, dtype=torch.float64), rtol=0, atol=1e-6)
    before = flow.layers[0].W.clone()
    flow.initialize(10 * y)
    assert torch.equal(flow.layers[0].W, before)


@pytest.mark.parametrize("make", [viscos.logdet.CLADE, viscos.logdet.NLADE, lambda probes: Series(count=probes)])
def test_an_estimate_by_no_probe_is_refused(make):
    with pytest.raises(InputError, match="must be a whole number, 1 or more, got 0"):
        make(probes=0)
