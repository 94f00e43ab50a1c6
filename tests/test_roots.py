"""The common loop, and every root finder on every kind of mask: one solution, an honest verdict, an honest count."""

import copy
import math
from dataclasses import dataclass

import pytest
import torch
from problems import F64, KINDS, AffineFlow, SmoothFlow, data, dense_jacobian, flow_named, masks, normal, residual_flow

from viscos.core.errors import InputError
from viscos.core.iterate import iterate
from viscos.core.solution import Solution, Status, item_max
from viscos.flows import Affine, ClosedForm, Flow
from viscos.inference import complete
from viscos.inference.partition import maxvol
from viscos.linear import GMRES, LinearOperator, Matrix
from viscos.roots import (
    AlternatingFixedPoint,
    Anderson,
    DataEquation,
    Fallback,
    LatentEquation,
    NewtonKrylov,
    OnData,
    anderson,
    auto,
    implicit,
    newton_krylov,
    paper,
    path,
)
from viscos.roots.methods.anderson import History

TIGHT = 1e-9
SOLVERS = {
    "anderson": anderson(TIGHT),
    "newton_krylov": newton_krylov(TIGHT),
    "paper": paper(TIGHT, budget=200),
    "newton on the data": OnData(NewtonKrylov(TIGHT)),
    "anderson alone": Anderson(TIGHT, budget=200),
    "algorithm 1 alone": AlternatingFixedPoint(TIGHT, decay=1.0),
}
FLOWS = ("image", "squeezed", "vector", "odd", "nonlinear of one's own")
FAST = ("anderson", "newton_krylov", "anderson alone")  # the others take an inverse of the flow at every step
PRODUCT = [
    (solver, name, mask)
    for solver in SOLVERS
    for name in FLOWS
    for mask in masks((1, 4, 4))
    # Every mask with one flow, every flow with the mask that has all kinds of items.
    if (name == "image" and solver != "newton on the data")
    or mask == "random"
    or (solver in FAST and mask == "one kind an item")
]


def problem(name, mask, batch=3, size=0.3):
    """An equation whose solution is known: the mask, the data with which it was made, the equation."""
    flow = flow_named(name) if "own" in name or name in KINDS else residual_flow(name, size=size)
    shape = (5,) if "own" in name else flow.shape
    y, hidden = normal(batch, *shape, seed=5), masks(tuple(shape), batch)[mask]
    with torch.no_grad():
        x = flow.to_latent(y)
    garbage = torch.where(hidden, float("nan"), y)  # what is hidden must not matter
    return y, hidden, LatentEquation.build(flow, garbage, hidden, x)


@pytest.mark.parametrize(
    ("mask", "dtype"),
    [("random", F64), ("random", torch.float32), ("centre", F64), ("one kind an item", F64)],
    ids=["random-double", "random-single", "centre", "one kind an item"],
)
@pytest.mark.parametrize("name", KINDS)
def test_every_flow_is_solved_from_a_random_start(name, mask, dtype):
    """Couplings and mixing layers with another partition; to a residual that is evaluated once more."""
    flow = flow_named(name, dtype)
    y, hidden = data(flow), masks(tuple(flow.shape))[mask]
    known = torch.where(hidden, 0, y)
    flow = maxvol(flow, known, hidden) if name.startswith(("realnvp", "glow")) else flow
    with torch.no_grad():
        x = flow.to_latent(y)
        equation = LatentEquation.build(flow, known, hidden, x)
        start = torch.where(hidden, y + 0.5 * normal(*y.shape, seed=8, dtype=dtype), 0)
        found = anderson(1e-8 if dtype == F64 else 1e-4, 100).solve(equation, start)
        assert found.converged.all(), found
        completed = torch.where(hidden, found.value, y)
        assert (torch.where(hidden, flow.to_latent(completed) - x, 0).abs() <= 1.01 * found.residual.max() + 1e-6).all()


# --------------------------------------------------------------------------------------------------------- the loop


@dataclass(frozen=True)
class Shrink:
    """r(z) = z − target, for the loop alone, and a factor for each item."""

    target: torch.Tensor
    factor: torch.Tensor

    def residual(self, z):
        return z - self.target

    def error(self, r):
        return item_max(r)

    def select(self, index):
        return Shrink(self.target[index], self.factor[index])


@dataclass(frozen=True)
class Factor:
    """Multiplies the residual of each item by its own factor; costs what it says."""

    patience: int = 3

    def init(self, problem, z, r):
        return problem.factor

    def step(self, problem, z, r, state):
        z = problem.target + state[:, None] * r
        return z, problem.residual(z), 1.0, state

    def select(self, state, index):
        return state[index]


def run(factors, tolerance=1e-6, budget=100, start=None):
    factors = torch.tensor(factors, dtype=F64)
    target = torch.zeros(len(factors), 2, dtype=F64)
    start = torch.ones_like(target) if start is None else start
    return iterate(Shrink(target, factors), Factor(), start, tolerance=tolerance, budget=budget)


def test_the_loop_judges_each_item():
    found = run([0.1, 1.0, float("nan"), 0.9, 2.0], budget=50)
    wanted = [Status.CONVERGED, Status.STALLED, Status.NON_FINITE, Status.BUDGET, Status.STALLED]
    assert found.status.tolist() == wanted
    assert found.residual[0] <= 1e-6
    assert found.residual[[1, 2, 4]].tolist() == [1, 1, 1]  # the best iterate, which is the start
    assert (found.value[[1, 2, 4]] == 1).all()


def test_the_loop_stops_each_item_at_its_own_time():
    found = run([0.09, 0.009, 0.49, 0.0])
    assert found.converged.all()
    assert found.evaluations.tolist() == [7, 4, 21, 2]  # the start is one of them
    assert torch.equal(found.residual, item_max(found.value))


@pytest.mark.parametrize("budget", [1, 2, 5])
def test_the_loop_stays_in_its_budget(budget):
    found = run([0.9, 0.5], budget=budget)
    assert (found.evaluations <= budget).all()
    assert (found.status == Status.BUDGET).all()
    assert found.residual.tolist() == pytest.approx([0.9 ** (budget - 1), 0.5 ** (budget - 1)])


def test_the_loop_returns_the_best_iterate_not_the_last():
    class Bounce(Factor):
        def step(self, problem, z, r, state):
            k = int(state[0])
            z = problem.target + torch.tensor([0.5, 3.0, 2.0, 5.0], dtype=F64)[k]
            return z, problem.residual(z), 1.0, state + 1

    zero = torch.zeros(1, 2, dtype=F64)
    found = iterate(Shrink(zero, torch.zeros(1)), Bounce(), zero + 1, tolerance=1e-3, budget=100)
    assert found.status.item() == Status.STALLED
    assert found.residual.item() == 0.5
    assert (found.value == 0.5).all()


def test_a_start_that_is_not_finite():
    found = run([0.1, 0.1], start=torch.tensor([[1.0, 1.0], [1.0, float("inf")]], dtype=F64))
    assert found.status.tolist() == [Status.CONVERGED, Status.NON_FINITE]


def test_a_solution_names_the_items_that_failed():
    found = run([0.1, 1.0, float("nan")])
    with pytest.raises(InputError, match=r"2 of 3 items were not solved \(first: item 1, residual 1\); no further"):
        found.raise_if_failed()
    assert torch.equal(run([0.1]).raise_if_failed(), run([0.1]).value)
    assert all(status.remedy for status in Status)
    for status in (Status.BUDGET, Status.STALLED):  # a continuous flow has little from Newton–Krylov, others from paths
        for remedy in ("solver.tolerance", "solver=path", "solver=newton_krylov"):
            assert remedy in status.remedy
    assert "solver.budget" in Status.BUDGET.remedy
    exact = Solution.exact(torch.ones(2, 3), 4)
    assert exact.converged.all() and exact.evaluations.tolist() == [4, 4] and not exact.fallback.any()


# ------------------------------------------------------------------------------------------------------ root finders


@pytest.mark.parametrize(("solver", "name", "mask"), PRODUCT)
def test_every_solver_finds_the_same_solution(solver, name, mask):
    y, hidden, equation = problem(name, mask)
    found = SOLVERS[solver].solve(equation, equation.start())
    assert found.converged.all(), found
    assert torch.where(hidden, found.value - y, 0).abs().max() < 1e-8
    assert (found.value[~hidden] == 0).all()
    assert torch.allclose(found.residual, item_max(equation.residual(found.value)), atol=1e-14)
    assert torch.equal(equation.complete(found.value)[~hidden], y[~hidden])


@pytest.mark.parametrize("solver", ["anderson", "newton_krylov", "paper", "newton on the data"])
def test_an_item_alone_and_in_a_batch(solver):
    _, hidden, equation = problem("image", "one kind an item")
    together = SOLVERS[solver].solve(equation, equation.start())
    for k in range(len(hidden)):
        one = equation.select(torch.tensor([k]))
        alone = SOLVERS[solver].solve(one, equation.start()[k : k + 1])
        assert (alone.value[0] - together.value[k]).abs().max() < 1e-8
        assert alone.status[0] == together.status[k]


@pytest.mark.parametrize("what", ["data", "latent"])
@pytest.mark.parametrize("solver", ["anderson", "newton_krylov", "paper", "newton on the data"])
def test_an_item_that_is_nan_leaves_its_neighbours_right(solver, what):
    y, hidden, equation = problem("image", "random")
    clean = SOLVERS[solver].solve(equation, equation.start())
    spoiled_y, spoiled_x = equation.y.clone(), equation.x.clone()
    (spoiled_y if what == "data" else spoiled_x)[1] = float("nan")
    bad = LatentEquation.build(equation.flow, spoiled_y, hidden, spoiled_x)
    found = SOLVERS[solver].solve(bad, bad.start())
    assert found.converged.tolist() == [True, False, True]
    assert found.status[1] == Status.NON_FINITE
    for k in (0, 2):
        assert (found.value[k] - clean.value[k]).abs().max() < 1e-9
        assert torch.where(hidden, found.value - y, 0)[k].abs().max() < 1e-8


class Squash(ClosedForm):
    """x = tanh y: no datum has a latent beyond one."""

    def forward_and_ladj(self, y, generator=None):
        x = torch.tanh(y)
        return x, (1 - x.square()).log().flatten(1).sum(1)


@pytest.mark.parametrize("solver", ["anderson", "newton_krylov", "paper", "newton on the data"])
def test_an_equation_without_a_solution_ends_with_a_status(solver):
    x = torch.tensor([[0.5, 0.2, -0.3], [2.0, 0.2, 0.1]], dtype=F64)
    hidden = torch.tensor([[True, True, False], [True, True, False]])
    equation = LatentEquation.build(Flow([Squash()]), torch.zeros_like(x), hidden, x)
    found = SOLVERS[solver].solve(equation, equation.start())
    assert found.converged.tolist() == [True, False]
    assert torch.allclose(found.value[0, :2], torch.atanh(x[0, :2]), atol=1e-8)
    assert found.residual[1] >= 1


@pytest.mark.parametrize("solver", [Anderson(TIGHT, 1), NewtonKrylov(TIGHT, 1), AlternatingFixedPoint(TIGHT, 1)])
def test_a_budget_of_one(solver):
    _, _, equation = problem("image", "random")
    found = solver.solve(equation, equation.start())
    assert (found.status == Status.BUDGET).all()
    assert (found.evaluations == 1).all()
    assert torch.equal(found.value, equation.start())


class Counting:
    """A flow that counts evaluations of itself and products with its Jacobian."""

    class _Operator(LinearOperator):
        def __init__(self, base, owner):
            self.base, self.owner, self.shape = base, owner, base.shape

        def mv(self, v):
            self.owner.count += 1
            return self.base.mv(v)

        def rmv(self, u):
            self.owner.count += 1
            return self.base.rmv(u)

    def __init__(self, flow):
        self.flow, self.count = flow, 0.0

    def __call__(self, y):
        self.count += 1
        return self.flow(y)

    def select(self, index):
        return self

    def inverse(self, x):
        found = self.flow.inverse(x)
        self.count += float(found.evaluations)
        return found

    def linearize(self, y):
        self.count += 1
        x, G = self.flow.linearize(y)
        return x, self._Operator(G, self)

    def skeleton(self, y):
        return self.flow.skeleton(y)


@pytest.mark.parametrize("mask", ["random", "all", "one", "none"])
@pytest.mark.parametrize("solver", ["anderson", "newton_krylov", "paper", "algorithm 1 alone", "newton on the data"])
def test_evaluations_are_counted(solver, mask):
    _, hidden, equation = problem("image", mask, batch=1)
    counting = Counting(equation.flow)
    counted = LatentEquation(counting, equation.y, hidden, equation.x, equation.preconditioner)
    assert mask == "all" or int(hidden.sum()) * 2 <= hidden.numel()  # the Schur route: products with J are not counted
    found = SOLVERS[solver].solve(counted, equation.start())
    assert found.converged.all()
    assert found.evaluations.item() == pytest.approx(counting.count)


def test_the_fallback_marks_its_items():
    y, hidden, equation = problem("image", "random")
    start = equation.start()
    start[1] = torch.where(hidden[1], y[1] + 1e-6, 0)  # already close: two steps do
    found = Fallback(Anderson(1e-8, budget=4), newton_krylov(1e-8)).solve(equation, start)
    assert found.converged.all()
    assert found.fallback.tolist() == [True, False, True]
    assert (found.evaluations[~found.fallback] <= 4).all()
    assert (found.evaluations[found.fallback] > 4).all()
    alone = Anderson(1e-8, budget=4).solve(equation, start)
    taken = 1 - alone.residual / item_max(equation.residual(start))
    assert torch.allclose(found.reduction, taken) and torch.allclose(alone.reduction, taken)
    assert (found.steps[found.fallback] >= 1).all() and (alone.steps <= 3).all() and (alone.steps >= 1).all()
    record = found.record()
    assert record["fallback"] == pytest.approx(2 / 3) and record["solves"] == 3 and record["failed"] == 0
    assert record["fallback_steps"] == pytest.approx(found.steps[found.fallback].mean().item())
    assert record["reduction_by_first_solver"] == pytest.approx(taken.mean().item())
    assert record["residual"] == pytest.approx(found.residual.max().item())
    assert torch.where(hidden, found.value - y, 0).abs().max() < 1e-7
    hopeless = Fallback(Anderson(1e-12, budget=2), NewtonKrylov(1e-12, budget=2)).solve(equation, equation.start())
    assert not hopeless.converged.any()
    assert (hopeless.status == Status.BUDGET).all()
    assert torch.allclose(hopeless.residual, item_max(equation.residual(hopeless.value)))


def test_of_two_solves_each_item_keeps_the_better():
    """Its value with its residual; evaluations add up, and nothing is called solved but what is kept."""
    nan, inf = float("nan"), float("inf")
    converged, budget, stalled, broken = (
        int(s) for s in (Status.CONVERGED, Status.BUDGET, Status.STALLED, Status.NON_FINITE)
    )
    cases = [  # (residual, status) of the first, of the second, and of what becomes of them
        ((1e-9, converged), None, (1e-9, converged)),
        ((0.5, budget), (0.7, budget), (0.5, budget)),
        ((0.5, budget), (1e-9, converged), (1e-9, converged)),
        ((0.5, stalled), (nan, broken), (0.5, broken)),
        ((nan, broken), (0.7, stalled), (0.7, stalled)),
        ((inf, broken), (inf, broken), (inf, broken)),
        ((0.5, budget), (0.6, converged), (0.5, stalled)),
    ]

    def made(pairs, value):
        residual, status = (torch.tensor(column) for column in zip(*pairs, strict=True))
        return Solution(torch.full((len(pairs), 2), value), status, residual, torch.full_like(residual, value))

    second, asked = [case[1] for case in cases[1:]], []
    first = made([case[0] for case in cases], 1.0)
    found = first.or_else(lambda rows: asked.append(rows.tolist()) or made(second, 10.0))
    assert asked == [[1, 2, 3, 4, 5, 6]]
    residual, status = (torch.tensor(column) for column in zip(*(case[2] for case in cases), strict=True))
    assert torch.equal(found.residual, residual) and torch.equal(found.status, status)
    assert found.value[:, 0].tolist() == [1, 1, 10, 1, 10, 1, 1]
    assert found.evaluations.tolist() == [1, *[11] * 6] and found.fallback.tolist() == [False, *[True] * 6]
    assert first.fallback.any().item() is False and first.evaluations.max() == 1  # as it was
    assert made([(1e-9, converged)], 1.0).or_else(asked.append).converged.all() and len(asked) == 1
    some = first.or_else(lambda rows: made([second[0]], 10.0), left=torch.arange(7) == 1)
    assert some.fallback.tolist() == [False, True, *[False] * 5]


def test_an_inverse_keeps_the_better_of_its_two_solves(monkeypatch):
    """The second one may make it worse."""
    flow = residual_flow("vector")
    layer = next(leaf for leaf in flow.leaves() if leaf.branches())
    x = data(flow)
    solve = Anderson.solve

    def made_worse(self, equation, start):
        if self.memory == 0:  # the first of both
            return solve(self, equation, start)
        z = start + 1
        return Solution(z, torch.full((len(z),), 1), equation.error(equation.residual(z)), torch.ones(len(z)))

    monkeypatch.setattr(Anderson, "solve", made_worse)
    monkeypatch.setattr("viscos.flows.layers.residual.inverse_tolerance", lambda x: 0.0)
    found = layer.inverse(x)
    assert found.fallback.all() and not found.converged.any() and bool((found.residual < 1e-6).all())
    assert torch.allclose(layer(found.value), x, atol=1e-6)


def test_solutions_are_joined_draw_by_draw():
    def made(*numbers):
        return Solution.exact(torch.tensor(numbers, dtype=F64))

    whole = Solution.joined([made(1, 2, 11, 12), made(3, 13)], draws=2)
    assert whole.value.tolist() == [1, 2, 3, 11, 12, 13] and whole.record()["failed"] == 0
    assert whole.record()["fallback_steps"] is None and whole.record()["reduction_by_first_solver"] is None


def test_the_default_solvers_meet_the_tolerance_that_they_name():
    for make in (anderson, auto, newton_krylov, paper, path):
        _, _, equation = problem("squeezed", "random")
        solver = make()
        found = solver.solve(equation, equation.start())
        assert solver.tolerance == 1e-3
        assert (found.residual <= 1e-3).all()


def test_the_schur_route_and_the_direct_route_give_one_direction():
    _, hidden, equation = problem("image", "centre")
    data_equation = DataEquation(equation.flow, equation.y, hidden, equation.x)
    z = torch.where(hidden, 0, normal(*hidden.shape, seed=1))
    r = torch.where(hidden, 0, normal(*hidden.shape, seed=2))
    y = equation.flow.to_data(data_equation.latent(z)).value
    J = torch.linalg.inv(dense_jacobian(equation.flow.to_latent, y))
    schur = data_equation.newton_direction(z, r, GMRES(1e-12)).value.flatten(1)
    for k, known in enumerate(~hidden.flatten(1)):
        truth = torch.linalg.solve(J[k][known][:, known], r.flatten(1)[k, known])
        assert torch.allclose(schur[k, known], truth, atol=1e-9)


# ----------------------------------------------------------------------------------------------------------- errata


def test_erratum_4_algorithm_1_has_a_start():
    """The algorithm uses ỹ^H before setting it; it starts at y^H = f^H(0, x^H)."""
    y, hidden, equation = problem("image", "random")
    found = AlternatingFixedPoint(1e-8, decay=1.0).solve(equation)
    assert found.converged.all()
    assert torch.where(hidden, found.value - y, 0).abs().max() < 1e-7
    begun = equation.flow.to_data(torch.where(hidden, equation.x, 0)).value
    nothing = AlternatingFixedPoint(1e-8, budget=1).solve(equation)
    assert torch.allclose(nothing.value, torch.where(hidden, begun, 0))


def test_two_turns_of_algorithm_1_by_hand():
    """Its damping is α = β = 0.5 · 0.95^k, from k = 0 on (section 3)."""
    _, hidden, equation = problem("vector", "random")
    flow, y, x = equation.flow, equation.y, equation.x
    y_hidden = equation.start()
    x_observed = flow.to_latent(torch.where(hidden, y_hidden, y))
    state = AlternatingFixedPoint().init(equation, y_hidden, equation.residual(y_hidden))
    z = y_hidden
    for mixing in (0.5, 0.5 * 0.95, 0.5 * 0.95**2):
        y_hidden = (1 - mixing) * y_hidden + mixing * flow.to_data(torch.where(hidden, x, x_observed)).value
        x_observed = (1 - mixing) * x_observed + mixing * flow.to_latent(torch.where(hidden, y_hidden, y))
        z, r, _, state = AlternatingFixedPoint().step(equation, z, equation.residual(z), state)
        assert torch.allclose(z[hidden], y_hidden[hidden], atol=1e-8)
        assert torch.allclose(state.x[~hidden], x_observed[~hidden], atol=1e-8)
        assert torch.allclose(r, equation.residual(z), atol=1e-12)


def test_erratum_5_which_block_of_the_jacobian_is_meant():
    """J^HO = ∂f^H/∂x^O: with it dy^H/dx^H at fixed y^O is J^HH − J^HO (J^OO)⁻¹ J^OH = (G^HH)⁻¹."""
    y, hidden, equation = problem("vector", "random")
    G = dense_jacobian(equation.flow.to_latent, y)
    J = torch.linalg.inv(G)
    differ = 0.0
    for k, H in enumerate(hidden):
        O = ~H  # noqa: E741
        schur = J[k][H][:, H] - J[k][H][:, O] @ torch.linalg.inv(J[k][O][:, O]) @ J[k][O][:, H]
        assert torch.allclose(schur, torch.linalg.inv(G[k][H][:, H]), atol=1e-10)
        swapped = J[k][O][:, H].T @ torch.linalg.inv(J[k][O][:, O]) @ J[k][O][:, H]
        differ = max(differ, float((J[k][H][:, H] - swapped - schur).abs().max()))
    assert differ > 1e-3  # the other reading is another matrix


def test_erratum_6_a_frozen_iterate_is_not_a_solution():
    """The damping shrinks every step, so a small step says nothing: the verdict is on the residual of the equation."""
    _, _, equation = problem("image", "random")
    found = AlternatingFixedPoint(1e-6, decay=0.3, budget=5000).solve(equation, equation.start())
    assert not found.converged.any()
    assert (found.status == Status.STALLED).all()  # its steps are zero by then
    assert (found.residual > 1e-6).all()
    assert torch.allclose(found.residual, item_max(equation.residual(found.value)))


# ----------------------------------------------------------------------------------------------- the implicit gradient


def test_the_implicit_gradient_against_automatic_differentiation_of_newton():
    """z(θ) from unrolled Newton steps, differentiated through, against one transposed solve."""
    flow, y = SmoothFlow(4), normal(2, 4, seed=3)
    hidden = torch.tensor([[True, False, True, False], [True, True, False, True]])
    x = (flow.to_latent(y) + 0.3).detach().requires_grad_()
    weights = normal(2, 4, seed=4)

    def full(z):
        return torch.where(hidden, z, y)

    z = torch.zeros_like(y)
    for _ in range(12):
        r = torch.where(hidden, flow.to_latent(full(z)) - x, 0)
        G = torch.stack(
            [
                torch.autograd.functional.jacobian(lambda v: flow.to_latent(v[None])[0], v, create_graph=True)
                for v in full(z)
            ]
        )
        mask = hidden[:, :, None] & hidden[:, None, :]
        B = torch.where(mask, G, torch.diag_embed((~hidden).to(F64)))
        z = z - torch.linalg.solve(B, r)
    wanted = torch.autograd.grad((weights * full(z)).square().sum(), [x, *flow.parameters()])

    solution = full(z).detach()
    B = B.detach()
    r = torch.where(hidden, flow.to_latent(solution) - x, 0)
    y_star = implicit(solution, r, lambda a: torch.linalg.solve(B.mT, torch.where(hidden, a, 0)))
    assert torch.equal(y_star, solution)
    found = torch.autograd.grad((weights * y_star).square().sum(), [x, *flow.parameters()])
    for a, b in zip(found, wanted, strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-10)


def test_newton_and_anderson_are_preconditioned():
    """With the inverse of the block of an affine flow there is nothing left to do, however far apart its scales are."""
    flow, hidden = AffineFlow(12), (torch.arange(12) < 8).expand(2, 12)
    flow.layers[0].A.data.mul_(torch.logspace(0, 2, 12, dtype=F64)[:, None])
    inverse = torch.zeros(2, 12, 12, dtype=F64)
    inverse[:, :8, :8] = torch.linalg.inv(flow.layers[0].A.detach()[:8, :8])
    eye, y, x = torch.eye(12, dtype=F64).expand(2, 12, 12), torch.where(hidden, 0, normal(2, 12)), normal(2, 12, seed=1)
    prepared, plain = (LatentEquation(flow, y, hidden, x, Matrix(near)) for near in (inverse, eye))
    for solver in (NewtonKrylov(1e-6), Anderson(1e-6, budget=60)):
        found, slow = (solver.solve(equation, torch.zeros_like(y)) for equation in (prepared, plain))
        assert found.converged.all() and (found.evaluations <= 6).all()
        assert (slow.evaluations >= 10).all()


def test_anderson_without_a_memory_is_the_plain_iteration():
    """It is z − M r, and keeps no list that grows."""
    flow, hidden = AffineFlow(4), (torch.arange(4) < 3).expand(1, 4)
    y, x = torch.where(hidden, 0, normal(1, 4)), normal(1, 4, seed=1)
    equation = LatentEquation(flow, y, hidden, x, Matrix(0.3 * torch.eye(4, dtype=F64)[None]))
    seen, z = [], torch.zeros_like(y)
    for _ in range(3):
        seen.append(float(equation.residual(z).detach().abs().max()))
        z = z - 0.3 * equation.residual(z)
    found = Anderson(1e-12, budget=3, memory=0).solve(equation, torch.zeros_like(y))
    assert min(abs(float(found.residual) - each) for each in seen) < 1e-12
    history = History(z, z, [], [])
    for _ in range(3):
        history = history.extended(z, z, 0)
    assert history.dz == [] and history.dr == []


def test_the_start_is_the_solution_of_the_skeleton():
    """For a flow whose skeleton is all there is, the start solves the equation."""
    flow = residual_flow("image")
    flow.layers = torch.nn.ModuleList(layer for k, layer in enumerate(flow.layers) if k % 2)
    y, hidden = data(flow), masks((1, 4, 4))["random"]
    equation = LatentEquation.build(flow, y, hidden, flow.to_latent(y).detach())
    assert equation.residual(equation.start()).abs().max() < 1e-12


@pytest.mark.parametrize(("scale", "status"), [(1e3, Status.IMPRECISE), (1e-3, Status.CONVERGED)])
def test_rounding_noise_is_not_taken_for_a_solution(scale, status):
    """x = s (y − 3000) near y = 4000 in single precision: a rounding of y moves x by s · 2.4e-4."""
    layer = Affine((2,), learn=False)
    layer.set_moments(torch.full((2,), 3000.0), torch.full((2,), 1 / scale))
    layer.log_scale.data.fill_(math.log(scale))
    flow, y = Flow([layer], (2,)), torch.full((4, 2), 4000.0)
    wanted = flow.to_latent(torch.tensor(4000.0) + torch.rand(4, 2, generator=torch.Generator().manual_seed(0)))
    found = complete(flow, y, torch.tensor([False, True]).expand(4, 2), wanted, Anderson())
    judged = found.solution.status[found.solution.status != Status.STALLED]
    assert len(judged) and (judged == status).all()
    if status == Status.CONVERGED:
        double = copy.deepcopy(flow).double()
        assert (double.to_latent(found.y.double()) - wanted.double())[:, 1].abs().max() < 1e-3
        assert len(judged) == 4


class Mixing(ClosedForm):
    """W (y − 2500), which single precision evaluates to about the tolerance."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.W = torch.nn.Parameter(torch.eye(6) + 0.3 * torch.randn(6, 6, generator=generator))

    def forward_and_ladj(self, y, generator=None):
        return (y - 2500) @ self.W.T, torch.linalg.slogdet(self.W)[1].expand(len(y))


def test_the_verdict_on_precision_is_an_items_own():
    flow, generator = Flow([Mixing()], (6,)), torch.Generator().manual_seed(2)
    y = 2500 + torch.randn(32, 6, generator=generator)
    hidden = torch.rand(32, 6, generator=generator) < 0.5
    x = torch.randn(32, 6, generator=generator)

    def verdicts(rows):
        return complete(flow, y[rows], hidden[rows], x[rows], anderson()).solution.status.tolist()

    together = verdicts(slice(None))
    assert together == [verdicts(slice(i, i + 1))[0] for i in range(32)]
    assert 0 < sum(status == Status.IMPRECISE for status in together) < 32


def test_a_second_solver_does_not_loosen_the_tolerance():
    flow = residual_flow("vector")
    y, hidden = data(flow), masks((5,))["random"]
    equation = LatentEquation.build(flow, y, hidden, flow.to_latent(y).detach() + 0.3)
    mixed = Fallback(Anderson(1e-9, budget=2), NewtonKrylov(1e-1)).solve(equation, equation.start())
    assert mixed.fallback.any() and bool((mixed.residual[mixed.converged] <= 1e-9).all())
    assert bool((mixed.status[mixed.residual > 1e-9] != Status.CONVERGED).all())


def test_newton_on_data_goes_each_items_own_way():
    """By the Schur complement where little is hidden, else by the block of the observed, in any company."""
    flow = residual_flow("vector")
    y = data(flow, 2)
    hidden = torch.tensor([[True, False, False, False, False], [True, True, True, True, False]])
    x = flow.to_latent(y).detach() + 0.3
    solver = paper(1e-8)
    together = complete(flow, y, hidden, x, solver).solution
    for i in range(2):
        alone = complete(flow, y[i : i + 1], hidden[i : i + 1], x[i : i + 1], solver).solution
        assert float(alone.evaluations) == float(together.evaluations[i])
        torch.testing.assert_close(alone.value[0], together.value[i])


class Steep(ClosedForm):
    """x = 1000 (y − 100) + 0.3 sin of its neighbour."""

    def forward(self, y):
        z = (y - 100) * 1000
        return z + 0.3 * torch.sin(z.roll(1, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_item_that_stalls_for_want_of_precision_says_so(dtype):
    flow = Flow([Steep()], (3,))
    y = torch.tensor([[100.0005, 0.0, 99.999]], dtype=dtype).expand(64, 3)
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    status = complete(flow, y, torch.tensor([False, True, False]).expand(64, 3), x, anderson()).solution.status
    assert (status != Status.STALLED).all()
    assert bool((status == Status.IMPRECISE).any()) == (dtype == torch.float32)
