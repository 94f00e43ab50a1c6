"""Linear operators against dense algebra, and the linear solvers against `torch.linalg.solve`."""

import pytest
import torch
from problems import F64, contractions, dense_jacobian, matrices, normal

from viscos.core.errors import InputError
from viscos.core.solution import Status
from viscos.linear import (
    CG,
    GMRES,
    Block,
    Diagonal,
    Inverse,
    Jacobian,
    LinearOperator,
    Matrix,
    Neumann,
    PrincipalInverse,
    Product,
    SharedSymmetric,
    dense,
    grouped,
)

TABLE = matrices()
CONTRACTIONS = contractions()
BADLY_SCALED = ("badly scaled rows", "badly scaled both ways")


class Counted(LinearOperator):
    """A matrix that counts its products."""

    def __init__(self, matrix):
        self.base, self.shape, self.products = Matrix(matrix), matrix.shape[:2], 0

    def mv(self, v):
        self.products += 1
        return self.base.mv(v)

    def rmv(self, u):
        self.products += 1
        return self.base.rmv(u)


def rhs(A, seed=3):
    return normal(*A.shape[:2], seed=seed, dtype=A.dtype)


def check(found, A, b, tolerance):
    """Every item solved, to the right answer, with the residual that it really has."""
    residual = ((A @ found.value.unsqueeze(-1)).squeeze(-1) - b).norm(dim=1) / b.norm(dim=1)
    assert found.converged.all(), found
    rounding = max(10 * torch.finfo(A.dtype).eps, 1e-3 * tolerance)
    assert torch.allclose(found.residual, residual, rtol=1e-2, atol=rounding)
    assert (found.residual <= tolerance).all()
    truth = torch.linalg.solve(A, b)
    # ‖z − z*‖ ≤ ‖A⁻¹‖ ‖A z − b‖
    allowed = torch.linalg.matrix_norm(torch.linalg.inv(A), ord=2) * b.norm(dim=1) * tolerance
    assert ((found.value - truth).norm(dim=1) <= 1.01 * allowed + 1e-13).all()


@pytest.mark.parametrize("transposed", [False, True], ids=["A", "A^T"])
@pytest.mark.parametrize("dtype", [F64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize("name", [name for name in TABLE if name not in BADLY_SCALED])
def test_gmres(name, dtype, transposed):
    A = TABLE[name].to(dtype)
    b, tolerance = rhs(A), 1e-10 if dtype == F64 else 1e-4
    operator = Matrix(A).T if transposed else Matrix(A)
    check(GMRES(tolerance)(operator, b), A.mT if transposed else A, b, tolerance)


@pytest.mark.parametrize("name", BADLY_SCALED)
def test_gmres_with_a_preconditioner(name):
    A = TABLE[name]
    b = rhs(A)
    jacobi = Diagonal(1 / A.diagonal(dim1=1, dim2=2))
    check(GMRES(1e-11)(Matrix(A), b, jacobi), A, b, 1e-11)
    check(GMRES(1e-11)(Matrix(A).T, b, jacobi.T), A.mT, b, 1e-11)


def test_the_preconditioner_earns_its_keep():
    A = TABLE["badly scaled both ways"]
    A = torch.diag_embed(A.diagonal(dim1=1, dim2=2)) + 1e-3 * normal(*A.shape, seed=4)
    b, tight = rhs(A), GMRES(1e-8, budget=1000)
    plain, helped = tight(Matrix(A), b), tight(Matrix(A), b, Diagonal(1 / A.diagonal(dim1=1, dim2=2)))
    assert helped.converged.all()
    assert (helped.evaluations < plain.evaluations).all()


SYMMETRIC = ("identity", "diagonal", "positive definite")


@pytest.mark.parametrize("dtype", [F64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize("name", SYMMETRIC)
def test_conjugate_gradients(name, dtype):
    A = TABLE[name].to(dtype)
    b, tolerance = rhs(A), 1e-10 if dtype == F64 else 1e-4
    check(CG(tolerance)(Matrix(A), b), A, b, tolerance)
    jacobi = Diagonal(1 / A.diagonal(dim1=1, dim2=2))
    check(CG(tolerance)(Matrix(A), b, jacobi), A, b, tolerance)


def test_conjugate_gradients_with_a_preconditioner():
    scale = torch.logspace(0, 2, 12, dtype=F64)
    A = scale[:, None] * TABLE["positive definite"] * scale
    b = rhs(A)
    jacobi = Diagonal(1 / A.diagonal(dim1=1, dim2=2))
    plain, helped = CG(1e-9, budget=1000)(Matrix(A), b), CG(1e-9, budget=1000)(Matrix(A), b, jacobi)
    check(helped, A, b, 1e-9)
    assert (helped.evaluations < plain.evaluations).all()


def test_a_preconditioner_that_is_an_inner_iteration():
    """It is not quite linear, so its products must be kept: one cycle then reaches what it claims."""
    A = TABLE["positive definite"] + 0.1 * normal(4, 12, 12, seed=5)
    inner = Inverse(Matrix(TABLE["positive definite"]), CG(tolerance=0.1))
    b = rhs(A)
    found = GMRES(1e-11, restart=12)(Matrix(A), b, inner)
    check(found, A, b, 1e-11)
    assert (found.evaluations <= 13).all()


@pytest.mark.parametrize("restart", [3, 5, 11])
def test_gmres_restarts(restart):
    A = TABLE["nonsymmetric"] + 8 * torch.eye(12, dtype=F64)
    b = rhs(A)
    found = GMRES(1e-10, budget=1000, restart=restart)(Matrix(A), b)
    check(found, A, b, 1e-10)
    assert (found.evaluations > restart + 1).all()  # it did restart


def test_a_restart_that_gains_nothing_is_a_stall():
    A = TABLE["rotation by one"]
    b = torch.zeros(4, 12, dtype=F64)
    b[:, 0] = 1
    found = GMRES(1e-8, budget=1000, restart=4)(Matrix(A), b)
    assert (found.status == Status.STALLED).all()
    assert torch.allclose(found.residual, torch.ones(4, dtype=F64))
    assert GMRES(1e-8, restart=12)(Matrix(A), b).converged.all()


def test_gmres_of_many_sizes_in_random_spaces():
    for d in (1, 2, 3, 7, 20):
        A = 2 * torch.eye(d, dtype=F64) + normal(5, d, d, seed=d) / (2 * d**0.5)
        check(GMRES(1e-10)(Matrix(A), rhs(A)), A, rhs(A), 1e-10)


def test_singular_systems():
    A = TABLE["positive definite"].clone()
    A[1, 3] = 0
    A[2] = 0
    b = rhs(A)
    found = GMRES(1e-8)(Matrix(A), b)
    assert found.converged.tolist() == [True, False, False, True]
    assert torch.isfinite(found.value).all()
    assert found.residual[1] >= b[1, 3].abs() / b[1].norm()  # what no z can take away
    assert found.residual[2] == pytest.approx(1)
    with pytest.raises(InputError, match=r"2 of 4 items.*item 1.*no further progress"):
        found.raise_if_failed()


def test_a_singular_system_that_has_solutions():
    A = TABLE["positive definite"].clone()
    null = torch.linalg.eigh(A[1])[1][:, :1]
    A[1] -= A[1] @ null @ null.T
    A[2, 3] = 0
    b = (A @ normal(4, 12, 1, seed=9)).squeeze(-1)
    found = GMRES(1e-10)(Matrix(A), b)
    assert found.converged.all()
    assert torch.allclose((A @ found.value.unsqueeze(-1)).squeeze(-1), b, atol=1e-9)


@pytest.mark.parametrize("solver", [GMRES(1e-10), Neumann(1e-10), CG(1e-10)], ids=["gmres", "neumann", "cg"])
def test_a_zero_right_hand_side(solver):
    A = CONTRACTIONS["symmetric"]
    b = rhs(A)
    b[1] = 0
    found = solver(Matrix(A), b)
    assert found.converged.all()
    assert (found.value[1] == 0).all()
    assert found.evaluations[1] == 0
    assert torch.allclose(found.value, torch.linalg.solve(A, b))


@pytest.mark.parametrize("where", ["matrix", "right-hand side", "one entry", "infinite"])
@pytest.mark.parametrize("solver", [GMRES(1e-12), Neumann(1e-12), CG(1e-12)], ids=["gmres", "neumann", "cg"])
def test_an_item_that_is_not_finite_leaves_its_neighbours_right(solver, where):
    A = CONTRACTIONS["symmetric"].clone()
    b = rhs(A)
    if where == "matrix":
        A[1] = float("nan")
    elif where == "right-hand side":
        b[1] = float("nan")
    elif where == "one entry":
        A[1, 2, 3] = float("nan")
    else:
        b[1, 0] = float("inf")
    found = solver(Matrix(A), b)
    assert found.status.tolist() == [0, Status.NON_FINITE, 0, 0]
    rest = torch.tensor([0, 2, 3])
    assert (found.value[rest] - torch.linalg.solve(A[rest], b[rest])).abs().max() < 1e-10


def test_an_item_alone_and_in_a_batch():
    A = TABLE["one kind an item"]
    b = rhs(A)
    together = GMRES(1e-10)(Matrix(A), b)
    for k in range(4):
        alone = GMRES(1e-10)(Matrix(A[k : k + 1]), b[k : k + 1])
        assert (alone.value[0] - together.value[k]).abs().max() < 1e-8


@pytest.mark.parametrize("budget", [1, 2, 7, 20, 50])
def test_the_budget_is_respected(budget):
    A = Counted(TABLE["rotation by one"][:1] + 0.5 * normal(1, 12, 12, seed=2))
    found = GMRES(1e-14, budget=budget, restart=5, patience=1000)(A, normal(1, 12, seed=3))
    assert A.products <= budget
    assert found.evaluations.item() == A.products
    assert found.status.item() == Status.BUDGET
    A = Counted(CONTRACTIONS["nearly one"][:1])
    found = Neumann(1e-14, budget=budget)(A, normal(1, 9, seed=3))
    assert A.products == found.evaluations.item() == budget
    assert found.status.item() == Status.BUDGET


@pytest.mark.parametrize("name", list(TABLE))
def test_products_are_counted(name):
    A = Counted(TABLE[name][:1])
    found = GMRES(1e-9)(A, rhs(TABLE[name][:1]))
    assert found.evaluations.item() == A.products


@pytest.mark.parametrize("dtype", [F64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize("name", list(CONTRACTIONS))
def test_neumann(name, dtype):
    A = CONTRACTIONS[name].to(dtype)
    b = rhs(A)
    # Without a tolerance: the paper's thresholds, 1e-5 in single precision and 1e-10 in double.
    found = Neumann()(Matrix(A), b)
    check(found, A, b, 1e-10 if dtype == F64 else 1e-5)
    check(Neumann()(Matrix(A).T, b), A.mT, b, 1e-10 if dtype == F64 else 1e-5)


def test_neumann_outside_its_radius_says_so():
    A = torch.eye(4, dtype=F64) * torch.tensor([1.5, 1.2, 3.5, 0.5], dtype=F64).view(4, 1, 1)
    found = Neumann(1e-10)(Matrix(A), torch.ones(4, 4, dtype=F64))
    assert found.converged.tolist() == [True, True, False, True]
    assert torch.isfinite(found.value).all()


def operators():
    """Operators on (B, 2, 3), with their dense matrices."""
    A, C = normal(3, 6, 6, seed=1), normal(3, 6, 6, seed=2)
    S = C[0] @ C[0].T
    s, one = normal(3, 2, 3, seed=3), normal(1, 2, 3, seed=4)
    mask = torch.rand(3, 2, 3, generator=torch.Generator().manual_seed(5)) < 0.5
    m = mask.flatten(1)
    padded = torch.where(m[:, :, None] & m[:, None, :], A, torch.diag_embed((~m).to(F64)))
    base = Matrix(A, (3, 2, 3))
    near = torch.eye(6, dtype=F64) + 0.1 * A
    P = C[1] @ C[1].mT + torch.eye(6, dtype=F64)
    few = torch.zeros(3, 6, dtype=torch.bool)
    few[0, 2], few[1, :2] = True, True
    few = few.view(3, 2, 3)
    first, others = torch.tensor([1]), torch.tensor([2, 0])

    def principal(hidden):
        h = hidden.flatten(1)
        block = torch.where(h[:, :, None] & h[:, None, :], P, torch.diag_embed((~h).to(F64)))
        return PrincipalInverse(P, torch.linalg.inv(P), hidden), torch.linalg.inv(block)

    def fn(y):
        return torch.tanh((A @ y.flatten(1).unsqueeze(-1)).view_as(y)) + y**3

    def turned(y):
        return 2 * y.flip(-1)

    y = normal(3, 2, 3, seed=6)
    return {
        "matrix": (base, A),
        "transpose": (base.T, A.mT),
        "transpose twice": (base.T.T, A),
        "shared symmetric": (SharedSymmetric(S, (3, 2, 3)), S.expand(3, 6, 6)),
        "diagonal": (Diagonal(s), torch.diag_embed(s.flatten(1))),
        "one diagonal": (Diagonal(one, 3), torch.diag_embed(one.flatten(1)).expand(3, 6, 6)),
        "block": (Block(base, mask), padded),
        "block of a transpose": (Block(base.T, mask), padded.mT),
        "chain": (Product([base, Matrix(C, (3, 2, 3))], (3, 2, 3)), C @ A),
        "inverse": (Inverse(Matrix(near, (3, 2, 3)), GMRES(1e-13)), torch.linalg.inv(near)),
        "principal inverse, few hidden": principal(few),
        "principal inverse, few observed": principal(~few),
        "principal inverse, one mask": principal(few[1:2].expand(3, 2, 3)),
        "principal inverse, nothing hidden": principal(torch.zeros_like(few)),
        "principal inverse, all hidden": principal(torch.ones_like(few)),
        "groups": (
            grouped([(first, base.select(first)), (others, base.T.select(others))]),
            torch.stack([A[0].T, A[1], A[2].T]),
        ),
        "jacobian": (Jacobian(fn, y), dense_jacobian(fn, y)),
        "jacobian of a linear map": (Jacobian(turned, y), dense_jacobian(turned, y)),
        "jacobian of the identity": (Jacobian(lambda y: y, y), torch.eye(6, dtype=F64).expand(3, 6, 6)),
    }


@pytest.mark.parametrize("name", list(operators()))
def test_operators_against_dense_matrices(name):
    A, matrix = operators()[name]
    like = normal(3, 2, 3, seed=7)
    assert A.size == 6
    assert torch.allclose(dense(A, like), matrix, atol=1e-11)
    assert torch.allclose(dense(A.T, like), matrix.mT, atol=1e-11)
    index, twice = torch.tensor([2, 0]), A.select(torch.tensor([1, 2, 0])).select(torch.tensor([1, 2]))
    for picked in (A.select(index), A.T.select(index).T, twice):
        assert torch.allclose(dense(picked, like), matrix[index], atol=1e-11)
        assert torch.allclose(dense(picked.T, like), matrix[index].mT, atol=1e-11)
    again, v = torch.tensor([2, 0, 2, 2]), normal(4, 2, 3, seed=8)
    wanted = (matrix[again] @ v.flatten(1).unsqueeze(-1)).view_as(v)
    assert torch.allclose(A.select(again).mv(v), wanted, atol=1e-11), "an item as often as it is asked for"


def test_the_determinant_of_a_block_is_that_of_the_submatrix():
    A = normal(6, 5, 5, seed=1)
    mask = torch.rand(6, 5, generator=torch.Generator().manual_seed(2)) < 0.5
    mask[0], mask[1] = True, False
    found = torch.linalg.slogdet(dense(Block(Matrix(A), mask), A[:, 0]))
    for k in range(6):
        sign, value = torch.linalg.slogdet(A[k][mask[k]][:, mask[k]])
        assert found[0][k] == sign
        assert found[1][k] == pytest.approx(value.item(), abs=1e-12)


def test_a_padded_solve_is_the_solve_of_the_submatrix():
    A = torch.eye(8, dtype=F64) + 0.3 * normal(3, 8, 8, seed=1)
    mask = torch.rand(3, 8, generator=torch.Generator().manual_seed(2)) < 0.5
    b = torch.where(mask, normal(3, 8, seed=3), 0)
    found = GMRES(1e-12)(Block(Matrix(A), mask), b)
    for k in range(3):
        truth = torch.linalg.solve(A[k][mask[k]][:, mask[k]], b[k][mask[k]])
        assert torch.allclose(found.value[k][mask[k]], truth, atol=1e-10)
        assert (found.value[k][~mask[k]] == 0).all()


@pytest.mark.parametrize("items", [1, 5])
def test_no_item_of_a_diagonal(items):
    operator = Diagonal(normal(items, 3), 5)
    none = operator.select(torch.arange(0))
    assert none.shape == (0, 3) and none.mv(torch.empty(0, 3, dtype=F64)).shape == (0, 3)
    assert none.inverse().shape == (0, 3)
