"""The width of draws, corrected by held-out entries: its ratio by brute force, its steps, and what it comes to."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from problems import normal
from test_phases import PLAN, phased
from test_train import differing, run, state

from viscos.cli import main
from viscos.core.batch import incomplete
from viscos.core.solution import Solution
from viscos.data.incomplete import IncompleteData
from viscos.flows import Bijection, Flow, Whitening
from viscos.inference import Completions, Objective
from viscos.posteriors import Amortised
from viscos.roots import auto
from viscos.train import PhasedTrainer, Plan
from viscos.train.devices import OneDevice
from viscos.train.model import Model
from viscos.train.phases import Phase
from viscos.train.stages import Tempering, tempering
from viscos.train.stages.tempering import CELLS, corrected, spread_over_skill

TEMPERING = dataclasses.replace(PLAN, phases=(Phase("tempering", 3),))


@pytest.fixture(autouse=True)
def few_say_something(monkeypatch):
    monkeypatch.setattr(tempering, "CELLS", 1)


def drawn(draws, failed=()):
    """Completions (K, B, d) of which those numbered in K · B are not solved."""
    solution = Solution.exact(draws.flatten(0, 1))
    status = solution.status.clone()
    status[list(failed)] = 1
    return Completions(draws, None, dataclasses.replace(solution, status=status))


# ---------------------------------------------------------------------------------------------------------------- ratio


def test_the_ratio_by_hand():
    """Two draws 1 and 3 of a truth of 0: s² = 2, over an error of 2² less 2/2."""
    batch = incomplete(torch.zeros(1, 3), torch.tensor([[True, True, False]]))
    sparser = incomplete(torch.zeros(1, 3), torch.tensor([[False, True, False]]))
    done = drawn(torch.tensor([[[1.0, 0.0, 50.0]], [[3.0, 0.0, -90.0]]]))
    assert spread_over_skill(done, batch, sparser) == pytest.approx(math.sqrt(2 / 3))


@pytest.mark.parametrize(("width", "draws"), [(1.0, 2), (1.0, 7), (0.5, 2), (2.0, 4)])
def test_the_ratio_is_proportional_to_the_width_and_one_for_the_truths_own_law(width, draws):
    g = torch.Generator().manual_seed(0)
    truth, centre = torch.randn(4000, 5, generator=g), 3 * torch.randn(4000, 5, generator=g)
    made = centre + width * torch.randn(draws, 4000, 5, generator=g)
    batch, sparser = (incomplete(centre + truth, torch.tensor(mask)) for mask in ([True] * 5, [True, *[False] * 4]))
    ratio = spread_over_skill(drawn(made), batch, sparser)
    assert ratio == pytest.approx(width, rel=0.03)


def test_items_of_which_a_draw_failed_are_left_out():
    truth, mask = torch.zeros(2, 2), torch.tensor([True, True])
    batch, sparser = incomplete(truth, mask), incomplete(truth, torch.tensor([False, True]))
    draws = torch.tensor([[[1.0, 0.0], [math.nan, 0.0]], [[3.0, 0.0], [7.0, 0.0]]])
    assert spread_over_skill(drawn(draws, [1]), batch, sparser) == pytest.approx(math.sqrt(2 / 3))
    assert math.isnan(spread_over_skill(drawn(draws, [0, 1]), batch, sparser)), "nothing is left"
    assert math.isnan(spread_over_skill(drawn(draws, [1]), batch, batch)), "nothing was held out"


def test_items_that_are_left_with_nothing_say_nothing_of_q():
    """They are completed by the flow alone, whatever the temperature is."""
    truth, left = torch.zeros(2, 2), torch.tensor([[False, True], [False, False]])
    batch, sparser = incomplete(truth, torch.ones(2, 2, dtype=torch.bool)), incomplete(truth, left)
    draws = torch.tensor([[[1.0, 0.0], [-50.0, 9.0]], [[3.0, 0.0], [70.0, 4.0]]])
    assert spread_over_skill(drawn(draws), batch, sparser) == pytest.approx(math.sqrt(2 / 3))


def test_a_handful_of_entries_says_nothing(monkeypatch):
    monkeypatch.setattr(tempering, "CELLS", CELLS)
    truth, g = torch.zeros(1, CELLS + 1), torch.Generator().manual_seed(0)
    done = drawn(torch.tensor([[[1.0]], [[3.0]]]) + 0.1 * torch.randn(2, 1, CELLS + 1, generator=g))
    everything = incomplete(truth, torch.ones(CELLS + 1, dtype=torch.bool))
    one, two = (incomplete(truth, torch.arange(CELLS + 1) < count) for count in (1, 2))
    assert spread_over_skill(done, everything, one) > 0
    assert math.isnan(spread_over_skill(done, everything, two))


@pytest.mark.parametrize("said", [math.nan, math.inf, 0.0])
def test_a_ratio_that_says_nothing_changes_nothing(said):
    assert corrected(1.3, said, 0) == 1.3


def test_the_temperature_is_the_mean_of_what_batches_want():
    """Of a ratio that is proportional to it: half of their mean in logarithms, whatever it began with."""
    wanted, temperature = [0.9, 1.4, 1.1, 1.2], 0.7
    for k, tau in enumerate(wanted):
        temperature = corrected(temperature, temperature / tau, k)
        assert math.log(temperature) == pytest.approx(0.5 * sum(map(math.log, wanted[: k + 1])) / (k + 1))


def test_no_batch_makes_it_wild():
    assert corrected(1.0, 1e-9, 0) == 2.0 and corrected(1.0, 1e9, 0) == 0.5


# -------------------------------------------------------------------------------------------------------------- network


def network(temperature=None):
    torch.manual_seed(0)
    made = Amortised((3,), width=4, held_out=0.0, regressed=True)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.1 * torch.randn_like(p))
    if temperature is not None:
        made.set_temperature(temperature)
    return made


def test_a_temperature_widens_draws_and_is_not_taught():
    batch, flow = incomplete(normal(4, 3).float(), torch.tensor([True, False, False])), Flow([Bijection()])
    one, two = network(), network(1.7)
    assert torch.allclose(two(batch, flow).log_scale, one(batch, flow).log_scale + math.log(1.7))
    assert torch.equal(two(batch, flow).mean, one(batch, flow).mean)
    latents = normal(4, 3, seed=1).float()
    assert torch.equal(two.teach(batch, latents, flow), one.teach(batch, latents, flow))
    assert torch.allclose(one.teach(batch, latents, flow), -one(batch, flow).log_prob(latents[None]).sum())


def test_a_temperature_is_part_of_the_state_of_a_network():
    back = network(1.2)
    back.load_state_dict(network(1.7).state_dict())
    assert float(back.temperature) == pytest.approx(1.7)
    back.load_state_dict({"heads.mean.bias": torch.ones(3)}, strict=False)
    assert float(back.temperature) == pytest.approx(1.7), "a part of a state leaves the others as they are"


# ------------------------------------------------------------------------------------------------------------- training


def test_a_phase_moves_the_temperature_alone_and_reports_it():
    trainer = phased(plan=TEMPERING)
    before = state(trainer)
    reports = run(trainer)
    assert differing(before, state(trainer)) == ["posterior.temperature"]
    assert [set(report.loss) for report in reports] == [{"spread_over_skill", "temperature"}] * 3
    tau = 1.0
    for k, report in enumerate(reports):
        tau = corrected(tau, report.loss["spread_over_skill"], k)
        assert report.loss["temperature"] == pytest.approx(tau)
    assert len({int(i) for report in reports for i in report.batch.index}) == 20, "each item once"


FOUR = dataclasses.replace(PLAN, phases=(Phase("flow", 2), Phase("tempering", 5)))


def tempered(monkeypatch, ratios, saved=None):
    """A trainer, from a saved state on, after batches of such ratios of spread to skill, and its temperature."""
    left = iter(ratios)
    monkeypatch.setattr(tempering, "spread_over_skill", lambda *_: next(left))
    trainer = phased(plan=FOUR)
    if saved is not None:
        trainer.model.load_parts(saved[0])
        trainer.load_state(saved[1])
    run(trainer, len(ratios) + (2 if saved is None else 0))
    return trainer, float(trainer.model.posterior.temperature)


def test_batches_that_say_nothing_are_not_counted(monkeypatch):
    assert tempered(monkeypatch, [0.25])[1] == 2.0
    assert tempered(monkeypatch, [math.nan, 0.0, math.nan, 0.25])[1] == 2.0
    whole = tempered(monkeypatch, [math.nan, 0.5, 0.0, 0.8, 0.6])[1]
    assert whole == pytest.approx(tempered(monkeypatch, [0.5, 0.8, 0.6])[1])
    first, _ = tempered(monkeypatch, [math.nan, 0.5, 0.0])
    saved = first.result().parts(), first.state()
    assert tempered(monkeypatch, [0.8, 0.6], saved)[1] == whole, "a resumed run goes on as it would have"


def test_what_is_measured_is_what_was_held_out(monkeypatch):
    """The first ratio, from the trainer's own masks and draws."""
    trainer, seen, made = phased(plan=TEMPERING), [], Tempering._impute

    def watched(stage, batch, seed, draws):
        seen.append((batch, made(stage, batch, seed, draws)))
        return seen[-1][1]

    monkeypatch.setattr(Tempering, "_impute", watched)
    (report, *_) = run(trainer)
    sparser, done = seen[0]
    batch = trainer.data.batch(report.batch.index)
    held = batch.observed & sparser.hidden
    assert bool(held.any()) and not bool((sparser.observed & batch.hidden).any()) and len(done.draws) == 2
    first, second, truth = *done.draws[:, held].double(), batch.values[held]
    skill = ((first - truth) * (second - truth)).sum()  # of two draws: what they have in common is the mean's error
    assert report.loss["spread_over_skill"] == pytest.approx(
        float(((first - second).square().sum() / 2 / skill).sqrt())
    )


def test_items_held_back_are_measured_where_there_are_any():
    first = phased(plan=TEMPERING)
    trainer = PhasedTrainer(first.model, first.data, first.objective, TEMPERING, held_back=6)
    for report in run(trainer):
        assert set(report.batch.index.tolist()) <= set(range(14, 20))


def test_draws_are_compared_on_the_device_that_drew_them(monkeypatch):
    """The training data stay on the CPU; the draws here are on a device that no tensor of the CPU goes with."""
    trainer, compared = phased(plan=TEMPERING), []
    trainer.devices = OneDevice(torch.device("meta"))

    def drawn_there(stage, batch, seed, draws):
        solved = Solution.exact(torch.zeros(draws * len(batch)))
        return Completions(torch.zeros(draws, *batch.values.shape, device="meta"), None, solved)

    def spread(done, batch, sparser):
        compared.append({done.draws.device, *(v.device for b in (batch, sparser) for v in (b.values, b.observed))})
        return 1.0

    monkeypatch.setattr(Tempering, "_impute", drawn_there)
    monkeypatch.setattr(tempering, "spread_over_skill", spread)
    run(trainer)
    assert compared == [{torch.device("meta")}] * 3


def test_a_posterior_that_is_too_narrow_gets_half_of_its_width_back():
    """y ~ N(0, 1) in each entry, under the flow that is the identity, and q of another width."""
    values = normal(2000, 4, seed=3).float()
    for width in (0.6, 0.9, 1.5):
        model = Model(Flow([Whitening((4,))], (4,)), Amortised((4,), width=4, gaussian=False, regressed=True), None)
        with torch.no_grad():
            model.posterior.heads["log_scale"].bias.fill_(math.log(width))
        plan = Plan(1, 250, 1e-3, noise=0.0, phases=(Phase("tempering", 8),))
        observed = torch.ones(2000, 4, dtype=torch.bool)
        trainer = PhasedTrainer(model, IncompleteData(values, observed), Objective(auto()), plan)
        run(trainer)
        assert float(model.posterior.temperature) == pytest.approx(width**-0.5, rel=0.04)


class Own(Amortised):
    """A network of one's own that has no temperature."""

    tempers = False


def test_a_network_of_ones_own_is_left_as_it_is(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("experiment=debug", "threads=1", "flow.width=4", "flow.steps=2", "rounds=0", "draws=1", "imputers=[]")
    own = (
        "posterior=own",
        f"posterior._target_={__name__}.Own",
        f"allow={__name__}",
        "+posterior.width=4",
        "+posterior.held_out=0.2",
    )
    assert main(["train", *words, *own, "temper=4", "verbosity=verbose"]) == 0
    said = capsys.readouterr().out
    assert "without effect here: temper (this network has no temperature)" in said
    assert ", 5 steps" in said and "(tempering)" not in said


def test_hidden_entries_say_nothing():
    trainer = phased(plan=TEMPERING)
    other = phased(plan=TEMPERING, values=torch.where(trainer.data.observed, trainer.data.values, 1e6))
    assert [report.loss for report in run(trainer)] == [report.loss for report in run(other)]
