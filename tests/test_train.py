"""Training: exact repetition and continuation, no look at hidden values, failed items left out."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from problems import normal

from viscos.core.errors import InputError
from viscos.core.rng import generator
from viscos.core.solution import Solution, Status
from viscos.data.augment import augment
from viscos.data.incomplete import IncompleteData, epoch_order
from viscos.data.sources.registry import load
from viscos.flows import Flow, Residual, Reversed, iresnet
from viscos.inference import Objective
from viscos.linear.gaussian import Gaussian
from viscos.logdet import CLADE
from viscos.posteriors.holdout import hold_out
from viscos.roots import anderson
from viscos.runs import checkpoint
from viscos.train import Plan, Trainer, dequantise
from viscos.train.model import Model, build_model
from viscos.train.noise import noisy

SHAPE = (1, 4, 4)
CLASSES = 3
CFG = {
    "flow": {
        "_target_": "viscos.flows.iresnet",
        "blocks": [1],
        "channels": 4,
        "first_squeeze": False,
        "series": {"_target_": "viscos.flows.Series", "terms": 4},
    },
    "posterior": {"_target_": "viscos.posteriors.Amortised", "channels": [4], "held_out": 0.0},
    "classifier": "latents",
}
PLAN = Plan(epochs=2, batch_size=8, learning_rate=1e-2, warmup=2)


def pictures(n=20):
    """Values in [0, 1] (n, 1, 4, 4) that hang together, masks and labels."""
    values = torch.sigmoid(normal(n, 3, seed=1) @ normal(3, 16, seed=2) + 0.3 * normal(n, 16, seed=3)).float()
    observed = torch.rand(n, *SHAPE, generator=generator(0, "mask")) < 0.6
    return values.view(n, *SHAPE), observed, torch.arange(n) % CLASSES


def fresh(values, observed, labels=None, *, plan=PLAN, objective=None, incomplete=True, cfg=CFG):
    """A trainer with a new model, prepared as the command does it."""
    torch.manual_seed(0)
    data = IncompleteData(values, observed, labels)
    classes = 0 if labels is None else CLASSES
    posterior = cfg["posterior"] if incomplete else None
    model = build_model(cfg["flow"], posterior, cfg["classifier"], data.shape, classes)
    model.prepare(values, observed, Gaussian.from_incomplete(values, observed, floor=0.01, noise=0.05))
    return Trainer(model, data, objective or Objective(anderson(), CLADE()), plan)


def nothing(*_):
    """Does nothing."""


def run(trainer, steps=None):
    """Runs a trainer to the end, or so many steps; returns the reports."""
    reports = []
    if steps == 0:
        return reports

    class Stop(Exception):
        pass

    def after(report):
        reports.append(report)
        if steps is not None and len(reports) == steps:
            raise Stop

    try:
        trainer.run(after, nothing)
    except Stop:
        pass
    return reports


def state(trainer):
    """All parameters and buffers, copied."""
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def differing(a, b):
    """The names of the tensors that are not the same bit for bit."""
    assert a.keys() == b.keys()
    return [name for name in a if not torch.equal(a[name], b[name])]


@pytest.fixture(scope="module")
def whole():
    """A trainer that has run without interruption: 2 epochs of 3 steps."""
    trainer = fresh(*pictures())
    start = state(trainer)
    reports = run(trainer)
    return trainer, start, reports


def test_a_run_goes_through_its_plan(whole):
    trainer, start, reports = whole
    assert trainer.total == trainer.step == len(reports) == 6
    assert [report.step for report in reports] == list(range(6))
    assert [report.epoch for report in reports] == [0, 0, 0, 1, 1, 1]
    assert [len(report.batch) for report in reports] == [8, 8, 4, 8, 8, 4]
    for epoch in (0, 1):
        seen = torch.cat([report.batch.index for report in reports[3 * epoch : 3 * epoch + 3]])
        assert sorted(seen.tolist()) == list(range(20))
    moved = set(differing(start, state(trainer)))
    trained = {name for name, p in trainer.model.named_parameters() if p.requires_grad}
    assert trained <= moved | {"flow.layers.1.branch.activations.0.raw"}
    for report in reports:
        assert report.solver["failed"] == 0 and report.solver["residual"] <= 1e-3
        assert report.loss["skipped"] == 0 and math.isfinite(report.loss["gradient"])
        assert 0 <= report.loss["accuracy"] <= 1 and report.loss["cross_entropy"] > 0
        assert report.batch.values[report.batch.hidden].isnan().all()


def test_two_runs_are_equal_bit_for_bit(whole):
    again = fresh(*pictures())
    reports = run(again)
    assert differing(state(whole[0]), state(again)) == []
    assert [report.loss for report in reports] == [report.loss for report in whole[2]]
    assert [report.solver for report in reports] == [report.solver for report in whole[2]]


def test_another_seed_gives_another_run(whole):
    other = fresh(*pictures(), plan=dataclasses.replace(PLAN, seed=1))
    run(other)
    assert differing(state(whole[0]), state(other))


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])  # 3 is the end of an epoch
def test_a_continued_run_is_an_uninterrupted_one(steps, whole, tmp_path):
    first = fresh(*pictures())
    run(first, steps)
    checkpoint.save(tmp_path / "a.pt", {"parts": first.model.parts(), "trainer": first.state()})
    run(first)  # what is saved is a state, not a view of one

    torch.manual_seed(99)
    second = fresh(*pictures())
    with torch.no_grad():
        for p in second.model.parameters():
            p.add_(1)
    saved = checkpoint.load(tmp_path / "a.pt")
    second.model.load_parts(saved["parts"])
    second.load_state(saved["trainer"])
    torch.randn(7)  # the global generator plays no part
    reports = run(second)
    assert [report.step for report in reports] == list(range(steps, 6))
    assert differing(state(whole[0]), state(second)) == []
    mine, theirs = second.optimizer.state_dict()["state"], whole[0].optimizer.state_dict()["state"]
    assert all(torch.equal(mine[key][name], theirs[key][name]) for key in theirs for name in theirs[key])


def test_steps_are_whole_when_the_callbacks_are_called():
    trainer, calls = fresh(*pictures(), plan=dataclasses.replace(PLAN, max_steps=4)), []
    trainer.run(lambda report: calls.append((report.step, trainer.step)), lambda epoch: calls.append(epoch))
    assert calls == [(0, 1), (1, 2), 1, (2, 3), 1, (3, 4)]


def test_a_finished_trainer_does_nothing(whole):
    before = state(whole[0])
    assert run(whole[0]) == []
    assert differing(before, state(whole[0])) == []


@pytest.mark.parametrize("fill", [float("nan"), 1e6, "other images"])
def test_hidden_values_are_never_looked_at(fill):
    values, observed, labels = pictures()
    other = values.flip(0) if fill == "other images" else torch.full_like(values, fill)
    a, b = fresh(values, observed, labels), fresh(torch.where(observed, values, other), observed, labels)
    assert differing(state(a), state(b)) == []
    run(a, 3), run(b, 3)
    assert differing(state(a), state(b)) == []


@dataclasses.dataclass(frozen=True)
class Failing:
    """A solver that marks the first item of a batch as failed, with `value` in the place of its iterate."""

    value: float | None = None
    everything: bool = False
    tolerance: float = 1e-3

    def solve(self, equation, start):
        found = anderson(self.tolerance).solve(equation, start)
        rows = slice(None) if self.everything else slice(0, 1)
        status, residual, value = found.status.clone(), found.residual.clone(), found.value.clone()
        status[rows], residual[rows] = Status.BUDGET, 1.0
        if self.value is not None:
            status[rows], residual[rows], value[rows] = Status.NON_FINITE, float("nan"), self.value
        return Solution(value, status, residual, found.evaluations, found.fallback)


def after_one_step(values, solver):
    """The trainer's report and state after one step on all items."""
    original, observed, labels = pictures()
    trainer = fresh(original, observed, labels, objective=Objective(solver, CLADE()), plan=Plan(1, 20, 1e-2, warmup=1))
    trainer.data = IncompleteData(values, observed, labels)
    (report,) = run(trainer)
    return report, state(trainer)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 1e30])
def test_a_failed_item_is_left_out_and_counted(value):
    values, _, _ = pictures()
    item = int(epoch_order(20, 0, 0)[0])
    changed = values.clone()
    changed[item] = 1 - changed[item]
    report, result = after_one_step(values, Failing(value))
    assert report.solver["failed"] == 1 / 20 and report.loss["skipped"] == 0
    assert all(tensor.isfinite().all() for tensor in result.values())
    _, without = after_one_step(changed, Failing(value))
    assert differing(result, without) == [], "what a failed item holds must not matter"
    assert differing(result, after_one_step(values, anderson())[1]), "but it does where it is solved"
    assert differing(after_one_step(values, anderson())[1], after_one_step(changed, anderson())[1])


@pytest.fixture
def unsolved_beyond_10(monkeypatch):
    """Layers turned round that have no value where the first entry is beyond 10."""
    whole = Reversed._solve

    def solve(layer, y):
        x, inverse, ok = whole(layer, y)
        return x, inverse, ok & ~(y.flatten(1)[:, 0] > 10).view_as(ok)

    monkeypatch.setattr(Reversed, "_solve", solve)


def complete_step(values, accumulate=1):
    """The report and the numbers of one step on complete items, and the trainer."""
    torch.manual_seed(0)
    layers = iresnet((16,), blocks=(2,), channels=4, start="none", implicit=True).layers
    flow = Flow([layer for layer in layers if isinstance(layer, Reversed)], (16,))
    data = IncompleteData(values, torch.ones_like(values, dtype=torch.bool))
    plan = Plan(1, len(values), 1e-2, warmup=1, noise=0.0, accumulate=accumulate)
    trainer = Trainer(Model(flow, None, None), data, Objective(anderson()), plan)
    seen, joint = [], trainer.gradients.joint
    trainer.gradients.joint = lambda *args: seen.append(joint(*args)) or seen[-1]
    (report,) = run(trainer)
    return report, seen[0], trainer


@pytest.mark.parametrize("accumulate", [1, 8], ids=["together", "one by one"])
def test_a_failed_item_of_complete_data_is_left_out_and_counted(unsolved_beyond_10, accumulate):
    values = pictures(8)[0].flatten(1)
    values[3] = 50.0
    report, scalars, trainer = complete_step(values, accumulate)
    assert (scalars["items"], scalars["solved"]) == (8, 7) and report.loss["skipped"] == 0
    assert all(tensor.isfinite().all() for tensor in state(trainer).values())
    others = torch.arange(8) != 3
    alone, _, _ = complete_step(values[others])
    assert report.loss["gradient"] == pytest.approx(alone.loss["gradient"], rel=1e-4) and alone.loss["gradient"] > 0


def test_complete_items_of_which_none_is_solved_are_no_progress(unsolved_beyond_10):
    report, scalars, trainer = complete_step(torch.full((4, 16), 50.0))
    assert scalars["solved"] == 0 and report.loss["skipped"] == 0 and report.loss["gradient"] == 0
    trainer.plan = dataclasses.replace(trainer.plan, epochs=40)
    with pytest.raises(InputError, match="no item could be solved in the last 20 steps"):
        run(trainer)


def test_the_gradient_is_that_of_the_mean_over_solved_items():
    values, observed, _ = pictures()
    objective, plan = Objective(Failing(), CLADE()), Plan(1, 20, 1e-2, noise=0.0)
    (report,) = run(fresh(values, observed, objective=objective, plan=plan))
    model = (trainer := fresh(values, observed)).model
    batch = trainer.data.batch(epoch_order(20, 0, 0))
    noise = torch.randn(1, *values.shape, generator=generator(0, "draw", 0))
    q = model.posterior(batch, model.flow)
    step = objective.step(model.flow, batch, q, noise, generator(0, "probe", 0))
    (-step.surrogate[1:].mean()).backward()
    squared = [p.grad.square().sum() for p in model.parameters() if p.grad is not None]
    assert report.loss["gradient"] == pytest.approx(float(torch.stack(squared).sum().sqrt()), rel=1e-4)


@pytest.mark.parametrize("number", [0, 7])
def test_the_random_numbers_of_a_step_are_its_own(number):
    """Keyed by (seed, purpose, step): what two steps see of the same items differs."""
    values, observed, labels = pictures()
    trainer = fresh(values, observed, labels, plan=dataclasses.replace(PLAN, augment=("flip", "shift"), seed=5))
    batch, trainer.step = trainer.data.batch(torch.arange(8)), number
    (part,), seen = trainer.gradients.parts(batch, number, False), trainer.seen(batch)
    moved = augment(batch, ("flip", "shift"), generator(5, "augment", number), holes=True)
    wanted = noisy(moved, PLAN.noise, PLAN.levels, generator(5, "noise", number))
    assert torch.equal(seen.observed, wanted.observed) and torch.equal(seen.filled(), wanted.filled())
    assert torch.equal(part.noise, torch.randn(8, *SHAPE, generator=generator(5, "draw", number)))
    assert torch.equal(part.probes.get_state(), generator(5, "probe", number).get_state())
    trainer.advance(batch)
    assert torch.initial_seed() == generator(5, "dropout", number).initial_seed()


def test_a_gradient_that_is_too_long_is_scaled_down():
    trainer = fresh(*pictures(), plan=dataclasses.replace(PLAN, clip=0.5))
    (report,) = run(trainer, 1)
    norms = [p.grad.norm() for p in trainer.model.parameters() if p.grad is not None]
    assert report.loss["gradient"] > 1, "what is told is the length that it had"
    assert float(torch.stack(norms).norm()) == pytest.approx(0.5, rel=1e-4)


def test_the_power_iteration_goes_on_after_each_step():
    """Along the weights as the step leaves them."""
    trainer = fresh(*pictures())
    for _ in range(2):
        weights = {name: p.clone() for name, p in trainer.model.flow.named_buffers() if name.endswith(".u")}
        run(trainer, 1)
        after = dict(trainer.model.flow.named_buffers())
        assert weights and not [name for name, u in weights.items() if torch.equal(u, after[name])]


def test_a_step_in_which_everything_fails():
    trainer = fresh(*pictures(), objective=Objective(Failing(float("nan"), everything=True), CLADE()))
    before = state(trainer)
    (report,) = run(trainer, 1)
    assert report.solver["failed"] == 1 and math.isnan(report.solver["residual"])
    assert all(name.endswith(".u") for name in differing(before, state(trainer))), "only power iterations went on"


def test_at_first_the_inference_network_alone_learns():
    cfg = CFG | {"posterior": CFG["posterior"] | {"held_out": 0.3}}
    trainer = fresh(*pictures(), plan=dataclasses.replace(PLAN, pretrain=2), cfg=cfg)
    before = state(trainer)
    first, second = run(trainer, 2)
    assert "holdout" in first.loss and not second.solver
    moved = differing(before, state(trainer))
    assert any(name.startswith("posterior") for name in moved)
    assert all(name.startswith("posterior") or name.endswith(".u") for name in moved)
    (third,) = run(trainer, 1)
    assert "holdout" in third.loss and third.solver["failed"] == 0
    assert any(name.startswith("flow") and name.endswith("weight") for name in differing(before, state(trainer)))


@pytest.mark.parametrize("number", [0, 1])
def test_the_holdout_loss_is_half_the_hidden_entries_times_the_log_of_the_error(number):
    """Of entries that are held out anew in each step."""
    cfg = CFG | {"posterior": CFG["posterior"] | {"held_out": 0.3}}
    trainer = fresh(*pictures(), plan=Plan(2, 20, 1e-2, noise=0.0, pretrain=2), cfg=cfg)
    run(trainer, number)
    batch, network = trainer.data.batch(epoch_order(20, 0, number)), trainer.model.posterior
    sparser = hold_out(batch, 0.3, generator(0, "holdout", number))
    held = batch.observed & sparser.hidden
    with torch.no_grad():
        error = (network.predict(sparser) - batch.values)[held].double().square().mean()
    (report,) = run(trainer, 1)
    wanted = 0.5 * float(batch.hidden.sum()) / 20 * math.log(float(error))
    assert report.loss["holdout"] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("incomplete", [True, False])
def test_without_held_out_entries_there_is_no_first_phase(incomplete):
    """Else the rate would fall to zero there and start again, and the flow would rest for nothing."""
    values, observed, _ = pictures()
    observed = observed if incomplete else torch.ones_like(observed)
    trainer, usual = (
        fresh(values, observed, plan=dataclasses.replace(PLAN, pretrain=k), incomplete=incomplete) for k in (2, 0)
    )
    assert [report.loss for report in run(trainer)] == [report.loss for report in run(usual)]
    assert differing(state(trainer), state(usual)) == []


def test_a_classifier_of_predictions_learns_from_the_first_step():
    cfg = CFG | {"posterior": CFG["posterior"] | {"held_out": 0.3}, "classifier": "completions"}
    trainer = fresh(*pictures(), plan=dataclasses.replace(PLAN, pretrain=2), cfg=cfg)
    assert trainer.model.classifies_predictions
    before = state(trainer)
    first, _ = run(trainer, 2)
    assert 0 <= first.loss["accuracy"] <= 1 and first.loss["cross_entropy"] > 0
    moved = {name.partition(".")[0] for name in differing(before, state(trainer)) if not name.endswith(".u")}
    assert moved == {"posterior", "classifier"}
    (third,) = run(trainer, 1)
    assert third.solver["failed"] == 0 and "accuracy" in third.loss


@pytest.mark.parametrize("clip", [100.0, 0.5])
def test_a_classifier_of_latents_beside_the_other_one_changes_nothing_else(clip):
    """The rest of the model is the same bit for bit, also where gradients are scaled down; and it does learn."""
    posterior, plan = CFG["posterior"] | {"held_out": 0.3}, dataclasses.replace(PLAN, clip=clip, ema=0.9)
    trainers = {
        name: fresh(*pictures(), plan=plan, cfg=CFG | {"posterior": posterior, "classifier": name})
        for name in ("completions", "both")
    }
    before = state(trainers["both"])
    reports = {name: run(trainer) for name, trainer in trainers.items()}
    for alone, both in zip(*reports.values(), strict=True):
        assert 0 <= both.loss.pop("accuracy_latents") <= 1
        assert alone.loss == both.loss
    after = state(trainers["both"])
    mine = {name for name in after if name.startswith("latent_classifier")}
    assert differing(state(trainers["completions"]), {key: after[key] for key in after.keys() - mine}) == []
    assert {name for name in mine if name.endswith("linear.weight")} <= set(differing(before, after))
    saved = trainers["both"].result()
    again = fresh(*pictures(), plan=plan, cfg=CFG | {"posterior": posterior, "classifier": "both"}).model
    again.load_parts(saved.parts())
    assert differing(dict(saved.state_dict()), dict(again.state_dict())) == []


def test_a_classifier_of_latents_learns_the_cross_entropy_of_solved_items():
    cfg = CFG | {"posterior": CFG["posterior"] | {"held_out": 0.3}, "classifier": "both"}
    values, observed, labels = pictures()
    plan = Plan(1, 20, 1e-2, noise=0.0)
    trainer = fresh(values, observed, labels, objective=Objective(Failing(), CLADE()), plan=plan, cfg=cfg)
    other = fresh(values, observed, labels, cfg=cfg)
    run(trainer)
    found = trainer.model.latent_classifier.linear.weight.grad
    model, batch = other.model.train(), other.data.batch(epoch_order(20, 0, 0))
    noise = torch.randn(1, *values.shape, generator=generator(0, "draw", 0))
    q = model.posterior(batch, model.flow)
    step = Objective(Failing(), CLADE()).step(model.flow, batch, q, noise, generator(0, "probe", 0))
    scores = model.latent_classifier(step.x[1:].detach(), None, None)
    torch.nn.functional.cross_entropy(scores, batch.label[1:]).backward()
    torch.testing.assert_close(found, model.latent_classifier.linear.weight.grad, rtol=1e-3, atol=1e-6)


def test_without_an_inference_network_there_is_no_classifier_beside_the_other_one():
    made = build_model(CFG["flow"], None, "both", SHAPE, CLASSES)
    assert made.classifier is not None and made.latent_classifier is None
    none = build_model(CFG["flow"], CFG["posterior"], "both", SHAPE, 0)
    assert none.classifier is None and none.latent_classifier is None


def test_a_run_that_solves_nothing_any_more_is_given_up():
    objective = Objective(Failing(float("nan"), everything=True), CLADE())
    trainer = fresh(*pictures(), objective=objective, plan=Plan(40, 8, 1e-2))
    with pytest.raises(InputError, match="training diverged: no item could be solved in the last 20 steps"):
        run(trainer)
    assert trainer.step < 25


def test_a_gradient_that_is_not_finite_is_skipped():
    @dataclasses.dataclass(frozen=True)
    class Broken(Objective):
        def step(self, *args):
            step = super().step(*args)
            return dataclasses.replace(step, surrogate=step.surrogate * float("nan"))

    values, observed, _ = pictures()
    trainer = fresh(values, observed, objective=Broken(anderson(), CLADE()))
    before = state(trainer)
    (report,) = run(trainer, 1)
    assert report.loss["skipped"] == 1
    assert differing(before, state(trainer)) == []


def test_a_run_whose_gradients_are_not_finite_is_given_up(monkeypatch):
    """In a phase without a solve, of which a message must not speak."""

    def broken(self, batch):
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, math.nan)
        return {}

    monkeypatch.setattr(Trainer, "_gradients", broken)
    trainer = fresh(*pictures(), plan=Plan(40, 8, 1e-2))
    with pytest.raises(InputError, match=r"diverged: no gradient was finite in the last 20 steps .*learning_rate$"):
        run(trainer)


# ------------------------------------------------------------------------------------------------------------- schedule


def test_the_cosine_schedule():
    plan = Plan(epochs=10, batch_size=10, learning_rate=0.4, warmup=5)
    rates = [plan.rate(step, 95) for step in range(plan.total(95))]
    assert len(rates) == 100
    assert rates[0] == pytest.approx(0.4 / 5)
    assert rates[:5] == sorted(rates[:5]) and rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[50] == pytest.approx(0.2) and 0 < rates[-1] < 2e-4 and max(rates) <= 0.4


def test_the_first_phase_has_a_cosine_of_its_own():
    whole, first = (Plan(epochs=10, batch_size=10, learning_rate=0.4, warmup=5, pretrain=k) for k in (0, 40))
    rates = [first.rate(step, 95) for step in range(first.total(95))]
    rest = dataclasses.replace(whole, epochs=6)
    assert rates[40:] == [rest.rate(step, 95) for step in range(60)]
    assert rates[:40] == [dataclasses.replace(whole, epochs=4).rate(step, 95) for step in range(40)]
    assert dataclasses.replace(first, max_steps=20).rate(19, 95) < 0.01  # a run that ends before it does


def test_the_halving_schedule():
    plan = Plan(epochs=3, batch_size=10, learning_rate=0.4, schedule="halve")
    rates = [plan.rate(step, 25) for step in range(plan.total(25))]
    assert rates == [0.4] * 3 + [0.2] * 3 + [0.1] * 3


def test_max_steps_ends_the_schedule_too():
    plan = Plan(epochs=10, batch_size=10, learning_rate=1.0, max_steps=20, warmup=1)
    assert plan.total(100) == 20 and plan.total(10) == 10
    assert plan.rate(19, 100) < 0.01


def test_a_longer_plan_goes_on_along_its_own_cosine():
    """A finished run that gets more epochs: the rate of a step depends on the plan alone, and falls to zero again."""
    short, long = (Plan(epochs, 10, 1.0, warmup=1) for epochs in (2, 4))
    assert short.rate(19, 100) < 0.01
    rates = [long.rate(step, 100) for step in range(20, 40)]
    assert rates[0] == pytest.approx(0.5) and rates == sorted(rates, reverse=True) and rates[-1] < 0.01


@pytest.mark.parametrize("schedule", ["cosine", "halve"])
def test_the_optimiser_follows_the_schedule(schedule):
    plan = dataclasses.replace(PLAN, schedule=schedule)
    trainer = fresh(*pictures(), plan=plan)
    for step, report in enumerate(run(trainer)):
        assert report.loss["rate"] == plan.rate(step, 20)
    assert trainer.optimizer.param_groups[0]["lr"] == plan.rate(5, 20)


# ----------------------------------------------------------------------------------------------------------- constraint


def test_a_flow_that_may_not_be_invertible_is_refused():
    trainer = fresh(*pictures())
    with torch.no_grad():
        for layer in trainer.model.flow.layers:
            if isinstance(layer, Residual):
                for linear in layer.branch.maps:
                    linear.bound = 1.4
                    linear.weight.mul_(100)
    with pytest.raises(InputError, match=r"certified Lipschitz bound of 2\.\d+.*lower flow\.coefficient"):
        run(trainer)
    assert trainer.step == 3, "it is checked after each epoch"


def outrun(plan=PLAN):
    """A trainer whose branches have outrun their power iterations: for some steps they are no contractions."""
    trainer = fresh(*pictures(), plan=plan)
    with torch.no_grad():
        for branch in trainer.model.flow.branches():
            for linear in branch.maps:
                linear.weight.copy_(3 * normal(*linear.weight.shape, seed=1))
    assert max(trainer.model.flow.lipschitz()) > 1
    return trainer


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_a_branch_that_has_outrun_its_power_iteration_is_brought_back_in_what_is_saved(ema):
    trainer = outrun(dataclasses.replace(PLAN, ema=ema))
    before = state(trainer)
    for model in (trainer.result(), trainer.certified()):
        assert max(model.flow.lipschitz()) < 1
    assert differing(before, state(trainer)) == [], "a certificate leaves what is trained as it is"


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_no_certificate_changes_a_run_nor_one_that_goes_on(ema, tmp_path):
    """Where bounds are exceeded: the same with one after each step, and when it is saved and goes on after any."""
    plan = dataclasses.replace(PLAN, ema=ema)
    whole, watched, exceeded = outrun(plan), outrun(plan), []
    run(whole)

    def after(report):
        exceeded.append(max(watched.model.flow.lipschitz()) > 1)
        result = watched.certified() and watched.result()
        parts = {"parts": result.parts(), "trainer": watched.state(result)}
        checkpoint.save(tmp_path / f"{watched.step}.pt", parts)

    watched.run(after, nothing)
    assert any(exceeded[:3]) and differing(state(whole), state(watched)) == []
    for step in range(1, 6):
        again, saved = fresh(*pictures(), plan=plan), checkpoint.load(tmp_path / f"{step}.pt")
        again.model.load_parts(saved["parts"])
        assert max(again.model.flow.lipschitz()) < 1
        again.load_state(saved["trainer"])
        run(again)
        assert differing(state(whole), state(again)) == [], step


def test_the_bound_holds_after_every_step():
    trainer, largest = fresh(*pictures(), plan=dataclasses.replace(PLAN, learning_rate=0.05, warmup=1)), []
    trainer.run(lambda report: largest.append(max(trainer.model.flow.lipschitz())), nothing)
    assert len(largest) == 6 and max(largest) < 1


# ------------------------------------------------------------------------------------------------------- what it learns


def test_maximum_likelihood_on_complete_data():
    values, _, labels = pictures(60)
    observed = torch.ones_like(values, dtype=torch.bool)
    plan = Plan(epochs=60, batch_size=30, learning_rate=1e-2, warmup=5)
    cfg = CFG | {"flow": CFG["flow"] | {"start": "none"}}
    trainer = fresh(values, observed, labels, plan=plan, incomplete=False, cfg=cfg)
    assert trainer.model.posterior is None
    noisy = values + 0.05 * normal(*values.shape, seed=9).float()

    @torch.no_grad()
    def log_prob():
        return float(trainer.model.flow.log_prob(noisy).mean())

    before = log_prob()
    reports = run(trainer)
    assert log_prob() > before + 0.5
    assert reports[-1].loss["cross_entropy"] < reports[0].loss["cross_entropy"]
    assert all(report.solver == {} for report in reports)


def test_the_bound_rises_on_digits():
    images = load("digits", "train")
    values, n = images.values[:192], 192
    observed = torch.rand(values.shape, generator=generator(0, "mask")) < 0.5
    plan = Plan(epochs=8, batch_size=32, learning_rate=1e-2, warmup=10)
    cfg = CFG | {"flow": CFG["flow"] | {"channels": 16, "first_squeeze": True}}
    trainer = fresh(values, observed, plan=plan, cfg=cfg)

    def bound():
        batch, flow = trainer.data.batch(torch.arange(n)), trainer.model.flow
        noise = normal(1, *values.shape, seed=4).float()
        with torch.no_grad():
            q = trainer.model.posterior(batch, flow)
            return trainer.objective.log_weight(flow, batch, q, noise, generator(0))[0]

    before = bound()
    run(trainer)
    gain = bound() - before
    assert float(gain.mean()) > 0.5 and float(gain.mean()) > 4 * float(gain.std()) / n**0.5


def test_dequantised_grey_levels():
    levels = 17
    values = torch.arange(levels).repeat(200) / (levels - 1)
    noisy = dequantise(values, levels, generator(0))
    assert torch.equal((noisy * (levels - 1)).round(), (values * (levels - 1)).round())
    spread = (noisy - values) * (levels - 1)
    assert -0.5 <= float(spread.min()) and float(spread.max()) <= 0.5
    assert abs(float(spread.mean())) < 0.02 and abs(float(spread.var()) - 1 / 12) < 0.01


@pytest.mark.parametrize("noise", [0.0, 0.2, "uniform"])
def test_noise_on_training_values(noise):
    values, observed, labels = pictures()
    plan = dataclasses.replace(PLAN, noise=noise, levels=32, batch_size=20, epochs=1)
    trainer = fresh(values, observed, labels, plan=plan)
    (report,) = run(trainer)
    moved = (report.batch.values - values[report.batch.index])[report.batch.observed]
    if noise == "uniform":
        assert float(moved.abs().max()) <= 1 / 32
    else:
        assert float(moved.std()) == pytest.approx(noise, rel=0.2)
