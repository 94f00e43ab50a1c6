"""A mean that imputers share, and the spread of draws, by cells held out: known weights, known widths, no leak."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from problems import normal

from viscos.commands.assemble import floor, rows
from viscos.commands.assemble.plan import started
from viscos.commands.assemble.rows import completing
from viscos.core.batch import incomplete
from viscos.core.choices import description
from viscos.core.rng import generator
from viscos.core.solution import Status
from viscos.data.incomplete import IncompleteData
from viscos.flows.layers.whitening import Whitening
from viscos.imputers import Cost, Imputer, NeighboursImputer
from viscos.imputers.stacked import HeldOut, StackedImputer, _enough, cells_of, folds
from viscos.inference import Completions
from viscos.runs import checkpoint

NAN = float("nan")
RNG = np.random.default_rng(0)
VALUES = torch.from_numpy(RNG.normal(size=(40, 3)) @ [[1, 0.9, 0.2], [0, 0.3, 1], [0.3, 0, 0]]).float()
DATA = IncompleteData(VALUES, torch.from_numpy(RNG.random((40, 3)) < 0.7))


class Constant(Imputer):
    """Completes by a number; its draws are that number and normal noise."""

    def __init__(self, number: float) -> None:
        self.number = number

    def impute(self, batch, draws=1, seed=0, purpose="item"):
        noise = torch.randn((draws, *batch.values.shape), generator=generator(seed, purpose))
        return Completions.exact(batch.filled(self.number + noise), self.best_mean(batch, draws).mean())

    def best_mean(self, batch, draws, seed=0):
        filled = batch.filled(torch.full_like(batch.values, self.number))
        return Completions.exact(filled[None], filled)


def held_out(truth, means, draws, counts=None, entry=None):
    """Cells of numbers, of one column unless it is said."""
    counts = torch.ones(len(truth)) if counts is None else counts
    entry = torch.zeros(len(truth), dtype=torch.int64) if entry is None else entry
    groups = torch.arange(int(entry.max()) + 1 if len(entry) else 1)
    return HeldOut(truth, means, draws, counts, torch.ones(len(truth), dtype=torch.bool), entry, groups)


class Parts:
    """Imputers by name."""

    def imputer(self, spec):
        name = spec["_target_"].rpartition(".")[2].removesuffix("Imputer").lower()
        name = {"neighbours": "knn", "viscos": 0}.get(name, name)
        return Constant(name)


def test_a_table_begins_as_its_gaussian_unless_it_is_said():
    unsaid = description("flow", "continuous")
    for table, start in ((True, "gaussian"), (False, "standardise")):
        assert started(unsaid, (3,), table=table)["start"] == start
    for said in ({"start": "none"}, {"_target_": "viscos.flows.planar"}):
        assert started(said, (3,), table=True) == said
    assert isinstance(completing(DATA, "continuous", 1, 0, False, calibrate=False)[0].flow.layers[0], Whitening)


def test_each_known_cell_is_left_out_once():
    seen = torch.zeros(DATA.observed.shape, dtype=torch.int64)
    for sparser in folds(DATA, 0.2, 0):
        gone = DATA.observed & ~sparser.observed
        assert sparser.values[gone].isnan().all() and not (sparser.observed & ~DATA.observed).any()
        assert (abs(gone.sum(0) - DATA.observed.sum(0) / 5) < 1).all()
        seen += gone
    assert torch.equal(seen, DATA.observed.long())


@pytest.mark.parametrize(
    ("shares", "weights"),
    [
        ({"viscos": 0.5, "gaussian": 0.3, "knn": 0.2}, [0.5, 0.3, 0.2]),
        ({"viscos": 0.5, "knn": 0.2}, [0.5, 0.2]),
        ({"gaussian": 0.9}, [0.0, 0.9]),
        ({}, [0.0]),
    ],
)
def test_the_shares_of_a_run(shares, weights):
    made = floor.stacked({"best": "knn", "shares": shares, "width": 1.5}, Parts())
    assert made.weights.tolist() == pytest.approx(weights) and made.width == 1.5
    apart = {name: [share, share / 2] for name, share in shares.items()}
    columns = floor.stacked({"best": "knn", "shares": apart, "width": [1.5, 2.0]}, Parts())
    halves = torch.tensor([weights, [share / 2 for share in weights]])
    assert torch.allclose(columns.weights, halves if shares else halves[0]) and columns.width.tolist() == [1.5, 2.0]
    assert [imputer.number for imputer in made.imputers] == [
        0,
        *(name for name in ("gaussian", "knn") if name in shares),
    ]


@pytest.mark.parametrize(
    ("shares", "weights"),
    [
        ({"viscos": 0.5, "gaussian": 0.3, "knn": 0.2}, [0.625, 0.375]),
        ({"gaussian": 0.6, "knn": 0.2}, [0.0, 0.8]),
        ({"knn": 0.7}, [0.7]),
    ],
)
def test_shares_of_neighbours_whose_table_is_gone(shares, weights):
    found = floor.without_neighbours(
        {"best": "knn", "shares": shares, "width": 1.5, "rmse_of_shares": 0.1, "cells": 9, "rmse": {}}
    )
    made = floor.stacked(found, Parts())
    assert made.weights.tolist() == pytest.approx(weights) and made.width == 1.5
    assert "knn, whose table has changed or is gone" in floor.line(found) and "0.1" not in floor.line(found)


def test_shares_of_columns_whose_neighbours_are_gone():
    """A column of neighbours alone is left to the flow; the line has the average of the columns."""
    shares = {"viscos": [0.5, 0.0], "gaussian": [0.3, 0.0], "knn": [0.2, 0.6]}
    found = floor.without_neighbours({"best": "knn", "shares": shares, "width": [1.5, 1], "cells": 9, "rmse": {}})
    assert torch.allclose(floor.stacked(found, Parts()).weights, torch.tensor([[0.625, 0.375], [0.6, 0.0]]))
    assert "completed by 0.61 viscos + 0.19 gaussian + 0.20 mean, on average over columns" in floor.line(found)
    assert floor.has_neighbours({"shares": shares}) and not floor.has_neighbours(found)


def test_as_many_held_out_cells_are_looked_at_as_tell_enough():
    held = torch.rand(9000, 20, generator=torch.Generator().manual_seed(0)) < 0.1
    ones = torch.ones(20)
    rows = _enough(held, ones, 0)
    assert 4000 <= int(held[rows].sum()) <= 4020  # 200 of a column
    assert held[rows].any(1).all() and (rows.diff() > 0).all() and len(rows) < 3000
    assert int(rows.max()) > 8000 and not torch.equal(rows, _enough(held, ones, 1))
    assert torch.equal(_enough(held[:500], ones, 0), held[:500].any(1).nonzero().flatten())
    assert len(_enough(held, ones / 20, 0)) > 4 * len(rows)  # all entries are of one category


def test_a_column_keeps_its_only_cell():
    known = DATA.observed.clone()
    known[:, 1] = torch.arange(40) == 7
    assert all(sparser.observed[7, 1] for sparser in folds(IncompleteData(VALUES, known), 0.2, 0))


def test_weights_are_the_best_convex_ones():
    """Of errors that are known, and with what lacks of 1 at the mean of the columns, which is 0."""
    g = torch.Generator().manual_seed(0)
    truth, noise = torch.randn(4000, generator=g), torch.randn(4000, 2, generator=g)
    noise -= truth[:, None] * (noise * truth[:, None]).mean(0) / truth.square().mean()
    noise[:, 1] -= noise[:, 0] * (noise[:, 0] * noise[:, 1]).mean() / noise[:, 0].square().mean()
    noise /= noise.square().mean(0).sqrt()

    def weights(means):
        return held_out(truth, means, torch.zeros(2, len(truth))).weights()[0]

    # Independent errors of variances 1 and 4: weights in the ratio of 4 to 1, where they are to sum to 1.
    means = 10 * truth[:, None] + noise * torch.tensor([1.0, 2.0])
    (found,) = held_out(10 * truth, means, torch.zeros(2, 4000)).weights()
    assert found.tolist() == pytest.approx([0.8, 0.2], abs=0.01)
    assert weights(truth[:, None] + noise).sum() < 0.8  # shrunk to 0, as errors are as large as what is told
    assert weights(torch.stack([truth, noise[:, 0]], 1)).tolist() == pytest.approx([1, 0], abs=1e-4)
    assert weights(-truth[:, None]).tolist() == pytest.approx([0], abs=1e-4)
    assert held_out(truth[:0], noise[:0], noise[:, :0].T).weights().tolist() == [[1, 0]]


def columns(*cells, seed=0):
    """Cells of columns, so many of each, that are told to 0.01, not at all, to 0.01, … by the first imputer, and of
    which the second knows the mean alone; draws are of deviation 1."""
    g = torch.Generator().manual_seed(seed)
    entry = torch.repeat_interleave(torch.arange(len(cells)), torch.tensor(cells))
    truth, noise = (torch.randn(len(entry), generator=g) for _ in range(2))
    told = torch.where(entry % 2 == 0, truth + 0.01 * noise, noise)
    means = torch.stack([told, torch.zeros(len(entry))], 1)
    return held_out(truth, means, told + torch.randn(400, len(entry), generator=g), entry=entry)


def test_each_column_has_its_own_shares():
    """One that is told exactly is not shrunk because of another of which nothing is known."""
    found = columns(20, 400)
    pooled = found._convex()
    assert pooled[0] < 0.2, "which is what one set of shares would be"
    weights = found.weights()
    assert weights[0, 0] > 0.95 and weights[1, 0] < 0.1
    assert found.error(weights) < found.error(pooled)
    few = columns(1, 400, 400, 1)
    weights, pooled = few.weights(), few._convex()
    assert 0.3 < pooled[0] < 0.6 and (abs(weights[3] - pooled) < 0.2).all(), "a cell says little of what is told badly"
    assert weights[2, 0] > 0.99 and weights[1, 0] < 0.1


def test_a_column_without_cells_has_the_shares_of_all():
    found = columns(30, 0, 30)
    assert torch.equal(found.weights()[1], found._convex()) and torch.equal(
        found.weights()[0] > 0.9, found._convex() > 0.9
    )
    assert found.width(found.weights())[1] == found._factor(found.weights())


def test_each_column_has_its_own_width():
    """Where draws are a hundred times too wide, and where they are right; by nine cells or more."""
    found = columns(400, 400)
    alone = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    narrow, right = found.width(alone).tolist()
    assert 0.1 <= narrow < 0.13, "the least factor is 0.1"
    assert right == pytest.approx(1, rel=0.2)


@pytest.mark.parametrize(("spread", "off", "count"), [(1.0, 0.0, 64), (0.5, 0.0, 400), (2.0, 0.0, 400), (1.0, 3.0, 64)])
def test_the_width_makes_intervals_cover(spread, off, count):
    """Draws of a deviation that is not the truth's, and about a centre that the combined mean moves."""
    g = torch.Generator().manual_seed(0)
    truth = torch.randn(4000, generator=g)
    draws = off + spread * torch.randn(count, 4000, generator=g)
    held = held_out(truth, torch.full((4000, 1), off), draws)
    assert held.width(torch.zeros(1)) == pytest.approx(1 / spread, rel=0.04)


def test_a_category_counts_as_one_cell_and_has_no_part_in_the_width():
    """Of 600 rows with a number and a category of thirty entries, the number says how wide draws are."""
    g = torch.Generator().manual_seed(0)
    numbers, levels = torch.randn(600, 1, generator=g), torch.randint(30, (600,), generator=g)
    values = torch.cat([numbers, torch.nn.functional.one_hot(levels, 30).float()], 1)
    groups = [0, *[1] * 30]
    data = IncompleteData(values, torch.ones_like(values, dtype=torch.bool), groups=groups)
    sparser = IncompleteData(values, torch.zeros_like(values, dtype=torch.bool), groups=groups)

    class Drawn(Constant):
        def impute(self, batch, draws=1, seed=0, purpose="item"):
            noise = torch.randn(draws, *batch.values.shape, generator=torch.Generator().manual_seed(1))
            noise[..., 1:] *= 1e-3
            return Completions.exact(0.5 * noise, torch.zeros_like(batch.values))

    found = HeldOut.of([Drawn(0.0)], data, sparser, 0)
    assert found.cells == cells_of(data.observed, data) == 1200 and len(found.truth) == 600 * 31
    squares = (numbers.square().sum() + values[:, 1:].square().sum() / 30) / 1200
    assert found.error(torch.zeros(1)) == pytest.approx(float(squares.sqrt()), rel=1e-5)
    assert found.width(torch.zeros(1)).tolist() == pytest.approx([2] * 31, rel=0.15)
    truth, two = torch.tensor([1.0] * 10 + [-1.0] * 30), torch.zeros(2, 40)
    counts = torch.tensor([1.0] * 10 + [0.1] * 30)
    (shares,) = held_out(truth, torch.full((40, 1), 1.0), two, counts).weights()
    assert shares.tolist() == pytest.approx([(10 - 3) / 13], abs=1e-4), "thirty entries of three cells"


def test_the_width_of_few_cells_is_the_spread_that_there_is():
    assert held_out(torch.ones(8), torch.zeros(8, 1), torch.zeros(5, 8)).width(torch.zeros(1)) == 1


def test_a_stack_completes_by_its_weights():
    batch = incomplete(VALUES, DATA.observed)
    stack = StackedImputer([Constant(1.0), Constant(5.0)], torch.tensor([0.5, 0.25]), 2.0)
    done = stack.impute(batch, 2000)
    mean = stack.best_mean(batch, 4).mean()
    assert (mean[batch.hidden] == 1.75).all() and torch.equal(done.mean(), mean)
    assert torch.equal(done.draws[:, batch.observed], VALUES[DATA.observed].expand(2000, -1))
    drawn = done.draws[:, batch.hidden]
    assert abs(drawn.mean() - 1.75) < 0.02 and abs(drawn.std() - 2) < 0.02


class Failing(Constant):
    """Finds no completion of the first row."""

    def impute(self, batch, draws=1, seed=0, purpose="item"):
        return self._failed(super().impute(batch, draws, seed, purpose), batch)

    def best_mean(self, batch, draws, seed=0):
        return self._failed(super().best_mean(batch, draws, seed), batch)

    def _failed(self, done, batch):
        gone = (batch.index == 0)[:, None] & batch.hidden
        status = torch.where((batch.index == 0).repeat(len(done.draws)), int(Status.STALLED), done.solution.status)
        expected = torch.where(gone, NAN, done.mean())
        draws = torch.where(gone, NAN, done.draws)
        return replace(done, draws=draws, expected=expected, solution=replace(done.solution, status=status))


def test_what_has_no_share_harms_nothing_and_what_failed_is_said():
    batch = incomplete(VALUES, DATA.observed)
    shares = {0.0: [True], 0.5: [False]}
    for share, solved in shares.items():
        stack = StackedImputer([Failing(1.0), Constant(5.0)], torch.tensor([share, 0.5]), 1.0)
        mean = stack.best_mean(batch, 4)
        assert mean.ok[:, 0].tolist() == solved and mean.ok[:, 1:].all()
        assert mean.mean()[0].isfinite().all() == (share == 0)
        assert stack.impute(batch, 3).ok.tolist() == [[False] + 39 * [True]] * 3, "its draws are the first imputer's"
    idle = StackedImputer([Constant(1.0), None], torch.tensor([1.0, 0.0]), 1.0)
    assert (idle.best_mean(batch, 2).mean()[batch.hidden] == 1).all()


def test_a_draw_without_a_centre_to_be_placed_about_has_failed():
    class Centreless(Failing):
        impute = Constant.impute

    batch = incomplete(VALUES, DATA.observed)
    done = StackedImputer([Centreless(1.0)], torch.tensor([1.0]), 1.0).impute(batch, 3)
    assert Centreless(1.0).impute(batch, 3).ok.all() and done.ok.tolist() == [[False] + 39 * [True]] * 3


def test_what_the_centre_takes_is_counted():
    class Costly(Constant):
        passes = 7

        def impute(self, batch, draws=1, seed=0, purpose="item"):
            return self._at(2.0 + batch.index, super().impute(batch, draws, seed, purpose))

        def best_mean(self, batch, draws, seed=0):
            return self._at(10.0 + batch.index, super().best_mean(batch, draws, seed))

        def _at(self, cost, done):
            return replace(done, solution=replace(done.solution, evaluations=cost.repeat(len(done.draws))))

    stack, batch = StackedImputer([Costly(1.0)], torch.tensor([1.0]), 1.0), incomplete(VALUES, DATA.observed)
    cost, done = Cost.of(stack), stack.impute(batch, 4)
    spent = done.solution.evaluations.view(4, -1).sum(0)
    assert spent.tolist() == [4 * (2 + item) + 10 + item for item in range(40)]
    cost.add(done, 1.0)
    assert cost.record()["network_passes_an_item"] == pytest.approx(7 * float(spent.mean()))


def test_a_batch_counts_as_finished_by_the_same_shares_and_imputers_alone():
    neighbours = NeighboursImputer().fit(DATA)

    def digest(weight, width, other):
        return checkpoint.digest(StackedImputer([Constant(1.0), other], torch.tensor([1, weight]), width).state())

    same = digest(0.5, 2.0, neighbours)
    assert same == digest(0.5, 2.0, NeighboursImputer().fit(DATA))
    others = digest(0.4, 2.0, neighbours), digest(0.5, 1.0, neighbours)
    assert len({same, *others, digest(0.5, 2.0, NeighboursImputer().fit(DATA.first(30)))}) == 4


def test_a_cell_of_which_one_draw_failed_counts_for_the_width():
    draws = torch.linspace(-1, 1, 41)[:, None].expand(41, 100).clone()
    draws[20, :50] = NAN
    held = held_out(torch.full((100,), 0.5), torch.zeros(100, 1), draws)._finite()
    assert len(held.truth) == 100 and held.width(torch.zeros(1)) == pytest.approx(0.5 / 0.945, rel=0.003)


@pytest.mark.parametrize("shape", [(4, 6), (2, 20)])
def test_columns_of_fewer_cells_than_folds(shape):
    observed = torch.ones(shape, dtype=torch.bool)
    observed[1:] &= shape[0] > 2  # or one known cell in each column
    few = IncompleteData(normal(*shape).float(), observed)
    *_, stack = completing(few, "continuous", 1, 0, False)
    assert stack.best_mean(incomplete(few.values, observed), 2).mean().isfinite().all()


def test_no_cell_is_held_out_of_a_few_and_no_fit_sees_what_it_is_judged_by(monkeypatch):
    trained, judged = [], []
    train, of = rows.trained_on_rows, HeldOut.of

    def noted(data, *args):
        trained.append(data.observed)
        return train(data, *args)

    def noted_of(imputers, data, sparser, seed):
        judged.append(data.observed & ~sparser.observed)
        assert not (imputers[2].items.isfinite() & judged[-1]).any()
        return of(imputers, data, sparser, seed)

    monkeypatch.setattr(rows, "trained_on_rows", noted)
    monkeypatch.setattr(HeldOut, "of", noted_of)
    *_, stack = completing(DATA, "continuous", 2, 0, False)
    assert len(judged) == 5 and torch.equal(sum(gone.int() for gone in judged), DATA.observed.int())
    assert not any((seen & gone).any() for seen, gone in zip(trained, judged, strict=False))
    assert torch.equal(trained[5], DATA.observed)
    assert torch.equal(stack.imputers[2].items.isfinite(), DATA.observed)

    monkeypatch.setattr(rows, "_FEW", 50)
    trained.clear(), judged.clear()
    completing(DATA, "continuous", 2, 0, False)
    assert len(trained) == len(judged) == 1 and not (trained[0] & judged[0]).any()

    judged.clear()
    few = IncompleteData(VALUES[:5], torch.ones(5, 3, dtype=torch.bool))
    *_, alone = completing(few, "continuous", 2, 0, False)
    assert not judged and alone.weights.tolist() == [[1, 0, 0]] * 3 and (alone.width == 1).all()


def test_a_mean_costs_what_those_take_that_share_in_it():
    class Dear(Constant):
        def best_mean(self, batch, draws, seed=0):
            filled = batch.filled(torch.full_like(batch.values, self.number))
            return Completions.checked(filled[None], batch, 5.0)

    batch = DATA.batch(torch.arange(3))
    for weights, cost in ([0.5, 0.5, 0.0], 10.0), ([0.0, 0.5, 0.5], 5.0):
        made = StackedImputer([Dear(0.0), Dear(1.0), Constant(2.0)], torch.tensor(weights), 1.0)
        assert made.best_mean(batch, 4).solution.evaluations.tolist() == [cost] * 3
