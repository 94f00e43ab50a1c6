"""What public implementations of imputers are known to get wrong, and those here that learn do not."""

from __future__ import annotations

import pytest
import torch
from problems import normal

from viscos.core.batch import incomplete
from viscos.data.incomplete import IncompleteData
from viscos.data.masks import RandomMask
from viscos.data.scaling import fit_scaling, standardised
from viscos.data.vectors import Vectors
from viscos.imputers import (
    ForestImputer,
    GaussianImputer,
    Imputer,
    IterativeImputer,
    MeanImputer,
    MedianImputer,
    NeighboursImputer,
)

VALUES = normal(60, 3, seed=1).float() @ torch.tensor([[1.0, 0.8, 0.0], [0.0, 0.6, 0.0], [0.0, 0.0, 0.0]])
"""Of which the last column is constant."""
OBSERVED = torch.rand(60, 3, generator=torch.Generator().manual_seed(2)) < 0.7
OBSERVED[0] = False
MADE = {
    "mean": MeanImputer,
    "median": MedianImputer,
    "gaussian": GaussianImputer,
    "knn": lambda: NeighboursImputer(5),
    "iterative": lambda: IterativeImputer(3),
    "forest": lambda: ForestImputer(rounds=2, trees=5),
}


def fitted(name: str, values: torch.Tensor = VALUES) -> Imputer:
    return MADE[name]().fit(IncompleteData(values, OBSERVED))


@pytest.mark.parametrize("name", MADE)
def test_an_item_with_everything_missing_and_a_constant_column_are_completed(name):
    """MCFlow's first filling never ends on the one, and its scaling makes NaN of the other."""
    done = fitted(name).impute(incomplete(VALUES, OBSERVED), 2, seed=3)
    assert bool(done.ok.all()) and bool(done.draws.isfinite().all()) and bool(done.mean().isfinite().all())
    assert float(done.mean()[:, 2].abs().max()) < 1e-3, "a constant is known, but for the floor of a variance"


@pytest.mark.parametrize("name", MADE)
def test_hidden_values_change_nothing(name):
    """MCFlow scales by them, and by test items."""
    garbage = torch.where(OBSERVED, VALUES, 1e4 * normal(60, 3, seed=9).float())
    wanted, found = (fitted(name, values) for values in (VALUES, garbage))
    batch, other = incomplete(VALUES, OBSERVED), incomplete(garbage, OBSERVED)
    assert torch.equal(wanted.impute(batch, 2, seed=3).draws, found.impute(other, 2, seed=3).draws)


def test_the_scaling_of_a_table_is_of_observed_training_entries():
    """By nothing else, so that the same test item is the same number whatever stands beside it."""
    garbage = torch.where(OBSERVED, VALUES, 1e4)
    scalings = [fit_scaling(Vectors("t", values, None, 0, ("a", "b", "c")), OBSERVED) for values in (VALUES, garbage)]
    items = [standardised(Vectors("t", VALUES, None, 0, ("a", "b", "c")), scaling).values for scaling in scalings]
    assert torch.equal(*items) and bool(items[0].isfinite().all())


def test_masks_of_one_rate_are_not_those_of_another():
    """MCFlow keeps masks in a file whose name does not say their rate, and takes them for any."""
    few, many = (RandomMask(rate)((50,), 40, 0, "train") for rate in (0.2, 0.8))
    assert abs(float((~few).float().mean()) - 0.2) < 0.05 < abs(float((~many).float().mean()) - 0.2)
