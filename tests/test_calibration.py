"""Energy score, coverage, and spread over skill: brute force, closed forms, and draws of the truth's own law."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import AffineFlow, normal
from scipy.stats import chisquare

from viscos.commands.assemble.evaluation import calibrates
from viscos.core.batch import incomplete
from viscos.core.errors import InputError
from viscos.core.rng import item_noise
from viscos.core.solution import Solution, Status
from viscos.data.images import Images
from viscos.data.items import OWN, PIXELS
from viscos.data.vectors import Vectors
from viscos.imputers import GaussianImputer, ViscosImputer
from viscos.imputers.gaussian import gaussian_draws
from viscos.inference import Completions
from viscos.linear.gaussian import Gaussian
from viscos.metrics import Coverage, EnergyAndSpread
from viscos.metrics.calibration import Scores, varying
from viscos.metrics.metric import measured
from viscos.metrics.ranks import Ranks, uniformity
from viscos.metrics.ratio import Ratio
from viscos.metrics.simulated import simulated
from viscos.posteriors import Diagonal
from viscos.report.calibrated import calibration_lines, save_calibration
from viscos.roots import anderson

quick = settings(max_examples=25, deadline=None)
NAN = float("nan")


def scores(draws, truth, hidden=None, ok=None, varies=None, units=OWN):
    found = Scores(units, torch.ones(truth.shape[1:], dtype=torch.bool) if varies is None else varies)
    found.update(draws, truth, torch.ones_like(truth, dtype=torch.bool) if hidden is None else hidden, ok)
    return found


def figures(found):
    return [found.energy.value, found.coverage.value, found.spread_skill.value]


def problem(k, n=5, d=6, seed=0):
    """Draws, truth and mask; an item has at least one hole."""
    hidden = normal(n, d, seed=seed + 2) < 0.3
    hidden[:, 0] = True
    return normal(k, n, d, seed=seed), 1.5 * normal(n, d, seed=seed + 1), hidden


# ------------------------------------------------------------------------------------------------- against plain loops


def energy_by_loops(draws, truth, hidden, ok):
    each = []
    for i in range(len(truth)):
        mine = [y[i][hidden[i]] for k, y in enumerate(draws) if ok[k, i]]
        if len(mine) < 2 or not hidden[i].any():
            continue
        far = sum(float((y - truth[i][hidden[i]]).norm()) for y in mine) / len(mine)
        pairs = [float((a - b).norm()) for a, b in itertools.permutations(mine, 2)]
        each.append(far - sum(pairs) / len(pairs) / 2)
    return torch.tensor(each, dtype=torch.float64)


def spread_skill_by_loops(draws, truth, hidden, ok):
    spread, skill = [], []
    for i, j in hidden.nonzero().tolist():
        mine = torch.stack([y[i, j] for k, y in enumerate(draws) if ok[k, i]])
        if len(mine) >= 2:
            spread.append((1 + 1 / len(mine)) * float(mine.var()))
            skill.append(float((mine.mean() - truth[i, j]) ** 2))
    return math.sqrt(sum(spread) / len(spread)) / math.sqrt(sum(skill) / len(skill))


def coverage_by_loops(draws, truth, hidden, ok, varies):
    """By sorting, one entry at a time: the widest intervals in and around the central 90 %, in parts."""
    hits, wanted = [], []
    for i, j in hidden.nonzero().tolist():
        mine = sorted(float(y[i, j]) for k, y in enumerate(draws) if ok[k, i])
        k, t = len(mine), float(truth[i, j])
        if k < 2 or not varies[j]:
            continue
        inside = {m: mine[m - 1] <= t <= mine[k - m] for m in range(1, k // 2 + 1)}
        nominal = {m: (k + 1 - 2 * m) / (k + 1) for m in inside}
        outer = max((m for m in inside if nominal[m] >= 0.9 - 1e-12), default=1)
        share = (nominal[outer] - 0.9) * (k + 1) / 2 if nominal[outer] > 0.9 + 1e-12 else 0.0
        hits.append((1 - share) * inside[outer] + (share * inside[outer + 1] if share else 0))
        wanted.append(min(0.9, nominal[1]))
    return sum(hits) / len(hits), sum(wanted) / len(wanted)


@pytest.mark.parametrize("k", [2, 3, 8, 19, 25, 40])
def test_against_loops_with_failed_draws_and_holes(k):
    draws, truth, hidden = problem(k, n=7)
    truth = truth * 1.2
    hidden[3] = False
    ok = normal(k, 7, seed=9) < 0.8
    ok[:, :2] = True
    ok[1:, 2] = False  # one draw or none
    draws = torch.where(ok.unsqueeze(-1), draws, NAN)
    varies = torch.tensor([True, True, False, True, True, True])
    found = scores(draws, truth, hidden, ok, varies)
    each = energy_by_loops(draws, truth, hidden, ok)
    assert found.energy.value == pytest.approx(float(each.mean()), rel=1e-12)
    assert found.energy.standard_error == pytest.approx(float(each.std() / len(each) ** 0.5), rel=1e-9)
    assert found.spread_skill.value == pytest.approx(spread_skill_by_loops(draws, truth, hidden, ok), rel=1e-12)
    coverage, nominal = coverage_by_loops(draws, truth, hidden, ok, varies)
    assert found.coverage.value == pytest.approx(coverage, abs=1e-12)
    assert found.nominal == pytest.approx(nominal, abs=1e-12)
    few = ok.sum(0) < 2
    assert found.failed == int(few.sum()) and found.nothing_hidden == int(~few[3])
    assert found.count == 7 - found.failed - found.nothing_hidden
    counted = ~few & hidden.any(1)
    assert found.failed_draws == int((~ok[:, counted]).sum())
    record = found.records()
    json.dumps(record, allow_nan=False)
    assert record["coverage"]["entries"] == int((hidden & varies & counted[:, None]).sum())
    assert record["energy"]["items"] == found.count and record["energy"]["draws"] == k


def test_batches_add_up():
    draws, truth, hidden = problem(4, n=9)
    whole = scores(draws, truth, hidden)
    parts = Scores(OWN, torch.ones(6, dtype=torch.bool))
    for rows in torch.arange(9).split(4):
        parts.update(draws[:, rows], truth[rows], hidden[rows])
    assert parts.records() == {
        metric: {key: pytest.approx(value) if isinstance(value, float) else value for key, value in row.items()}
        for metric, row in whole.records().items()
    }


# ------------------------------------------------------------------------------------------------------- closed forms


def test_energy_score_of_gaussian_draws():
    """E |y − t| − ½ E |y − y'| = 2 φ(t) + t (2 Φ(t) − 1) − 1/√π for standard normal y, at any number of draws."""
    law = torch.distributions.Normal(0.0, 1.0)
    for t in (0.0, 1.3):
        exact = (
            2 * math.exp(float(law.log_prob(torch.tensor(t))))
            + t * (2 * float(law.cdf(torch.tensor(t))) - 1)
            - math.pi**-0.5
        )
        for k in (2, 5):
            found = scores(normal(k, 20000, 1, seed=k), torch.full((20000, 1), t, dtype=torch.float64)).energy
            assert abs(found.value - exact) < 4 * found.standard_error and found.standard_error < 0.01


@pytest.mark.parametrize("k", [2, 8, 16, 32])
def test_draws_of_the_truths_own_law(k):
    """Skewed and of another scale for each entry: nothing here is about normal distributions."""
    n, d = 3000, 4
    scale = torch.tensor([0.5, 1.0, 2.0, 4.0])
    centre = normal(n, d, seed=5)
    y, t = (centre + scale * normal(m, n, d, seed=40 + k + m).exp() for m in (k, 1))
    found = scores(y, t[0])
    level = min(0.9, (k - 1) / (k + 1))
    assert found.nominal == pytest.approx(level)
    assert abs(found.coverage.value - level) < 4 * found.coverage.standard_error < 0.04
    y, t = (centre + scale * normal(m, n, d, seed=40 + k + m) for m in (k, 1))  # a mean of squares that settles sooner
    found = scores(y, t[0])
    assert abs(found.spread_skill.value - 1) < 4 * found.spread_skill.standard_error < 0.1
    assert abs(found.coverage.value - level) < 4 * found.coverage.standard_error


@pytest.mark.parametrize(("factor", "covered"), [(0.5, "less"), (2.0, "more")])
def test_draws_that_are_too_sure_or_not_sure_enough(factor, covered):
    n, k = 2000, 19
    truth, draws = normal(n, 2, seed=1), normal(k, n, 2, seed=2)
    right, wrong = scores(draws, truth), scores(factor * draws, truth)
    assert (wrong.coverage.value < 0.7) if covered == "less" else (wrong.coverage.value > 0.97)
    # (1 + 1/K) f² over 1 + f²/K
    exact = math.sqrt((1 + 1 / k) * factor**2 / (1 + factor**2 / k))
    assert wrong.spread_skill.value == pytest.approx(exact, abs=4 * wrong.spread_skill.standard_error)
    assert wrong.energy.value > right.energy.value + 2 * right.energy.standard_error


def test_antithetic_pairs_would_be_taken_for_worse_than_they_are():
    """Why only one draw of each pair counts: the mean of a pair has no noise, and its spread is no sample variance."""
    n, truth = 4000, normal(4000, 3, seed=1)
    half = normal(8, n, 3, seed=2)
    pairs = torch.stack([half, -half], 1).flatten(0, 1)
    for drawn in (pairs, pairs[:15]):
        done = replace(Completions.exact(drawn, drawn[0]), paired=True)
        assert torch.equal(done.independent()[0], half) and done.independent()[1].shape == half.shape[:2]
    fair, biased = scores(done.independent()[0], truth).spread_skill, scores(pairs, truth).spread_skill
    assert abs(fair.value - 1) < 4 * fair.standard_error
    assert abs(biased.value - 1) > 8 * biased.standard_error


# ------------------------------------------------------------------------------------------- invariances, by hypothesis


@quick
@given(st.integers(0, 10**6), st.integers(2, 21))
def test_the_order_of_draws_and_entries_does_not_matter(seed, k):
    draws, truth, hidden = problem(k, seed=seed)
    order, entries = normal(k, seed=seed).argsort(), normal(6, seed=seed).argsort()
    wanted = pytest.approx(figures(scores(draws, truth, hidden)))
    assert figures(scores(draws[order], truth, hidden)) == wanted
    assert figures(scores(draws[..., entries], truth[:, entries], hidden[:, entries])) == wanted


@quick
@given(st.integers(0, 10**6), st.floats(0.1, 10), st.floats(-5, 5))
def test_scaling_and_shifting(seed, scale, shift):
    draws, truth, hidden = problem(6, seed=seed)
    energy, coverage, ratio = figures(scores(draws, truth, hidden))
    wanted = pytest.approx([scale * energy, coverage, ratio], rel=1e-6, abs=1e-9)
    assert figures(scores(scale * draws + shift, scale * truth + shift, hidden)) == wanted


@quick
@given(st.integers(0, 10**6))
def test_what_is_not_hidden_does_not_matter(seed):
    draws, truth, hidden = problem(5, seed=seed)
    noise = 100 * normal(5, 5, 6, seed=seed + 7)
    other = scores(torch.where(hidden, draws, noise), torch.where(hidden, truth, NAN), hidden)
    assert figures(other) == figures(scores(draws, truth, hidden))


# ------------------------------------------------------------------------------------------------- clamping and ties


def test_images_are_clamped_and_ties_are_inside():
    truth = torch.tensor([[0.0, 1.0, 0.5]])
    draws = torch.tensor([[[-3.0, 1.5, 0.4]], [[-1.0, 7.0, 0.4]]])  # clamped: 0, 0 | 1, 1 | 0.4, 0.4
    found = scores(draws, truth, units=PIXELS)
    assert found.coverage.value == pytest.approx(2 / 3) and found.nominal == pytest.approx(1 / 3)
    assert found.energy.value == pytest.approx(0.1, abs=1e-6) and found.spread_skill.value == 0
    assert "clamped" in found.records()["energy"]["drawn"]
    own = scores(draws, truth)
    assert own.coverage.value == 0 and own.energy.value > 1 and "clamped" not in own.records()["energy"]["drawn"]


def test_right_draws_that_gather_at_zero_cover_more_than_the_nominal_share():
    truth, draws = normal(1, 3000, 2, seed=1)[0].clamp(0, 1), normal(8, 3000, 2, seed=2)
    found = scores(draws, truth, units=PIXELS)
    assert found.coverage.value > found.nominal + 0.1
    # Zeros tie: an interval from 0 covers half of all truths at its lower end.
    assert abs(found.spread_skill.value - 1) < 4 * found.spread_skill.standard_error


def test_entries_that_vary():
    values = torch.zeros(300, 1, 2, 3)
    values[:, 0, 0, 0] = torch.linspace(0, 1, 300)
    values[0, 0, 1, 1] = 0.1  # 0.006 of standard deviation
    values[:3, 0, 1, 2] = 0.9
    assert varying(Images("x", values, None, 0)).tolist() == [[[True, False, False], [False, False, True]]]
    assert bool(varying(Images("x", values[:1], None, 0)).all())  # nobody can tell
    holes = torch.tensor([[1.0, NAN, 5.0], [1.0, 2.0, NAN], [1.0, NAN, 5.1]])
    assert varying(Vectors("v", holes, None, 0)).tolist() == [False, True, True]
    many = 3 + normal(9000, 2, seed=3) * torch.tensor([0.0098, 0.0103])
    assert varying(Vectors("many", many, None, 0)).tolist() == [False, True]


def test_nothing_to_tell():
    truth = normal(3, 4)
    nothing = scores(normal(4, 3, 4, seed=1), truth, torch.zeros(3, 4, dtype=torch.bool))
    assert nothing.nothing_hidden == 3 and nothing.count == 0
    failed = scores(torch.full((4, 3, 4), NAN), truth, ok=torch.zeros(4, 3, dtype=torch.bool))
    assert failed.failed == 3 and failed.failed_draws == 0
    constant = scores(normal(4, 3, 4, seed=1), truth, varies=torch.zeros(4, dtype=torch.bool))
    for found in (nothing, failed, constant, Scores(OWN, torch.ones(4, dtype=torch.bool))):
        record = found.records()
        json.dumps(record, allow_nan=False)
        assert record["coverage"]["value"] is record["coverage"]["nominal"] is None
    assert constant.energy.value > 0 and nothing.records()["energy"]["value"] is None
    assert scores(truth.expand(2, 3, 4), truth).records()["spread_skill"]["value"] is None  # no error at all
    one = scores(normal(4, 1, 4, seed=1), truth[:1]).records()
    assert one["energy"]["value"] is not None and one["energy"]["standard_error"] is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"draws": normal(3, 5, 7)}, "the same shape"),
        ({"ok": torch.ones(3, 4, dtype=torch.bool)}, r"one bool for each draw, \(3, 5\)"),
        ({"ok": torch.ones(3, 5)}, "one bool for each draw"),
        ({"draws": torch.full((3, 5, 6), NAN)}, "mark failed draws as not ok"),
        ({"truth": torch.full((5, 6), NAN)}, "not finite"),
        ({"units": PIXELS}, "it first"),
    ],
)
def test_refused(change, says):
    draws, truth, hidden = problem(3)
    with pytest.raises(InputError, match=says):
        scores(**({"draws": draws, "truth": truth * 10, "hidden": hidden} | change))


# ---------------------------------------------------------------------------------------- the Gaussian, and the tally


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5, 1.0])
def test_draws_of_the_gaussian_are_those_of_a_batch(rate):
    mixing = normal(12, 12, seed=1)
    gaussian = Gaussian(normal(12), mixing @ mixing.T)
    values, index = normal(5, 3, 4, seed=2), torch.tensor([7, 3, 4, 0, 9])
    observed = normal(5, 3, 4, seed=3).sigmoid() >= rate
    batch = incomplete(values, observed, index)
    for draws in (1, 2, 40):  # by the batch, and item by item
        noise = item_noise(4, index, draws, (3, 4), values)
        wanted = torch.stack([gaussian.conditional_sample(values, observed, each) for each in noise])
        torch.testing.assert_close(gaussian_draws(gaussian, batch, 4, draws), wanted)


def test_the_gaussian_is_calibrated_on_its_own_draws():
    d, n = 6, 1500
    mixing = normal(d, d, seed=1)
    gaussian = Gaussian(normal(d), mixing @ mixing.T)
    values, observed = normal(n, d, seed=2) @ mixing.T + gaussian.mean, normal(n, d, seed=3) > 0
    test = Vectors("v", values, None, 0)
    metrics, imputer = (EnergyAndSpread(test), Coverage(test)), GaussianImputer(gaussian)
    for part in torch.arange(n).split(400):
        done = imputer.impute(incomplete(values[part], observed[part], part), 20, seed=0)
        for metric in metrics:
            metric.update(imputer, done, measured(test, part, observed[part]))
    record = metrics[0].record() | metrics[1].record()
    coverage, ratio = record["coverage"]["gaussian_draw"], record["spread_skill"]["gaussian_draw"]
    assert abs(coverage["value"] - 0.9) < 4 * coverage["standard_error"] < 0.03 and coverage["nominal"] == 0.9
    assert abs(ratio["value"] - 1) < 4 * ratio["standard_error"] < 0.1
    assert record["energy"]["gaussian_draw"]["items"] == n - record["energy"]["gaussian_draw"][
        "items_with_nothing_hidden_left_out"
    ]  # fmt: skip


def test_draws_that_failed_among_pairs_are_left_out():
    values, hidden = normal(6, 4, seed=1), torch.ones(6, 4, dtype=torch.bool)
    ok = torch.ones(8, 6, dtype=torch.bool)
    ok[0, 0] = ok[3, 1] = ok[6, 2] = False  # the second of its pair does not count
    ok[:3, 3] = False  # two are left of four that count
    draws = torch.where(ok.unsqueeze(-1), normal(8, 6, 4, seed=2), NAN)
    status = torch.where(ok, int(Status.CONVERGED), int(Status.STALLED)).flatten()
    done = Completions(draws, draws, Solution(draws.flatten(0, 1), status, *torch.zeros(2, 48)), paired=True)
    test = Vectors("v", values, None, 0)
    metric = EnergyAndSpread(test)
    metric.update(ViscosImputer, done, measured(test, torch.arange(6), ~hidden))
    row = metric.record()["energy"]["draw"]
    assert row["failed_draws_left_out"] == 4 and row["failed_items_left_out"] == 0 and row["draws"] == 4
    each = energy_by_loops(draws[::2], values, hidden, ok[::2])
    assert row["value"] == pytest.approx(float(each.mean()))


def test_energy_scores_are_compared_item_by_item():
    """Over the items that both methods have, in batches of which each leaves out others."""
    n = 40
    values, hidden = normal(n, 4, seed=1), torch.rand(n, 4, generator=torch.Generator().manual_seed(3)) < 0.6
    test, metric, each = Vectors("v", values, None, 0), EnergyAndSpread(Vectors("v", values, None, 0)), []
    for k, kind in enumerate((ViscosImputer, GaussianImputer)):
        ok = torch.rand(5, n, generator=torch.Generator().manual_seed(k)) < 0.5
        draws = torch.where(ok.unsqueeze(-1), (1 + k) * normal(5, n, 4, seed=4 + k), NAN)
        status = torch.where(ok, int(Status.CONVERGED), int(Status.STALLED))
        for rows in torch.arange(n).split(16):
            some, verdict = draws[:, rows], status[:, rows].flatten()
            solution = Solution(some.flatten(0, 1), verdict, *torch.zeros(2, len(verdict)))
            metric.update(kind, Completions(some, None, solution), measured(test, rows, ~hidden[rows]))
        left = (ok.sum(0) >= 2) & hidden.any(1)
        alone = [energy_by_loops(draws[:, [i]], values[[i]], hidden[[i]], ok[:, [i]]) for i in range(n)]
        each.append(torch.where(left, torch.cat([e if len(e) else torch.full((1,), NAN) for e in alone]).double(), NAN))
    apart = (each[1] - each[0])[(each[1] - each[0]).isfinite()]
    beside = metric.record()["energy"]["gaussian_draw"]["beside"]
    assert beside["kind"] == "draw" and beside["items"] == len(apart) < n
    assert beside["value"] == pytest.approx(float(apart.mean()), rel=1e-6)
    assert beside["standard_error"] == pytest.approx(float(apart.std() / len(apart) ** 0.5), rel=1e-6)
    assert "beside" not in metric.record()["energy"]["draw"]


def test_one_draw_alone_has_no_scores():
    test, draws = Vectors("v", normal(3, 2), None, 0), normal(1, 3, 2)
    metric = EnergyAndSpread(test)
    metric.update(ViscosImputer, Completions.exact(draws, draws[0]), measured(test, torch.arange(3), draws[0] > 9))
    assert metric.record() == {}


# ------------------------------------------------------------------------------------------------ ranks, and simulation


def ranked(draws, truth, hidden=None, **how):
    found = Ranks(how.get("varies", torch.ones(truth.shape[1:], dtype=torch.bool)), how.get("clamped", False))
    hidden = torch.ones_like(truth, dtype=torch.bool) if hidden is None else hidden
    found.update(draws, truth, hidden, how.get("ok", torch.ones(draws.shape[:2], dtype=torch.bool)))
    return found


def test_ranks_coverage_and_crps_by_loops():
    draws, truth = normal(39, 7, 3, seed=1), normal(7, 3, seed=2)
    hidden = normal(7, 3, seed=3) > -0.5
    hidden[2] = False
    found = ranked(draws, truth, hidden)
    record, counts, hits, crps = found.record(), [0.0] * 40, dict.fromkeys((10, 2, 1), 0), []
    for item, entry in hidden.nonzero().tolist():
        y, t = sorted(draws[:, item, entry].tolist()), float(truth[item, entry])
        counts[sum(value < t for value in y)] += 1
        for order in hits:
            hits[order] += y[order - 1] <= t <= y[-order]
        pairs = sum(abs(a - b) for a in y for b in y) / (39 * 38)
        crps.append(sum(abs(a - t) for a in y) / 39 - pairs / 2)
    assert record["ranks"] == counts and record["entries"] == len(crps) and record["items"] == 6
    assert record["crps"]["value"] == pytest.approx(sum(crps) / len(crps))
    for percent, order in ((50, 10), (90, 2), (95, 1)):
        assert record[f"coverage_{percent}"]["value"] == pytest.approx(hits[order] / len(crps))
        assert record[f"coverage_{percent}"]["nominal"] == pytest.approx(percent / 100)
    assert float(found.one.sum()) == 6


def test_ties_share_ranks_and_failed_items_are_left_out():
    draws = torch.tensor([0.0, 0.0, 1.0, -1.0]).view(4, 1, 1).expand(4, 3, 1)
    ok = torch.ones(4, 3, dtype=torch.bool)
    ok[1, 2] = False
    found = ranked(draws, torch.tensor([[0.0], [0.5], [0.0]]), ok=ok)
    assert found.counts.tolist() == pytest.approx([0, 1 / 3, 1 / 3, 4 / 3, 0]) and found.failed == 1
    clamped = ranked(2 * draws, torch.tensor([[1.0], [1.0], [1.0]]), clamped=True)
    assert clamped.counts.tolist() == pytest.approx([0, 0, 0, 1.5, 1.5])
    json.dumps(found.record(), allow_nan=False)
    json.dumps(Ranks(torch.ones(1, dtype=torch.bool), False).record(), allow_nan=False)


def test_which_entry_of_an_item_is_tested_does_not_depend_on_what_failed_before_it():
    draws, truth = normal(9, 30, 20, seed=1), normal(30, 20, seed=2)
    ok = torch.ones(9, 30, dtype=torch.bool)
    ok[0, 0] = False
    whole, without, first = ranked(draws, truth), ranked(draws, truth, ok=ok), ranked(draws[:, :1], truth[:1])
    assert torch.equal(without.one + first.one, whole.one)
    halves = ranked(draws[:, :9], truth[:9])
    halves.update(draws[:, 9:], truth[9:], torch.ones(21, 20, dtype=torch.bool), ok[:, 9:])
    assert torch.equal(halves.one, whole.one), "nor on the batches"


def test_the_test_of_ranks_against_scipy():
    counts = torch.tensor([3.0, 5, 9, 2, 8, 7, 6, 10, 12, 11, 9, 4] * 3)  # 36 ranks in nine bins of four
    statistic, p_value, bins = uniformity(counts)
    wanted = chisquare(counts.view(9, 4).sum(1).numpy())
    assert bins == 9 and statistic == pytest.approx(wanted.statistic) and p_value == pytest.approx(wanted.pvalue)
    assert uniformity(torch.ones(40))[:2] == (None, None)


def test_the_flow_itself_is_calibrated_on_its_own_samples_and_a_wrong_posterior_is_not():
    """The flow is affine, so that the exact conditional of its samples is that of a Gaussian."""
    flow, n = AffineFlow(4), 300
    observed = normal(n, 4, seed=3) > 0
    exact = GaussianImputer(flow.gaussian())
    right = simulated(flow, exact, observed, 0, 400)
    assert right["chi_square"]["p_value"] > 1e-3 and right["samples_not_solved"] == 0
    for percent in (50, 90, 95):
        figure = right[f"coverage_{percent}"]
        assert abs(figure["value"] - percent / 100) < 4 * figure["standard_error"] < 0.12
    narrow = GaussianImputer(Gaussian(flow.gaussian().mean, 0.25 * flow.gaussian().covariance))
    wrong = simulated(flow, narrow, observed, 0, 400)
    assert wrong["chi_square"]["p_value"] < 1e-6 and wrong["coverage_90"]["value"] < 0.75
    assert wrong["crps"]["value"] > right["crps"]["value"]
    assert wrong["ranks"][0] + wrong["ranks"][-1] > 3 * (right["ranks"][0] + right["ranks"][-1])
    record = {"simulated": right, "calibration": {"draw": wrong}, "labels": {"draw": "viscos, one draw"}}
    lines = calibration_lines(record)
    assert len(lines) == 3 and lines[1].startswith("  viscos: ") and "own samples" in lines[2]
    assert "% in the central 50, 90, 95 %; CRPS" in lines[1]
    few = {f"coverage_{percent}": wrong[f"coverage_{percent}"] | {"nominal": 0.6} for percent in (90, 95)}
    assert "% in the central 50, 60, 60 %; CRPS" in calibration_lines({"simulated": wrong | few})[1]
    assert calibration_lines({}) == []


def test_the_error_of_a_ratio_is_by_the_items_that_count():
    """Items without an entry that counts are no evidence: of one that has some, nothing is known of chance."""
    alone = Ratio.of(torch.tensor([1.0, 0, 0]), torch.tensor([2.0, 0, 0]))
    assert alone.value == 0.5 and math.isnan(alone.standard_error)
    a, b = torch.tensor([1.0, 3, 2, 0]), torch.tensor([2.0, 4, 5, 0])
    assert Ratio.of(a, b) == Ratio.of(a[:3], b[:3])


def test_draws_of_a_sample_have_other_noise_than_it(monkeypatch):
    """Where all is hidden, q is the flow itself: by the same noise, the first draw would be the sample."""
    flow, seen = AffineFlow(2), []
    monkeypatch.setattr(Ranks, "update", lambda self, draws, truth, hidden, ok: seen.append((draws, truth)))
    simulated(flow, ViscosImputer(flow, Diagonal(torch.zeros(5, 2)), anderson()), torch.zeros(5, 2).bool(), 0, 40)
    ((draws, truth),) = seen
    assert draws.shape == (39, 5, 2) and (draws - truth).abs().amax(2).min() > 1e-4


def test_calibration_is_measured_where_it_is_cheap_or_asked_for():
    assert calibrates(None, 100) and not calibrates(None, 101)
    assert calibrates(True, 784) and not calibrates(False, 2)


def test_the_picture_of_calibration(tmp_path):
    found = ranked(normal(39, 60, 3, seed=1), normal(60, 3, seed=2)).record()
    picture = save_calibration(tmp_path / "calibration.png", {"simulated": found, "calibration": {"draw": found}})
    assert picture.shape[0] == 3 and 0 <= picture.min() < picture.max() <= 1
    assert (tmp_path / "calibration.png").stat().st_size > 5000
    assert save_calibration(tmp_path / "no.png", {"calibration": {"draw": {"items": 0}}}) is None
    assert not (tmp_path / "no.png").exists()
