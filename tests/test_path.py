"""The path solver, in both of its forms: one solution with Anderson, an honest verdict, an honest count."""

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import ARCHITECTURES, F64, KINDS, OWN, PLANE, data, exact, flow_named, masks, normal, shaken

from viscos.core.solution import Solution, Status, item_max
from viscos.flows import Bijection, Flow
from viscos.flows.families.continuous.links import StepLinks
from viscos.flows.skeleton import AffineSkeleton
from viscos.inference.partition import maxvol
from viscos.roots import Anderson, Fallback, LatentEquation, Path, anderson, auto, path
from viscos.roots.links import Link, Links

FORMS = pytest.mark.parametrize("parallel", [True, False], ids=["parallel", "sequential"])
TABLE = [*ARCHITECTURES, *KINDS, *(f"plane, {name}" for name in PLANE), *OWN]
MIXING = ("realnvp", "glow")  # no state of theirs is close to the next, so a solve may fail; it must say so


def flow_of(name: str) -> Flow:
    plane = name.removeprefix("plane, ")
    if plane == name:
        return flow_named(name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return exact(shaken(PLANE[plane]().to(F64)))


def problem(name: str, mask: str = "random", batch: int = 3, noise: float = 0.5) -> tuple[Flow, LatentEquation]:
    """An equation that has a solution, since its latent is that of data."""
    flow = flow_of(name)
    y, hidden = data(flow, batch), masks(tuple(flow.shape), batch)[mask]
    x = flow.to_latent(torch.where(hidden, y + noise * normal(*y.shape, seed=9), y)).detach()
    return flow, LatentEquation.build(flow, y, hidden, x)


@cache
def solved(name: str) -> tuple[Flow, LatentEquation, Solution]:
    """The same, and what Anderson finds."""
    flow, equation = problem(name)
    return flow, equation, anderson(1e-6).solve(equation, equation.start())


def true_residual(flow: Flow, equation: LatentEquation, value: torch.Tensor) -> torch.Tensor:
    """Of (G), from its definition (B,)."""
    completed = equation.y.clone()
    completed[equation.hidden] = value[equation.hidden]
    off = (flow.to_latent(completed) - equation.x).detach().abs()
    return torch.stack([o[h].max() if h.any() else o.new_zeros(()) for o, h in zip(off, equation.hidden, strict=True)])


class Map(Bijection):
    """A function of vectors."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, y):
        return self.function(y)


class Stack(Flow):
    """Maps between vectors, one after another, which a solver may know one by one."""

    def __init__(self, maps, skeletons=None):
        super().__init__(map(Map, maps), (4,))
        self.maps, self.skeletons, self.started = maps, skeletons or [None] * len(maps), []

    def links(self, y):
        flow = self

        @dataclass(frozen=True)
        class Watched(Links):
            def start(self, y, x, hidden):
                flow.started.append(y)
                return super().start(y, x, hidden)

        return Watched([Link(F, s) for F, s in zip(self.maps, self.skeletons, strict=True)])


# -------------------------------------------------------------------------------------------------------- the solution


@FORMS
@pytest.mark.parametrize("name", TABLE)
def test_every_flow_has_the_root_that_anderson_finds(name, parallel):
    flow, equation, known = solved(name)
    solver = path(1e-6, 100, parallel=parallel)
    found = solver.solve(equation, equation.start())
    if not name.removeprefix("plane, ").startswith(MIXING):
        assert found.converged.all() and known.converged.all(), found
        assert (found.value - known.value).abs().max() < 2e-5
    residual = true_residual(flow, equation, found.value)
    assert torch.allclose(found.residual, residual, rtol=1e-6, atol=1e-12)
    assert torch.equal(found.converged, residual <= 1e-6)
    assert (found.value[~equation.hidden] == 0).all() and found.value.isfinite().all()


@FORMS
@pytest.mark.parametrize("skeleton", [False, True], ids=["plain", "with skeletons"])
@given(seed=st.integers(0, 999), pattern=st.integers(0, 15), count=st.integers(1, 4))
@settings(max_examples=10, deadline=None)
def test_affine_links_have_a_solution_in_closed_form(parallel, skeleton, seed, pattern, count):
    hidden = torch.tensor([[bool(pattern >> k & 1) for k in range(4)]])
    A = [torch.eye(4, dtype=F64) + 0.3 * normal(4, 4, seed=seed + 7 * k) / 2 for k in range(count)]
    b = [normal(4, seed=seed + k + 1) for k in range(count)]
    near = [AffineSkeleton(a.diagonal()[None], c[None]) for a, c in zip(A, b, strict=True)] if skeleton else None
    flow = Stack([lambda y, a=a, c=c: y @ a.T + c for a, c in zip(A, b, strict=True)], near)
    G, shift = torch.eye(4, dtype=F64), torch.zeros(4, dtype=F64)
    for a, c in zip(A, b, strict=True):
        G, shift = a @ G, a @ shift + c
    y, x, H = normal(1, 4, seed=seed), normal(1, 4, seed=seed + 3), hidden[0]
    wanted = torch.linalg.solve(G[H][:, H], (x[0] - shift)[H] - G[H][:, ~H] @ y[0, ~H])
    equation = LatentEquation.build(flow, y, hidden, x)
    found = Path(1e-9, 400, memory=20, parallel=parallel).solve(equation, equation.start())
    assert found.converged.all(), found
    assert torch.allclose(found.value[0, H], wanted, atol=1e-7)


@FORMS
def test_links_that_are_their_skeletons_take_one_sweep(parallel):
    near = [AffineSkeleton(1 + normal(1, 4, seed=k).abs(), normal(1, 4, seed=k + 9)) for k in range(3)]
    flow = Stack([s.apply for s in near], near)
    equation = LatentEquation.build(
        flow, normal(2, 4), torch.tensor([[True, False, True, False]] * 2), normal(2, 4, seed=1)
    )
    found = Path(1e-9, parallel=parallel).solve(equation, 0 * equation.start() + 5 * equation.hidden)
    assert found.converged.all() and (found.evaluations <= 3).all()


@FORMS
@pytest.mark.parametrize("name", ["continuous, image", "squeezed", "nonlinear of one's own"])
def test_nothing_hidden_and_everything_hidden(name, parallel):
    solver = Path(1e-8, 200, parallel=parallel)
    _, equation = problem(name, "none")
    found = solver.solve(equation, equation.start())
    assert found.converged.all() and (found.value == 0).all() and (found.evaluations <= 3).all()
    flow, equation = problem(name, "all")
    found = solver.solve(equation, equation.start())
    assert found.converged.all()
    assert torch.allclose(found.value, flow.to_data(equation.x).value, atol=1e-5)


def test_states_are_evaluated_in_parts(monkeypatch):
    flow, equation = problem("continuous, image", batch=5)
    links, calls = flow.links(equation.y), []
    states = links.start(equation.y, equation.x, equation.hidden)[:, :-1]
    at_once = links.values(states)
    together = StepLinks._together
    monkeypatch.setattr(StepLinks, "_together", lambda self, z: calls.append(len(z)) or together(self, z))
    for entries, parts in ((1, [1] * 5), (2 * states[0, -len(links.steps) :].numel(), [2, 2, 1])):
        monkeypatch.setattr("viscos.flows.families.continuous.links._TOGETHER", entries)
        calls.clear()
        assert torch.allclose(links.values(states), at_once, atol=1e-12) and calls == parts


def test_a_flow_of_one_piece_is_left_to_anderson():
    _, equation = problem("nonlinear of one's own")
    mine = path(1e-8).solve(equation, equation.start())
    known = Anderson(1e-8, 60).solve(equation, equation.start())
    assert torch.equal(mine.value, known.value) and torch.equal(mine.evaluations, known.evaluations)


# --------------------------------------------------------------------------------------------------- items and counts


@FORMS
@pytest.mark.parametrize("name", ["continuous, image", "squeezed"])
@given(picked=st.lists(st.integers(0, 4), min_size=1, max_size=4))
@settings(max_examples=3, deadline=None)
def test_an_item_is_solved_as_if_alone(name, parallel, picked):
    _, equation = problem(name, batch=5)
    solver = Path(1e-7, 100, parallel=parallel)
    together = solver.solve(equation, equation.start())
    some = equation.select(torch.tensor(picked))
    alone = solver.solve(some, some.start())
    assert torch.allclose(alone.value, together.value[picked], atol=1e-9)
    assert torch.equal(alone.evaluations, together.evaluations[picked])
    assert torch.equal(alone.status, together.status[picked])


@FORMS
@pytest.mark.parametrize("what", ["data", "latent"])
def test_an_item_that_is_nan_leaves_its_neighbours_right(what, parallel):
    flow, equation = problem("continuous, image")
    clean = Path(parallel=parallel).solve(equation, equation.start())
    y, x = equation.y.clone(), equation.x.clone()
    (y if what == "data" else x)[1] = float("nan")
    spoiled = LatentEquation.build(flow, y, equation.hidden, x)
    found = Path(parallel=parallel).solve(spoiled, spoiled.start())
    assert found.status.tolist() == [Status.CONVERGED, Status.NON_FINITE, Status.CONVERGED]
    for k in (0, 2):
        assert torch.allclose(found.value[k], clean.value[k], atol=1e-9)
        assert found.evaluations[k] == clean.evaluations[k]
    assert (found.value[1] == 0).all()


@FORMS
@pytest.mark.parametrize("mask", ["random", "all", "one", "none"])
@pytest.mark.parametrize("name", ["continuous", "continuous, image", "squeezed"])
def test_evaluations_are_counted(name, mask, parallel):
    """Rows that the network is given, in units of those that one evaluation of the flow gives it."""
    flow, equation = problem(name, mask, batch=1)
    rows = [0]
    part = flow.velocity if name.startswith("continuous") else flow.layers[-1]
    part.register_forward_hook(lambda module, inputs, output: rows.append(len(inputs[0])))
    flow.to_latent(equation.y)
    one = sum(rows)
    rows.clear()
    found = Path(1e-7, 100, parallel=parallel).solve(equation, equation.start())
    assert found.converged.all()
    assert found.evaluations.item() == sum(rows) / one


@FORMS
def test_a_guess_is_where_the_path_begins(parallel):
    flow = Stack([lambda y: y + 0.5 * torch.tanh(y.flip(1)) for _ in range(3)])
    y, hidden = normal(2, 4), torch.tensor([[True, False, True, True]] * 2)
    equation = LatentEquation.build(flow, y, hidden, flow.to_latent(y))
    solver, guess = Path(1e-8, parallel=parallel), normal(2, 4, seed=3)
    guessed = replace(equation, guess=guess)
    found = [solver.solve(e, e.start()) for e in (guessed, equation)]
    begun, other = flow.started
    assert torch.equal(begun, torch.where(hidden, guess, y)) and not torch.equal(other, begun)
    assert all(f.converged.all() and torch.allclose(f.value[hidden], y[hidden], atol=1e-6) for f in found)
    _, equation = problem("continuous")  # which has a start of its own for want of a guess
    equations = (equation, replace(equation, guess=equation.hidden + 0.0))
    begun, other = (Path(budget=2, parallel=parallel).solve(e, e.start()).value for e in equations)
    assert not torch.allclose(begun, other, atol=1e-3)


# ---------------------------------------------------------------------------------------------------------- the verdict


@FORMS
def test_a_budget_that_runs_out(parallel):
    flow, equation = problem("continuous, image")
    found = Path(1e-12, budget=7, parallel=parallel).solve(equation, equation.start())
    assert (found.status == Status.BUDGET).all() and (found.evaluations <= 8).all()
    assert torch.allclose(found.residual, true_residual(flow, equation, found.value))


@FORMS
def test_an_equation_without_a_solution_stalls(parallel):
    flow = Stack([torch.tanh, torch.tanh])
    x = torch.tensor([[0.3, 0.2, -0.3, 0.1], [2.0, 0.2, 0.1, 0.1]], dtype=F64)
    hidden = torch.tensor([[True, True, False, False]] * 2)
    equation = LatentEquation.build(flow, 0 * x, hidden, x)
    found = Path(1e-8, budget=2000, parallel=parallel).solve(equation, equation.start())
    assert found.status.tolist() == [Status.CONVERGED, Status.STALLED]
    assert found.residual[1] >= 1
    assert torch.allclose(found.value[0, :2], torch.atanh(torch.atanh(x[0, :2])), atol=1e-7)


@FORMS
def test_a_link_that_magnifies_errors_deceives_nobody(parallel):
    """What the links lack is below the tolerance, and the equation is not solved: it is gone on with, or marked."""
    flow = Stack([lambda y: y + 0.5 * torch.tanh(3 * y.roll(1, 1)), lambda y: 30 * y])
    y, hidden = normal(6, 4), torch.rand(6, 4, generator=torch.Generator().manual_seed(1)) < 0.6
    equation = LatentEquation.build(flow, y, hidden, flow.to_latent(y))
    once = Path(1e-4, 200, memory=12, parallel=parallel, rounds=1).solve(equation, equation.start())
    more = Path(1e-4, 200, memory=12, parallel=parallel).solve(equation, equation.start())
    for found in (once, more):
        residual = item_max(torch.where(hidden, flow.to_latent(torch.where(hidden, found.value, y)) - equation.x, 0))
        assert torch.allclose(found.residual, residual, atol=1e-13) and torch.equal(found.converged, residual <= 1e-4)
    assert (once.status == Status.STALLED).any() and more.converged.all()
    left = ~once.converged
    assert (more.evaluations <= once.evaluations + 2 * 17).all()  # as the budget says
    assert torch.equal(more.value[~left], once.value[~left]) and (more.evaluations[left] > once.evaluations[left]).all()


# -------------------------------------------------------------------------------------------------------- the default


def test_the_default_takes_the_path_for_a_continuous_flow_alone():
    for name, solver in (
        ("continuous, image", path()),
        ("squeezed", anderson()),
        ("nonlinear of one's own", anderson()),
    ):
        _, equation = problem(name)
        found, wanted = auto().solve(equation, equation.start()), solver.solve(equation, equation.start())
        assert torch.equal(found.value, wanted.value) and torch.equal(found.evaluations, wanted.evaluations)
    flow, equation = problem("continuous, image")
    prepared = maxvol(flow, equation.y, equation.hidden)
    equation = LatentEquation.build(prepared, equation.y, equation.hidden, equation.x)
    found, wanted = (solver.solve(equation, equation.start()) for solver in (auto(), anderson()))
    assert found.converged.all() and torch.equal(found.value, wanted.value)
    assert auto(1e-5).tolerance == 1e-5


@FORMS
def test_what_one_form_leaves_the_other_begins_anew(parallel):
    """And what it found for the others stays as it is."""
    _, equation = problem("continuous, image")
    start, solver = equation.start(), path(1e-6, 100, parallel=parallel)
    alone = [replace(form, budget=100).solve(equation, start) for form in (solver.first, solver.second)]
    short = float(alone[0].evaluations.max()) - 4
    found = replace(solver, first=replace(solver.first, budget=short)).solve(equation, start)
    assert found.converged.all() and found.fallback.any()
    for item, second in enumerate(found.fallback.tolist()):
        assert torch.allclose(found.value[item], alone[second].value[item], atol=1e-12)
    assert solver.first.parallel is parallel and solver.second.parallel is not parallel


def test_converged_is_said_of_the_value_that_is_solved():
    """Where the first form breaks, what the second finds is taken with its verdict."""
    flow, equation = problem("continuous, image", batch=4)
    guess = torch.where(equation.hidden, flow.to_data(equation.x).value, 0)
    guess[1] = torch.where(equation.hidden[1], float("inf"), 0)
    equation = replace(equation, guess=guess)
    found = auto(1e-6).solve(equation, equation.start())
    residual = true_residual(flow, equation, found.value)
    assert found.converged.any() and (residual[found.converged] <= 1e-6).all()
    assert torch.allclose(found.residual[found.converged], residual[found.converged], rtol=1e-6, atol=1e-12)
    alone = Path(1e-6, 10).solve(equation, equation.start())
    assert alone.residual[1] == float("inf") and alone.status[1] == Status.NON_FINITE


@FORMS
@pytest.mark.parametrize("name", ["continuous, image", "squeezed"])
def test_a_bad_guess_is_forgotten(name, parallel):
    """One from which the first form fails: the second begins where it would have begun without."""
    _, equation = problem(name)
    guess = equation.start()
    guess[1] = torch.where(equation.hidden[1], 1e38, 0)
    solver, guessed = path(1e-6, parallel=parallel), replace(equation, guess=guess)
    found = solver.solve(guessed, guessed.start())
    assert found.converged.all() and found.fallback.tolist() == [False, True, False]
    alone = solver.second.solve(equation, equation.start())
    assert torch.allclose(found.value[1], alone.value[1], atol=1e-12)


class Found:
    """A solver that has an answer already."""

    tolerance = 1e-3

    def __init__(self, value, residual, status):
        self.found = Solution(*(torch.tensor([v]) for v in (value, int(status), residual, 1.0)))

    def solve(self, equation, start):
        return self.found


@pytest.mark.parametrize("first", [float("nan"), float("inf"), 0.5])
@pytest.mark.parametrize(
    ("second", "status"), [(1e-4, Status.CONVERGED), (float("nan"), Status.NON_FINITE), (0.7, Status.STALLED)]
)
def test_the_second_solver_has_value_and_verdict_or_neither(first, second, status):
    _, equation = problem("continuous", batch=1)
    found = Fallback(Found(1.0, first, Status.NON_FINITE), Found(2.0, second, status)).solve(equation, equation.y)
    better = second == second and not first <= second
    assert found.value.item() == (2.0 if better else 1.0) and found.converged.item() is (second == 1e-4)
    assert not found.converged or (found.value == 2.0 and found.residual == second)
