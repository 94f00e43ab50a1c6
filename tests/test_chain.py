"""Chains of bijections: what a chain in a chain is, and what a flow of one map is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from problems import F64, data, flow_named, masks, normal
from torch import Tensor

import viscos
from viscos.core.rng import generator
from viscos.core.solution import Solution
from viscos.flows import Affine, Bijection, Chain, ClosedForm, Flow, Squeeze, Whitening, iresnet
from viscos.linear import dense
from viscos.linear.gaussian import Gaussian

NAMES = ["image", "squeezed", "not square", "vector", "implicit", "planar", "realnvp, image", "continuous"]


def nested(flow: Flow) -> Flow:
    """The same bijections, in chains of chains."""
    first, *layers = flow.layers
    middle = len(layers) // 2
    return Flow([Chain([first, Chain(layers[:middle])]), Chain(layers[middle:]), Chain([])], flow.shape)


@pytest.mark.parametrize("name", NAMES)
def test_a_chain_in_a_chain_is_one_chain(name):
    flow = flow_named(name)
    chain, y, v = nested(flow), data(flow), data(flow, seed=7)
    assert chain.leaves() == list(flow.layers)
    assert torch.equal(chain.to_latent(y), flow.to_latent(y))
    torch.testing.assert_close(chain.log_prob(y), flow.log_prob(y), rtol=0, atol=1e-12)
    for one, other in zip(chain.tangent(y, v), flow.tangent(y, v), strict=True):
        assert torch.equal(one, other)
    (x, G), (z, H) = chain.linearize(y), flow.linearize(y)
    assert torch.equal(x, z) and torch.equal(G.mv(v), H.mv(v)) and torch.equal(G.rmv(v), H.rmv(v))
    assert torch.equal(G.inverse().mv(v), H.inverse().mv(v)) and len(G.parts) == len(H.parts)
    surrogates = [f.forward_and_ladj_surrogate(y, generator(1))[1] for f in (chain, flow)]
    torch.testing.assert_close(*surrogates, rtol=0, atol=1e-12)
    found, wanted = chain.to_data(v), flow.to_data(v)
    assert torch.equal(found.value, wanted.value) and torch.equal(found.status, wanted.status)
    torch.testing.assert_close(found.evaluations, wanted.evaluations)
    assert torch.equal(chain.skeleton(y).apply(y), flow.skeleton(y).apply(y))
    assert len(chain.branches()) == len(flow.branches()) and chain.network_layers == flow.network_layers


@pytest.mark.parametrize("name", ["squeezed", "implicit", "continuous"])
def test_a_chain_in_a_chain_is_conditioned(name):
    flow = flow_named(name)
    y, hidden = data(flow), masks(tuple(flow.shape))["random"]
    for solver in ("anderson", "path"):
        draws = [viscos.condition(f, y, ~hidden, solver=solver).sample(2) for f in (nested(flow), flow)]
        assert (draws[0] - draws[1]).abs().max() < 1e-2


def test_actnorms_of_a_chain_in_a_chain_are_initialised():
    flow = nested(iresnet((5,), blocks=(2,), channels=4, start="none").double())
    y = 3 + 2 * normal(64, 5)
    x = flow.initialize(y)
    assert torch.equal(x, flow.to_latent(y)) and (x.std(0, correction=0) - 1).abs().max() < 1e-6


def test_a_continuous_flow_stands_behind_another_layer():
    """It keeps its depth, and the path solver the states between its steps."""
    inner, first = flow_named("continuous, image"), Affine((1, 4, 4)).double()
    first.set_moments(normal(1, 4, 4), torch.full((1, 4, 4), 2.0, dtype=F64))
    flow = Flow([first, inner], (1, 4, 4))
    y = data(inner)
    assert flow.deep and not Flow([first], (1, 4, 4)).deep
    assert torch.equal(flow.to_latent(y), inner.to_latent(first(y)))
    ladj = -16 * torch.tensor(2.0, dtype=F64).log()
    torch.testing.assert_close(flow.log_prob(y), inner.log_prob(first(y)) + ladj)
    assert len(flow.links(y).each) == 1 + len(inner.layers)
    hidden = masks((1, 4, 4))["random"]
    done = viscos.condition(flow, y, ~hidden).completions(3)
    assert done.ok.all()
    assert (flow.to_latent(done.draws[0]) - done.latents[0])[hidden].abs().max() < 2e-3


def test_a_verdict_on_a_chain_is_the_worst_of_its_layers():
    class Lossy(Bijection):
        """Its inverse is right but for one item, and fails for another."""

        def forward(self, y: Tensor) -> Tensor:
            return 2 * y

        def inverse(self, x: Tensor) -> viscos.Solution:
            status, residual = torch.tensor([0, 0, 2]), x.new_tensor([0.0, 0.0, 0.5])
            wrong = x / 2 + x.new_tensor([0.0, 0.1, 0.0])[:, None]
            return viscos.Solution(wrong, status, residual, x.new_tensor([1.0, 2.0, 3.0]), status == 0)

    flow = Flow([Affine((4,)), Chain([Lossy()])], (4,)).double()
    x = normal(3, 4)
    found, verified = flow.inverse(x), flow.to_data(x)
    assert found.status.tolist() == [0, 0, 2] and found.residual.tolist() == [0.0, 0.0, 0.5]
    assert verified.status.tolist() == [0, 2, 2]
    torch.testing.assert_close(verified.residual, (flow(found.value) - x).abs().amax(1))
    assert found.evaluations.tolist() == [1.0, 2.0, 3.0] and found.fallback.tolist() == [True, True, False]


def test_a_flow_of_one_map_is_inverted_and_differentiated():
    """`forward` alone is written; beyond `exact_below` the log-determinant is estimated, with the same probes."""

    class Bend(Bijection):
        def forward(self, y: Tensor) -> Tensor:
            return y + 0.4 * torch.sin(y.roll(1, -1))

    flow, y = Flow([Bend()], (3,)), normal(2, 3)
    x, G = flow.linearize(y)
    torch.testing.assert_close(flow.log_prob(y), flow.base_log_prob(x) + torch.linalg.slogdet(dense(G, y))[1])
    assert flow.links(y) is None and (flow.to_data(x).value - y).abs().max() < 1e-9
    wide, z = Flow([Bend()], (24,)), normal(2, 24)
    assert torch.equal(wide.forward_and_ladj(z)[1], wide.forward_and_ladj(z)[1])
    assert not torch.equal(wide.forward_and_ladj(z)[1], wide.forward_and_ladj(z, generator(1))[1])


class Flip(ClosedForm):
    """The entries of an item in the other order."""

    permutes = near_affine = True

    def forward_and_ladj(self, y, generator=None):
        return y.flip(1), y.new_zeros(len(y))

    def inverse(self, x):
        return Solution.exact(x.flip(1))

    def skeleton_after(self, below):
        return replace(below, scale=below.scale.flip(1), shift=below.shift.flip(1))


@pytest.mark.parametrize("flips", [(0,), (-1,), (0, -1)])
def test_a_permutation_that_is_not_undone_leaves_no_path(flips):
    flow = flow_named("vector")
    layers = list(flow.layers)
    for place in flips:
        layers.insert(place if place == 0 else len(layers), Flip())
    flow, y = Flow(layers, flow.shape), data(flow)
    assert (flow.links(y) is None) == (len(flips) == 1)


class Scaled(ClosedForm):
    """Each item of a batch by its own factors (B, d)."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward_and_ladj(self, y, generator=None):
        return y * self.scale, self.scale.log().sum(1)

    def select(self, index):
        return Scaled(self.scale[index])


@pytest.mark.parametrize("wrapped", [lambda layer: layer, lambda layer: Chain([Chain([layer])])])
def test_a_layer_may_be_of_the_items_of_a_batch(wrapped):
    scale = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=F64)
    flow = Flow([wrapped(Scaled(scale))], (2,))
    y = torch.tensor([[0.5, torch.nan], [torch.nan, 0.5]], dtype=F64)
    posterior = viscos.condition(flow, y)
    draws = posterior.sample(400)
    assert draws.isfinite().all()
    for item, entry in ((0, 1), (1, 0)):  # the prior of an independent entry
        hidden = draws[:, item, entry] * scale[item, entry]
        assert hidden.mean().abs() < 0.25 and 0.85 < hidden.std() < 1.15


def test_a_flow_in_a_chain_keeps_what_it_can():
    inner = viscos.flows.continuous(2, steps=2, width=8)
    with torch.no_grad():
        for p in inner.velocity.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    y = torch.tensor([[0.5, torch.nan]])
    outer, behind = Flow([inner], (2,)), Flow([Affine((2,)), inner], (2,))
    one, other = (viscos.condition(flow, y, noise=0.3).sample(4) for flow in (inner, outer))
    torch.testing.assert_close(one, other, rtol=0, atol=5e-3)  # roots to 1e-3
    assert (one - viscos.condition(inner, y).sample(4)).abs().max() > 5e-2
    assert outer.dense_below == behind.dense_below == inner.dense_below < Flow.dense_below
    assert outer.can_denoise and not behind.can_denoise


def test_a_gaussian_behind_a_squeeze_has_no_skeleton_in_another_order():
    whitening = Whitening((4, 2, 2)).double()
    S = normal(16, 16)
    whitening.set_gaussian(Gaussian(torch.zeros(16, dtype=F64), S @ S.T / 16 + torch.eye(16, dtype=F64)))
    flow = Flow([Squeeze(), whitening, Squeeze(undo=True)], (1, 4, 4))
    y = normal(3, 1, 4, 4)
    skeleton = flow.skeleton(y)
    diagonal = Squeeze(undo=True)(whitening.W.diagonal().view(1, 4, 2, 2))
    torch.testing.assert_close(skeleton.apply(y), diagonal * y, rtol=0, atol=1e-12)
