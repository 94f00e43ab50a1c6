"""What is measured and how tables call it: of the metrics and imputers of this package, without what computes them.

Apart from these, so that tables are printed without torch, which takes seconds to import.
"""

from __future__ import annotations

from dataclasses import dataclass

TRUTH = "real"
"""The kind that is no completion: the complete test images, whose numbers are the best to hope for."""


@dataclass(frozen=True)
class Kind:
    """One way of reading a completion of an item off what an imputer gives: its mean, or a draw."""

    key: str
    """In records."""
    label: str
    """For readers."""


@dataclass(frozen=True)
class Measure:
    """One number that a metric has of each kind of completion, and how a table shows it."""

    key: str
    """Of the metric in a record."""
    title: str
    better: str
    """In words: higher, lower, nearer to 1."""
    decimals: int
    value: str = "value"
    """Of the number, in the metric's record of a kind."""
    of: str = "points"
    """What has one: `points`, each kind of completion; `draws`, all draws of an item together; `model`, the whole."""
    of_truth: bool = False
    """Whether the complete items have one too."""
    note: str = ""


MEAN = Kind("mean", "viscos, posterior mean")
DRAW = Kind("draw", "viscos, one draw")
UNFITTED_DRAW = Kind("first_iteration_draw", "viscos, one draw before fitting")
PREDICTION = Kind("prediction", "viscos, its network's own prediction")
GAUSSIAN_MEAN = Kind("gaussian_mean", "Gaussian conditional, mean")
GAUSSIAN_DRAW = Kind("gaussian_draw", "Gaussian conditional, one draw")
MEAN_IMPUTATION = Kind("mean_imputation", "mean imputation")
OF_FLOW = (MEAN, DRAW, UNFITTED_DRAW, PREDICTION)
"""Those whose numbers are of the flow that is measured."""
KINDS = (*OF_FLOW, GAUSSIAN_MEAN, GAUSSIAN_DRAW, MEAN_IMPUTATION)
"""Those that every run is measured beside, in the order in which tables show them."""

ACCURACY = Measure(
    "accuracy",
    "Top-1 accuracy of a classifier that was trained along, on incomplete images",
    "higher",
    4,
    of="model",
)
ACCURACY_COMPLETE = Measure(
    "accuracy_complete",
    "Top-1 accuracy of a classifier that was trained on complete images, on the completions",
    "higher",
    4,
    of_truth=True,
)
FID = Measure(
    "fid",
    "FID of the completions",
    "lower",
    3,
    of_truth=True,
    note="The paper's extractor was never published, so its FIDs and ours are distances between other "
    "features; the last row is the least that can be expected here.",
)
RMSE = Measure("rmse", "RMSE on hidden pixels, in [0, 1], pooled", "lower", 4, value="pooled")
ENERGY = Measure(
    "energy",
    "Energy score of independent draws, over an item's hidden pixels at once",
    "lower",
    4,
    of="draws",
)
SPREAD_SKILL = Measure(
    "spread_skill",
    "Spread of independent draws over the error of their mean",
    "nearer to 1",
    3,
    of="draws",
)
COVERAGE = Measure(
    "coverage",
    "Coverage: share of hidden pixels, of those that vary, in the central {percent} % interval of draws",
    "nearer to {nominal}",
    3,
    of="draws",
    note="Ends count as inside, so that right draws of pixels that are often exactly 0 cover more.",
)
MEASURES = (ACCURACY, ACCURACY_COMPLETE, FID, RMSE, ENERGY, SPREAD_SKILL, COVERAGE)
"""What there are tables of, in their order."""
