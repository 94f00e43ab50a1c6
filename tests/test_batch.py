"""Batches of items with holes keep nothing that their caller may change."""

from __future__ import annotations

import torch
from problems import normal

import viscos
from viscos.core.batch import incomplete
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
