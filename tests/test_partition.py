"""The latent's partition by maximal volume, against brute force, dense Jacobians and quadrature."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from problems import F64, data, dense_jacobian, flow_named, masks, normal

import viscos
from viscos.core.errors import InputError
from viscos.core.rng import generator
from viscos.core.solution import Status
from viscos.flows import Coupling, Flow, Mix
from viscos.inference import imputation
from viscos.inference.completion import complete
from viscos.inference.draws import repeat, repeated
from viscos.inference.partition import (
    Repartitioned,
    _volume_rows,
    condition_number,
    maxvol,
    refuse_singular,
)
from viscos.linear import Block, Matrix, condition_estimate, dense
from viscos.linear.repeated import Repeated


def swapped(seed=0):
    """A coupling flow in four dimensions whose last two latents are its first two entries: there G^HH = 0."""
    torch.manual_seed(seed)
    mix, half = Mix(4), torch.tensor([1.0, 1.0, 0.0, 0.0])
    mix.W.data = torch.roll(torch.eye(4), 2, 0)
    flow = Flow([Coupling(half, 8), mix], (4,)).double()
    with torch.no_grad():
        for k, p in enumerate(flow.layers[0].parameters()):
            p.add_(0.4 * normal(*p.shape, seed=k))
    return flow


@pytest.mark.parametrize("shape", [(6, 3), (7, 1), (5, 5), (8, 6)])
def test_the_rows_have_a_large_volume(shape):
    """No exchange of one row gains a twentieth; and of all choices none is twice as large."""
    for seed in range(4):
        A = normal(*shape, seed=seed).numpy()
        rows = _volume_rows(A)
        assert len(set(rows.tolist())) == shape[1]
        best = max(abs(np.linalg.det(A[list(choice)])) for choice in combinations(range(shape[0]), shape[1]))
        assert abs(np.linalg.det(A[rows])) >= best / 2
        assert np.abs(A @ np.linalg.inv(A[rows])).max() <= 1.05 + 1e-9


def test_rows_of_a_deficient_matrix_are_chosen_all_the_same():
    A = np.outer(np.arange(1.0, 6), np.ones(2))
    assert len(set(_volume_rows(A).tolist())) == 2


def test_a_latent_goes_with_the_entry_that_it_depends_on_most():
    """Of a map that exchanges two entries, but for little, the diagonal of the block is one after the choice."""
    mix = Mix(3).double()
    mix.W.data = torch.tensor([[0.1, 1.0, 0.0], [1.0, 0.1, 0.0], [0.0, 0.0, 1.0]], dtype=F64)
    found = maxvol(Flow([mix], (3,)), torch.zeros(1, 3, dtype=F64), torch.tensor([[True, True, False]]))
    assert found.partition.index.tolist() == [[1, 0, 2]]


def test_a_draw_made_anew_is_of_its_own_item(monkeypatch):
    """Of what is solved again, each row keeps the partition of its item."""

    def fails(flow, y, hidden, x, *rest):
        done = complete(flow, y, hidden, x, *rest)
        status = torch.where(x.flatten(1).sum(1) > 0, int(Status.STALLED), done.solution.status)
        return replace(done, solution=replace(done.solution, status=status))

    monkeypatch.setattr(imputation, "complete", fails)
    flow = flow_named("realnvp")
    y, hidden = data(flow, 3), masks(tuple(flow.shape), 3)["random"]
    together, *alone = (
        viscos.condition(flow, y[rows], ~hidden[rows], partition="maxvol", index=torch.tensor(rows)).completions(12)
        for rows in ([0, 1, 2], [0], [1], [2])
    )
    anew = (together.solution.attempts > 1).view(12, 3) & together.ok
    assert anew.any(0).all() and not anew.all(0).any()
    for row, own in enumerate(alone):
        assert torch.equal(own.ok[:, 0], together.ok[:, row])
        torch.testing.assert_close(own.draws[:, 0], together.draws[:, row], rtol=0, atol=1e-7, equal_nan=True)


def test_matrices_that_are_repeated():
    """By the items' own, in any order and with some that nobody has."""
    A, which = normal(4, 3, 5), torch.tensor([2, 0, 2, 3, 0])
    v, u = normal(5, 5, seed=1), normal(5, 3, seed=2)
    some = Repeated.each(A)[which]
    assert torch.allclose(some.product(v), torch.einsum("bmn,bn->bm", A[which], v), atol=1e-12)
    assert torch.allclose(some.mT.product(u), torch.einsum("bmn,bm->bn", A[which], u), atol=1e-12)
    last = some[torch.tensor([3, 4])]
    assert torch.allclose(last.product(v[3:]), torch.einsum("bmn,bn->bm", A[which[3:]], v[3:]), atol=1e-12)
    assert last[torch.tensor([], dtype=torch.int64)].product(v[:0]).shape == (0, 3)


def test_the_draws_of_an_item_share_its_matrices():
    """Copies of 16 draws of 64 digits, half of them hidden, would take five gigabytes."""
    inner = flow_named("realnvp")
    y, hidden = data(inner), masks(tuple(inner.shape))["random"]
    flow = maxvol(inner, y, hidden)
    draws = repeated(flow, len(y), 5)
    for name in ("columns", "inverse"):
        one, several = getattr(flow.partition, name), getattr(draws.partition, name)
        assert several.matrices.data_ptr() == one.matrices.data_ptr() and len(several.which) == 5 * len(y)
    z, repeats = repeat(y, 5), repeat(hidden, 5)
    found = draws.skeleton(z).inverse_block(repeats).mv(z)
    assert torch.allclose(found.view(5, *y.shape)[3], flow.skeleton(y).inverse_block(hidden).mv(y), atol=1e-10)


@pytest.mark.parametrize("name", ["realnvp", "glow", "glow, image", "continuous", "nonlinear of one's own"])
@pytest.mark.parametrize("pattern", ["random", "one kind an item", "centre"])
def test_a_repartitioned_flow_is_a_flow(name, pattern):
    """Value, density, Jacobian, products, inverse and skeleton are those of the permuted flow, item by item."""
    inner = flow_named(name)
    y, hidden = data(inner), masks(tuple(inner.shape))[pattern]
    flow = maxvol(inner, y, hidden)
    index = flow.partition.index
    assert flow.dense_below == inner.dense_below
    flow.dense_below = 7
    assert repeated(flow, len(y), 2).dense_below == 7, "as it was set"
    assert (index.sort(1).values == torch.arange(index.shape[1])).all()
    x = inner.to_latent(y).flatten(1).gather(1, index).view_as(y)
    assert torch.equal(flow.to_latent(y), x)
    assert torch.allclose(flow.log_prob(y), inner.log_prob(y), atol=1e-12)
    assert torch.allclose(flow.forward_and_ladj_surrogate(y, generator(0))[0], x, atol=1e-12)
    G = dense_jacobian(flow.to_latent, y)
    value, operator = flow.linearize(y)
    assert torch.allclose(value, x, atol=1e-12)
    assert torch.allclose(dense(operator, y), G, atol=1e-11) and torch.allclose(dense(operator.T, y), G.mT, atol=1e-11)
    assert torch.allclose(dense(operator.inverse(), y), torch.linalg.inv(G), atol=1e-7)
    v = normal(*y.shape, seed=3)
    tangent = flow.tangent(y, v)[1]
    assert torch.allclose(tangent.flatten(1), (G @ v.flatten(1).unsqueeze(-1)).squeeze(-1), atol=1e-11)
    assert torch.allclose(flow.to_data(x.detach()).value, y, atol=1e-6)
    picked = torch.tensor([2, 0, 2])
    assert torch.allclose(flow.select(picked).to_latent(y[picked]), x[picked], atol=1e-13)
    skeleton, point = flow.skeleton(y), torch.where(hidden, flow.partition.reference, y)
    assert torch.allclose(skeleton.apply(point), flow.to_latent(point), atol=1e-10)
    there = dense(Block(Matrix(dense_jacobian(flow.to_latent, point), y.shape), hidden), y)
    assert torch.allclose(dense(skeleton.inverse_block(hidden), y), torch.linalg.inv(there), atol=1e-8)


def test_a_fit_of_a_continuous_flow_does_not_depend_on_neighbours():
    """On how much is hidden of them, say; it keeps the flow as it is, and what solves it."""
    flow = flow_named("continuous, image")
    y, hidden = data(flow, 2), masks(tuple(flow.shape), 2)["random"]
    hidden = torch.stack([hidden[0], torch.ones_like(hidden[0])])
    found = []
    for some in (slice(0, 1), slice(0, 2)):
        q = viscos.condition(flow, y[some], ~hidden[some], lad="exact").fit(2, samples=2)
        found.append(q.completions(3))
        assert q.flow is flow
    alone, together = found
    assert torch.allclose(alone.draws[:, 0], together.draws[:, 0], atol=1e-9)
    spent = [f.solution.evaluations.view(3, -1)[:, 0] for f in found]
    assert torch.equal(*spent)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", ["realnvp", "glow"])
def test_no_partition_has_a_much_larger_determinant(name, given):
    """Against every choice of latents, at the reference point, which may be given."""
    inner = flow_named(name)
    y, hidden = data(inner), masks(tuple(inner.shape))["random"]
    guess = torch.where(hidden, normal(*y.shape, seed=8), y) if given else None
    flow = maxvol(inner, y, hidden, guess)
    point = flow.partition.reference
    assert guess is None or torch.equal(point, guess)
    G, permuted = dense_jacobian(inner.to_latent, point), dense_jacobian(flow.to_latent, point)
    for g, p, h in zip(G, permuted, hidden, strict=True):
        columns = g[:, h]
        dets = [torch.linalg.det(columns[list(c)]).abs() for c in combinations(range(5), int(h.sum()))]
        assert torch.linalg.det(p[h][:, h]).abs() >= max(dets) / 2


@pytest.mark.parametrize("hidden", [[True, True, False, False], [False, False, True, True]])
def test_the_same_partition_fails_where_the_block_is_singular_and_maxvol_succeeds(hidden):
    flow, hidden = swapped(), torch.tensor(hidden)
    y = normal(2, 4, seed=3)
    if hidden[2]:
        with pytest.raises(InputError, match=r"partition=same the block G\^HH is nearly.*take partition=maxvol"):
            viscos.condition(flow, y, ~hidden).fit(steps=1)
    q = viscos.condition(flow, y, ~hidden, partition="maxvol", posterior="full")
    assert (q.condition_number() < 100).all()
    q.fit(steps=150, samples=16)
    done = q.completions(4000)
    assert done.ok.all()
    # Moments and evidence by quadrature over the two hidden entries.
    line = torch.linspace(-9, 9, 241, dtype=F64)
    grid = torch.cartesian_prod(line, line)
    for item in range(2):
        points = y[item].repeat(len(grid), 1)
        points[:, hidden] = grid
        with torch.no_grad():
            density = flow.log_prob(points).exp()
        evidence = density.sum() * (line[1] - line[0]) ** 2
        mean = (density[:, None] * grid).sum(0) / density.sum()
        deviation = ((density[:, None] * (grid - mean).square()).sum(0) / density.sum()).sqrt()
        draws = done.draws[:, item][:, hidden]
        assert ((draws.mean(0) - mean).abs() < 0.12 * deviation + 0.02).all()
        assert ((draws.std(0) / deviation).log().abs() < 0.1).all()
        gap = evidence.log() - q.bound(256)[item]
        assert -0.02 < gap < 0.1


def test_an_image_flow_of_couplings_is_solved_after_a_choice():
    """Draws of several masks at once; observed entries bit for bit."""
    flow = flow_named("glow, image", torch.float32)
    y = data(flow, batch=3)
    hidden = masks(tuple(flow.shape))["one kind an item"]
    done = viscos.condition(flow, y, ~hidden, partition="maxvol", posterior="diagonal").fit(steps=2).completions(3)
    assert done.ok.all()
    assert torch.equal(done.draws[:, ~hidden], y[~hidden].expand(3, -1))


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_condition_numbers(dtype):
    """Exact where few entries are hidden; by Lanczos never above the truth, and right for a small spread."""
    A = torch.eye(70, dtype=F64) + 0.3 * normal(3, 70, 70, seed=2) / 70**0.5
    A[1] *= 1e-4  # which changes no condition number
    hidden = torch.rand(3, 70, generator=torch.Generator().manual_seed(0)) < 0.4
    hidden[2] = False
    blocks = [a[h][:, h] for a, h in zip(A, hidden, strict=True)]
    wanted = torch.stack([torch.linalg.cond(block) if len(block) else torch.ones((), dtype=F64) for block in blocks])
    like = A[:, 0].to(dtype)
    found = condition_estimate(Matrix(A.to(dtype)), hidden, like)
    assert found.dtype == dtype and torch.allclose(found.double(), wanted, rtol=1e-3)
    estimate = condition_estimate(Matrix(A.to(dtype)), hidden, like, exact_below=0)
    assert (estimate[:2].double() <= wanted[:2] * 1.001).all() and (estimate[:2].double() > 0.8 * wanted[:2]).all()


@pytest.mark.parametrize("size", [1.0, 1e-9, 1e-30, 1e9])
def test_the_condition_number_of_an_item_does_not_depend_on_its_company(size):
    """Beside one with more in H its block is filled up by rows, of the size that its own have."""
    A = size * torch.eye(4, dtype=F64).repeat(2, 1, 1)
    hidden = torch.arange(4) < torch.tensor([[1], [3]])
    together = condition_estimate(Matrix(A), hidden, A[:, 0])
    alone = [condition_estimate(Matrix(A[k : k + 1]), hidden[k : k + 1], A[k : k + 1, 0]) for k in range(2)]
    assert torch.equal(together, torch.cat(alone)) and torch.allclose(together, torch.ones(2, dtype=F64))
    A[:, 0, 0] = 0.0
    assert condition_estimate(Matrix(A), hidden, A[:, 0]).isinf().all()


def test_conditioning_is_that_of_the_reference_point():
    flow = flow_named("realnvp")
    y, hidden = data(flow), masks((5,))["random"]
    found = condition_number(flow, y, hidden)
    point = torch.where(hidden, flow.to_data(torch.zeros(1, 5, dtype=F64)).value, y)
    G = dense_jacobian(flow.to_latent, point)
    wanted = torch.stack([torch.linalg.cond(g[h][:, h]) for g, h in zip(G, hidden, strict=True)])
    assert torch.allclose(found, wanted)


def test_refusals():
    good, bad = torch.tensor([1.0, 1e8, 2.0]), torch.tensor([1.0, float("inf"), float("nan")])
    refuse_singular(good, "same")  # one item alone does not stop its neighbours
    with pytest.raises(InputError, match=r"2 of 3 items.*no partition of this flow's latent serves"):
        refuse_singular(bad, "maxvol")
    flow, y = flow_named("realnvp"), normal(2, 5)
    with pytest.raises(InputError, match="partition is 'best'; choose same or maxvol"):
        viscos.condition(flow, y, y > 0, partition="best")
    posterior = viscos.posteriors.Amortised((1, 4, 6))
    images = flow_named("glow, image", torch.float32)
    with pytest.raises(InputError, match="inference network"):
        viscos.condition(images, data(images), data(images) > 0, posterior=posterior, partition="maxvol")
    assert isinstance(maxvol(flow, y, y > 9), Repartitioned)
    with pytest.raises(InputError, match="too many"):
        maxvol(flow, normal(1, 40000), torch.ones(1, 40000, dtype=torch.bool))
