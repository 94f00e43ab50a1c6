"""The average of the parameters, and steps in micro-batches."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch
from problems import normal
from test_train import CFG, PLAN, Failing, differing, fresh, nothing, pictures, run, state

from viscos.core.errors import InputError
from viscos.core.rng import ItemGenerators, RowGenerator, generator, of_rows, rademacher
from viscos.data.incomplete import IncompleteData
from viscos.flows import Residual
from viscos.inference import Objective
from viscos.logdet import CLADE, NLADE, Auto, Exact
from viscos.roots import anderson
from viscos.runs import checkpoint
from viscos.train import Plan, Trainer
from viscos.train.average import Average
from viscos.train.gradients import _shares
from viscos.train.invertible import check_invertible
from viscos.train.loss import merged

EMA = dataclasses.replace(PLAN, ema=0.9)


# -------------------------------------------------------------------------------------------------------------- average


def test_the_average_of_known_numbers():
    model = fresh(*pictures()).model
    average = Average(model, decay=0.25)
    first = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    expected = first.clone()
    for step, keep in enumerate([1 / 10, 2 / 11, 3 / 12, 0.25, 0.25]):  # (1 + t)/(10 + t), and then the decay
        with torch.no_grad():
            for p in model.parameters():
                p.add_(step + 1)
        average.update(model, step)
        expected = keep * expected + (1 - keep) * torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    found = torch.cat([value.flatten() for value in average.values])
    torch.testing.assert_close(found, expected)
    assert float((found - first).abs().min()) > 1


def test_training_goes_on_as_it_would_without_an_average():
    with_average, without = fresh(*pictures(), plan=EMA), fresh(*pictures())
    reports = run(with_average), run(without)
    assert differing(state(with_average), state(without)) == []
    assert [report.loss for report in reports[0]] == [report.loss for report in reports[1]]
    assert without.result() is without.model and "trained" not in without.state()
    averaged = {name: value for name, value in with_average.result().state_dict().items()}
    assert {name for name, _ in with_average.model.named_parameters()} & set(differing(averaged, state(without)))


def test_the_average_follows_every_step():
    trainer = fresh(*pictures(), plan=EMA)
    expected = Average(trainer.model, 0.9)

    def after(report):
        expected.update(trainer.model, report.step)

    trainer.run(after, nothing)
    assert all(torch.equal(a, b) for a, b in zip(expected.values, trainer.average.values, strict=True))


def test_a_skipped_step_leaves_the_average_alone():
    @dataclasses.dataclass(frozen=True)
    class Broken(Objective):
        def step(self, *args):
            step = super().step(*args)
            return dataclasses.replace(step, surrogate=step.surrogate * float("nan"))

    trainer = fresh(*pictures(), plan=EMA, objective=Broken(anderson(), CLADE()))
    before = [value.clone() for value in trainer.average.values]
    (report,) = run(trainer, 1)
    assert report.loss["skipped"] == 1
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.average.values, strict=True))


@pytest.mark.parametrize(("steps", "accumulate"), [(1, 3), (3, 1), (4, 3)])
def test_a_continued_run_with_an_average_is_an_uninterrupted_one(steps, accumulate, tmp_path):
    plan = dataclasses.replace(EMA, accumulate=accumulate, augment=("flip", "shift"))
    whole, first = (fresh(*pictures(), plan=plan) for _ in range(2))
    run(whole)
    run(first, steps)
    checkpoint.save(tmp_path / "a.pt", {"parts": first.result().parts(), "trainer": first.state()})
    run(first)  # what is saved is a state, not a view of one

    torch.manual_seed(99)
    second = fresh(*pictures(), plan=plan)
    saved = checkpoint.load(tmp_path / "a.pt")
    second.model.load_parts(saved["parts"])
    second.load_state(saved["trainer"])
    assert [report.step for report in run(second)] == list(range(steps, 6))
    assert differing(state(whole), state(second)) == []
    assert differing(whole.result().state_dict(), second.result().state_dict()) == []
    assert all(torch.equal(a, b) for a, b in zip(whole.average.values, second.average.values, strict=True))


def test_the_averaged_flow_is_certified():
    trainer = fresh(*pictures(), plan=dataclasses.replace(EMA, learning_rate=0.05, warmup=1))
    run(trainer)
    averaged = trainer.result().flow
    assert max(averaged.lipschitz()) < 1
    for layer in averaged.layers:
        if isinstance(layer, Residual):
            for linear in layer.branch.maps:
                known = float(linear.sigma().detach())
                exact = linear.certified_norm() * max(1.0, known / linear.bound)
                assert known == pytest.approx(exact, rel=1e-3), "its power iterations are its own"


def test_an_average_that_may_not_be_invertible_is_refused():
    trainer = fresh(*pictures(), plan=EMA)
    for value in trainer.average.values:  # far from the trained weights, whose norms say nothing of these
        value.mul_(30)
    check_invertible(trainer.result().flow, attempts=())
    for layer in trainer.model.flow.layers:
        if isinstance(layer, Residual):
            for linear in layer.branch.maps:
                linear.bound = 1.4
    check_invertible(trainer.model.flow)  # small weights are not scaled up to the bound
    with pytest.raises(InputError, match=r"certified Lipschitz bound of 1\.\d+"):
        run(trainer)
    assert trainer.step == 3, "it is checked after each epoch"


def test_a_diverged_run_is_given_up_with_an_average_and_micro_batches():
    objective = Objective(Failing(float("nan"), everything=True), CLADE())
    trainer = fresh(*pictures(), objective=objective, plan=Plan(40, 8, 1e-2, ema=0.9, accumulate=2))
    with pytest.raises(InputError, match="training diverged: no item could be solved in the last 20 steps"):
        run(trainer)
    assert trainer.step < 25
    assert all(value.isfinite().all() for value in trainer.result().state_dict().values())


# -------------------------------------------------------------------------------------------------------- micro-batches


def in_double(*, lad=None, solver=None, observed=None, cfg=CFG, incomplete=True, batch_size=20, devices=None, **plan):
    """A trainer in double precision without a classifier, whose batch normalisation sees one micro-batch at a time."""
    values, some, _ = pictures()
    plan = Plan(1, batch_size, 1e-2, warmup=1, **plan)
    observed = some if observed is None else observed
    model = fresh(values, observed, cfg=cfg, incomplete=incomplete).model.double()
    if model.posterior is not None:  # which route it takes to a conditional mean depends on the batch: they must agree
        model.posterior.precision.copy_(torch.linalg.inv(model.posterior.covariance))
    data = IncompleteData(values.double(), observed)
    return Trainer(model, data, Objective(solver or anderson(), lad or CLADE()), plan, devices)


def gradients(trainer):
    """The gradient of the first step, before it is clipped."""
    batch = next(trainer._remaining())
    batch = trainer.seen(batch)
    figures = trainer.gradients.joint(batch, trainer.step)
    if trainer.model.holds_out:
        figures |= trainer.gradients.held_out(batch, trainer.step)
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None]), figures


@dataclasses.dataclass(frozen=True)
class Choosy:
    """A solver that fails the items whose first latent is large: a property of the item, not of its batch."""

    tolerance: float = 1e-3

    def solve(self, equation, start):
        found = anderson(self.tolerance).solve(equation, start)
        status = torch.where(equation.x.flatten(1).sum(1) > 1.0, 1, found.status)
        return dataclasses.replace(found, status=status)


ROULETTE = CFG | {"flow": CFG["flow"] | {"series": {"_target_": "viscos.flows.Series", "terms": 1, "roulette": 3.0}}}
WIDER = CFG | {"flow": CFG["flow"] | {"blocks": [2], "channels": 6}}
CASES = {
    "clade": dict(lad=CLADE(2)),
    "nlade": dict(lad=NLADE()),
    "auto": dict(lad=Auto(exact_below=0)),
    "exact": dict(lad=Exact()),
    "roulette": dict(cfg=ROULETTE),
    "augmented": dict(augment=("flip", "shift")),
    "failures": dict(solver=Choosy()),
    "held out": dict(cfg=CFG | {"posterior": CFG["posterior"] | {"held_out": 0.3}}, solver=Choosy()),
    "complete": dict(observed=torch.ones(20, 1, 4, 4, dtype=torch.bool), incomplete=False, cfg=WIDER),
}


@pytest.mark.parametrize("accumulate", [2, 3, 20])
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_of_micro_batches_is_that_of_the_batch(name, accumulate):
    whole, figures = gradients(in_double(**CASES[name]))
    parts, same = gradients(in_double(accumulate=accumulate, **CASES[name]))
    assert float((whole - parts).norm()) <= 1e-10 * float(whole.norm())
    assert same["items"] == figures["items"] == 20 and same["solved"] == figures["solved"]
    if "solver" in CASES[name]:
        assert 0 < figures["solved"] < 20 and figures["failed"] == pytest.approx(1 - figures["solved"] / 20)
    for record in (same, figures):
        record.pop("products", None)  # as many as the slowest item of a part needs
    assert same == pytest.approx(figures, rel=1e-6, nan_ok=True)


def test_auto_chooses_the_same_in_micro_batches():
    """Half of the batch nearly seen, half nearly hidden."""
    observed = torch.rand(20, 1, 4, 4, generator=generator(0, "u")) < torch.linspace(0.2, 0.9, 20).view(-1, 1, 1, 1)
    case = dict(lad=Auto(exact_below=0), observed=observed)
    whole, parts = gradients(in_double(**case))[0], gradients(in_double(accumulate=20, **case))[0]
    assert float((whole - parts).norm()) <= 1e-10 * float(whole.norm())


def test_the_classifier_sees_micro_batches():
    """The one documented difference: batch normalisation."""
    plan = dataclasses.replace(PLAN, batch_size=20)
    whole = fresh(*pictures(), plan=plan)
    parts = fresh(*pictures(), plan=dataclasses.replace(plan, accumulate=2))
    a, b = run(whole, 1)[0], run(parts, 1)[0]
    assert a.loss["cross_entropy"] == pytest.approx(b.loss["cross_entropy"], rel=0.3)
    assert a.solver["evaluations"] == pytest.approx(b.solver["evaluations"])
    assert 0 <= b.loss["accuracy"] <= 1


@pytest.mark.parametrize("size", [1, 2, 5, 64])
@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("parts", [1, 2, 7])
def test_shares_are_the_batch_once(size, processes, parts):
    each = [_shares(size, processes, rank, parts) for rank in range(processes)]
    assert [row for shares in each for rows in shares for row in range(size)[rows]] == list(range(size))
    assert all(len(shares) <= parts for shares in each)
    counts = [sum(rows.stop - rows.start for rows in shares) for shares in each]
    assert max(counts) - min(counts) <= 1


def test_rows_of_a_generator_are_those_of_the_batch():
    like = normal(6, 2, 3, seed=0)
    whole, rows = generator(3), RowGenerator(generator(3), 6, slice(2, 5))
    twin = rows.clone_state()
    for _ in range(2):
        expected = rademacher(like, whole)[2:5]
        assert torch.equal(rademacher(like[2:5], rows), expected)
        assert torch.equal(rademacher(like[2:5], twin), expected)


def test_some_rows_have_the_numbers_that_they_have_among_all():
    like, rows, index = normal(6, 2, 3, seed=0), torch.tensor([4, 1]), torch.arange(6)
    for make in (lambda: generator(3), lambda: RowGenerator(generator(3), 9, slice(2, 8)), lambda: items(index)):
        whole, source = make(), make()
        expected = rademacher(like, whole)[rows]
        assert torch.equal(rademacher(like[rows], of_rows(source, 6, rows)), expected)
        assert torch.equal(rademacher(like, source)[rows], expected), "the source itself stays where it is"


def items(index):
    return ItemGenerators(5, index, 1, 0)


def test_figures_of_parts_are_those_of_the_whole():
    nan = math.nan
    a = {"items": 3, "solved": 2, "cross_entropy": 1.0, "residual": 0.1, "evaluations": 6.0}
    b = {"items": 1, "solved": 1, "cross_entropy": nan, "residual": 0.3, "evaluations": 2.0}
    c = {"items": 0, "solved": 0, "cross_entropy": nan, "residual": nan, "evaluations": 9.0}
    assert merged([a, b, c]) == {"items": 4, "solved": 3, "cross_entropy": 1.0, "residual": 0.3, "evaluations": 5.0}
    assert math.isnan(merged([b, c])["cross_entropy"]) and math.isnan(merged([c])["evaluations"])


def test_the_model_is_not_touched_by_its_result():
    trainer = fresh(*pictures(), plan=EMA)
    run(trainer, 2)
    before, reports = copy.deepcopy(state(trainer)), trainer.result()
    assert differing(before, state(trainer)) == [] and reports is not trainer.model
    assert differing(trainer.result().state_dict(), reports.state_dict()) == [], "and it is the same each time"
