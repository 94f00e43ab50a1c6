"""Items that are held back from training: they teach nothing, the best model on them is kept, and runs resume."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_commands import DEBUG, TINY, figures, refused, scalars, viscos
from test_phases import FLOWS, POSTERIOR
from test_train import CFG, CLASSES, PLAN, differing, nothing, pictures, run, state

from viscos import runs
from viscos.commands.assemble.plan import settled
from viscos.commands.assemble.saved import from_training
from viscos.core.errors import InputError
from viscos.core.rng import generator
from viscos.data.incomplete import IncompleteData
from viscos.data.mask_files import load_masks
from viscos.data.sources.registry import load
from viscos.inference import Objective
from viscos.linear.gaussian import Gaussian
from viscos.logdet import CLADE
from viscos.posteriors.holdout import hold_out
from viscos.roots import anderson
from viscos.runs.trained import load as load_trained
from viscos.train import PhasedTrainer, Trainer
from viscos.train.model import build_model
from viscos.train.phases import Phase
from viscos.train.validation import Validation, bound_loss, flow_loss, held_out_error, posterior_loss, validation_order

HELD_BACK = 6
JOINT = dataclasses.replace(PLAN, epochs=3, ema=0.9)
PHASED = dataclasses.replace(
    JOINT,
    phases=(
        Phase("prediction", 4),
        Phase("flow", 5),
        Phase("posterior", 3),
        Phase("redrawing", 2, round=1),
        Phase("flow", 3, round=1),
        Phase("posterior", 2, round=1),
    ),
    redraw=12,
)
PLANS = {"joint": JOINT, "in phases": PHASED}


def made(plan, held_back=HELD_BACK, values=None, seed=0):
    """A trainer on 20 items, of which the last are held back."""
    torch.manual_seed(seed)
    original, observed, labels = pictures()
    data = IncompleteData(original if values is None else values, observed, labels)
    flow = FLOWS["continuous"] if plan.phases else CFG["flow"]
    model = build_model(flow, POSTERIOR, "completions", data.shape, CLASSES)
    learnt = data.first(20 - held_back)
    model.prepare(learnt.values, learnt.observed, Gaussian.from_incomplete(learnt.values, learnt.observed, floor=0.01))
    kind = PhasedTrainer if plan.phases else Trainer
    return kind(model, data, Objective(anderson(), CLADE()), plan, None, held_back)


@pytest.mark.parametrize("share", [0, 0.01, 0.2, 0.9])
def test_the_order_of_items(share):
    order, learnt = validation_order(25, share, 3)
    assert sorted(order.tolist()) == list(range(25))
    assert 25 - learnt == {0: 0, 0.01: 1, 0.2: 5, 0.9: 22}[share]
    assert order[:learnt].tolist() == sorted(order[:learnt].tolist())
    again, other = validation_order(25, share, 3)[0], validation_order(25, share, 4)[0]
    assert torch.equal(order, again) and torch.equal(order, other) == (share == 0)


def test_one_item_is_always_left_to_learn_from():
    assert validation_order(2, 0.9, 0)[1] == 1 and validation_order(1, 0.9, 0)[1] == 1


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_held_back_items_teach_nothing(plan):
    """Up to where the best model is taken over, steps are those of a run on the other items alone."""
    values = pictures()[0]
    other = torch.cat([values[:-HELD_BACK], values[-HELD_BACK:].flip(0, 2)])
    alone = made(plan)
    alone.data, alone.validation = alone.data.first(20 - HELD_BACK), None
    a, b, c = made(plan), made(plan, values=other), alone
    losses = [[report.loss for report in run(trainer, 3)] for trainer in (a, b, c)]
    assert losses[0] == losses[1] == losses[2]
    assert differing(state(a), state(b)) == differing(state(a), state(c)) == []
    assert a.total == alone.total == (sum(p.steps for p in plan.phases) or 6)


@pytest.fixture(scope="module", params=PLANS)
def whole(request):
    """A run without interruption: its plan, the trainer and the reports."""
    trainer = made(plan := PLANS[request.param])
    return plan, trainer, run(trainer)


def test_each_kind_of_training_is_measured(whole):
    plan, _, reports = whole
    assert all(math.isfinite(value) for report in reports for value in report.validation.values())
    keys = [tuple(report.validation) for report in reports]
    if not plan.phases:
        return None if keys == [("bound", "holdout")] * 6 else pytest.fail(f"{keys}")
    firsts = {"prediction": ("holdout",), "flow": ("matching",), "posterior": ("nll",), "redrawing": ()}
    assert keys == [firsts[phase.name] for phase in plan.phases for _ in range(phase.steps)]


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_best_model_is_kept(plan, monkeypatch):
    """By prescribed losses, of which the second is the least, the last is the second best, and one is no number."""
    trainer, seen = made(plan), []
    losses = iter([3.0, 1.0, math.nan, 2.0, 5.0, 1.5])
    first = plan.phases[0].steps if plan.phases else trainer.total

    def validate(model):
        seen.append({name: value.clone() for name, value in model.state_dict().items()})
        return {"loss": next(losses)}

    monkeypatch.setattr(trainer, "_validate", validate)
    run(trainer, first)
    assert differing(seen[1], state(trainer)) == [] and differing(seen[-1], state(trainer))
    parameters = [name for name, _ in trainer.model.named_parameters()]
    saved = trainer.result().state_dict()
    assert all(torch.equal(seen[1][name], saved[name]) for name in parameters)
    (said,) = trainer.validation.record
    assert said["loss"] == 1.0 and said["best_after_steps"] == 2 and said["ended_after_steps"] == first


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_patience_ends_a_phase(plan, monkeypatch):
    trainer = made(dataclasses.replace(plan, patience=2))
    losses = iter([3.0, 1.0, 1.0, 1.0])
    monkeypatch.setattr(trainer, "_validate", lambda model: {"loss": next(losses)})
    calls = []
    if plan.phases:
        run(trainer, 4)
        assert plan.place(trainer.step) == (1, 0), "the next one begins"
    else:
        trainer.run(nothing, calls.append)
        assert trainer.step == trainer.total and calls[-1] == 3, "the end is saved"
    assert trainer.validation.record[0]["ended_after_steps"] == 4


def test_a_phase_in_which_nothing_is_measured_has_no_early_end():
    plan = dataclasses.replace(PHASED, patience=1, phases=(Phase("redrawing", 2, round=1),))
    assert len(run(made(plan))) == 2


def test_what_is_no_contraction_is_never_the_best(monkeypatch):
    trainer = made(JOINT)
    monkeypatch.setattr(trainer.model.flow.__class__, "lipschitz", lambda self: [1.0 if trainer.step == 3 else 0.9])
    monkeypatch.setattr(trainer, "_validate", lambda model: {"loss": -5.0 if trainer.step == 3 else 0.0})
    run(trainer)
    assert trainer.validation.record[0]["best_after_steps"] == 1


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_a_continued_run_is_an_uninterrupted_one(share, whole):
    """Stopped in the middle of a phase of the flow, before and after completions were drawn; or of a joint training."""
    plan, uninterrupted, reports = whole
    first, second = made(plan), made(plan, seed=9)
    steps = round(share * first.total)
    run(first, steps)
    saved = {"parts": first.result().parts(), "trainer": first.state()}
    second.model.load_parts(saved["parts"])
    second.load_state(saved["trainer"])
    again = run(second)
    assert [(r.step, r.loss, r.validation) for r in again] == [(r.step, r.loss, r.validation) for r in reports[steps:]]
    assert differing(state(uninterrupted), state(second)) == []
    assert uninterrupted.validation.record == second.validation.record


# --------------------------------------------------------------------------------------------------- what is measured


def test_the_error_at_held_out_entries_is_of_the_network_alone():
    trainer = made(JOINT)
    batch = trainer.data.batch(torch.arange(14, 20))
    sparser = hold_out(batch, 0.3, generator(7, "validation held out"))
    held = batch.observed & sparser.hidden
    with torch.no_grad():
        wanted = (trainer.model.posterior.predict(sparser) - batch.values)[held].square().mean().sqrt()
        assert held_out_error(trainer.model, batch, 7)["holdout"] == pytest.approx(float(wanted), rel=1e-5)


def test_losses_of_flow_and_posterior_are_by_the_densities():
    values, observed, _ = pictures()
    for plan, name in ((JOINT, "nll"), (PHASED, "matching")):
        model = made(plan).model.eval()
        with torch.no_grad():
            loss = flow_loss(model, values, 0)
            assert loss == flow_loss(model, values, 0) and loss.keys() == {name}
            if name == "nll":
                assert loss["nll"] == pytest.approx(-float(model.flow.log_prob(values).mean()), rel=1e-5)
                whole = IncompleteData(values, torch.ones_like(observed)).batch(torch.arange(20))
                assert bound_loss(model, Objective(anderson(), CLADE()), whole, 0) == loss
            batch = IncompleteData(values, observed).batch(torch.arange(20))
            x = model.flow.to_latent(values)
            log_q = model.posterior(batch, model.flow).log_prob(x[None])[0].sum()
            wanted = -float(log_q) / int(batch.hidden.sum())
            assert posterior_loss(model, batch, x)["nll"] == pytest.approx(wanted, rel=1e-5)


def test_measurements_of_a_phase():
    assert [k for k in range(1, 101) if Validation.due(k, 100)] == list(range(5, 101, 5))
    assert [k for k in range(1, 8) if Validation.due(k, 7)] == list(range(1, 8))
    assert all(sum(Validation.due(k, steps) for k in range(1, steps + 1)) == 20 for steps in (20, 39, 43, 79))
    assert Validation.due(43, 43)


def test_patience_needs_items_held_back():
    with pytest.raises(InputError, match=r"say how many, e\.g\. validation=0\.1"):
        settled({"patience": 3, "validation": 0}, (1, 8, 8), 95, matches=True, hides=True)


# ------------------------------------------------------------------------------------------------------- from the shell


@pytest.fixture(scope="module")
def held_back(tmp_path_factory):
    """A run with items held back, in the folder `outputs/train` of the folder that is returned."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(home := tmp_path_factory.mktemp("held_back"))
        viscos("train", *DEBUG, "validation=0.25", "patience=9", "max_steps=3", "flow.start=standardise")
    return home


def test_a_run_with_items_held_back(held_back, monkeypatch):
    monkeypatch.chdir(held_back)
    (folder,) = held_back.glob("outputs/train/*")
    record = figures(folder)["validation"]
    (best,) = record["best"]
    assert record["items"] == 8 and best["ended_after_steps"] == 3
    curve = scalars(folder, "validation/bound")
    assert [step for step, _ in curve] == [1, 2], "while the network alone learns, it alone is measured"
    assert [step for step, _ in scalars(folder, "validation/holdout")] == [0, 1, 2]
    assert best["loss"] == pytest.approx(-max(value for _, value in curve), rel=1e-5)
    trained, values = load_trained(folder), load("digits", "train").values[:32]
    learnt, masks = from_training(trained).data(), load_masks(folder / "masks_train.npz")
    order, count = validation_order(32, 0.25, 0)
    assert len(masks) == 32 and count == len(learnt) == 24
    assert torch.equal(learnt.observed, masks[order[:24]])
    assert torch.equal(learnt.values[learnt.observed], values[order[:24]][learnt.observed])
    gaussian = Gaussian.from_incomplete(learnt.values, learnt.observed, floor=0.01)
    assert trained.gaussian.mean == pytest.approx(gaussian.mean, abs=0.2)
    mean = torch.where(learnt.observed, learnt.values, 0).sum(0) / learnt.observed.sum(0).clamp(min=1)
    seen = learnt.observed.any(0).flatten()
    torch.testing.assert_close(trained.means.float()[seen], mean.flatten()[seen], atol=1e-6, rtol=1e-5)


def test_tensorboard_knows_settings_and_numbers(held_back):
    (folder,) = held_back.glob("outputs/train/*")
    tags = EventAccumulator(str(folder / "tensorboard")).Reload().Tags()
    assert tags["images"] == ["pictures/completions"]
    assert {"settings/text_summary", "test/text_summary"} <= set(tags["tensors"])
    groups = {tag.partition("/")[0] for tag in tags["scalars"]}
    assert groups == {"train", "test", "validation"} and len(tags["scalars"]) < 40
    assert sum(tag.startswith("train/") for tag in tags["scalars"]) <= 14
    events = b"".join(path.read_bytes() for path in (folder / "tensorboard").iterdir())
    assert b"_hparams_/session_start_info" in events and b"flow.channels" in events


def test_the_latest_run_is_found(held_back, monkeypatch, capsys):
    monkeypatch.chdir(held_back)
    (folder,) = held_back.glob("outputs/train/*")
    saved = runs.load_config(viscos("impute", "checkpoint=latest", "verbosity=quiet", *TINY))
    assert saved["checkpoint"] == str(folder)
    assert len(capsys.readouterr().out.splitlines()) == 1, "quiet: where the results are, and no more"


def test_there_is_no_latest_run(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert "there is no training below" in refused(capsys, "impute", "checkpoint=latest")
    (tmp_path / "latest").mkdir()
    assert "the folder 'latest' has no checkpoint.pt" in refused(capsys, "impute", "checkpoint=latest")


def test_the_settings_of_validation_are_checked(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert "validation=1: must be a number from 0 to 0.9" in refused(capsys, "train", "validation=1")
    assert "validation=0.1" in refused(capsys, "train", *DEBUG[:-1], "patience=3")
    assert "verbosity=loud: must be one of quiet, normal, verbose" in refused(capsys, "train", "verbosity=loud")


def test_a_verbose_run_says_every_record(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    viscos("train", *DEBUG, "verbosity=verbose", "validation=0.25", "test_items=2", "imputers=[]", "pretrain=0.4")
    said = capsys.readouterr()
    assert "validation: 0.25" in said.out, "the settings"
    lines = [line for line in said.err.splitlines() if line.startswith("step ")]
    assert [line.partition(":")[0] for line in lines] == ["step 0", "step 0", "step 1", "step 1"]
    assert "training: best on the held-back items after 2 of 2 steps" in said.out
    assert "bound" in lines[0] and "held back: holdout" in lines[1] and "held back: bound" in lines[3]
