"""What is printed of a record."""

from __future__ import annotations

from viscos.commands.report import summary


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
    "accuracy": {"value": 0.75},
}


def test_a_table_of_completions():
    assert summary(RECORD).splitlines() == [
        "RMSE on hidden pixels, in [0, 1]; FID and accuracy by a network trained on complete images:",
        "                               pooled       image ± std   95 % of the mean   FID of 1000   accuracy",
        "  posterior mean               0.1909   0.1860 ± 0.0431   0.1833 to 0.1887       24.3000     0.5000",
        "  one draw                     0.2425   0.2400 ± 0.0500   0.2370 to 0.2430                   0.2500",
        "  Gaussian conditional draw    0.2600            0.2500",
        "  the test images themselves                                                      3.0900     0.9922",
        "accuracy                    0.7500, of the classifier trained along",
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
    assert lines[-2] == "FID                         none: 3 items are too few for a covariance of 50 features"


def test_when_nothing_was_completed():
    """Complete data, and runs of which every solve failed."""
    assert summary({"rmse": {"mean": rmse(None), "draw": rmse(None)}}) == ""
    assert summary({"bits_per_dim": {"value": 1.25}}) == "bits per dimension          1.250"
