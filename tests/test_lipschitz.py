"""Norms of bounded maps against singular values of their dense operators; activations; the cached weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import ARCHITECTURES, F64, normal, residual_flow

from viscos.flows import iresnet
from viscos.flows.layers import lipschitz as module
from viscos.flows.layers.activations import ACTIVATIONS
from viscos.flows.layers.lipschitz import BoundedConv2d, BoundedLinear


@pytest.fixture(autouse=True)
def seeded():
    """Layers draw their first weights from torch's own generator."""
    torch.manual_seed(0)


def dense_norm(linear):
    """The largest singular value of the map that acts, written out column by column."""
    d = linear.u.numel()
    with torch.no_grad():
        basis = torch.eye(d, dtype=F64).view(d, *linear.in_shape)
        columns = linear.product(basis, linear.effective().double())
    return float(torch.linalg.svdvals(columns.flatten(1))[0])


def shaken_map(linear, seed, size=1.0):
    with torch.no_grad():
        linear.weight.copy_(size * normal(*linear.weight.shape, seed=seed).to(linear.weight.dtype))
    return linear


maps = st.one_of(
    st.builds(
        lambda c_in, c_out, kernel, h, w, bound: BoundedConv2d(c_in, c_out, kernel, (h, w), bound).double(),
        st.integers(1, 4),
        st.integers(1, 5),
        st.sampled_from([1, 3, 5]),
        st.integers(1, 7),
        st.integers(1, 7),
        st.floats(0.3, 0.97),
    ),
    st.builds(
        lambda a, b, bound: BoundedLinear(a, b, bound).double(),
        st.integers(1, 8),
        st.integers(1, 8),
        st.floats(0.3, 0.97),
    ),
)


def test_a_weight_that_was_kept_in_inference_mode_serves_a_gradient():
    linear = shaken_map(BoundedLinear(3, 2, 0.9).double(), 1)
    y = normal(4, 3).requires_grad_(True)
    with torch.inference_mode():
        linear(y.detach().clone())
    linear.weight.requires_grad_(False)
    (slope,) = torch.autograd.grad(linear(y).sum(), y)
    assert torch.allclose(slope, linear.effective().sum(0).expand(4, 3))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(linear=maps, seed=st.integers(0, 1000), size=st.floats(1e-3, 30.0), iterations=st.integers(0, 3))
def test_the_certificate_is_above_the_true_norm(linear, seed, size, iterations):
    """Whatever the sizes, the weights, and however little the power iteration knows; written out or by Fourier."""
    shaken_map(linear, seed, size).renormalize(iterations)
    norm = dense_norm(linear)
    assert linear.certified_norm() >= norm * (1 - 1e-9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_DENSE_BELOW", 0)
        assert linear.certified_norm() >= norm * (1 - 1e-9)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(linear=maps, seed=st.integers(0, 1000), size=st.floats(1.0, 30.0))
def test_many_power_iterations_give_the_singular_value(linear, seed, size):
    shaken_map(linear, seed, size).renormalize(3000)
    weight = linear.weight.detach()
    d = linear.u.numel()
    with torch.no_grad():
        columns = linear.product(torch.eye(d, dtype=F64).view(d, *linear.in_shape), weight)
        sigma = float(torch.linalg.svdvals(columns.flatten(1))[0])
        assert float(linear.sigma()) == pytest.approx(sigma, rel=1e-3)
        assert float(linear.sigma()) <= sigma * (1 + 1e-9)
    assert dense_norm(linear) == pytest.approx(min(sigma, linear.bound), rel=1e-3)


def test_the_norm_is_that_of_the_operator_and_not_of_the_kernel():
    """The reshaped kernel has another norm, above and below."""
    linear = shaken_map(BoundedConv2d(2, 3, 3, (6, 6), 0.9).double(), 0)
    linear.renormalize(2000)
    kernel = torch.linalg.matrix_norm(linear.weight.detach().flatten(1), ord=2)
    assert abs(float(linear.sigma().detach()) / float(kernel) - 1) > 0.1


@pytest.mark.parametrize("kernel", [1, 3])
def test_the_product_and_its_transpose(kernel):
    for linear, shape_in, shape_out in [
        (BoundedConv2d(2, 3, kernel, (4, 5), 0.9).double(), (2, 4, 5), (3, 4, 5)),
        (BoundedLinear(6, 4, 0.9).double(), (6,), (4,)),
    ]:
        v, u = normal(2, *shape_in), normal(2, *shape_out, seed=1)
        left = (linear.product(v, linear.weight) * u).sum()
        assert left.item() == pytest.approx((v * linear.product_transposed(u, linear.weight)).sum().item())


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_every_branch_of_a_flow_is_certified_to_contract(name):
    flow = residual_flow(name, size=3.0)
    assert all(0 < bound < 1 for bound in flow.lipschitz())
    flow = iresnet(**ARCHITECTURES[name], coefficient=0.9)
    assert all(0 < bound < 1 for bound in flow.lipschitz())


def test_renormalizing_restores_the_certificate_after_an_optimisation():
    """A step may move the weights further than one power iteration follows; the certificate tells, and more mend it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        flow = iresnet((1, 4, 4), blocks=(2,), channels=8, start="none", coefficient=0.9, first_squeeze=False)
    y = normal(16, 1, 4, 4, dtype=torch.float32)
    optimizer = torch.optim.Adam(flow.parameters(), 1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        (-flow.log_prob(y).mean()).backward()
        optimizer.step()
        flow.renormalize(1)
        assert max(flow.lipschitz()) < 1.1
    flow.renormalize(200)
    assert max(flow.lipschitz()) < 1
    assert flow.to_data(flow.to_latent(y).detach()).converged.all()


@pytest.mark.parametrize("dtype", [F64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_activations(name, dtype):
    activation = ACTIVATIONS[name]().to(dtype)
    for raw in (-3.0, 0.5, 4.0):
        for p in activation.parameters():
            p.data.fill_(raw)
        z = torch.linspace(-30, 30, 6001, dtype=dtype, requires_grad=True)
        value, slope = activation.value_and_slope(z)
        assert torch.equal(value, activation(z))
        (derivative,) = torch.autograd.grad(activation(z).sum(), z)
        assert torch.allclose(slope, derivative, atol=1e-6 if dtype == torch.float32 else 1e-12)
        assert slope.abs().max() <= 1


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_the_tangent_of_an_activation_and_its_gradients(name):
    """Against automatic differentiation, twice where the slope is differentiated; the slope's own parameter too."""
    activation = ACTIVATIONS[name]().double()
    z, t = normal(7, 3, seed=1).mul(3).requires_grad_(), normal(7, 3, seed=2).requires_grad_()
    leaves = [z, t, *activation.parameters()]
    value, moved = activation.tangent(z, t)
    (slope,) = torch.autograd.grad(activation(z).sum(), z, create_graph=True)
    assert torch.allclose(value, activation(z)) and torch.allclose(moved, slope * t)
    a, b = normal(7, 3, seed=3), normal(7, 3, seed=4)
    found = torch.autograd.grad((a * value).sum() + (b * moved).sum(), leaves)
    wanted = torch.autograd.grad((a * activation(z)).sum() + (b * slope * t).sum(), leaves)
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-12)

    def both(z, t):
        return activation.tangent(z, t)

    def plain(z, t):
        return torch.func.jvp(activation, (z,), (t,))

    z, t = z.detach(), t.detach()
    for one, other in zip(torch.func.jvp(both, (z, t), (a, b)), torch.func.jvp(plain, (z, t), (a, b)), strict=True):
        assert all(torch.allclose(p, q, atol=1e-12) for p, q in zip(one, other, strict=True))
    for mode in (torch.func.jacrev, torch.func.jacfwd):
        found, wanted = mode(both, (0, 1))(z, t), mode(plain, (0, 1))(z, t)
        assert all(
            torch.allclose(p, q, atol=1e-12)
            for f, w in zip(found, wanted, strict=True)
            for p, q in zip(f, w, strict=True)
        )


def test_lipswish_does_not_overflow():
    z = torch.tensor([-1e4, 1e4], requires_grad=True)
    value, slope = ACTIVATIONS["lipswish"]().value_and_slope(z)
    assert torch.isfinite(value).all() and torch.isfinite(slope).all()


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW", "Adam, fused", "Adam, one by one"])
def test_kept_weights_follow_the_optimiser(optimizer):
    """Away from gradients the weight that acts is kept; whatever changes the parameters must be seen."""
    flow = iresnet((1, 4, 4), blocks=(1,), channels=4, start="none", first_squeeze=False)
    y = normal(2, 1, 4, 4, dtype=torch.float32)
    options = {"Adam, fused": {"fused": True}, "Adam, one by one": {"foreach": False}}.get(optimizer, {})
    steps = getattr(torch.optim, optimizer.split(",")[0])(flow.parameters(), 1e-1, **options)
    for _ in range(3):
        with torch.no_grad():
            flow.to_latent(y)
        steps.zero_grad()
        flow.to_latent(y).square().sum().backward()
        steps.step()
        with torch.no_grad():
            kept = flow.to_latent(y)
        assert torch.equal(kept, flow.to_latent(y).detach())
        assert torch.allclose(flow.linearize(y)[0], kept, atol=1e-6)


def test_kept_weights_follow_loading_and_conversion():
    flow, other = (iresnet((5,), blocks=(1,), channels=4, start="none") for _ in range(2))
    y = normal(2, 5, dtype=torch.float32)
    with torch.no_grad():
        wanted = flow.to_latent(y)
        other.to_latent(y)
        other.load_state_dict(flow.state_dict())
        assert torch.equal(other.to_latent(y), wanted)
        assert torch.allclose(flow.double().to_latent(y.double()).float(), wanted, atol=1e-6)
        assert torch.allclose(flow.float().to_latent(y), wanted, atol=1e-6)


def test_zero_and_tiny_weights_are_left_alone():
    linear = BoundedLinear(3, 3, 0.9).double()
    with torch.no_grad():
        linear.weight.zero_()
    linear.renormalize(3)
    assert torch.isfinite(linear.u).all() and linear.u.norm() > 0.5
    assert torch.isfinite(linear(normal(2, 3))).all()
    (linear(normal(2, 3)).square().sum()).backward()
    assert torch.isfinite(linear.weight.grad).all()
    assert linear.certified_norm() == 0
