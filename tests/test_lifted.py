"""Transposed solves over the adjoints of the states between layers, against matrices written out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import F64, KINDS, data, dense_jacobian, flow_named, masks, normal

from viscos.core.solution import Status
from viscos.linear import GMRES, Block, Diagonal, IdentityPlus, Matrix, Product, dense, solve_lifted
from viscos.linear.lifted import links_of
from viscos.logdet import BlockSolver

CONTINUOUS = [name for name in KINDS if name.startswith("continuous")]


def chain(links: int, first: str, batch: int = 3, d: int = 6) -> Product:
    """A product of matrices near the identity, behind one that is not."""
    before = {
        "none": [],
        "diagonal": [Diagonal(0.5 + normal(1, d, seed=1).abs(), batch)],
        "full": [Matrix(3 * torch.eye(d, dtype=F64) + normal(batch, d, d, seed=2) / d**0.5)],
    }[first]
    near = [IdentityPlus(Matrix(0.4 * normal(batch, d, d, seed=10 + k) / d**0.5)) for k in range(links)]
    return Product([*before, *near], (batch, d))


def inverse_of_first(A: Product, hidden: torch.Tensor) -> Matrix | None:
    first, _ = links_of(A)
    return None if first is None else Matrix(torch.linalg.inv(dense(Block(first, hidden), hidden.to(F64))))


def solution(A: Product, hidden: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """By elimination."""
    block = dense(Block(A, hidden), a)
    return torch.linalg.solve(block.mT, torch.where(hidden, a, 0).flatten(1)).view_as(a)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-12])
@pytest.mark.parametrize("first", ["none", "diagonal", "full"])
@given(links=st.integers(1, 5), pattern=st.integers(0, 2**18 - 1), seed=st.integers(0, 99))
@settings(max_examples=12, deadline=None)
def test_the_adjoint_is_that_of_the_dense_block(first, tolerance, links, pattern, seed):
    hidden = torch.tensor([bool(pattern >> k & 1) for k in range(18)]).view(3, 6)
    A, a = chain(links, first), normal(3, 6, seed=seed)
    found = solve_lifted(A, hidden, a, inverse_of_first(A, hidden), GMRES(tolerance, budget=200))
    assert found.converged.all(), found
    assert (found.value[~hidden] == 0).all()
    a = torch.where(hidden, a, 0)
    r = (Block(A, hidden).T.mv(found.value) - a).norm(dim=1) / torch.where(hidden.any(1), a.norm(dim=1), 1)
    assert torch.allclose(found.residual, r, rtol=1e-6, atol=1e-15) and (r <= tolerance).all()
    assert tolerance > 1e-6 or torch.allclose(found.value, solution(A, hidden, a), atol=1e-9)


@pytest.mark.parametrize("first", ["none", "full"])
def test_links_that_are_the_identity_take_one_product(first):
    A = chain(4, first)
    A = Product(
        [part if isinstance(part, Matrix) else IdentityPlus(Matrix(0 * part.part.matrix)) for part in A.parts], A.shape
    )
    hidden = torch.rand(3, 6, generator=torch.Generator().manual_seed(0)) < 0.5
    found = solve_lifted(A, hidden, normal(3, 6), inverse_of_first(A, hidden), GMRES(1e-10))
    assert found.evaluations.tolist() == [3, 3, 3]  # and one for each of the two residuals


def test_products_are_counted():
    class Counting(IdentityPlus):
        count = 0

        def rmv(self, u):
            Counting.count += 1
            return super().rmv(u)

        def select(self, index):
            return Counting(self.part.select(index))

    A = chain(4, "none", batch=1)
    A = Product([Counting(part.part) for part in A.parts], A.shape)
    hidden = torch.tensor([[True, False, True, True, False, True]])
    found = solve_lifted(A, hidden, normal(1, 6), None, GMRES(1e-9, budget=100))
    assert found.converged.all() and found.steps.item() > 1
    assert found.evaluations.item() == Counting.count / 4


def test_an_item_is_solved_as_if_alone_and_a_broken_one_harms_nobody():
    A, hidden = chain(4, "diagonal"), masks((6,))["random"]
    a, M = normal(3, 6, seed=3), inverse_of_first(A, hidden)
    together = solve_lifted(A, hidden, a, M, GMRES(1e-2))
    a[1] = float("nan")
    broken = solve_lifted(A, hidden, a, M, GMRES(1e-2))
    assert broken.status.tolist() == [Status.CONVERGED, Status.NON_FINITE, Status.CONVERGED]
    for k in (0, 2):
        one = torch.tensor([k])
        alone = solve_lifted(A.select(one), hidden[one], a[one], M.select(one), GMRES(1e-2))
        assert torch.allclose(alone.value[0], together.value[k], atol=1e-12)
        assert torch.allclose(broken.value[k], together.value[k], atol=1e-12)


@pytest.mark.parametrize("budget", [40, 60, 100])
@pytest.mark.parametrize("size", [0.8, 1.2])
def test_a_hard_neighbour_takes_nothing_from_the_budget(size, budget):
    d, one = 12, torch.tensor([0])
    near = [torch.stack([c * normal(d, d, seed=s + k) for c, s in ((0.4, 10), (size, 30))]) for k in range(4)]
    A = Product([IdentityPlus(Matrix(N / d**0.5)) for N in near], (2, d))
    hidden, a = (torch.arange(d) % 3 > 0).expand(2, d), normal(2, d, seed=1)
    gmres = GMRES(1e-8, budget=budget, restart=4)
    together = solve_lifted(A, hidden, a, None, gmres)
    alone = solve_lifted(A.select(one), hidden[one], a[one], None, gmres)
    assert alone.converged.all() and together.evaluations[1] > together.evaluations[0] - 3
    for what in ("status", "evaluations", "steps"):
        assert torch.equal(getattr(together, what)[one], getattr(alone, what))
    assert torch.allclose(together.value[one], alone.value, atol=1e-12)


def test_a_budget_that_is_too_small_is_kept():
    A, hidden = chain(5, "none"), torch.ones(3, 6, dtype=torch.bool)
    found = solve_lifted(A, hidden, normal(3, 6), None, GMRES(1e-9, budget=5))
    assert (found.status == Status.BUDGET).all() and (found.evaluations <= 5).all() and (found.residual > 1e-9).all()


@pytest.mark.parametrize("mask", ["random", "all", "none", "one kind an item"])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_the_solver_of_a_block_of_a_continuous_flow(name, mask):
    """Deep or not: one adjoint, that of the Jacobian by automatic differentiation."""
    flow = flow_named(name)
    y = data(flow)
    hidden = masks(tuple(flow.shape))[mask]
    _, G = flow.linearize(y)
    M, a = flow.skeleton(y).inverse_block(hidden), normal(*y.shape, seed=7)
    J = Block(Matrix(dense_jacobian(flow.to_latent, y), y.shape), hidden)
    wanted = torch.linalg.solve(dense(J, y).mT, torch.where(hidden, a, 0).flatten(1)).view_as(a)
    deep, plain = (BlockSolver(G, hidden, M, GMRES(1e-11, budget=300), deep) for deep in (True, False))
    for block in (deep, plain):
        assert torch.allclose(block.transposed(a), wanted, atol=1e-8) and block.ok.all()
    assert not torch.equal(deep.products, plain.products) or mask == "none"
