"""Training in phases: what moves in which, exact continuation, redrawing, and closed forms of what is learnt."""

from __future__ import annotations

import dataclasses
import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from problems import F64, normal
from test_train import CFG, CLASSES, Failing, differing, nothing, pictures, run, state

from viscos.commands.assemble.plan import passes, plan_of, settled
from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.core.rng import generator
from viscos.data.augment import augment as moved_about
from viscos.data.incomplete import IncompleteData, epoch_order
from viscos.flows import Flow, Whitening
from viscos.inference import Objective
from viscos.linear.gaussian import Gaussian
from viscos.logdet import CLADE
from viscos.posteriors import Amortised
from viscos.roots import anderson, auto
from viscos.runs import checkpoint
from viscos.train import PhasedTrainer, Plan, Trainer
from viscos.train.model import Model, build_model
from viscos.train.phases import NAMES, Phase, on_complete_data, on_incomplete_data
from viscos.train.plan import MASKS
from viscos.train.stages import STAGES, stage_of, tempering

FLOWS = {
    "continuous": {"_target_": "viscos.flows.continuous", "steps": 2, "width": 4, "method": "euler", "grid": 1.3},
    "iresnet": CFG["flow"],
}
POSTERIOR = {"_target_": "viscos.posteriors.Amortised", "width": 4, "held_out": 0.3, "regressed": True}
PHASES = on_incomplete_data(6, prediction=3, rounds=2, redrawing=2, bound=True, tempering=2)
MIDDLES = [sum(phase.steps for phase in PHASES[:k]) + 1 for k in range(len(PHASES))]
"""The second step of each phase."""
PLAN = Plan(
    epochs=2,
    batch_size=8,
    learning_rate=5e-3,
    warmup=2,
    clip=100.0,
    ema=0.9,
    phases=PHASES,
    masks="any",
    redraw=12,
    imputed_weight=0.3,
)


def phased(
    flow="continuous",
    values=None,
    *,
    plan=PLAN,
    solver=None,
    posterior=POSTERIOR,
    complete=False,
    items=20,
    classifier="completions",
) -> PhasedTrainer:
    """A trainer in phases with a new model, prepared as the command does it."""
    torch.manual_seed(0)
    original, observed, labels = pictures(items)
    observed = torch.ones_like(observed) if complete else observed
    data = IncompleteData(original if values is None else values, observed, labels)
    cfg = {"flow": FLOWS[flow], "posterior": posterior, "classifier": classifier}
    model = build_model(cfg["flow"], cfg["posterior"], cfg["classifier"], data.shape, CLASSES)
    model.prepare(data.values, observed, Gaussian.from_incomplete(data.values, observed, floor=0.01, noise=0.05))
    return PhasedTrainer(model, data, Objective(solver or anderson(), CLADE()), plan)


def part_of(name):
    """The part of the model that a tensor belongs to, by what teaches it."""
    part, _, rest = name.partition(".")
    if part != "posterior":
        return part
    if rest == "temperature":
        return rest
    return "prediction" if rest.startswith(("network", "heads.prediction")) else "posterior"


def moved(before, after):
    """The parts of the model whose parameters differ between two states."""
    buffers = (".u", "running_mean", "running_var", "num_batches_tracked")
    return {part_of(name) for name in differing(before, after) if not name.endswith(buffers)}


def completions(trainer):
    """The completions and which of them were drawn, copied; zeros where there are none yet."""
    return {"completed": trainer.completions.values.nan_to_num(), "drawn": trainer.completions.drawn.clone()}


# ---------------------------------------------------------------------------------------------------------------- plans


def test_phases_on_incomplete_data():
    phases = on_incomplete_data(101, prediction=30, rounds=2, redrawing=7)
    assert phases == (
        Phase("prediction", 30),
        Phase("flow", 101),
        Phase("posterior", 51),
        Phase("redrawing", 7, round=1),
        Phase("flow", 51, 0.5, 1),
        Phase("posterior", 26, 0.5, 1),
        Phase("redrawing", 7, round=2),
        Phase("flow", 51, 0.5, 2),
        Phase("posterior", 26, 0.5, 2),
    )
    every = on_incomplete_data(101, prediction=30, rounds=2, redrawing=7, bound=True, tempering=4)
    assert every == (*phases, Phase("bound", 51, 0.2), Phase("tempering", 4))
    assert {phase.name for phase in every} == set(NAMES) == set(STAGES)
    assert [phase.title for phase in phases[1:5]] == ["flow", "posterior", "redrawing 1", "flow 1"]


def test_phases_on_complete_data():
    assert on_complete_data(101) == (Phase("flow", 101), Phase("posterior", 51))
    no_rounds = on_incomplete_data(8, prediction=3, rounds=0, redrawing=7)
    assert [phase.name for phase in no_rounds] == ["prediction", "flow", "posterior"]


def test_the_place_of_a_step():
    plan = dataclasses.replace(PLAN, phases=(Phase("flow", 3), Phase("posterior", 1), Phase("flow", 2)))
    assert [plan.place(step) for step in range(7)] == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1), (3, 0)]
    assert plan.total(1000) == 6 and dataclasses.replace(plan, max_steps=2).total(1000) == 6


def test_an_empty_phase_is_passed_over():
    plan = dataclasses.replace(PLAN, phases=(Phase("prediction", 0), Phase("flow", 2), Phase("posterior", 0)))
    assert [plan.place(step) for step in range(3)] == [(1, 0), (1, 1), (3, 0)]
    assert [report.phase.name for report in run(phased(plan=plan))] == ["flow", "flow"]


@pytest.mark.parametrize("schedule", ["cosine", "halve"])
def test_each_phase_has_a_schedule_of_its_own(schedule):
    phases = (Phase("flow", 40), Phase("posterior", 20, 0.5), Phase("bound", 10, 0.2))
    plan = Plan(1, 10, 0.4, schedule, warmup=5, phases=phases)
    rates = iter([plan.rate(step, 95) for step in range(70)])
    for phase in phases:
        alone = Plan(phase.steps, 95, 0.4 * phase.rate, "cosine", warmup=5)
        wanted = [alone.rate(step, 95) for step in range(phase.steps)]
        if schedule == "halve":
            wanted = [0.4 * phase.rate * min(1, (k + 1) / 5) * 0.5 ** (k // 10) for k in range(phase.steps)]
        assert list(itertools.islice(rates, phase.steps)) == pytest.approx(wanted, abs=1e-15)


# -------------------------------------------------------------------------------------------------------- going through


@pytest.fixture(scope="module", autouse=True)
def few_cells_say_something():
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(tempering, "CELLS", 1)
        yield


@pytest.fixture(scope="module", params=list(FLOWS))
def whole(request, tmp_path_factory):
    """A run without interruption: the flow's name, its trainer, reports, states before each step and saved ones."""
    folder = tmp_path_factory.mktemp("whole")
    trainer, reports, states = phased(request.param), [], []

    def after(report):
        reports.append(report)
        states.append((state(trainer), completions(trainer)))
        checkpoint.save(folder / f"{trainer.step}.pt", {"parts": trainer.result().parts(), "trainer": trainer.state()})

    states.append((state(trainer), completions(trainer)))
    trainer.run(after, nothing)
    return request.param, trainer, reports, states, folder


def test_a_run_goes_through_its_phases(whole):
    _, trainer, reports, _, _ = whole
    assert trainer.step == trainer.total == len(reports) == 31
    wanted = [(phase, within) for phase in PHASES for within in range(phase.steps)]
    assert [(report.phase, report.within) for report in reports] == wanted
    assert [report.step for report in reports] == list(range(31))
    for report in reports:
        learns = report.phase.name not in ("redrawing", "tempering")
        assert report.solver if report.phase.name in ("redrawing", "bound", "tempering") else not report.solver
        assert report.loss["rate"] == PLAN.rate(report.step, 20) if learns else "rate" not in report.loss
        assert not learns or (report.loss["skipped"] == 0 and report.loss["gradient"] > 0)


def test_what_moves_in_which_phase(whole):
    _, _, _, states, _ = whole
    teaches = {
        "prediction": {"prediction", "classifier"},
        "flow": {"flow"},
        "posterior": {"posterior"},
        "redrawing": set(),
        "bound": {"prediction", "classifier", "flow", "posterior"},
        "tempering": {"temperature"},
    }
    step = 0
    for phase in PHASES:
        before, after = states[step], states[step + phase.steps]
        assert moved(before[0], after[0]) == teaches[phase.name], phase.title
        assert bool(differing(before[1], after[1])) == (phase.name == "redrawing" or step == 3), phase.title
        step += phase.steps


def test_all_that_a_phase_teaches_moves(whole):
    _, trainer, _, states, _ = whole
    trained = {name for name, p in trainer.model.named_parameters() if p.requires_grad}
    still = trained - set(differing(states[0][0], states[-1][0]))
    assert all(name.endswith("raw") for name in still), still


def test_each_phase_begins_with_an_average_of_its_own(whole):
    _, trainer, _, states, folder = whole
    names = [name for name, p in trainer.model.named_parameters() if p.requires_grad]
    for step in (middle - 1 for middle in MIDDLES):
        parts = checkpoint.load(folder / f"{step + 1}.pt")["parts"]
        for name in names:
            part, _, rest = name.partition(".")
            wanted = 0.1 * states[step][0][name] + 0.9 * states[step + 1][0][name]
            assert torch.allclose(parts[part][rest], wanted, atol=1e-6), (PLAN.place(step), name)


def test_each_phase_begins_with_new_moments(whole):
    for step in MIDDLES:
        moments = checkpoint.load(whole[-1] / f"{step + 1}.pt")["trainer"]["optimizer"]["state"]
        wanted = set() if PHASES[PLAN.place(step)[0]].name in ("redrawing", "tempering") else {2}
        assert {int(each["step"]) for each in moments.values()} == wanted


def test_every_item_is_completed_and_observed_entries_stay(whole):
    _, trainer, _, _, _ = whole
    values, observed, _ = pictures()
    assert torch.equal(trainer.completions.values[observed], values[observed])
    assert bool(trainer.completions.values.isfinite().all())
    assert 0 <= float(trainer.completions.values.min()) and float(trainer.completions.values.max()) <= 1


def test_an_epoch_is_as_many_steps_as_usual():
    trainer, calls = phased(plan=dataclasses.replace(PLAN, phases=(Phase("prediction", 2), Phase("flow", 5)))), []
    trainer.run(lambda report: calls.append((report.step, trainer.step)), lambda epoch: calls.append(epoch))
    assert calls == [(0, 1), (1, 2), 1, (2, 3), (3, 4), (4, 5), 2, (5, 6), 2, (6, 7)]


def test_later_rounds_learn_from_redrawn_items_alone(whole):
    _, _, reports, _, _ = whole
    first = set(epoch_order(20, 0, -1)[:12].tolist())
    both = first | set(epoch_order(20, 0, -2)[:12].tolist())
    for report in reports:
        if report.phase.round and report.phase.name != "redrawing":
            assert set(report.batch.index.tolist()) <= (first if report.phase.round == 1 else both)
    assert len(both) > len(first)


def test_redrawing_goes_through_the_items_of_its_round(whole):
    _, _, reports, states, _ = whole
    for k in (1, 2):
        drawn = [report for report in reports if report.phase.name == "redrawing" and report.phase.round == k]
        assert [len(report.batch) for report in drawn] == [8, 4]
        rows = torch.cat([report.batch.index for report in drawn])
        assert torch.equal(rows, epoch_order(20, 0, -k)[:12])
        before, after = states[drawn[0].step][1]["completed"], states[drawn[-1].step + 1][1]["completed"]
        assert (before[rows] != after[rows]).flatten(1).any(1).all()
        others = torch.ones(20, dtype=torch.bool).index_fill(0, rows, False)
        assert torch.equal(before[others], after[others])


@pytest.mark.parametrize("augment", [(), ("flip", "shift")])
@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_imputed_entries_count_less_where_a_flow_is_matched(weight, augment):
    """By hand: the loss of a step is the mean of squares, weighted as the items' masks say, which move along.

    Weights are one on average over all items that are learnt from, and so alike in an item that lacks little or much.
    """
    phases = (Phase("prediction", 0), Phase("flow", 1), Phase("posterior", 0))
    plan = dataclasses.replace(PLAN, phases=phases, imputed_weight=weight, augment=augment)
    trainer = phased(plan=plan)
    seen = []
    flow, matching = trainer.model.flow, trainer.model.flow.matching_loss

    def watched(y, generator, weights=None):
        seen.append((y, weights))
        return matching(y, generator, weights)

    flow.matching_loss = watched
    (report,) = run(trainer)
    ((y, weights),) = seen
    rows = report.batch.index
    observed = pictures()[1][rows]
    whole = Incomplete(trainer.completions.values[rows], observed, rows)
    moved = moved_about(whole, augment, generator(0, "augment", 0), holes=False)
    assert torch.allclose(y, moved.values, atol=6 * PLAN.noise)
    mean = float(torch.where(pictures()[1], 1.0, weight).mean())
    wanted = torch.where(moved.observed, 1.0, weight) / mean
    assert weights is None if weight == 1 else torch.allclose(weights, wanted)
    assert bool(report.batch.observed.all()), "nothing is hidden from what learns"


def test_complete_data_need_no_prediction():
    posterior = POSTERIOR | {"held_out": 0.0}
    trainer = phased(plan=dataclasses.replace(PLAN, phases=on_complete_data(4)), posterior=posterior, complete=True)
    before = state(trainer)
    reports = run(trainer)
    assert [report.phase.name for report in reports] == ["flow"] * 4 + ["posterior"] * 2
    assert {"flow", "posterior"} <= moved(before, state(trainer)) and not trainer.model.posterior.predicts
    assert torch.equal(trainer.completions.values, pictures()[0])


def test_two_runs_in_phases_are_equal_bit_for_bit(whole):
    name, trainer, reports, _, _ = whole
    again = phased(name)
    assert [report.loss for report in run(again)] == [report.loss for report in reports]
    assert differing(state(again), state(trainer)) == [] == differing(completions(again), completions(trainer))


def test_a_classifier_of_latents_learns_where_latents_are_at_hand_and_changes_nothing_else(whole):
    name, trainer, reports, _, _ = whole
    both = phased(name, classifier="both")
    learns = ("posterior", "bound")
    for phase in PHASES:
        before = state(both)
        for report, alone in zip(run(both, phase.steps), reports[both.step - phase.steps :], strict=False):
            assert ("accuracy_latents" in report.loss) == (phase.name in learns)
            assert report.loss.pop("accuracy_latents", 0.5) <= 1
            assert report.loss == alone.loss
        assert ("latent_classifier" in moved(before, state(both))) == (phase.name in learns), phase.title
    after = state(both)
    assert differing(state(trainer), {key: after[key] for key in after if not key.startswith("latent_c")}) == []


# ------------------------------------------------------------------------------------------------------------- resuming


def resumed(name, path, plan=PLAN):
    """A trainer that goes on from what was saved, whatever its model held and torch's own generator."""
    trainer = phased(name, plan=plan)
    with torch.no_grad():
        for p in trainer.model.parameters():
            p.add_(1)
    saved = checkpoint.load(path)
    trainer.model.load_parts(saved["parts"])
    trainer.load_state(saved["trainer"])
    torch.manual_seed(99)
    return trainer


def plain(saved):
    """The tensors and numbers in nested containers, by their place."""
    if isinstance(saved, dict | list | tuple):
        pairs = saved.items() if isinstance(saved, dict) else enumerate(saved)
        return {f"{key}/{name}": value for key, inner in pairs for name, value in plain(inner).items()}
    return {"": torch.as_tensor(saved) if not isinstance(saved, str | None) else torch.zeros(0)}


@pytest.mark.parametrize("step", MIDDLES, ids=lambda step: PHASES[PLAN.place(step)[0]].title)
def test_a_run_continued_in_the_middle_of_a_phase_is_an_uninterrupted_one(step, whole):
    name, _, reports, _, folder = whole
    trainer, end = resumed(name, folder / f"{step}.pt"), min(step + 7, 31)
    again = run(trainer, 7)
    assert [(report.step, report.loss, report.solver) for report in again] == [
        (report.step, report.loss, report.solver) for report in reports[step:end]
    ]
    wanted = checkpoint.load(folder / f"{end}.pt")
    assert differing(plain(trainer.state()), plain(wanted["trainer"])) == []
    assert differing(plain(trainer.result().parts()), plain(wanted["parts"])) == []


def test_a_run_that_is_continued_between_two_phases_is_an_uninterrupted_one(whole):
    name, _, _, _, folder = whole
    for step in (middle - 1 for middle in MIDDLES[1:]):
        trainer = resumed(name, folder / f"{step}.pt")
        (report,) = run(trainer, 1)
        wanted = checkpoint.load(folder / f"{step + 1}.pt")
        assert differing(plain(trainer.state()), plain(wanted["trainer"])) == [], report.phase.title
        assert differing(plain(trainer.result().parts()), plain(wanted["parts"])) == [], report.phase.title


def test_completions_drawn_so_far_come_back(whole):
    name, _, _, states, folder = whole
    step = sum(phase.steps for phase in PHASES[:3]) + 1
    back = completions(resumed(name, folder / f"{step}.pt"))
    drawn = states[step][1]["drawn"]
    complete = pictures()[1].flatten(1).all(1)
    assert torch.equal(back["drawn"], drawn) and int(drawn.sum()) == 8 + int(complete.sum())
    assert torch.equal(back["completed"][drawn], states[step][1]["completed"][drawn])
    saved = checkpoint.load(folder / f"{step}.pt")["trainer"]
    assert sorted(saved["drawn"].tolist()) == sorted(epoch_order(20, 0, -1)[:8].tolist())


def test_the_last_state_is_without_completions(whole):
    saved = checkpoint.load(whole[-1] / "31.pt")["trainer"]
    assert "completions" not in saved and "drawn" not in saved
    assert run(resumed(whole[0], whole[-1] / "31.pt")) == []


@pytest.mark.parametrize(
    "phases",
    [
        PHASES[:-1],
        PHASES[:-2],
        (*PHASES, Phase("flow", 2)),
        (Phase("prediction", 4), *PHASES[1:]),
        on_complete_data(19),
    ],
    ids=["fewer", "without the end", "more", "longer", "other"],
)
def test_a_state_of_other_phases_is_refused(phases, whole):
    with pytest.raises(
        InputError,
        match=r"^this run is trained in phases, whose lengths are settled when it begins; leave out epochs, max_steps, "
        "temper$",
    ):
        resumed(whole[0], whole[-1] / "5.pt", plan=dataclasses.replace(PLAN, phases=phases))


def test_a_run_that_ended_without_it_is_tempered(whole):
    name, *_, folder = whole
    saved = checkpoint.load(folder / "29.pt")
    saved["trainer"]["phases"].pop()
    trainer = phased(name)
    trainer.model.load_parts(saved["parts"])
    trainer.load_state(saved["trainer"])
    assert [report.phase.name for report in run(trainer)] == ["tempering"] * 2
    assert differing(plain(trainer.result().parts()), plain(checkpoint.load(folder / "31.pt")["parts"])) == []


def test_a_state_without_phases_is_refused(tmp_path):
    plain = Trainer(phased().model, phased().data, Objective(anderson(), CLADE()), PLAN)
    with pytest.raises(InputError, match="this run is trained in phases"):
        phased().load_state(plain.state())


# ---------------------------------------------------------------------------------------------------------------- leaks


@pytest.fixture(scope="module")
def blind(whole):
    """The flow's name, and the states at the end of each phase."""
    return whole[0], [whole[3][sum(phase.steps for phase in PHASES[: k + 1])] for k in range(len(PHASES))]


@pytest.mark.parametrize("fill", [float("nan"), 1e6, "other images"])
def test_no_phase_looks_at_hidden_values(fill, blind):
    name, wanted = blind
    values, observed, _ = pictures()
    other = values.flip(0) if fill == "other images" else torch.full_like(values, fill)
    trainer = phased(name, torch.where(observed, values, other))
    for phase, (parameters, completed) in zip(PHASES, wanted, strict=True):
        run(trainer, phase.steps)
        assert differing(state(trainer), parameters) == [], phase.title
        assert differing(completions(trainer), completed) == [], phase.title


# ------------------------------------------------------------------------------------------------------------ redrawing


def redrawn(batch_size=8, solver=None, noise=0.05, flow="continuous"):
    """A trainer whose network is random, before and after all its items were redrawn, and its reports."""
    phases = (Phase("redrawing", math.ceil(20 / batch_size), round=1),)
    plan = dataclasses.replace(PLAN, phases=phases, batch_size=batch_size, redraw=20, noise=noise, ema=0.0)
    trainer = phased(flow, plan=plan, solver=solver)
    with torch.no_grad():
        for k, p in enumerate(trainer.model.parameters()):
            p.add_(0.05 * normal(*p.shape, seed=k).float())
    trainer.model.flow.renormalize(50)
    trainer.completions.predict(torch.arange(20), trainer.model.posterior, torch.device("cpu"))
    before = trainer.completions.values.clone()
    return before, trainer, run(trainer)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 1e30])
def test_what_could_not_be_solved_keeps_its_completion(value):
    values, observed, _ = pictures()
    before, trainer, reports = redrawn(solver=Failing(value))
    failed = torch.stack([report.batch.index[0] for report in reports])
    solved = torch.ones(20, dtype=torch.bool).index_fill(0, failed, False)
    assert torch.equal(trainer.completions.values[failed], before[failed]) and bool(before.isfinite().all())
    assert (trainer.completions.values != before).flatten(1).any(1)[solved].all()
    assert torch.equal(trainer.completions.values[observed], values[observed])
    assert [report.solver["failed"] for report in reports] == [1 / 8, 1 / 8, 1 / 4]
    assert torch.equal(trainer.completions.drawn, solved)
    _, all_solved, _ = redrawn()
    assert torch.equal(trainer.completions.values[solved], all_solved.completions.values[solved])
    trainer.plan = dataclasses.replace(trainer.plan, phases=(*trainer.plan.phases, Phase("flow", 2, round=1)))
    seen = torch.cat([report.batch.index for report in run(trainer)])
    assert set(seen.tolist()) <= set(solved.nonzero().flatten().tolist()), "a mean would teach the flow to blur"


def test_a_round_in_which_nothing_is_solved_ends_the_run():
    _, trainer, _ = redrawn(solver=Failing(everything=True))
    trainer.plan = dataclasses.replace(trainer.plan, phases=(*trainer.plan.phases, Phase("flow", 2, round=1)))
    with pytest.raises(InputError, match="none of 20 items could be completed by the flow"):
        run(trainer)


@pytest.mark.parametrize("flow", ["continuous", "iresnet"])
def test_what_a_flow_has_drawn_with_the_noise_of_training_gets_no_more_of_it(flow):
    _, trainer, _ = redrawn(flow=flow)
    rows = torch.arange(8)
    learning = stage_of(trainer, trainer.completions, Phase("flow", 1, round=1), 1)
    seen, drawn = learning._whole(rows).values, ~pictures()[1][:8]
    same = seen == trainer.completions.values[rows]
    assert not same[~drawn].any(), "observed entries are noisy"
    assert bool(same[drawn].all()) == (not trainer.model.flow.can_denoise), "a continuous flow has taken it off"


@pytest.mark.parametrize("flow", list(FLOWS))
def test_an_items_completion_does_not_depend_on_the_size_of_batches(flow):
    _, trainer, _ = redrawn(flow=flow)
    for batch_size in (3, 20):
        _, other, reports = redrawn(batch_size, flow=flow)
        assert len(reports) == math.ceil(20 / batch_size)
        assert torch.allclose(other.completions.values, trainer.completions.values, atol=2e-5)


def test_redrawing_takes_the_noise_of_training_off():
    _, clean, _ = redrawn(noise=0.1)
    _, as_drawn, _ = redrawn(noise=0.0)
    _, grey, _ = redrawn(noise="uniform")
    hidden = clean.data.observed.logical_not()
    assert torch.equal(grey.completions.values, as_drawn.completions.values)
    shift = (clean.completions.values - as_drawn.completions.values)[hidden]
    assert 0 < float(shift.square().mean().sqrt()) < 0.1


# ---------------------------------------------------------------------------------------------- what is learnt, exactly

ROOT = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [-0.3, 0.5, 0.6]], dtype=F64)
LAW = Gaussian(torch.tensor([0.5, -1.0, 2.0], dtype=F64), ROOT @ ROOT.T)
SCALING = Gaussian(torch.tensor([0.0, 0.3, 1.0], dtype=F64), torch.diag(LAW.covariance.diagonal()) + 0.4)
"""Another Gaussian, after which latents are correlated and not centred."""


def conditional_latents(observed, noise):
    """Mean (as a function of y^O) and deviations of x given y^O, for x = W (y − m), y ~ LAW + noise."""
    S, W, m = LAW.covariance + noise**2 * torch.eye(3, dtype=F64), SCALING.whitening(), SCALING.mean
    gain = W @ S[:, observed] @ torch.linalg.inv(S[observed][:, observed])
    left = W @ S @ W.T - gain @ S[observed] @ W.T
    return lambda y: W @ (LAW.mean - m) + (y[:, observed] - LAW.mean[observed]) @ gain.T, left.diagonal().sqrt()


@pytest.mark.parametrize("observed", [[True, False, False], [True, False, True]], ids=["one seen", "two seen"])
def test_regression_finds_the_conditional_of_an_affine_flow(observed):
    torch.manual_seed(0)
    n, noise, observed = 10_000, 0.3, torch.tensor(observed)
    values = (LAW.mean + normal(n, 3, seed=1) @ ROOT.T).float()
    flow, posterior = Flow([Whitening((3,))], (3,)), Amortised((3,), width=8, held_out=0.0, regressed=True)
    flow.layers[0].set_gaussian(SCALING)
    posterior.prepare(torch.full((1, *posterior.shape), 0.0), torch.ones(1, *posterior.shape, dtype=torch.bool), LAW)
    plan = Plan(1, 500, 1e-2, phases=(Phase("posterior", 300),), noise=noise)
    trainer = PhasedTrainer(Model(flow, posterior, None), IncompleteData(values, observed), Objective(), plan)
    trainer.completions.values[:] = values
    reports = run(trainer)

    seen = torch.linspace(-1.5, 1.5, 40, dtype=F64)[:, None] * LAW.covariance.diagonal().sqrt() + LAW.mean
    mean, deviation = conditional_latents(observed, noise)
    batch = IncompleteData(seen.float(), observed).batch(torch.arange(40))
    with torch.no_grad():
        q = posterior(batch, flow)
    hidden = ~observed
    error = (q.mean.double() - mean(seen))[:, hidden] / deviation[hidden]
    assert float(error.square().mean().sqrt()) < 0.05 and float(error.abs().max()) < 0.15
    assert float((q.log_scale.double() - deviation.log())[:, hidden].abs().max()) < 0.08
    entropy = deviation[hidden].log().mean() + 0.5 * math.log(2 * math.pi * math.e)
    last = sum(report.loss["nll"] for report in reports[-100:]) / 100
    assert last == pytest.approx(float(entropy), abs=0.03)


class Unsolved(Flow):
    """A flow of which items whose first entry is beyond 10 have no latent."""

    def to_latent(self, y):
        return torch.where(y[:, :1] > 10, math.nan, super().to_latent(y))


@pytest.mark.parametrize("bad", [[3, 38], [3, *range(32, 40)], range(40)], ids=["one", "all held back", "all"])
def test_an_item_without_a_latent_teaches_no_posterior(bad):
    """Nor is one measured by it, of those held back."""
    torch.manual_seed(0)
    values = normal(40, 3).float()
    values[list(bad), 0] = 50.0
    flow, posterior = Unsolved([Whitening((3,))], (3,)), Amortised((3,), width=4, held_out=0.0, regressed=True)
    data, plan = IncompleteData(values, torch.tensor([True, False, False])), Plan(1, 8, 1e-3, noise=0.0)
    plan = dataclasses.replace(plan, phases=(Phase("posterior", 4),))
    trainer = PhasedTrainer(Model(flow, posterior, None), data, Objective(), plan, held_back=8)
    trainer.completions.values[:] = values
    if len(bad) == 40:
        with pytest.raises(InputError, match="none of 32 items has a latent to teach the posterior by"):
            run(trainer)
        return
    reports = run(trainer)
    assert all(report.loss["skipped"] == 0 and math.isfinite(report.loss["nll"]) for report in reports)
    assert sorted(int(i) for report in reports for i in report.batch.index) == [k for k in range(32) if k != 3]
    assert all(
        math.isfinite(report.validation["nll"]) if len(bad) == 2 else not report.validation for report in reports
    )


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("holes", [[], [3], [3, 20]], ids=["none", "one row", "two rows"])
def test_the_masks_under_which_the_posterior_is_taught(masks, holes):
    """Own ones are those of rows with holes, however few these are; without any, masks are of every kind."""
    torch.manual_seed(0)
    observed = torch.ones(40, 3, dtype=torch.bool)
    observed[holes, 1] = False
    flow, posterior = Flow([Whitening((3,))], (3,)), Amortised((3,), width=4, held_out=0.0, regressed=True)
    plan = Plan(1, 10, 1e-3, phases=(Phase("posterior", 4),), masks=masks)
    trainer = PhasedTrainer(
        Model(flow, posterior, None), IncompleteData(normal(40, 3).float(), observed), Objective(), plan
    )
    trainer.completions.values[:] = normal(40, 3, seed=1).float()
    reports = run(trainer)
    seen = torch.stack([report.batch.observed for report in reports])
    own = (seen == torch.tensor([True, False, True])).all(2)
    if masks == "own" and holes:
        assert own.all()
    else:
        assert own[:, ::2].all() == (masks == "both" and bool(holes)) and not own[:, 1::2].all()
        assert len(seen.flatten(0, 1).unique(dim=0)) > 4


def test_a_batch_without_holes_teaches_the_prediction_as_well():
    """One hole in the data left the gradient of nearly all batches at zero; those with holes count as they did."""
    network = Amortised((3,), width=4, held_out=0.3, regressed=True)
    trainer = PhasedTrainer(
        Model(Flow([Whitening((3,))], (3,)), network, None),
        IncompleteData(normal(40, 3).float(), torch.ones(40, 3, dtype=torch.bool)),
        Objective(),
        Plan(1, 8, 1e-3, phases=(Phase("prediction", 1),)),
    )
    trainer.gradients.held_out(trainer.data.batch(torch.arange(8)), 0)
    assert any(p.grad is not None and float(p.grad.abs().max()) > 0 for p in network.parameters())


# --------------------------------------------------------------------------------------------- expectation–maximisation

PLANE = Gaussian(torch.tensor([0.4, -0.6], dtype=F64), torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=F64))


def moments(values):
    """Mean and covariance of complete data, as one vector of five numbers."""
    mean, covariance = values.double().mean(0), values.double().T.cov(correction=0)
    return torch.cat([mean, covariance[torch.triu_indices(2, 2).unbind()]])


def e_step(values, observed, fitted):
    """What completions of `values` have for moments in expectation, under a Gaussian of the moments `fitted`."""
    mean, covariance = fitted[:2], fitted[[2, 3, 3, 4]].view(2, 2)
    filled = Gaussian(mean, covariance).conditional(values.double(), observed)
    hidden = (~observed).double()
    left = covariance[1, 1] - covariance[0, 1] ** 2 / covariance[0, 0]
    total = moments(filled)
    total[4] += left * hidden[:, 1].mean()
    return total


@pytest.mark.slow
def test_a_round_is_a_step_of_expectation_maximisation():
    """Where one column alone has holes, at random, completions on a wrong line leave a conditional mean that is linear
    all the same, so that the moments of redrawn items are those of a Gaussian model. Completions begin with half of the
    slope and of the spread. To be met: 0.05, of which 0.02 are standard errors with 2,000 items, and the rest is for
    what a small flow has not learnt in 500 steps; the step of EM itself is more than twice as long."""
    torch.manual_seed(0)
    n = 2000
    values = (PLANE.mean + normal(n, 2, seed=1) @ torch.linalg.cholesky(PLANE.covariance).T).float()
    observed = torch.ones(n, 2, dtype=torch.bool)
    observed[:, 1] = torch.rand(n, generator=generator(0, "half")) < 0.5
    phases = (Phase("flow", 500), Phase("posterior", 250), Phase("redrawing", 8, round=1))
    plan = Plan(1, 250, 5e-3, warmup=20, ema=0.99, noise=0.05, phases=phases)
    cfg = {
        "flow": {"_target_": "viscos.flows.continuous", "method": "midpoint", "width": 24, "grid": 1.3},
        "posterior": {"_target_": "viscos.posteriors.Amortised", "width": 8, "held_out": 0.0, "regressed": True},
        "classifier": "latents",
    }
    data = IncompleteData(values, observed)
    model = build_model(cfg["flow"], cfg["posterior"], cfg["classifier"], (2,), 0)
    model.prepare(data.values, observed, Gaussian.from_incomplete(data.values, observed, noise=0.05))
    trainer = PhasedTrainer(model, data, Objective(auto(), CLADE()), plan)
    wrong = -0.6 + 0.4 * (values[:, 0] - 0.4) + 0.3 * normal(n, seed=2).float()
    trainer.completions.values[:, 1] = torch.where(observed[:, 1], values[:, 1], wrong)
    start = moments(trainer.completions.values)
    trainer.completions.drawn[:] = True
    reports = run(trainer)
    assert all(report.solver["failed"] <= 0.01 for report in reports[-8:])
    wanted = e_step(values, observed, start)
    assert float((moments(trainer.completions.values) - wanted).abs().max()) < 0.05
    assert float((start - wanted).abs().max()) > 0.12


# ------------------------------------------------------------------------------------------------------------- settings

SETTINGS = {
    "dataset": {"epochs": 10, "noise": 0.05},
    "posterior": {"_target_": "viscos.posteriors.Amortised", "held_out": 0.2},
    "batch_size": 10,
    "schedule": "cosine",
    "accumulate": 1,
    "rounds": 1,
    "redraw": 25,
    "temper": 3,
    "seed": 3,
    **dict.fromkeys(("teach", "epochs", "ema", "learning_rate", "teach_masks", "pretrain", "max_steps", "warmup")),
    "imputed_weight": None,
    "validation": 0,
    "patience": None,
}
IMAGE = 1, 8, 8
DIAGONAL = {"_target_": "viscos.posteriors.Diagonal"}
NETWORK = SimpleNamespace(held_out=0.2, tempers=True)


def settings(teach, matches, hides, **changes):
    return settled(SETTINGS | {"teach": teach} | changes, IMAGE, 95, matches=matches, hides=hides)


EM, BOTH = (f"prediction flow posterior redrawing flow posterior{bound} tempering" for bound in ("", " bound"))
CHOSEN = [
    # matches, hides, teach -> teach, epochs, ema, learning rate, masks, phases
    (True, False, None, "regression", 40, 0.999, 0.005, "any", "flow posterior"),
    (True, False, "none", "none", 40, 0.999, 0.005, "any", ""),
    (True, True, None, "regression", 10, 0.998, 0.003, "own", EM),
    (True, True, "both", "both", 10, 0.998, 0.003, "own", BOTH),
    (False, False, None, "regression", 10, 0, 0.005, "any", "flow posterior"),
    (False, False, "none", "none", 10, 0, 0.005, "any", ""),
    (False, True, None, "bound", 10, 0, 0.005, "own", ""),
    (False, True, "regression", "regression", 10, 0.998, 0.003, "own", EM),
    (False, True, "both", "both", 10, 0.998, 0.003, "own", BOTH),
]


@pytest.mark.parametrize(("matches", "hides", "teach", "taught", "epochs", "ema", "rate", "masks", "phases"), CHOSEN)
def test_what_is_chosen(matches, hides, teach, taught, epochs, ema, rate, masks, phases):
    cfg = settings(teach, matches, hides)
    assert (cfg["teach"], cfg["epochs"], cfg["ema"], cfg["learning_rate"]) == (taught, epochs, ema, rate)
    regressed = taught in ("regression", "both")
    assert cfg["posterior"].get("regressed", False) == regressed
    assert cfg["posterior"]["held_out"] == (0.0 if regressed and not hides else 0.2)
    plan = plan_of(cfg, 95, hides, NETWORK)
    assert " ".join(phase.name for phase in plan.phases) == phases
    assert (plan.epochs, plan.ema, plan.learning_rate, plan.masks) == (epochs, ema, rate, masks)
    assert (plan.batch_size, plan.seed, plan.redraw, plan.noise) == (10, 3, 25, 0.05)
    assert settled(cfg, IMAGE, 95, matches=matches, hides=hides) == cfg, "what was settled stays so when a run goes on"


def test_the_masks_that_teach_vectors():
    """What has no holes in training may have some later; of images the holes are those of all."""
    for shape, hides, masks in (((4,), True, "both"), ((4,), False, "any"), (IMAGE, True, "own")):
        assert settled(SETTINGS, shape, 95, matches=True, hides=hides)["teach_masks"] == masks
    said = SETTINGS | {"teach_masks": "own"}
    assert settled(said, (4,), 95, matches=True, hides=True)["teach_masks"] == "own"
    with pytest.raises(InputError, match="teach_masks=own needs data with holes; take any, or leave it out"):
        settled(said, (4,), 95, matches=True, hides=False)


def test_a_dataset_may_have_a_rate_of_its_own_for_completions_that_are_drawn_anew():
    digits = {"dataset": SETTINGS["dataset"] | {"learning_rate": 0.006}}
    rates = {case: settings(None, *case, **digits)["learning_rate"] for case in [(True, True), (True, False)]}
    assert rates == {(True, True): 0.006, (True, False): 0.005}
    assert settings("regression", False, True, **digits)["learning_rate"] == 0.003, "of another kind of flow"
    assert settings(None, True, True, learning_rate=0.1, **digits)["learning_rate"] == 0.1


@pytest.mark.parametrize(
    ("shape", "hides", "given", "weight"),
    [
        (IMAGE, True, None, 0.2),
        (IMAGE, False, None, 1),
        ((5,), True, None, 1),
        (IMAGE, True, 1, 1),
        ((5,), True, 0.5, 0.5),
    ],
)
def test_what_imputed_entries_count(shape, hides, given, weight):
    cfg = settled(SETTINGS | {"imputed_weight": given}, shape, 95, matches=True, hides=hides)
    assert plan_of(cfg, 95, hides, NETWORK).imputed_weight == cfg["imputed_weight"] == weight


@pytest.mark.parametrize(
    ("shape", "items", "matches", "given", "rounds"),
    [
        (IMAGE, 9_999, True, None, 2),
        (IMAGE, 10_000, True, None, 0),
        (IMAGE, 10_000, False, None, 2),
        ((5,), 10_000, True, None, 2),
        (IMAGE, 10_000, True, 1, 1),
        (IMAGE, 100, True, 0, 0),
    ],
)
def test_many_pictures_are_not_drawn_anew(shape, items, matches, given, rounds):
    cfg = settled(SETTINGS | {"rounds": given, "teach": "regression"}, shape, items, matches=matches, hides=True)
    phases = plan_of(cfg, items, True, NETWORK).phases
    assert sum(phase.name == "redrawing" for phase in phases) == cfg["rounds"] == rounds


@pytest.mark.parametrize(
    ("shape", "changes", "corrects"),
    [
        (IMAGE, {}, True),  # 10 passes over 95 items, ten a step
        (IMAGE, {"epochs": 48}, False),
        (IMAGE, {"epochs": 47}, True),
        (IMAGE, {"epochs": 100, "max_steps": 479}, True),
        (IMAGE, {"epochs": 100, "max_steps": 480}, False),
        ((5,), {"epochs": 100}, True),
    ],
)
def test_a_network_corrects_vectors_and_where_it_has_little_time(shape, changes, corrects):
    posterior = SETTINGS["posterior"] | {"corrects": None}
    cfg = settled(SETTINGS | {"posterior": posterior} | changes, shape, 95, matches=True, hides=True)
    assert cfg["posterior"]["corrects"] is corrects
    said = posterior | {"corrects": not corrects}
    cfg = settled(SETTINGS | {"posterior": said} | changes, shape, 95, matches=True, hides=True)
    assert cfg["posterior"]["corrects"] is not corrects


def test_a_small_table_is_learnt_in_more_passes():
    said = [passes({"epochs": None}, items, 64)["epochs"] for items in (10, 160, 640, 1280, 64000)]
    assert said == [120, 120, 40, 20, 20]
    assert passes({"epochs": 7}, 10, 64)["epochs"] == 7


def test_nothing_to_teach_without_a_network():
    cfg = settings(None, True, False, posterior=DIAGONAL)
    assert cfg["teach"] == "none" and cfg["posterior"] == DIAGONAL and plan_of(cfg, 95, False, NETWORK).phases == ()


@pytest.mark.parametrize(
    ("matches", "hides", "changes", "line"),
    [
        (True, True, {"teach": "bound"}, "a flow that is trained by matching learns from completions; take teach=regr"),
        (True, True, {"teach": "none"}, "data with holes need an inference network; take teach=regression, bound or"),
        (False, True, {"teach": "none"}, "data with holes need an inference network"),
        (True, False, {"teach": "bound"}, "teach=bound needs data with holes; on complete data take teach=regression"),
        (False, False, {"teach": "both"}, "teach=both needs data with holes"),
        (False, True, {"posterior": DIAGONAL}, "training on incomplete data needs posterior=amortised"),
        (False, False, {"posterior": DIAGONAL, "teach": "regression"}, "teach=regression is for posterior=amortised"),
        (
            True,
            True,
            {"posterior": SETTINGS["posterior"] | {"held_out": 0.0}},
            "teach=regression begins with held-out entries; take posterior.held_out above 0, e.g. 0.2",
        ),
    ],
)
def test_what_is_refused(matches, hides, changes, line):
    with pytest.raises(InputError, match=f"^{line}"):
        settled(SETTINGS | changes, IMAGE, 95, matches=matches, hides=hides)


def test_what_is_set_stays():
    given = {"epochs": 3, "ema": 0.5, "learning_rate": 1.0, "teach_masks": "any", "pretrain": 2, "imputed_weight": 0.7}
    cfg = settings(None, True, True, **given)
    assert {key: cfg[key] for key in given} == given


def test_the_lengths_of_phases():
    plan = plan_of(settings(None, True, True), 95, True, NETWORK)
    # 10/1.2 passes of 9.5 batches, 10 of 10
    assert [phase.steps for phase in plan.phases] == [79, 100, 50, 3, 50, 25, 3]
    plan = plan_of(settings(None, True, True, redraw=10_000, rounds=2), 95, True, NETWORK)
    assert [phase.steps for phase in plan.phases if phase.name == "redrawing"] == [10, 10]
    plan = plan_of(settings(None, True, True, max_steps=6), 95, True, NETWORK)
    assert [phase.steps for phase in plan.phases] == [6, 6, 3, 3, 3, 2, 3]
    assert plan.total(95) == 26, "max_steps is of the flow's first phase, and the others follow it"
    assert plan_of(settings(None, True, True, max_steps=2), 95, True, NETWORK).phases[-1] == Phase("tempering", 2)
    assert [phase.steps for phase in plan_of(settings(None, False, False), 95, False, NETWORK).phases] == [100, 50]
    assert plan_of(settings(None, False, True), 95, True, NETWORK).pretrain == 19


def test_a_network_without_a_temperature_is_not_tempered():
    cfg = settings(None, True, True)
    names = [
        [phase.name for phase in plan_of(cfg, 95, True, SimpleNamespace(held_out=0.2, tempers=yes)).phases]
        for yes in (False, True)
    ]
    assert [*names[0], "tempering"] == names[1]


def test_held_out_entries_alone_teach_for_a_fifth_of_the_steps_that_there_are():
    for given, passed in ({}, 10), ({"epochs": 20}, 20), ({"max_steps": 20}, 20 * 10 / 95), ({"max_steps": 999}, 10):
        cfg = settings(None, False, True, **given)
        assert cfg["pretrain"] == pytest.approx(passed / 5)
    for most in range(1, 30):
        plan = plan_of(settings(None, False, True, max_steps=most), 95, True, NETWORK)
        assert plan.pretrain == round(most / 5) < plan.total(95) == most


def test_a_training_whose_flow_would_learn_nothing_is_refused():
    given = {"max_steps": 19, "pretrain": 2}
    with pytest.raises(InputError, match=r"^pretrain=2 is 19 steps and the training has 19, so the flow would learn n"):
        plan_of(settings(None, False, True, **given), 95, True, NETWORK)
    assert plan_of(settings(None, False, True, **given | {"max_steps": 20}), 95, True, NETWORK).pretrain == 19
    plan_of(settings(None, False, True, **given), 95, True, SimpleNamespace(held_out=0.0, tempers=False))
    plan_of(settings(None, True, True, **given), 95, True, NETWORK)  # in phases, the flow has one of its own
