"""Batches of items with holes: what masks they take, and that they keep nothing that their caller may change."""

from __future__ import annotations

import re

import pytest
import torch
from problems import normal

import viscos
from viscos.core.batch import incomplete
from viscos.core.errors import InputError
from viscos.data.incomplete import IncompleteData
from viscos.flows import iresnet


def test_a_batch_is_its_own():
    values, observed = normal(3, 4, seed=1), torch.ones(3, 4, dtype=torch.bool)
    observed[:, 1] = False
    index, label = torch.arange(3), torch.tensor([1, 0, 1])
    batch = incomplete(values, observed, index, label)
    kept = [part.clone() for part in (batch.values, batch.observed, batch.index, batch.label)]
    for part in (values, index, label):
        part.zero_()
    observed.fill_(True)
    for part, before in zip((batch.values, batch.observed, batch.index, batch.label), kept, strict=True):
        torch.testing.assert_close(part, before, equal_nan=True)


def test_a_conditional_and_a_data_set_are_their_own():
    flow, y, mask = iresnet((2,), start="none"), torch.tensor([[0.5, 9.0]]), torch.tensor([[True, False]])
    held = viscos.condition(flow, y, mask, posterior="diagonal")
    data = IncompleteData(y, mask)
    mask.fill_(True)
    y.zero_()
    assert held.batch.observed.tolist() == [[True, False]] and float(held.batch.values[0, 0]) == 0.5
    assert data.observed.tolist() == [[True, False]] and float(data.values[0, 0]) == 0.5
    assert float(held.sample(1)[0, 0, 0]) == 0.5


@pytest.mark.parametrize(
    ("shape", "given", "hides"),
    [
        ((2, 3, 4, 5), (2, 3, 4, 5), 120),
        ((2, 3, 4, 5), (3, 4, 5), 120),
        ((2, 3, 4, 5), (4, 5), 120),
        ((2, 3, 4, 5), (2, 1, 4, 5), 120),
        ((2, 3, 4, 5), (1, 1, 4, 5), 120),
        ((2, 3, 4, 5), (2, 4, 5), "or (B, 1, H, W) for all channels"),
        ((2, 3, 4, 5), (4, 1), "one mask of the shape of an item"),
        ((3, 3, 4, 5), (3, 4, 5), "which may be a mask of each of 3 items, or of each of their channels"),
        ((3, 1, 4, 5), (1, 4, 5), 60),
        ((2, 4), (2, 4), 8),
        ((2, 4), (1, 4), 8),
        ((2, 4), (4,), 8),
        ((2, 4), (), "give one mask for each item, or one mask of the shape of an item"),
        ((2, 4), (2, 1), "give one mask for each item"),
        ((2, 4, 5), (5,), "give one mask for each item"),
    ],
)
def test_shapes_of_masks(shape, given, hides):
    values, observed = torch.zeros(shape), torch.zeros(given, dtype=torch.bool)
    if isinstance(hides, str):
        with pytest.raises(InputError, match=re.escape(hides)):
            incomplete(values, observed)
    else:
        assert int(incomplete(values, observed).hidden.sum()) == hides


def test_a_mask_of_each_item_hides_all_of_its_channels():
    values, mask = torch.rand(3, 3, 4, 5), torch.rand(3, 4, 5) < 0.5
    assert torch.equal(incomplete(values, mask[:, None]).observed, mask[:, None].expand(3, 3, 4, 5))
    assert torch.equal(incomplete(values, mask[None]).observed, mask.expand(3, 3, 4, 5))
