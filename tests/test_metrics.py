"""RMSE and accuracy."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from viscos.core.errors import InputError
from viscos.data.vectors import Vectors
from viscos.metrics import Errors, Truth
from viscos.metrics.accuracy import Accuracy
from viscos.metrics.rmse import RMSE, Summary

quick = settings(max_examples=40, deadline=None)
NAN = float("nan")


def rmse(*batch, **more):
    metric = RMSE()
    metric.update(*batch, **more)
    return metric


def test_known_answer():
    truth = torch.tensor([[0.0, 0.0, 0.5], [1.0, 1.0, 1.0]])
    completed = torch.tensor([[0.3, 0.4, 0.9], [0.5, 7.0, -7.0]])
    hidden = torch.tensor([[True, True, False], [True, True, True]])
    metric = rmse(completed, truth, hidden)
    # Squares 0.09, 0.16 | 0.25, 0 (clamped to 1), 1 (clamped to 0).
    one, two = math.sqrt(0.125), math.sqrt(1.25 / 3)
    assert metric.pooled == pytest.approx(math.sqrt(1.5 / 5))
    mean, std = (one + two) / 2, abs(one - two) / math.sqrt(2)
    image = metric.per_image
    assert (image.mean, image.std) == pytest.approx((mean, std))
    half = 1.96 * std / math.sqrt(2)
    assert (image.low, image.high) == pytest.approx((mean - half, mean + half), rel=1e-3)
    assert (metric.count, metric.entries, metric.failed) == (2, 5, 0)


def batches(n=12, d=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    truth, completed = torch.rand((2, n, d), generator=generator)
    hidden = torch.rand((n, d), generator=generator) < 0.6
    return completed * 1.4 - 0.2, truth, hidden, torch.rand(n, generator=generator) < 0.7


@quick
@given(st.integers(0, 10**6), st.integers(1, 12))
def test_batches_and_order_do_not_matter(seed, size):
    completed, truth, hidden, ok = batches(seed=seed)
    whole = rmse(completed, truth, hidden, ok)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(seed))
    parts = RMSE()
    for rows in order.split(size):
        parts.update(completed[rows], truth[rows], hidden[rows], ok[rows])
    assert parts.pooled == pytest.approx(whole.pooled, nan_ok=True)
    assert parts.per_image.mean == pytest.approx(whole.per_image.mean, nan_ok=True)
    assert (parts.count, parts.entries, parts.failed) == (whole.count, whole.entries, whole.failed)
    assert whole.count + whole.failed + whole.nothing_hidden == 12


@quick
@given(st.integers(0, 10**6))
def test_only_hidden_entries_of_good_items_matter(seed):
    completed, truth, hidden, ok = batches(seed=seed)
    counted = hidden & ok[:, None]
    garbage = rmse(torch.where(counted, completed, NAN), torch.where(hidden, truth, NAN), hidden, ok)
    assert garbage.record() == rmse(completed, truth, hidden, ok).record()


@quick
@given(st.integers(0, 10**6))
def test_bounds(seed):
    completed, truth, hidden, _ = batches(seed=seed)
    metric = rmse(completed, truth, hidden)
    assert 0 <= metric.pooled <= 1
    assert rmse(truth, truth, hidden).pooled == 0
    # Images with equally many hidden entries: the mean of roots is never above the root of the mean.
    equal = rmse(completed, truth, torch.ones_like(hidden))
    assert equal.per_image.mean <= equal.pooled + 1e-12


def test_failed_items_are_left_out_and_counted():
    completed, truth = torch.full((3, 4), NAN), torch.full((3, 4), 0.5)
    completed[1] = 0.75
    hidden = torch.ones(3, 4, dtype=torch.bool)
    metric = rmse(completed, truth, hidden, torch.tensor([False, True, False]))
    assert metric.pooled == 0.25 and metric.failed == 2 and metric.count == 1
    record = json.loads(json.dumps(metric.record(), allow_nan=False))
    assert record["pooled"] == 0.25 and record["failed_items_left_out"] == 2 and record["items"] == 1
    assert record["per_image_std"] is None and "[0, 1]" in record["unit"] and "hidden" in record["over"]


def test_the_interval_of_an_error_does_not_begin_below_0():
    """Of 0.1 and 1: 0.55 ∓ 1.96 · 0.636 / √2, which is −0.33 to 1.43."""
    completed = torch.tensor([[0.1], [1.0]])
    low, high = rmse(completed, torch.zeros(2, 1), torch.ones(2, 1, dtype=torch.bool)).record()[
        "per_image_mean_interval_95"
    ]
    assert low == 0 and high == pytest.approx(0.55 + 1.959964 * 0.45)


def test_nothing_to_count():
    assert math.isnan(RMSE().pooled) and math.isnan(RMSE().per_image.mean)
    assert json.loads(json.dumps(RMSE().record(), allow_nan=False))["pooled"] is None
    metric = rmse(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool))
    assert metric.nothing_hidden == 2 and metric.count == 0 and math.isnan(metric.pooled)
    assert Summary.of(torch.tensor([0.5])).mean == 0.5


def test_a_bar_shows_no_error_while_there_is_none():
    zeros, hidden = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    errors = Errors(Vectors("x", zeros, None, 0))
    assert errors.so_far("mean") == {}
    errors.add("mean", zeros, Truth(zeros, ~hidden, hidden), None)
    assert errors.so_far("mean") == {}
    errors.add("mean", zeros + 1, Truth(zeros, hidden, ~hidden), None)
    assert errors.so_far("mean") == {"rmse": 1}


def test_rmse_refusals():
    zeros, hidden = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(InputError, match=r"completion 1 .* not finite"):
        rmse(torch.tensor([[0.0] * 3, [NAN] * 3]), zeros, hidden)
    with pytest.raises(InputError, match="shapes"):
        rmse(zeros, zeros[:1], hidden)
    with pytest.raises(InputError, match="must be bool"):
        rmse(zeros, zeros, hidden.float())
    with pytest.raises(InputError, match="255"):
        rmse(zeros, zeros + 255, hidden)
    with pytest.raises(InputError, match="one bool"):
        rmse(zeros, zeros, hidden, torch.ones(2))


def test_accuracy():
    metric = Accuracy()
    metric.update(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 0, 4]), torch.tensor([True, True, True, False]))
    metric.update(
        torch.tensor([[0.1, 0.9], [0.8, 0.2], [NAN, NAN]]), torch.tensor([1, 1, 0]), torch.tensor([True, True, False])
    )
    assert (metric.correct, metric.count, metric.failed, metric.value) == (3, 5, 2, 0.6)
    assert metric.interval == pytest.approx((0.2307, 0.8824), abs=1e-4)
    assert json.loads(json.dumps(metric.record(), allow_nan=False))["value"] == 0.6


def test_accuracy_at_the_ends_and_without_items():
    metric = Accuracy(correct=10, count=10)
    assert metric.interval[1] == 1 and 0.7 < metric.interval[0] < 0.75
    assert math.isnan(Accuracy().value) and Accuracy().record()["interval_95"] == [None, None]


def test_accuracy_refusals():
    labels = torch.tensor([0, 1])
    for predicted in (torch.tensor([0.0, 1.0]), torch.tensor([0]), torch.zeros(2, 2, 2)):
        with pytest.raises(InputError, match="classes"):
            Accuracy().update(predicted, labels)
    with pytest.raises(InputError, match="NaN"):
        Accuracy().update(torch.full((2, 3), NAN), labels)
