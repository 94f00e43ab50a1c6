"""What is printed of a record."""

from __future__ import annotations

import pytest
import torch

from viscos.commands.report import summary
from viscos.data.vectors import Vectors
from viscos.imputers import GaussianImputer, MeanImputer, ViscosImputer
from viscos.inference import Completions
from viscos.metrics import EnergyAndSpread, Errors, Truth


def rmse(pooled, mean=None, std=None, interval=(None, None)):
    return {
        "pooled": pooled,
        "per_image_mean": mean,
        "per_image_std": std,
        "per_image_mean_interval_95": list(interval),
    }


RECORD = {
    "items": 1000,
    "rmse": {
        "mean": rmse(0.1909, 0.186, 0.0431, (0.1833, 0.1887)),
        "draw": rmse(0.2425, 0.24, 0.05, (0.237, 0.243)),
        "gaussian_draw": rmse(0.26, 0.25),
    },
    "fid": {"mean": {"value": 24.3}, "draw": {"value": None}, "real": {"value": 3.09}},
    "accuracy_complete": {"mean": {"value": 0.5}, "draw": {"value": 0.25}, "real": {"value": 0.9922}},
    "accuracy": {"value": 0.75, "classifier": "trained along, on latents"},
    "accuracy_latents": {"value": 0.5, "classifier": "on latents beside it"},
}


def test_a_table_of_completions():
    assert summary(RECORD).splitlines() == [
        "RMSE on hidden pixels, in [0, 1]; FID and accuracy by a network trained on complete images:",
        "                                   pooled       image ± std   95 % of the mean   FID of 1000   accuracy",
        "  viscos, posterior mean           0.1909   0.1860 ± 0.0431   0.1833 to 0.1887       24.3000     0.5000",
        "  viscos, one draw                 0.2425   0.2400 ± 0.0500   0.2370 to 0.2430                   0.2500",
        "  Gaussian conditional, one draw   0.2600            0.2500",
        "  the complete test images                                                            3.0900     0.9922",
        "accuracy                    0.7500, of the classifier trained along, on latents",
        "accuracy                    0.5000, of the classifier on latents beside it",
    ]


def test_without_fid():
    lines = summary({"rmse": RECORD["rmse"], "fid": {"reason": "no such network"}}).splitlines()
    assert lines[0] == "RMSE on hidden pixels, in [0, 1]:"
    assert lines[1].endswith("   image ± std   95 % of the mean") and len(lines) == 6
    assert lines[-1] == "FID                         none: no such network"


def test_with_too_few_items_for_fid():
    few = {"value": None, "reason": "3 items are too few for a covariance of 50 features"}
    lines = summary(RECORD | {"fid": {"mean": few, "draw": few, "real": few}}).splitlines()
    assert "FID" not in lines[1] and lines[1].endswith("accuracy")
    assert "FID                         none: 3 items are too few for a covariance of 50 features" in lines


def test_when_nothing_was_completed():
    """Complete data, and runs of which every solve failed."""
    assert summary({"rmse": {"mean": rmse(None), "draw": rmse(None)}}) == ""
    assert summary({"bits_per_dim": {"value": 1.25}}) == "bits per dimension          1.250"


# -------------------------------------------------------------------------------------------------------------- scores


def score(value, error, **more):
    left = {"failed_items_left_out": 0, "failed_draws_left_out": 0, "unit": "pixel values in [0, 1], Euclidean norm"}
    return {"value": value, "standard_error": error, "items": 1000, "draws": 4, **left, **more}


SCORES = {
    "energy": {"draw": score(3.1234, 0.0123), "gaussian_draw": score(3.5, 0.02)},
    "coverage": {"draw": score(0.5812, 0.0012, nominal=0.6), "gaussian_draw": score(0.61, None, nominal=0.6)},
    "spread_skill": {"draw": score(0.93, 0.002), "gaussian_draw": score(None, None)},
}


def test_a_table_of_scores():
    assert summary(SCORES).splitlines() == [
        "scores of 4 independent draws of 1000 items, on hidden pixels, ± standard error:",
        "                                   energy score   inside the 60 % interval    spread / skill",
        "  viscos, draws                 3.1234 ± 0.0123            0.5812 ± 0.0012   0.9300 ± 0.0020",
        "  Gaussian conditional, draws   3.5000 ± 0.0200                     0.6100",
    ]
    assert all(len(line) <= 100 for line in summary(SCORES).splitlines())


def test_intervals_of_other_draws_have_their_own_counts():
    others = {"draws": 19, "items": 200, "nominal": 0.9}
    record = SCORES | {"coverage": {kind: score(0.91, 0.003, **others) for kind in ("draw", "gaussian_draw")}}
    head, *rows, last = summary(record).splitlines()
    assert head.startswith("scores of 4 independent draws of 1000 items,") and len(rows) == 3
    assert last == "  the intervals are of 19 independent draws of 200 items"
    alone = summary({"coverage": record["coverage"]}).splitlines()  # of one draw there is no energy score
    assert alone[0].startswith("scores of 19 independent draws of 200 items,") and len(alone) == 4


def test_energy_scores_of_the_same_items_have_a_paired_difference():
    beside = {"kind": "draw", "value": 0.3766, "standard_error": 0.011, "items": 1000}
    energy = {"draw": score(3.1234, 0.0123), "gaussian_draw": score(3.5, 0.02, beside=beside)}
    _, head, first, second = summary({"energy": energy}).splitlines()
    assert head.split("   ")[-1] == "paired difference" and first.endswith("3.1234 ± 0.0123")
    assert second.endswith("3.5000 ± 0.0200    +0.3766 ± 0.0110")


def test_what_is_of_other_draws_or_another_level_than_the_rest_says_so():
    """Completions by another method, from a file of four draws; and a method of which all has failed."""
    mine, theirs = {"draws": 19, "items": 200, "nominal": 0.9}, {"draws": 4, "items": 16, "nominal": 0.6}
    record = {
        "labels": {"theirs_draw": "theirs, one draw"},
        "energy": {"draw": score(3.1, 0.01), "theirs_draw": score(3.1, 0.01, draws=2, items=16)},
        "coverage": {"draw": score(0.91, 0.003, **mine), "theirs_draw": score(0.62, 0.02, **theirs)},
    }
    head, _, first, second, *rest = summary(record).splitlines()
    assert head.startswith("scores of 4 independent draws of 1000 items,")
    assert first.endswith("0.9100 ± 0.0030") and second.endswith("0.6200 ± 0.0200 of 60 %")
    assert rest == [
        "  the intervals are of 19 independent draws of 200 items",
        "  theirs, draws: scores of 2 independent draws of 16 items",
        "  theirs, draws: intervals of 4 independent draws of 16 items",
    ]
    record["energy"]["draw"] = score(None, None, draws=2, items=0, failed_items_left_out=5)
    assert summary(record).startswith("scores of 2 independent draws of 16 items, on hidden")


def test_scores_say_what_they_leave_out():
    few = {"draw": score(3.0, None, failed_items_left_out=2, failed_draws_left_out=5, unit="standard deviations, norm")}
    (head, _, row) = summary({"energy": few}).splitlines()
    assert head == (
        "scores of 4 independent draws of 1000 items, without 2 failed items and 5 failed draws, on hidden entries, "
        "± standard error:"
    )
    assert row == "  viscos, draws         3.0000"
    none = {metric: {"draw": score(None, None, nominal=None)} for metric in SCORES}
    assert summary(none) == ""


# ------------------------------------------------------------------------------------------------------------ warnings


def warned(record):
    return [line for line in summary(record).splitlines() if line.startswith("warning: ")]


def compared(mean, gaussian=None, naive=None, **more):
    rows = {"mean": mean, "gaussian_mean": gaussian, "mean_imputation": naive}
    return {"draws": 32, "rmse": {kind: rmse(value) for kind, value in rows.items() if value is not None}, **more}


def test_behind_what_needs_no_flow():
    line = (
        "warning: the posterior mean (RMSE 0.2013) is behind the Gaussian's conditional mean (0.1854): train with "
        "more max_steps or epochs, or use the Gaussian"
    )
    record = compared(0.2013, 0.1854, 0.25)
    assert warned(record) == [line] and summary(record).endswith(line)
    here = line.replace("train with", "fit a posterior to each item (steps=200), train with")
    assert warned(record | {"command": "impute"}) == [here]
    fitted = record | {"command": "impute", "fit": {"steps": 50}}
    assert warned(fitted) == [line.replace("train with", "fit longer (steps=…), train with")]
    assert warned(compared(0.26, 0.27, 0.25)) == [
        "warning: the posterior mean (RMSE 0.2600) is behind mean imputation (0.2500): this model is of no use yet"
    ]
    assert len(warned(compared(0.3, 0.2, 0.25))) == 2


def test_draws_behind_the_gaussian():
    energy = {"draw": score(3.6, 0.05), "gaussian_draw": score(3.5, None)}
    assert warned(compared(0.18, 0.19, energy=energy)) == [
        "warning: draws (energy score 3.6000) are behind the Gaussian's (3.5000): train with more max_steps or "
        "epochs, or use the Gaussian"
    ]


def test_ahead_of_the_gaussian():
    """In both, and by more than chance."""
    energy = {"draw": score(3.4, 0.01), "gaussian_draw": score(3.5, 0.01)}
    said = summary(compared(0.18, 0.19, energy=energy)).splitlines()[-1]
    assert said == (
        "viscos is ahead of the Gaussian: RMSE of the mean 0.1800 against 0.1900, energy score of draws 3.4000 against "
        "3.5000"
    )
    closer = {**energy, "gaussian_draw": score(3.42, 0.05)}
    for record in (compared(0.189, 0.19, energy=energy), compared(0.18, 0.19, energy=closer), compared(0.18, 0.19)):
        assert "ahead" not in summary(record)


def test_one_item_says_nothing_of_chance():
    energy = {"draw": score(3.6, None) | {"items": 1}, "gaussian_draw": score(1.5, None) | {"items": 1}}
    assert warned(compared(0.18, 0.19, energy=energy)) == []


@pytest.mark.parametrize("draws", [1, 2, 3, 4, 8, 33])
def test_right_draws_of_a_skewed_posterior_are_no_cause_for_a_warning(draws):
    """Of an exponential law, the mean of a few draws has more error than the mean itself, which is the Gaussian's."""
    g = torch.Generator().manual_seed(0)
    y, truth = -torch.rand(draws, 4000, 30, generator=g).log(), -torch.rand(4000, 30, generator=g).log()
    assert warned(measured(y, truth)) == []
    assert len(warned(measured(1.8 * y, truth))) == (2 if draws > 2 else 0)


def measured(draws, truth):
    """The record of draws (K, N, d), half of which have scores, and of the truth's mean in the Gaussian's place."""
    test, hidden = Vectors("toy", truth, None, 0), torch.ones_like(truth).bool()
    errors, scores, known = Errors(test), EnergyAndSpread(test), Truth(truth, hidden, ~hidden)
    ones, half = torch.ones_like(truth), (len(draws) + 1) // 2
    errors.update(ViscosImputer, Completions.exact(draws, draws.mean(0)), known)
    for imputer in (GaussianImputer, MeanImputer):
        errors.add(imputer.mean.key, ones, known, None)
    scores.update(ViscosImputer, Completions.exact(draws[:half], ones), known)
    return {"draws": len(draws), **errors.record(), **scores.record()}


def test_a_refined_mean_is_taken_as_it_is():
    """It is that of all proposals: what its draws are apart by says nothing of its error."""
    record = compared(0.2013, 0.1854, spread_skill={"draw": {"value": 0.9, "draws": 2}}) | {"draws": 2}
    assert warned(record) == []
    (line,) = warned(record | {"trust": {"weighed_draws": 0, "refine": "imh"}})
    assert "(RMSE 0.2013)" in line


def test_what_may_be_chance_is_no_cause_for_a_warning():
    few = {"mean": rmse(0.21, 0.2, 0.05), "gaussian_mean": rmse(0.2, 0.19, 0.05)}
    for items, count in ((16, 0), (10_000, 1)):
        rows = {kind: row | {"items": items} for kind, row in few.items()}
        assert len(warned({"draws": 32, "rmse": rows})) == count
    assert warned(compared(0.3, 0.2, draws=8)) == []  # of 8 draws, and nobody knows their spread


def test_many_failed_solves():
    solver = {"evaluations": 9.0, "fallback": 0.0, "failed": 0.031}
    line = (
        "warning: 3.1 % of solves failed, and the numbers leave their draws out: loosen solver.tolerance or raise "
        "solver.budget"
    )
    assert warned({"solver": solver}) == [line]
    line = line.replace(" or raise", ", raise") + " or fit a posterior to each item (steps=…)"
    assert warned({"solver": solver, "command": "impute"}) == [line]


def test_draws_are_compared_item_by_item():
    """Behind the Gaussian's by three of the errors of their difference, which is smaller than either's own."""
    energy = {"draw": {"value": 3.1, "standard_error": 0.08}, "gaussian_draw": {"value": 3.0, "standard_error": 0.08}}
    assert warned({"energy": energy}) == []
    energy["gaussian_draw"]["beside"] = {"kind": "draw", "value": -0.1, "standard_error": 0.01}
    (line,) = warned({"energy": energy})
    assert line.startswith("warning: draws (energy score 3.1000) are behind the Gaussian's (3.0000)")
    energy["gaussian_draw"]["beside"]["kind"] = "dps_draw"
    assert warned({"energy": energy}) == [], "that says nothing of the flow"


def test_shares_are_solved_for():
    (line,) = warned({"solver": {"evaluations": 9.0, "fallback": 0.0, "failed": 0.5}, "imputer": {"name": "shares"}})
    assert "of solves failed" in line and "solver.budget" in line


@pytest.mark.parametrize("imputer", ["plmcmc", {"name": "plmcmc"}])
def test_what_helps_against_failures_is_the_imputers_own(imputer):
    (line,) = warned({"solver": {"evaluations": 9.0, "fallback": 0.0, "failed": 1.0}, "imputer": imputer})
    assert line == (
        "warning: 100 % of the draws of plmcmc failed, and the numbers leave them out: their chains never moved; raise "
        "imputer.steps or imputer.sigma"
    )


def test_nothing_to_warn_of():
    for record in (
        RECORD | SCORES,
        compared(0.18, 0.19, 0.25),
        compared(0.1905, 0.19),  # the same but for chance: a flow at its start is the Gaussian
        compared(0.2),
        {"energy": {"draw": score(3.6, 0.08), "gaussian_draw": score(3.5, 0.08)}},  # of few items
        {"energy": {"draw": score(3.51, 0.001), "gaussian_draw": score(3.5, 0.001)}},
        compared(None, 0.1, 0.2, energy={"draw": score(None, None), "gaussian_draw": score(3.0, 0.1)}),
        {"solver": {"evaluations": 9.0, "fallback": 0.0, "failed": 0.02}},
        {"bits_per_dim": {"value": 1.25}},
    ):
        assert warned(record) == []
