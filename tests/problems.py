"""Matrices, flows and masks with known answers, shared by the tests of the numerical parts."""

from __future__ import annotations

import copy
import subprocess
import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

from viscos.core.batch import incomplete
from viscos.data.columns import Scheme
from viscos.data.scaling import Scaling
from viscos.flows import (
    Affine,
    Bijection,
    ClosedForm,
    Flow,
    Residual,
    Series,
    Whitening,
    continuous,
    glow,
    iresnet,
    planar,
    radial,
    realnvp,
    sylvester,
)
from viscos.linear.gaussian import Gaussian
from viscos.metrics.extractor import Extractor

F64 = torch.float64


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    """Standard normal numbers that depend on nothing but the seed."""
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def orthogonal(d: int, seed: int) -> Tensor:
    """A random orthogonal matrix (d, d)."""
    return torch.linalg.qr(normal(d, d, seed=seed))[0]


def waited(arrived: Callable[[], bool], process: subprocess.Popen, seconds: float = 240) -> None:
    """Waits until something has `arrived`; fails where the process ends before, or where it takes too long."""
    deadline = time.monotonic() + seconds
    while not arrived():
        assert process.poll() is None, f"the process has ended, with {process.returncode}"
        assert time.monotonic() < deadline, f"nothing came in {seconds} s"
        time.sleep(0.05)


def scaling_of(scheme: Scheme, center: Tensor, scale: Tensor) -> Scaling:
    """A scaling of a table whose columns may have any values."""
    low, span = (torch.full((n,), -torch.inf, dtype=F64) for n in (len(scheme.columns), len(scheme.entries)))
    return Scaling(scheme, center, scale, (), low, -low, torch.stack([span, -span]))


# ---------------------------------------------------------------------------------------------------- linear systems


def matrices(batch: int = 4, d: int = 12) -> dict[str, Tensor]:
    """Invertible matrices (B, d, d), by the property that makes them hard or easy."""
    Q = torch.stack([orthogonal(d, seed) for seed in range(batch)])
    P = torch.stack([orthogonal(d, seed + 50) for seed in range(batch)])
    eye = torch.eye(d, dtype=F64).expand(batch, d, d)
    scale = torch.logspace(0, 4, d, dtype=F64)
    spd = Q @ torch.diag_embed(torch.linspace(0.5, 4, d, dtype=F64).expand(batch, d)) @ Q.mT
    near = eye + 0.3 * normal(batch, d, d, seed=7) / d**0.5
    indefinite = Q @ torch.diag_embed(torch.tensor([1.0, -2.0], dtype=F64).repeat(d // 2).expand(batch, d)) @ Q.mT
    return {
        "identity": eye.clone(),
        "diagonal": torch.diag_embed(torch.linspace(1, 3, d, dtype=F64).expand(batch, d)),
        "positive definite": spd,
        "indefinite": indefinite,
        "nonsymmetric": Q @ torch.diag_embed(torch.linspace(1, 5, d, dtype=F64).expand(batch, d)) @ P.mT,
        "near the identity": near,
        "rank one more": eye + 3 * normal(batch, d, 1, seed=8) @ normal(batch, 1, d, seed=9) / d,  # two Krylov vectors
        "rotation by one": torch.roll(eye, 1, 1),  # GMRES gains nothing before its last step
        "badly scaled rows": scale[:, None] * near,
        "badly scaled both ways": scale.sqrt()[:, None] * near * scale.sqrt(),
        "triangular": torch.triu(normal(batch, d, d, seed=10), 1) + 2 * eye,
        "one kind an item": torch.stack([eye[0], spd[1], near[2], indefinite[3]]),
    }


def contractions(batch: int = 4, d: int = 9) -> dict[str, Tensor]:
    """I + H (B, d, d) with a norm of H below one."""
    eye = torch.eye(d, dtype=F64).expand(batch, d, d)
    H = normal(batch, d, d, seed=20)
    H = 0.7 * H / torch.linalg.matrix_norm(H, ord=2)[:, None, None]
    nilpotent = torch.triu(normal(batch, d, d, seed=21), 1)
    return {
        "zero": eye.clone(),
        "general": eye + H,
        "symmetric": eye + (H + H.mT) / 2,
        "nilpotent": eye + 0.9 * nilpotent / torch.linalg.matrix_norm(nilpotent, ord=2)[:, None, None],
        "nearly one": eye + 0.95 / 0.7 * H,
    }


# --------------------------------------------------------------------------------------------------------------- flows


class AffineMap(ClosedForm):
    """x = A y + b, as a user would write it: one method."""

    def __init__(self, d: int, seed: int = 0) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.eye(d, dtype=F64) + 0.3 * normal(d, d, seed=seed) / d**0.5)
        self.b = nn.Parameter(normal(d, seed=seed + 1))

    def forward_and_ladj(self, y: Tensor, generator: object = None) -> tuple[Tensor, Tensor]:
        return y @ self.A.T + self.b, torch.linalg.slogdet(self.A)[1].expand(len(y))


class AffineFlow(Flow):
    """A flow of one affine map, whose data are Gaussian."""

    def __init__(self, d: int, seed: int = 0) -> None:
        super().__init__([AffineMap(d, seed)])

    def gaussian(self) -> Gaussian:
        """The distribution of y."""
        A, b = (p.detach() for p in (self.layers[0].A, self.layers[0].b))
        return Gaussian(-torch.linalg.solve(A, b), torch.linalg.inv(A.T @ A))


class SmoothMap(ClosedForm):
    """x = A (y + 0.6 tanh(B y)), ‖B‖ = 1: nonlinear, one method, no layer of the package in it."""

    def __init__(self, d: int, seed: int = 0) -> None:
        super().__init__()
        B = normal(d, d, seed=seed)
        self.A = nn.Parameter(torch.eye(d, dtype=F64) + 0.2 * normal(d, d, seed=seed + 1) / d**0.5)
        self.B = nn.Parameter(B / torch.linalg.matrix_norm(B, ord=2))

    def forward_and_ladj(self, y: Tensor, generator: object = None) -> tuple[Tensor, Tensor]:
        t = torch.tanh(y @ self.B.T)
        inner = torch.eye(y.shape[1], dtype=y.dtype) + 0.6 * (1 - t.square()).unsqueeze(2) * self.B
        return (y + 0.6 * t) @ self.A.T, torch.linalg.slogdet(self.A)[1] + torch.linalg.slogdet(inner)[1]


class SmoothFlow(Flow):
    """A flow of one nonlinear map."""

    def __init__(self, d: int, seed: int = 0) -> None:
        super().__init__([SmoothMap(d, seed)])


@torch.no_grad()
def shaken(flow: Flow, seed: int = 0, size: float = 0.3) -> Flow:
    """A flow with random weights and scales, as after training; the first layer set from random moments.

    Random weights alone make weak contractions, so each branch is pulled towards a multiple of the identity, whose sign
    changes, and biases hold the activations where they have a slope: the norms of ∇h are 0.3 to 0.5.
    """
    for k, p in enumerate(flow.parameters()):
        fan_in = p[0].numel() if p.dim() > 1 else 1
        p.add_(size * normal(*p.shape, seed=1000 * seed + k, dtype=p.dtype) / fan_in**0.5)
    for k, layer in enumerate(layer for layer in flow.modules() if isinstance(layer, Residual)):
        for j, linear in enumerate(layer.branch.maps):
            weight, middle = linear.weight, linear.weight.shape[-1] // 2
            core = torch.eye(max(weight.shape[:2]), dtype=weight.dtype)[: weight.shape[0], : weight.shape[1]]
            core = -core if j == 0 and k % 2 else core
            (weight[:, :, middle, middle] if weight.dim() == 4 else weight).add_(1.5 * core)
            if j < 2:
                linear.bias.add_(1.5)
    for layer in flow.layers:
        if isinstance(layer, Whitening):
            d = layer.mean.numel()
            root = torch.eye(d, dtype=F64) + 0.2 * normal(d, d, seed=seed + 1) / d**0.5
            layer.set_gaussian(Gaussian(normal(d, seed=seed + 2), root @ root.T))
        if isinstance(layer, Affine) and not layer.shift.requires_grad:
            layer.set_moments(normal(*layer.shift.shape, seed=seed + 3), 0.5 + normal(*layer.shift.shape, seed=4).abs())
    flow.renormalize(200)
    return flow


def exact(flow: Flow, below: int = 64) -> Flow:
    """The same flow, writing its residual layers' Jacobians out."""
    for layer in flow.modules():
        if isinstance(layer, Bijection):
            layer.exact_below = below
    return flow


LONG = Series(terms=60)
ROULETTE = Series(terms=1, roulette=4.0)

ARCHITECTURES = {
    "image": dict(shape=(1, 4, 4), blocks=(2,), channels=6, start="none", first_squeeze=False),
    "squeezed": dict(
        shape=(2, 4, 4), blocks=(1, 1), channels=(6, 8), start="standardise", fully_connected=1, first_squeeze=False
    ),
    "not square": dict(
        shape=(1, 4, 6), blocks=(2,), channels=6, start="gaussian", activation="elu", first_squeeze=True
    ),
    "odd": dict(shape=(1, 5, 5), blocks=(2,), channels=5, start="gaussian", first_squeeze=False),
    "vector": dict(shape=(5,), blocks=(3,), channels=12, start="standardise"),
    "vector, elu": dict(shape=(5,), blocks=(2,), channels=12, start="none", activation="elu"),
}
KINDS = {
    "implicit": lambda: iresnet((5,), blocks=(4,), channels=12, start="standardise", implicit=True, series=LONG),
    "implicit, image": lambda: iresnet(
        (1, 2, 6), blocks=(2,), channels=6, start="gaussian", first_squeeze=True, implicit=True, series=LONG
    ),
    "planar": lambda: planar((5,), layers=6),
    "planar, image": lambda: planar((1, 3, 4), layers=3, start="gaussian"),
    "radial": lambda: radial((5,), layers=6),
    "radial, image": lambda: radial((2, 3, 2), layers=3, start="none"),
    "sylvester": lambda: sylvester((5,), layers=3, columns=3),
    "sylvester, householder": lambda: sylvester((1, 3, 3), layers=2, columns=4, reflections=3, start="gaussian"),
    "realnvp": lambda: realnvp((5,), blocks=(4,), channels=8),
    "realnvp, image": lambda: realnvp((1, 4, 6), blocks=(2, 2), channels=6),
    "glow": lambda: glow((5,), blocks=(3,), channels=8),
    "continuous": lambda: continuous((5,), steps=2, method="rk4", width=8, start="standardise", grid=1.3),
    "continuous, image": lambda: continuous((1, 4, 4), steps=2, method="midpoint", width=4, grid=1.3),
    "glow, image": lambda: glow((1, 4, 6), blocks=(2,), channels=6, start="standardise"),
}
"""Flows of every other kind."""
PLANE = {
    "implicit": lambda: iresnet((2,), blocks=(2,), channels=8, start="none", implicit=True),
    "planar": lambda: planar((2,), layers=4, start="none"),
    "radial": lambda: radial((2,), layers=4, start="none"),
    "sylvester": lambda: sylvester((2,), layers=3, columns=2, start="none"),
    "continuous": lambda: continuous((2,), steps=3, method="midpoint", width=12, start="none", grid=1.3),
}
"""Those that keep latent coordinate i close to data coordinate i, in two dimensions."""
OWN = {"affine of one's own": AffineFlow, "nonlinear of one's own": SmoothFlow}


def residual_flow(name: str, dtype: torch.dtype = F64, series: Series = LONG, seed: int = 0, size: float = 0.3) -> Flow:
    """A shaken iResNet of the table."""
    return copy.deepcopy(_made(name, dtype, series, seed, size))  # most tests take the same few, and shaking is dear


@cache
def _made(name: str, dtype: torch.dtype, series: Series, seed: int, size: float) -> Flow:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return shaken(iresnet(**ARCHITECTURES[name], series=series).to(dtype), seed, size)


def flow_named(name: str, dtype: torch.dtype = F64, series: Series = LONG) -> Flow:
    """A flow of one of the tables, without a stochastic part for items of up to 64 entries."""
    if name in OWN:
        flow = OWN[name](5).to(dtype)
        flow.shape = torch.Size((5,))
        return flow
    if name in KINDS:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return exact(shaken(KINDS[name]().to(dtype)))
    return exact(residual_flow(name, dtype, series))


def data(flow: Flow, batch: int = 3, seed: int = 5) -> Tensor:
    """Data that the flow takes (B, …)."""
    dtype = next(flow.parameters()).dtype
    return normal(batch, *flow.shape, seed=seed, dtype=dtype)


def dense_jacobian(fn, y: Tensor) -> Tensor:
    """∂fn/∂y (B, d, d), row by row through plain automatic differentiation."""
    y = y.detach().clone().requires_grad_()
    with torch.enable_grad():
        x = fn(y).flatten(1)
        rows = [torch.autograd.grad(x[:, i].sum(), y, retain_graph=True)[0].flatten(1) for i in range(x.shape[1])]
    return torch.stack(rows, 1)


# -------------------------------------------------------------------------------------------------------------- metrics


class Projections(Extractor):
    """Three projections of images of 4 × 4, which are scores of classes too."""

    name, sha256, size, classifies = "three projections", "0f", 3, "made up"

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(normal(16, self.size, seed=1, dtype=torch.float32))

    def features(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ self.W

    def scores(self, features: Tensor) -> Tensor:
        return features


# --------------------------------------------------------------------------------------------------------------- masks


def masks(shape: tuple[int, ...], batch: int = 3) -> dict[str, Tensor]:
    """Masks of H (B, …) for items of `shape`."""
    random = torch.rand(batch, *shape, generator=torch.Generator().manual_seed(11)) < 0.5
    none = torch.zeros(batch, *shape, dtype=torch.bool)
    centre, one = none.clone(), none.clone()
    inner = tuple(slice(n // 4, n - n // 4) for n in shape[-2:])
    centre[(slice(None),) * (1 + len(shape) - len(inner)) + inner] = True
    one.flatten(1)[torch.arange(batch), torch.arange(batch) % one[0].numel()] = True
    each = torch.stack([random[0], none[0], ~none[0]])
    return {"random": random, "centre": centre, "all": ~none, "none": none, "one": one, "one kind an item": each}


def within(estimate: Tensor, truth: Tensor, errors: float = 4.0, slack: float = 1e-12) -> Tensor:
    """Whether the mean of `estimate` over its first axis is so many standard errors from `truth` at most."""
    spread = estimate.std(0) / len(estimate) ** 0.5
    return (estimate.mean(0) - truth).abs() <= errors * spread + slack


def sees_the_observation_alone(network, values: Tensor, hidden: Tensor):
    """Asserts that an inference network with random parameters sees observed entries and the mask, and nothing else.

    No neighbour in the batch either. Returns its distribution.
    """
    with torch.no_grad():
        for k, p in enumerate(network.parameters()):
            p.copy_(0.2 * normal(*p.shape, seed=k))
    flow = Flow([])
    flow.near_affine = False
    one = network(incomplete(values, ~hidden), flow)
    two = network(incomplete(torch.where(hidden, values + 9, values), ~hidden), flow)
    assert torch.equal(one.mean, two.mean) and torch.equal(one.log_scale, two.log_scale)
    other = network(incomplete(torch.where(hidden, values, values + 1), ~hidden), flow)
    assert not torch.allclose(one.log_scale, other.log_scale)
    alone = network(incomplete(values, ~hidden).select(torch.tensor([1])), flow)
    torch.testing.assert_close(alone.mean[0], one.mean[1], rtol=1e-7, atol=1e-12)
    assert one.mean.shape == values.shape
    return one
