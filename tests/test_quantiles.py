"""Quantiles of draws: numpy's of the same kind, what is missing, and what intervals between them cover."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from problems import F64, normal

from viscos.core.quantiles import quantiles

SHARES = torch.tensor([0.0, 0.01, 0.05, 0.5, 0.77, 0.95, 1.0], dtype=F64)


@pytest.mark.parametrize("count", [1, 2, 19, 20, 64])
def test_numpy_has_the_same(count):
    draws = normal(count, 5, 3, seed=count)
    wanted = np.quantile(draws.numpy(), SHARES.numpy(), axis=0, method="weibull")
    torch.testing.assert_close(quantiles(draws, SHARES), torch.from_numpy(wanted))


def test_draws_that_are_not_there_do_not_count():
    draws = normal(20, 4, seed=0)
    draws[[3, 7], 1], draws[1:, 2], draws[:, 3] = np.nan, np.nan, np.nan
    found = quantiles(draws, SHARES)
    torch.testing.assert_close(found[:, :1], quantiles(draws[:, :1], SHARES))
    there = draws[~draws[:, 1].isnan(), 1]
    torch.testing.assert_close(found[:, 1], quantiles(there[:, None], SHARES)[:, 0])
    assert bool((found[:, 2] == draws[0, 2]).all()) and bool(found[:, 3].isnan().all())


@pytest.mark.parametrize(("count", "within"), [(19, 0.005), (30, 0.015), (64, 0.006), (99, 0.005)])
def test_an_interval_covers_what_it_says(count, within):
    """A further draw of the same law, in 40,000 trials; numpy's usual interval covers 0.85 of it for 30 draws."""
    draws = normal(count + 1, 40_000, seed=count)
    low, high = quantiles(draws[1:], torch.tensor([0.05, 0.95], dtype=F64))
    assert float(((low <= draws[0]) & (draws[0] <= high)).double().mean()) == pytest.approx(0.9, abs=within)


def test_what_all_draws_agree_on_stays_bit_for_bit():
    value = torch.tensor([0.1, 1e-30, 3.3333333])
    assert torch.equal(quantiles(value.expand(7, 3), SHARES.float()), value.expand(len(SHARES), 3))


def test_an_infinite_draw_is_one():
    draws = torch.tensor([1.0, 2.0, torch.inf, 0.0, 4.0])[:, None]
    assert quantiles(draws, torch.tensor([0.0, 0.5, 1.0])).flatten().tolist() == [0.0, 2.0, torch.inf]
