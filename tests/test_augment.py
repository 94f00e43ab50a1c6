"""Images moved about: their masks move along, and nothing is invented."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from test_train import PLAN, fresh, pictures, run

from viscos.core.batch import incomplete
from viscos.core.rng import generator
from viscos.data.augment import augment


def batch(n=400, shape=(2, 9, 17), share=0.6):
    """Images whose entries are all different, so that one can see where each went."""
    values = torch.arange(n * torch.Size(shape).numel(), dtype=torch.float64).view(n, *shape)
    observed = torch.rand(values.shape, generator=generator(1, "o")) < share
    return incomplete(values, observed, label=torch.arange(n)), values


def test_flips():
    given, values = batch()
    seen = augment(given, ["flip"], generator(0))
    same = (seen.observed == given.observed).flatten(1).all(1)
    assert 0.4 < float(same.double().mean()) < 0.6
    for item in range(20):
        turned = slice(None) if same[item] else torch.arange(16, -1, -1)
        assert torch.equal(seen.observed[item], given.observed[item][..., turned])
        known = seen.observed[item]
        assert torch.equal(seen.values[item][known], values[item][..., turned][known])
    assert torch.equal(seen.values.isnan(), seen.hidden)
    assert torch.equal(seen.label, given.label) and torch.equal(seen.index, given.index)


@pytest.mark.parametrize("holes", [True, False])
def test_shifts(holes):
    given, values = batch(share=0.6 if holes else 1.1)
    seen = augment(given, ["shift"], generator(0), holes=holes)
    found = set()
    for item in range(len(given)):
        fits = [move for move in MOVES if moved_by(move, seen, given, values, item, holes)]
        assert len(fits) == 1, f"item {item} is not the image moved by one of {MOVES}"
        found.add(fits[0])
    assert found == set(MOVES), "by an eighth of the side at most: 9 rows one, 17 columns two"
    assert torch.equal(seen.values.isnan(), seen.hidden) and torch.equal(seen.label, given.label)
    assert holes or bool(seen.observed.all())


MOVES = [(down, right) for down in (-1, 0, 1) for right in (-2, -1, 0, 1, 2)]


def moved_by(move, seen, given, values, item, holes) -> bool:
    """Whether entry (i, j) of an item is entry (i + a, j + b) of the image; its border is hidden, or repeated."""
    rows, columns = torch.arange(9) + move[0], torch.arange(17) + move[1]
    r, c = rows.clamp(0, 8), columns.clamp(0, 16)
    inside = (r == rows)[:, None] & (c == columns)
    known = given.observed[item][:, r][:, :, c]
    known = known & inside if holes else known
    if not torch.equal(known, seen.observed[item]):
        return False
    return torch.equal(values[item][:, r][:, :, c][known], seen.values[item][known])


def test_the_numbers_are_keyed():
    given, _ = batch(20)
    a, b, c = (augment(given, ["flip", "shift"], generator(seed)).observed for seen, seed in enumerate((3, 3, 4)))
    assert torch.equal(a, b) and not torch.equal(a, c)
    assert augment(given, [], generator(0)) is given


@pytest.mark.parametrize("kind", ["flip", "shift"])
def test_training_sees_moved_images(kind):
    values, observed, labels = pictures()
    plan = dataclasses.replace(PLAN, augment=(kind,), noise=0.0, batch_size=20)
    trainer = fresh(values, observed, labels, plan=plan)
    first, second = run(trainer)
    given = trainer.data.batch(first.batch.index)
    assert not torch.equal(first.batch.observed, given.observed) and torch.equal(first.batch.label, given.label)
    order = torch.argsort(first.batch.index), torch.argsort(second.batch.index)
    assert not torch.equal(first.batch.observed[order[0]], second.batch.observed[order[1]]), "each epoch anew"
    again = run(fresh(values, observed, labels, plan=plan), 1)[0]
    assert torch.equal(again.batch.observed, first.batch.observed)


def test_complete_images_stay_complete():
    values, _, labels = pictures()
    observed = torch.ones_like(values, dtype=torch.bool)
    plan = dataclasses.replace(PLAN, augment=("shift",), noise=0.0, batch_size=20)
    (report, _) = run(fresh(values, observed, labels, plan=plan, incomplete=False))
    assert bool(report.batch.observed.all()) and bool(report.batch.values.isfinite().all())
    assert set(report.batch.values.flatten().tolist()) <= set(values.flatten().tolist())
