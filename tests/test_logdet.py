"""Gradients of log|det J^OO| against automatic differentiation of `slogdet`, and values of log-determinants."""

import pytest
import torch
from problems import (
    F64,
    AffineFlow,
    SmoothFlow,
    data,
    dense_jacobian,
    flow_named,
    masks,
    normal,
    orthogonal,
    residual_flow,
    within,
)

from viscos.core.batch import incomplete
from viscos.core.rng import ItemGenerators, generator, rademacher
from viscos.flows import Bijection, Flow
from viscos.inference import Objective
from viscos.linear import GMRES, Block, Matrix, exact_value, lanczos_value, log_abs_det_block, logabsdet
from viscos.logdet import CLADE, NLADE, Auto, BlockSolver, Exact
from viscos.posteriors import Diagonal
from viscos.roots import newton_krylov

ESTIMATORS = {"clade": CLADE, "nlade": lambda probes=1: NLADE(probes, tolerance=1e-12)}
FLOWS = ("image", "vector", "nonlinear of one's own", "affine of one's own")
PATTERNS = ("random", "centre", "one kind an item", "one")


def truth(flow, y, hidden, weights):
    """Σᵢ wᵢ log|det J^OO(yᵢ)| with J the inverse of the dense Jacobian, item by item, and its gradients."""
    y = y.clone().requires_grad_()
    values = []
    for item, known in zip(y, ~hidden.flatten(1), strict=True):
        G = torch.autograd.functional.jacobian(lambda v: flow.to_latent(v[None]).flatten(), item, create_graph=True)
        J = torch.linalg.inv(G.flatten(1))
        values.append(torch.linalg.slogdet(J[known][:, known])[1] if known.any() else 0 * J.sum())
    values = torch.stack(values)
    variables = [y, *(p for p in flow.parameters() if p.requires_grad)]
    grads = torch.autograd.grad((weights * values).sum(), variables, allow_unused=True)
    return values.detach(), [torch.zeros_like(v) if g is None else g for g, v in zip(grads, variables, strict=True)]


def estimate(estimator, flow, y, hidden, weights, g, tolerance=1e-12):
    y = y.clone().requires_grad_()
    _, G = flow.linearize(y.detach())
    block = BlockSolver(G, hidden, None, GMRES(tolerance))
    x, surrogate = estimator.surrogate(flow, y, block, g)
    variables = [y, *(p for p in flow.parameters() if p.requires_grad)]
    grads = torch.autograd.grad((weights * surrogate).sum(), variables, allow_unused=True)
    assert block.ok.all()
    return x, surrogate, [torch.zeros_like(v) if r is None else r for r, v in zip(grads, variables, strict=True)]


def problem(name, pattern):
    flow = flow_named(name)
    return flow, data(flow), masks(tuple(flow.shape))[pattern], torch.tensor([1.0, -2.0, 0.3], dtype=F64)


@pytest.fixture
def exact_trace(monkeypatch):
    """All basis vectors, scaled by √d, in place of random probes: E vvᵀ = I holds without a mean over chance."""

    def basis(d):
        vectors = iter(torch.eye(d, dtype=F64) * d**0.5)

        def probe(like, g, mask=None):
            v = next(vectors).view(1, *like.shape[1:]).expand_as(like)
            return v if mask is None else v * mask

        monkeypatch.setattr("viscos.logdet.estimators.rademacher", probe)

    return basis


@pytest.mark.parametrize("pattern", [*PATTERNS, "all", "none"])
@pytest.mark.parametrize("name", FLOWS)
def test_exact(name, pattern):
    flow, y, hidden, weights = problem(name, pattern)
    values, wanted = truth(flow, y, hidden, weights)
    x, surrogate, found = estimate(Exact(), flow, y, hidden, weights, generator(0))
    assert torch.allclose(x, flow.to_latent(y), atol=1e-12)
    assert torch.allclose(surrogate, values, atol=1e-10)
    for a, b in zip(found, wanted, strict=True):
        assert torch.allclose(a, b, atol=1e-8)


@pytest.mark.parametrize("pattern", [*PATTERNS, "all", "none"])
@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.parametrize("estimator", list(ESTIMATORS))
def test_errata_1_and_2_exact_traces_against_slogdet(exact_trace, estimator, name, pattern):
    """By y and by every parameter, each item with its own weight; with the signs that the paper's equations lack."""
    flow, y, hidden, weights = problem(name, pattern)
    _, wanted = truth(flow, y, hidden, weights)
    d = y[0].numel()
    exact_trace(d)
    x, _, found = estimate(ESTIMATORS[estimator](probes=d), flow, y, hidden, weights, generator(0))
    assert torch.allclose(x, flow.to_latent(y), atol=1e-12)
    for a, b in zip(found, wanted, strict=True):
        assert (a - b).abs().max() < 1e-8 * max(1, float(b.abs().max()))


@pytest.mark.parametrize("exactly", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["exact flow", "series"])
@pytest.mark.parametrize("estimator", list(ESTIMATORS))
def test_random_probes_have_no_bias(estimator, exactly):
    flow, y, hidden, weights = problem("image", "random")
    for layer in flow.layers[::2]:
        layer.exact_below = 64 if exactly else 0
    _, wanted = truth(flow, y, hidden, weights)
    directions = [normal(*w.shape, seed=50 + k) for k, w in enumerate(wanted)]
    copies, runs = 20, []
    for k in range(40):
        z, h = y.repeat(copies, 1, 1, 1), hidden.repeat(copies, 1, 1, 1)
        _, _, found = estimate(
            ESTIMATORS[estimator](), flow, z, h, weights.repeat(copies) / copies, generator(k, "probes"), 1e-8
        )
        found[0] = found[0].view(copies, *y.shape).sum(0)
        runs.append(torch.stack([(a * v).sum() for a, v in zip(found, directions, strict=True)]))
    wanted = torch.stack([(w * v).sum() for w, v in zip(wanted, directions, strict=True)])
    assert within(torch.stack(runs), wanted, slack=1e-7).all()  # the solves' tolerance


def test_erratum_2_the_sign_of_nlade():
    """∇(G⁻¹) = −G⁻¹ (∇G) G⁻¹: without the sign the gradient is another one."""
    flow = SmoothFlow(3)
    y = normal(1, 3)
    J = torch.linalg.inv(dense_jacobian(flow.to_latent, y))[0]
    step = 1e-5
    for k in range(3):
        e = torch.eye(3, dtype=F64)[k]
        G_plus, G_minus = (dense_jacobian(flow.to_latent, y + s * step * e)[0] for s in (1, -1))
        dG, dJ = (G_plus - G_minus) / (2 * step), (torch.linalg.inv(G_plus) - torch.linalg.inv(G_minus)) / (2 * step)
        assert torch.allclose(dJ, -J @ dG @ J, atol=1e-8)
        assert not torch.allclose(dJ, J @ dG @ J, atol=1e-3)


def test_the_schur_identities():
    """(J^OO)⁻¹ = G^OO − G^OH (G^HH)⁻¹ G^HO, and log|det J^OO| = log|det G^HH| − log|det G|."""
    flow = flow_named("image")
    y, hidden = data(flow), masks((1, 4, 4))["random"].flatten(1)
    G = dense_jacobian(flow.to_latent, y)
    for A, H in zip(G, hidden, strict=True):
        K, J = ~H, torch.linalg.inv(A)
        schur = A[K][:, K] - A[K][:, H] @ torch.linalg.inv(A[H][:, H]) @ A[H][:, K]
        assert torch.allclose(torch.linalg.inv(J[K][:, K]), schur, atol=1e-10)
        left = torch.linalg.slogdet(J[K][:, K])[1]
        assert left.item() == pytest.approx((torch.linalg.slogdet(A[H][:, H])[1] - torch.linalg.slogdet(A)[1]).item())


def test_the_choice_of_the_estimator():
    few = torch.arange(40).expand(3, 40) < torch.tensor([[19], [20], [21]])
    assert Auto.natural(few).tolist() == [False, True, True]  # where O is the smaller side
    flow, y, hidden, weights = problem("vector", "random")
    for a, b in zip(
        estimate(Auto(), flow, y, hidden, weights, generator(0))[2],
        estimate(Exact(), flow, y, hidden, weights, generator(0))[2],
        strict=True,
    ):
        assert torch.equal(a, b)


# ---------------------------------------------------------------------------------------------------- block solver


def test_the_block_solver_marks_what_it_cannot_solve():
    A = torch.eye(6, dtype=F64) + 0.2 * normal(4, 6, 6)
    A[1, 0, :] = 0  # a singular block
    A[2] = float("nan")
    hidden = torch.ones(4, 6, dtype=torch.bool)
    hidden[:, 4:] = False
    block = BlockSolver(Matrix(A), hidden, None, GMRES(1e-12))
    a = normal(4, 6, seed=1)
    found = block.transposed(a)
    assert block.ok.tolist() == [True, False, False, True]
    assert (found[1:3] == 0).all() and (found[:, 4:] == 0).all()
    for k in (0, 3):
        assert torch.allclose(found[k, :4], torch.linalg.solve(A[k, :4, :4].T, a[k, :4]), atol=1e-10)
    assert (block.products > 0).all()
    before = block.products.clone()
    block.transposed(torch.zeros_like(a))
    assert torch.equal(block.products, before)
    assert block.ok.tolist() == [True, False, False, True]  # a verdict is not taken back


def test_adjoint_solves_are_preconditioned():
    """By the transposed inverse of the block: a perfect one leaves nothing to do."""
    A, hidden = torch.eye(12, dtype=F64) + normal(2, 12, 12) / 4, torch.arange(12) < 8
    hidden, a = hidden.expand(2, 12), normal(2, 12, seed=1)
    inverse = torch.zeros_like(A)
    inverse[:, :8, :8] = torch.linalg.inv(A[:, :8, :8])
    prepared, plain = (BlockSolver(Matrix(A), hidden, near, GMRES(1e-10)) for near in (Matrix(inverse), None))
    assert torch.allclose(prepared.transposed(a), plain.transposed(a), atol=1e-7)
    assert (prepared.products <= 2).all() and (plain.products >= 8).all()


def test_a_probe_whose_product_with_j_is_wrong_is_left_out():
    """The inverse of a layer may miss its tolerance without a word: NLADE checks G (J v) = v."""

    class Off(Matrix):
        def inverse(self, tolerance=None):
            return Matrix(torch.linalg.inv(A) * torch.tensor([1.0, 1.2, 1.001, torch.nan], dtype=F64)[:, None, None])

    flow, hidden = AffineFlow(5), torch.tensor([True, False, False, True, False]).expand(4, 5)
    A = flow.layers[0].A.detach().expand(4, 5, 5)
    block = BlockSolver(Off(A), hidden)
    NLADE().surrogate(flow, normal(4, 5), block, generator(0))
    assert block.ok.tolist() == [True, False, True, False]


class Steep(Bijection):
    """The identity times a parameter where the first entry is negative, else a matrix of a condition number of 1e6."""

    def __init__(self, d):
        super().__init__()
        self.A = orthogonal(d, 1) * torch.logspace(0, -6, d, dtype=F64) @ orthogonal(d, 2)
        self.scale = torch.nn.Parameter(torch.ones((), dtype=F64))

    def forward(self, y):
        return self.scale * torch.where(y[:, :1] < 0, y, y @ self.A.T)


def test_a_probe_of_the_flow_itself_that_is_not_solved_is_left_out():
    """CLADE leaves ∇ log|det G| to the flow, whose solves have verdicts as those on H have."""
    flow, y = Flow([Steep(300)], (300,)), normal(2, 300)
    y[:, 0] = torch.tensor([-1.0, 1.0])
    hidden = (torch.arange(300) < 3).expand(2, 300)
    _, G = flow.linearize(y)
    u = G.inverse(1e-3).rmv(v := rademacher(y, generator(0)))
    assert ((G.rmv(u) - v).norm(dim=1) > 0.5 * v.norm(dim=1)).tolist() == [False, True]
    block = BlockSolver(G, hidden, None, GMRES(1e-6))
    _, surrogate = CLADE().surrogate(flow, y, block, generator(0))
    assert block.ok.tolist() == [True, False] and surrogate.isfinite().tolist() == [True, False]
    (found,) = torch.autograd.grad(torch.where(block.ok, surrogate, 0).sum(), flow.parameters())
    assert found.item() == pytest.approx(3 - 300)
    assert flow.log_prob(y).isfinite().tolist() == [True, False], "there is no gradient of the second"
    with torch.no_grad():
        assert flow.log_prob(y).isfinite().all()


# ----------------------------------------------------------------------------------------------------------- values


def spd_like(batch, d, seed=0):
    return torch.eye(d, dtype=F64) + 0.6 * normal(batch, d, d, seed=seed) / d**0.5


def test_exact_value():
    A = spd_like(3, 9)
    assert torch.allclose(exact_value(Matrix(A, (3, 3, 3)), A.new_zeros(3, 3, 3)), torch.linalg.slogdet(A)[1])
    single = exact_value(Matrix(A.float()), A[:, 0].float())
    assert single.dtype == torch.float32
    assert torch.allclose(single.double(), torch.linalg.slogdet(A)[1], atol=1e-5)


def test_lanczos_of_every_basis_vector_is_the_trace(monkeypatch):
    """With as many steps as rows the quadrature is exact: vᵀ log(AᵀA) v by eigenvectors."""
    from viscos.linear.logabsdet import _quadrature

    A = spd_like(3, 7)
    values, vectors = torch.linalg.eigh(A.mT @ A)
    log = vectors @ torch.diag_embed(values.log()) @ vectors.mT
    total = torch.zeros(3, dtype=F64)
    for e in torch.eye(7, dtype=F64):
        found = _quadrature(Matrix(A), e.expand(3, 7), 7)
        assert torch.allclose(found, torch.einsum("i,bij,j->b", e, log, e), atol=1e-10)
        total += found / 2
    assert torch.allclose(total, torch.linalg.slogdet(A)[1], atol=1e-10)


@pytest.mark.parametrize("masked", [False, True])
def test_lanczos_has_no_bias(masked):
    A = spd_like(1, 30).expand(2000, 30, 30)
    hidden = (torch.arange(30) % 3 > 0).expand(2000, 30)
    operator = Block(Matrix(A), hidden) if masked else Matrix(A)
    block = A[0][hidden[0]][:, hidden[0]] if masked else A[0]
    found = lanczos_value(operator, A[:, 0], generator(0), hidden if masked else None, steps=20)
    assert within(found, torch.linalg.slogdet(block)[1])
    again = lanczos_value(operator, A[:, 0], generator(1), hidden if masked else None, steps=20, probes=5)
    assert within(again, torch.linalg.slogdet(block)[1])
    assert again.std() < 0.6 * found.std()


def test_lanczos_where_the_space_ends_early():
    """The identity, a multiple of it, an empty mask, a mask of one entry: one step says all."""
    A = torch.eye(5, dtype=F64).repeat(4, 1, 1)
    A[1] *= 3
    A[3, 2, 2] = 0.5
    hidden = torch.ones(4, 5, dtype=torch.bool)
    hidden[2] = False
    hidden[3] = torch.arange(5) == 2
    for dtype, tolerance in ((F64, 1e-12), (torch.float32, 1e-5)):
        found = lanczos_value(Block(Matrix(A.to(dtype)), hidden), A[:, 0].to(dtype), generator(0), hidden)
        wanted = torch.tensor([0, 5 * torch.log(torch.tensor(3.0)), 0, -torch.log(torch.tensor(2.0))], dtype=dtype)
        assert torch.allclose(found, wanted, atol=tolerance * 10)


def test_an_item_that_is_nan_leaves_its_neighbours_right():
    A = spd_like(3, 8)
    A[1] = float("nan")
    for found in (
        lanczos_value(Matrix(A), A[:, 0], generator(0), steps=8, probes=4),
        exact_value(Matrix(A), A[:, 0]),
        log_abs_det_block(Matrix(A), torch.ones(3, 8, dtype=torch.bool), A[:, 0], generator(0), exact_below=4),
    ):
        assert torch.isnan(found[1])
        assert torch.isfinite(found[[0, 2]]).all()


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_lanczos_of_a_singular_matrix_is_minus_infinity(dtype):
    """As the exact value is; and that of one with a singular value of a thousandth is finite."""
    few = torch.ones(4, 80, dtype=F64)
    few[:2, ::2], few[:2, ::3] = 2.0, 0.5
    few[[0, 2], 5], few[1, 5], few[3] = 0.0, 3e-3, 0.0
    A = (orthogonal(80, 1) * few[:, None] @ orthogonal(80, 2)).to(dtype)
    A[2] = torch.diag(few[2]).to(dtype)
    assert exact_value(Matrix(torch.diag_embed(few)), few).isneginf().tolist() == [True, False, True, True]
    for probes in (1, 3):
        found = lanczos_value(Matrix(A), A[:, 0], generator(0), probes=probes)
        assert found.isneginf().tolist() == [True, False, True, True] and found[1].isfinite()
    hidden, diagonal = (torch.arange(80) != 5).expand(4, 80), Matrix(torch.diag_embed(few).to(dtype))
    found = lanczos_value(Block(diagonal, hidden), A[:, 0], generator(0), hidden)
    assert found.isfinite().tolist() == [True, True, True, False], "what is singular lies outside of the block"


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 1e-3), (torch.float32, 3e-5), (F64, 1e-9)])
def test_lanczos_of_a_matrix_that_is_far_from_singular_in_its_precision_is_finite(dtype, least):
    """The quadrature of one probe is vᵀ log(AᵀA) v, also where AᵀA is singular in that precision, and A is not."""
    left, right = (torch.linalg.qr(normal(2, 40, 40, seed=seed).to(F64))[0] for seed in (1, 2))
    values = torch.linspace(0.5, 2, 40, dtype=F64).expand(2, 40).clone()
    values[1, 3] = least
    A = (left * values[:, None]) @ right.mT
    found = lanczos_value(Matrix(A.to(dtype)), torch.zeros(2, 40, dtype=dtype), generator(0, "x"), steps=40)
    v = rademacher(torch.zeros(2, 40, dtype=dtype), generator(0, "x")).to(F64)
    expected = ((right.mT @ v.unsqueeze(-1)).squeeze(-1).square() * values.log()).sum(1)
    torch.testing.assert_close(found.to(F64), expected, rtol=0, atol=0.3 if dtype == torch.float32 else 1e-4)


def test_a_draw_at_a_singular_block_has_no_weight():
    """However many entries are hidden: x₁ = y₀, whatever y₁ is, and y₁ alone is hidden of these two."""
    flow, hidden = AffineFlow(80), torch.arange(80) > 0
    with torch.no_grad():
        flow.layers[0].A.copy_(torch.eye(80, dtype=F64))
        flow.layers[0].A[:2, :2] = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=F64)
        flow.layers[0].b.zero_()
    batch = incomplete(torch.zeros(1, 80, dtype=F64), ~hidden)
    q, noise = Diagonal(batch.filled())(batch, flow), normal(1, 1, 80).index_fill(2, torch.tensor([1]), 0.0)
    for exact_below in (1024, 8):
        objective = Objective(newton_krylov(1e-9))
        assert objective.drawn(flow, batch, q, noise).completion.solution.converged.all()
        assert objective.log_weight(flow, batch, q, noise, generator(0), exact_below).isnan().all(), exact_below


@pytest.mark.parametrize("below", [1, 1024], ids=["lanczos", "dense"])
def test_the_value_of_a_block(below):
    flow = residual_flow("odd")
    y = data(flow)[:1].expand(800, 1, 5, 5)
    hidden = masks((1, 5, 5))["random"][:1].expand(800, 1, 5, 5)
    if below > 1:
        y, hidden = y[:2], hidden[:2]
    A, H = dense_jacobian(flow.to_latent, y[:1])[0], hidden[0].flatten()
    wanted = torch.linalg.slogdet(A[H][:, H])[1]
    _, G = flow.linearize(y)
    found = log_abs_det_block(G, hidden, y, generator(0), exact_below=below)
    assert within(found, wanted) if below == 1 else torch.allclose(found, wanted.expand(2), atol=1e-11)


@pytest.mark.parametrize("written", [1, 2 * 8 * 8, 2**25])
def test_the_value_of_blocks_of_many_sizes(monkeypatch, written):
    """Each item has its own H, one of them none at all, and however many are written out at a time."""
    monkeypatch.setattr(logabsdet, "_MEMORY", written)
    A, sizes = spd_like(4, 8), []
    mv = Matrix.mv
    monkeypatch.setattr(Matrix, "mv", lambda self, v: sizes.append(len(v)) or mv(self, v))
    assert torch.allclose(exact_value(Matrix(A), A[:, 0]), torch.linalg.slogdet(A)[1], atol=1e-12)
    assert set(sizes) == {min(4, max(1, written // 64))}, "items at a time"
    hidden = torch.arange(8) < torch.tensor([3, 8, 0, 5])[:, None]
    hidden[3] = hidden[3].flip(0)
    found = log_abs_det_block(Matrix(A), hidden, A[:, 0], generator(0))
    wanted = [torch.linalg.slogdet(a[h][:, h])[1] for a, h in zip(A, hidden, strict=True)]
    assert torch.allclose(found, torch.stack(wanted), atol=1e-12)


def test_an_item_is_written_out_or_estimated_whatever_its_neighbours_are():
    A, index = spd_like(4, 8), torch.arange(4)
    hidden = torch.arange(8) < torch.tensor([3, 8, 2, 7])[:, None]

    def found(rows):
        probes = ItemGenerators(0, index[rows], 1, 0)
        return log_abs_det_block(Matrix(A[rows]), hidden[rows], A[rows][:, 0], probes, exact_below=3, steps=2)

    together = found(index)
    assert torch.equal(together, torch.cat([found(index[k : k + 1]) for k in range(4)]))
    wanted = torch.stack([torch.linalg.slogdet(a[h][:, h])[1] for a, h in zip(A, hidden, strict=True)])
    assert ((together - wanted).abs() < 1e-12).tolist() == [True, False, True, False]


def test_one_affine_flow_by_hand():
    """d = 2, O = {0}: J = A⁻¹ and log|J₀₀| = log|A₁₁ / det A|."""
    flow = AffineFlow(2)
    hidden = torch.tensor([[False, True]])
    _, surrogate, _ = estimate(Exact(), flow, normal(1, 2), hidden, torch.ones(1, dtype=F64), generator(0))
    A = flow.layers[0].A.detach()
    assert surrogate.item() == pytest.approx((A[1, 1].abs().log() - torch.linalg.det(A).abs().log()).item())


def mixed():
    """Two items that are nearly seen and two that are nearly hidden, of a flow of more than a few entries."""
    flow, y, _, _ = problem("image", "random")
    share = torch.tensor([0.2, 0.8, 0.3, 0.7]).view(-1, *[1] * (y.dim() - 1))
    y = y[:1].expand(4, *y.shape[1:]) + 0.1 * normal(4, *y.shape[1:], seed=3).to(y)
    return flow, y, torch.rand(y.shape, generator=generator(0, "mixed"), dtype=y.dtype) < share


def each_surrogate(flow, y, hidden, rows):
    """The gradients of the surrogates by y of some items, with probes of their own, and the ledger."""
    part = y[rows].clone().requires_grad_(True)
    block = BlockSolver(flow.linearize(part.detach())[1], hidden[rows], solver=GMRES(tolerance=1e-10))
    x, value = Auto(exact_below=0).surrogate(flow, part, block, ItemGenerators(0, rows, 1, 0))
    return torch.autograd.grad(value.sum(), part)[0], x.detach(), block


def test_the_choice_is_an_items_own_whoever_stands_beside_it():
    flow, y, hidden = mixed()
    assert Auto.natural(hidden).tolist() == [False, True, False, True]
    together, x, block = each_surrogate(flow, y, hidden, torch.arange(4))
    for item in range(4):
        alone, its, ledger = each_surrogate(flow, y, hidden, torch.tensor([item]))
        torch.testing.assert_close(together[item], alone[0], rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(x[item], its[0])
        assert float(block.products[item]) == float(ledger.products[0]) > 0 and bool(ledger.ok[0])
    assert bool(block.ok.all())


def test_what_is_drawn_after_the_choice_does_not_depend_on_company():
    """As the value by which a mixture learns its weights is."""
    flow, y, hidden = mixed()

    def next_probe(rows, probes):
        block = BlockSolver(flow.linearize(y[rows])[1], hidden[rows])
        Auto(exact_below=0).surrogate(flow, y[rows], block, probes)
        return rademacher(y[rows], probes)

    each = [next_probe(rows, ItemGenerators(0, rows, 1, 0)) for rows in torch.arange(4).split(1)]
    assert torch.equal(next_probe(torch.arange(4), ItemGenerators(0, torch.arange(4), 1, 0)), torch.cat(each))
    alike = torch.tensor([1, 3])
    assert torch.equal(next_probe(alike, ItemGenerators(0, alike, 1, 0)), torch.cat([each[1], each[3]]))
    both, one_kind = (next_probe(torch.tensor(rows), generator(0)) for rows in ([0, 1, 2, 3], [0, 2, 0, 2]))
    assert torch.equal(both, one_kind)
    fresh = ItemGenerators(0, torch.arange(4), 1, 0)
    assert not torch.equal(torch.cat(each), rademacher(y, fresh)), "a caller's next step has probes of its own"
    assert torch.equal(torch.cat(each), rademacher(y, fresh))


def test_a_part_of_a_block_keeps_the_ledger_of_the_whole():
    flow, y, hidden = mixed()
    block = BlockSolver(flow.linearize(y)[1], hidden)
    part = block.select(torch.tensor([2, 0])).select(torch.tensor([1]))
    part.note(torch.tensor([False]), torch.tensor([3.0]))
    assert block.ok.tolist() == [False, True, True, True] and block.products.tolist() == [3.0, 0.0, 0.0, 0.0]
