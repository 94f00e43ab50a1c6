"""Imputers behind one interface, and metrics that see them all alike."""

from __future__ import annotations

import copy
import dataclasses
import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from problems import normal, scaling_of

from viscos.commands.assemble.data import Dataset
from viscos.commands.assemble.imputers import FromTraining, Parts, check, complete_gaussian, described_by
from viscos.core import labels
from viscos.core.batch import incomplete
from viscos.core.errors import InputError
from viscos.core.solution import Solution
from viscos.data.columns import Column, Scheme
from viscos.data.incomplete import IncompleteData
from viscos.data.vectors import Vectors
from viscos.flows import Affine, Flow
from viscos.imputers import (
    CompleteGaussianImputer,
    ForestImputer,
    GaussianImputer,
    GivenImputer,
    Imputer,
    IterativeImputer,
    Kind,
    MeanImputer,
    MedianImputer,
    NeighboursImputer,
    NetworkImputer,
    UnfittedImputer,
    ViscosImputer,
    check_apart,
    kinds_of,
)
from viscos.inference import Completions, impute
from viscos.linear.gaussian import Gaussian, observed_mean
from viscos.linear.gaussian_em import em_gaussian
from viscos.metrics import TRUTH, Coverage, EnergyAndSpread, Errors, PointMetric, Recognition, TrainedAlong
from viscos.metrics.metric import measured
from viscos.posteriors import Amortised, Diagonal, Posterior
from viscos.report import kinds
from viscos.report.completions import completions_table, scores_table
from viscos.roots import anderson
from viscos.runs import checkpoint
from viscos.train.model import Model

D, N = 3, 40
VALUES, OBSERVED = normal(N, D, seed=1).float(), normal(N, D, seed=2) > 0
DATA = IncompleteData(VALUES, OBSERVED)
BATCH = DATA.batch(torch.arange(N))
LAW = Gaussian(torch.zeros(D), torch.eye(D) + 0.5)


def flow():
    return Flow([Affine((D,))], (D,))


def network():
    made = Amortised((D,), width=4)
    made.prepare(VALUES, OBSERVED, LAW)
    return made


def imputers() -> dict[str, Imputer]:
    """One of each kind, fitted."""
    return {
        "mean": MeanImputer().fit(DATA),
        "gaussian": GaussianImputer(noise=0.1).fit(DATA),
        "network": NetworkImputer(network()),
        "viscos": ViscosImputer(flow(), network(), anderson(1e-5)),
    }


@pytest.mark.parametrize("name", ["mean", "gaussian", "network", "viscos"])
def test_every_imputer_keeps_what_is_observed_and_says_what_it_is_called(name):
    imputer = imputers()[name]
    assert imputer.name == name and imputer.label and all(kind.key and kind.label for kind in kinds_of(imputer))
    for done in (imputer.impute(BATCH, 3, seed=5), imputer.best_mean(BATCH, 4, seed=5)):
        assert done.draws.shape[1:] == VALUES.shape and bool(done.ok.all())
        for completed in (*done.draws, done.mean()):
            assert completed.isfinite().all() and torch.equal(completed[OBSERVED], VALUES[OBSERVED])


@pytest.mark.parametrize("name", ["mean", "gaussian", "network", "viscos"])
def test_an_items_completions_do_not_depend_on_its_company(name):
    imputer = imputers()[name]
    alone = imputer.impute(BATCH.select(slice(7, 8)), 2, seed=5, purpose="x").draws
    torch.testing.assert_close(imputer.impute(BATCH, 2, seed=5, purpose="x").draws[:, 7:8], alone)


@pytest.mark.parametrize("name", ["gaussian", "viscos"])
def test_draws_are_keyed_by_seed_purpose_item_and_number(name):
    imputer = imputers()[name]
    many, few = imputer.impute(BATCH, 4, seed=1).draws, imputer.impute(BATCH, 2, seed=1).draws
    torch.testing.assert_close(many[:2], few)
    assert not torch.allclose(few, imputer.impute(BATCH, 2, seed=1, purpose="others").draws)
    assert not torch.allclose(many, imputer.impute(BATCH, 4, seed=2).draws)


@pytest.mark.parametrize("name", ["mean", "gaussian", "median", "knn", "iterative", "forest"])
def test_what_was_learnt_is_kept_in_plain_containers(name, tmp_path):
    """A checkpoint refuses anything else; what is read back completes alike, to the last bit."""
    fitted = {**imputers(), **columnwise()}[name]
    checkpoint.save(tmp_path / "state.pt", fitted.state())
    other = copy.copy(fitted)
    other.load_state({})
    with pytest.raises(InputError, match="call fit first"):
        other.impute(BATCH)
    other.load_state(checkpoint.load(tmp_path / "state.pt"))
    batch = BATCH if name in imputers() else TABLE.batch(torch.arange(100))
    assert torch.equal(other.impute(batch, 2, 5).draws, fitted.impute(batch, 2, 5).draws)


def test_the_mean_is_of_observed_entries_alone():
    done = MeanImputer().fit(DATA).impute(BATCH)
    expected = observed_mean(DATA.values, OBSERVED).float().expand_as(VALUES)
    assert torch.equal(done.mean()[~OBSERVED], expected[~OBSERVED])


def test_the_gaussian_is_fitted_by_expectation_maximisation_and_its_mean_is_exact():
    imputer = GaussianImputer(floor=0.02, noise=0.1).fit(DATA)
    assert imputer.gaussian is not None
    fitted = em_gaussian(DATA.values, OBSERVED, 0.02, 0.1)
    torch.testing.assert_close(imputer.gaussian.covariance, fitted.covariance)
    done = imputer.impute(BATCH, 4000)
    assert torch.equal(done.mean(), fitted.conditional(BATCH.values, OBSERVED))
    torch.testing.assert_close(done.draws.mean(0), done.mean(), atol=0.1, rtol=0)


@pytest.mark.parametrize("draws", [2, 3000], ids=["draw by draw", "item by item"])
def test_draws_of_the_gaussian_have_its_conditional_covariance(draws):
    """By Schur's complement, whichever way they are drawn."""
    law = torch.eye(D).double() + 0.5
    observed = torch.tensor([False, True, False])
    items = incomplete(VALUES[:1].expand(6000 // draws, D), observed.expand(6000 // draws, D))
    done = GaussianImputer(LAW).impute(items, draws).draws.flatten(0, 1).double()
    S, (H, O) = law, (~observed, observed)  # noqa: E741
    wanted = S[H][:, H] - S[H][:, O] @ torch.linalg.solve(S[O][:, O], S[O][:, H])
    assert len(done) == 6000 and torch.equal(done[:, O], VALUES[:1, O].double().expand(6000, 1))
    torch.testing.assert_close(done[:, H].T.cov(), wanted, atol=4 * float(wanted.max()) * (2 / 6000) ** 0.5, rtol=0)


def test_the_flow_draws_what_impute_draws_in_pairs_for_a_mean_and_independently_else():
    imputer = imputers()["viscos"]
    assert isinstance(imputer, ViscosImputer)
    for antithetic, done in ((False, imputer.impute(BATCH, 5, 3)), (True, imputer.best_mean(BATCH, 5, 3))):
        wanted = impute(imputer.of, imputer.posterior, BATCH, imputer.solver, draws=5, seed=3, antithetic=antithetic)
        assert torch.equal(done.draws, wanted.draws) and done.paired == antithetic
        assert len(done.independent()[0]) == (3 if antithetic else 5)
    assert len(imputers()["gaussian"].best_mean(BATCH, 5).draws) == 3, "as many independent ones"


def test_refusals():
    for fresh in (MeanImputer(), GaussianImputer()):
        with pytest.raises(InputError, match="call fit first"):
            fresh.impute(BATCH)
    with pytest.raises(InputError, match="fitted to"):
        MeanImputer().fit(DATA).impute(incomplete(VALUES[:, :2], OBSERVED[:, :2]))
    with pytest.raises(InputError, match="no prediction of its own"):
        NetworkImputer(Diagonal(VALUES)).impute(BATCH)


def test_a_prediction_that_is_not_finite_has_failed():
    class Predicting(Diagonal):
        def predict(self, batch):
            return torch.where(torch.tensor([[True], [False]]), batch.filled(), float("nan"))

    batch = incomplete(VALUES[:2], OBSERVED[:2] & (torch.arange(VALUES.shape[1]) > 0))
    done = NetworkImputer(Predicting(VALUES[:2])).impute(batch)
    assert done.ok.tolist() == [[True, False]]
    assert torch.equal(done.mean()[0], batch.filled()[0]) and done.mean()[1, 0].isnan()


def test_the_neutral_posterior_prepares_and_checks_nothing_and_has_no_prediction():
    plain = Posterior()
    plain.prepare(VALUES, OBSERVED, None)
    plain.check((7,))
    assert not plain.predicts and not plain.regressed and plain.held_out == 0
    with pytest.raises(InputError, match=r"for items \(3,\), got \(4,\)"):
        network().check((4,))


def test_teaching_is_minus_the_log_density_of_the_latents():
    posterior = Diagonal(VALUES)
    latents = normal(N, D, seed=9).float()
    H = ~OBSERVED
    expected = -torch.distributions.Normal(0.0, 1.0).log_prob(latents[H]).sum()
    torch.testing.assert_close(posterior.teach(BATCH, latents, flow()), expected)


class Nearest(Imputer):
    """The value of another item: an imputer from outside."""

    name, label = "nearest", "nearest item"
    mean = Kind("nearest_mean", "nearest item, mean")
    draw = Kind("nearest_draw", "nearest item, one draw")

    def impute(self, batch, draws=1, seed=0, purpose="item"):
        completed = batch.filled(torch.roll(VALUES, 1, 0))
        return Completions.exact(completed.expand(draws, *completed.shape), completed)


class Bias(PointMetric):
    """The mean error: a metric from outside."""

    def __init__(self, test):
        self.errors = {}

    def add(self, kind, completed, truth, ok):
        self.errors.setdefault(kind, []).append((completed - truth.values)[truth.hidden])

    def record(self):
        return {"bias": {kind: {"value": float(torch.cat(e).mean())} for kind, e in self.errors.items()}}


def test_an_imputer_and_a_metric_from_outside_have_their_place_in_records_and_tables():
    test = Vectors("toy", VALUES, None, 0)
    metrics = Errors(test), EnergyAndSpread(test), Coverage(test), Bias(test)
    for imputer in (*imputers().values(), Nearest()):
        for rows in torch.arange(N).split(16):
            done = imputer.impute(DATA.batch(rows), 3) if imputer.name != "nearest" else None
            done = done or Completions.exact(*nearest(rows))
            for metric in metrics:
                metric.update(imputer, done, measured(test, rows, OBSERVED[rows]))
    record = {key: figures for metric in metrics for key, figures in metric.record().items()}
    record |= {"items": N, "labels": {kind.key: kind.label for kind in kinds_of(Nearest)}}
    record = json.loads(json.dumps(record, allow_nan=False))
    expected = (torch.roll(VALUES, 1, 0) - VALUES)[~OBSERVED].double()
    assert record["rmse"]["nearest_mean"]["pooled"] == pytest.approx(float(expected.square().mean().sqrt()), rel=1e-6)
    assert record["bias"]["nearest_mean"]["value"] == pytest.approx(float(expected.mean()), rel=1e-4)
    assert record["energy"].keys() == {"draw", "gaussian_draw", "nearest_draw"} == record["coverage"].keys()
    table, scores = "\n".join(completions_table(record)), "\n".join(scores_table(record))
    assert "nearest item, mean" in table and "bias" in table and "nearest item, draws" in scores


def nearest(rows):
    batch = DATA.batch(rows)
    completed = batch.filled(torch.roll(VALUES, 1, 0)[rows])
    return completed.expand(3, *completed.shape), completed


STANDARD = (ViscosImputer, UnfittedImputer, NetworkImputer, GaussianImputer, MeanImputer)
"""Those whose labels records need not say."""
OTHERS = (MedianImputer, NeighboursImputer, IterativeImputer, ForestImputer)


def test_labels_are_said_once_and_keys_do_not_collide():
    keys = [kind.key for imputer in (*STANDARD, *OTHERS) for kind in kinds_of(imputer)] + [TRUTH]
    assert len(set(keys)) == len(keys) and kinds.LABELS.keys() < set(keys) - {TRUTH}
    assert [kind for imputer in STANDARD for kind in kinds_of(imputer)] == list(labels.KINDS)
    assert [kind for imputer in STANDARD if imputer.flow for kind in kinds_of(imputer)] == list(labels.OF_FLOW)
    measured_by = (TrainedAlong, Recognition, Errors, EnergyAndSpread, Coverage)
    assert [measure for metric in measured_by for measure in metric.measures] == list(labels.MEASURES)
    assert kinds.labels([{"labels": {"mean": "mine", "knn": "nearest"}}])["mean"] == kinds.LABELS["mean"]
    assert kinds.labels([{"labels": {"knn": "nearest"}}])["knn"] == "nearest"


def test_the_gaussian_of_complete_data_is_that_of_what_was_hidden_too(monkeypatch):
    """Of the items that were trained on, in standard deviations of the columns, without the noise of training."""
    whole = Vectors("toy", VALUES, None, 0)
    monkeypatch.setattr(Dataset, "load", lambda self, split, limit: replace(whole, values=whole.values[:limit]))
    scaling = scaling_of(
        Scheme(tuple(Column(name) for name in "abc")),
        torch.tensor([1.0, 2, 3]).double(),
        torch.tensor([2.0, 1, 4]).double(),
    )
    made = complete_gaussian(Dataset({"name": "toy", "noise": 0.3}), 30, scaling, 1e-3)
    y = (VALUES[:30].double() - scaling.center) / scaling.scale
    torch.testing.assert_close(made.gaussian.mean, y.mean(0), atol=1e-6, rtol=0)
    wanted = torch.cov(y.T, correction=0)
    torch.testing.assert_close(made.gaussian.covariance, wanted, atol=1e-5, rtol=0)
    assert {kind.key for kind in kinds_of(made)}.isdisjoint(kind.key for kind in kinds_of(GaussianImputer))


# ----------------------------------------------------------------------------------------------------- scikit-learn's


@cache
def columnwise() -> dict[str, Imputer]:
    """Those of scikit-learn, small, fitted to a correlated table."""
    made = MedianImputer(), NeighboursImputer(5), IterativeImputer(), ForestImputer(rounds=2, trees=8)
    return {imputer.name: imputer.fit(TABLE) for imputer in made}


MIXED = normal(400, 3, seed=4) @ torch.tensor([[1.0, 0.9, 0.2], [0.0, 0.4, 0.5], [0.0, 0.0, 0.8]], dtype=torch.float64)
HOLES = torch.rand(400, 3, generator=torch.Generator().manual_seed(6)) < 0.3
TABLE = IncompleteData(MIXED.float(), ~HOLES)


def error(done):
    return float((done.mean() - MIXED.float())[HOLES].square().mean().sqrt())


def test_medians_are_of_observed_entries_alone():
    done = MedianImputer().fit(TABLE).impute(TABLE.batch(torch.arange(400)))
    for column in range(3):
        seen = TABLE.values[TABLE.observed[:, column], column].double().numpy()
        filled = done.mean()[HOLES[:, column], column]
        torch.testing.assert_close(filled, torch.full_like(filled, float(np.median(seen))))


def test_neighbours_are_the_nearest_over_what_both_observe():
    """By hand: three neighbours, distances over the entries that both items have, those that lack the entry passed."""
    values = torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 2.0], [5.0, 5.0, 9.0], [0.1, 0.1, 0.0]])
    observed = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 0]]).bool()
    imputer = NeighboursImputer(2).fit(IncompleteData(values, observed))
    done = imputer.impute(incomplete(torch.tensor([[0.2, 0.0, 7.0]]), torch.tensor([[True, True, False]])))
    assert float(done.mean()[0, 2]) == pytest.approx(1.5)


def test_chained_regressions_come_near_the_conditional_mean_of_a_gaussian():
    batch, gaussian = TABLE.batch(torch.arange(400)), GaussianImputer().fit(TABLE)
    chained = error(IterativeImputer().fit(TABLE).impute(batch))
    exact, naive = error(gaussian.impute(batch)), error(MeanImputer().fit(TABLE).impute(batch))
    assert exact * 0.97 < chained < exact * 1.03 < naive


def test_forests_know_what_is_no_line():
    x = torch.linspace(-2, 2, 300)
    values, observed = torch.stack([x, x.square()], 1), torch.ones(300, 2, dtype=torch.bool)
    observed[::5, 1] = False
    data = IncompleteData(values, observed)
    batch = data.batch(torch.arange(0, 300, 5))
    found = ForestImputer(rounds=2, trees=20).fit(data).impute(batch).mean()[:, 1]
    line = IterativeImputer().fit(data).impute(batch).mean()[:, 1]
    truth = values[::5, 1]
    assert float((found - truth).abs().max()) < 0.4 < float((line - truth).abs().max())


@pytest.mark.parametrize("name", ["median", "knn", "iterative", "forest"])
def test_what_all_of_them_keep(name):
    imputer, batch = columnwise()[name], TABLE.batch(torch.arange(400))
    done = imputer.impute(batch, 3)
    assert imputer.name == name and len(done.draws) == 1 and done.mean().dtype == torch.float32
    assert done.mean().isfinite().all() and torch.equal(done.mean()[~HOLES], TABLE.values[~HOLES])
    alone = imputer.impute(batch.select(slice(7, 9))).mean()
    torch.testing.assert_close(alone, done.mean()[7:9])
    nothing = incomplete(MIXED[:1].float(), torch.zeros(1, 3, dtype=torch.bool))
    joined = incomplete(MIXED[:5].float(), torch.cat([nothing.observed, ~HOLES[1:5]]))
    torch.testing.assert_close(imputer.impute(nothing).mean(), imputer.impute(joined).mean()[:1])
    with pytest.raises(InputError, match="fitted to"):
        imputer.impute(incomplete(VALUES[:, :2], OBSERVED[:, :2]))


def test_a_part_of_the_items_is_of_all_of_them():
    """Of a sorted table the first rows know nothing of the last."""
    x = torch.linspace(0, 9, 1000)
    data = IncompleteData(torch.stack([x, x], 1), torch.ones(1000, 2, dtype=torch.bool))
    last = incomplete(torch.tensor([[9.0, 0.0]]), torch.tensor([[True, False]]))
    assert float(NeighboursImputer(1, rows=100).fit(data).impute(last).mean()[0, 1]) == 9


def test_refusals_of_scikit_learns():
    for made in (MedianImputer, NeighboursImputer, IterativeImputer, ForestImputer):
        with pytest.raises(InputError, match="call fit first"):
            made().impute(BATCH)
        with pytest.raises(InputError, match="rows is 0"):
            made(rows=0)
    for make in (lambda: NeighboursImputer(0), lambda: IterativeImputer(0), lambda: ForestImputer(trees=0)):
        with pytest.raises(InputError, match="1 or more"):
            make()


def test_images_are_rows_and_an_entry_that_nobody_observes_gets_zero():
    values, observed = torch.rand(12, 1, 2, 2), torch.rand(12, 1, 2, 2) > 0.3
    observed[:, 0, 1, 1] = False
    data = IncompleteData(values, observed)
    done = NeighboursImputer(3).fit(data).impute(data.batch(torch.arange(12)))
    assert done.draws.shape == (1, 12, 1, 2, 2) and (done.mean()[:, 0, 1, 1] == 0).all()


def parts(model=None, known=None) -> Parts:
    known = known or FromTraining(None, lambda: None, lambda: TABLE, CompleteGaussianImputer)
    return Parts(known, model, anderson(1e-5), 0.0, 0, torch.device("cpu"))


def test_they_are_chosen_by_name_and_fitted():
    for kind in (*OTHERS, MeanImputer, GaussianImputer):
        check(described_by(kind.name), None)
        assert type(parts().imputer(described_by(kind.name))) is kind
    assert type(parts().imputer(described_by("gaussian_complete"))) is CompleteGaussianImputer
    known = FromTraining(torch.ones(3), lambda: LAW, None, CompleteGaussianImputer)
    assert parts(known=known).imputer(described_by("mean")).means is known.means, (
        "what the run knows is not fitted anew"
    )
    assert parts(known=known).imputer(described_by("gaussian")).gaussian is LAW
    with pytest.raises(InputError, match="came without training data"):
        parts(known=known).imputer(described_by("gaussian") | {"floor": 0.5})


def test_each_is_given_the_flow_that_it_needs():
    with pytest.raises(InputError, match=r"choose from d_flow, diffputer, .*viscos, or give"):
        described_by("nearest")
    for name in ("dps", "viscos"):
        with pytest.raises(InputError, match="a flow that is trained already, and there is none"):
            check(described_by(name), None)
    with pytest.raises(InputError, match="take flow=continuous"):
        check(described_by("dps"), flow())
    model = Model(flow(), network(), None)
    made = parts(model).imputer(described_by("viscos"))
    assert isinstance(made, ViscosImputer) and made.of is model.flow and made.posterior is model.posterior


# ----------------------------------------------------------------------------------------------- another method's draws


def test_given_draws_are_measured_as_they_are():
    """Against a plain computation; a draw with a hole left open counts as failed."""
    draws = normal(5, N, D, seed=8).float()
    draws[:, OBSERVED] = VALUES[OBSERVED]
    draws[2, 3, ~OBSERVED[3]] = float("nan")
    assert bool((~OBSERVED[3]).any())
    imputer, test = GivenImputer("theirs", draws), Vectors("toy", VALUES, None, 0)
    errors, coverage = Errors(test), Coverage(test)
    for rows in torch.arange(N).split(16):
        for metric in (errors, coverage):
            metric.update(imputer, imputer.best_mean(DATA.batch(rows), 8), measured(test, rows, OBSERVED[rows]))
    row = errors.record()["rmse"]["given_theirs_mean"]
    expected = (draws.nanmean(0) - VALUES)[~OBSERVED].double().square().mean().sqrt()
    assert row["pooled"] == pytest.approx(float(expected), rel=1e-5)
    assert coverage.record()["coverage"]["given_theirs_draw"]["failed_draws_left_out"] == 1
    assert [kind.label for kind in kinds_of(imputer)] == ["theirs, mean", "theirs, one draw"]


def test_the_first_draws_are_independent_ones():
    draws = normal(8, 3, 2, seed=9)
    solution = Solution.exact(draws.flatten(0, 1))
    status = torch.arange(24)
    done = Completions(draws, draws, dataclasses.replace(solution, status=status), paired=True)
    first = done.first(3)
    assert torch.equal(first.draws, draws[::2][:3]) and torch.equal(first.latents, first.draws) and not first.paired
    assert torch.equal(first.solution.status.view(3, 3), status.view(8, 3)[::2][:3])
    plain = dataclasses.replace(done, paired=False).first(3)
    assert torch.equal(plain.draws, draws[:3]) and torch.equal(plain.solution.status, status[:9])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_given_draw_that_has_failed_is_nowhere_in_the_mean(value):
    """Not where it is finite either, and the evaluation goes on."""
    draws = torch.tensor([[[0.5, 1.0, value]], [[0.5, 3.0, 4.0]]])
    batch = incomplete(torch.tensor([[0.5, 9.0, 9.0]]), torch.tensor([[True, False, False]]))
    done = GivenImputer("theirs", draws).impute(batch)
    assert done.ok.tolist() == [[False], [True]] and done.mean().tolist() == [[0.5, 3.0, 4.0]]
    errors = Errors(Vectors("toy", batch.values, None, 0))
    truth = Vectors("toy", torch.tensor([[0.5, 3.0, 4.0]]), None, 0)
    errors.update(GivenImputer("theirs", draws), done, measured(truth, torch.arange(1), batch.observed))
    assert errors.record()["rmse"]["given_theirs_mean"]["pooled"] == 0


def test_what_a_file_of_completions_says(tmp_path):
    """Floats of any precision and byte order; which draws are pairs; and what the method was given."""
    draws = VALUES.expand(4, N, D).numpy()
    for dtype in ("f2", ">f4", "f8", "longdouble"):
        np.savez(tmp_path / "theirs.npz", draws=draws.astype(dtype), observed=OBSERVED.numpy(), antithetic=True)
        imputer = GivenImputer.read(tmp_path / "theirs.npz")
        assert torch.allclose(imputer.draws.double(), VALUES.double().expand(4, N, D), atol=2e-3)
        assert imputer.impute(BATCH).paired
    with pytest.raises(InputError, match="item 0 was completed by theirs under another mask than that under which"):
        imputer.impute(dataclasses.replace(BATCH, observed=BATCH.observed & (BATCH.index > 0)[:, None]))
    bad = {
        "completions in .* are <U3; give floating point": {"draws": draws.astype("U3")},
        r"the masks in .* are float64; give bool": {"draws": draws, "observed": np.ones((N, D))},
        r"masks in .* have shape \(3, 3\); give \(40, 3\), or": {
            "draws": draws,
            "observed": np.ones((3, 3)) > 0,
        },
        r"'antithetic' in .* is bool of shape \(2,\); give true or false": {
            "draws": draws,
            "antithetic": [True, False],
        },
    }
    for line, arrays in bad.items():
        np.savez(tmp_path / "theirs.npz", **arrays)
        with pytest.raises(InputError, match=line):
            GivenImputer.read(tmp_path / "theirs.npz").impute(BATCH)


def test_masks_of_other_items_are_refused():
    imputer = GivenImputer("theirs", VALUES.expand(2, N, D), seen=OBSERVED[:3])
    with pytest.raises(InputError, match=r"beside the completions of theirs have shape \(3, 3\); give \(40, 3\)"):
        imputer.impute(BATCH)


def test_a_file_is_not_taken_for_an_imputer_of_that_name():
    given = GivenImputer("gaussian", VALUES.expand(2, N, D))
    assert not {kind.key for kind in kinds_of(given)} & {kind.key for kind in kinds_of(GaussianImputer)}
    with pytest.raises(InputError, match="two imputers are called 'gaussian'"):
        check_apart([given, GaussianImputer])
    with pytest.raises(InputError, match="two imputers are called 'viscos'"):
        check_apart([ViscosImputer, GivenImputer("viscos", VALUES.expand(2, N, D))])


def test_given_draws_of_other_items_are_refused():
    draws = torch.zeros(2, N, D)
    draws[:, OBSERVED] = VALUES[OBSERVED]
    item = int(OBSERVED.any(1).nonzero()[3])
    for wrong in (float("nan"), 0.5 + float(VALUES[item][OBSERVED[item]][0])):
        other = draws.clone()
        other[1, item, int(OBSERVED[item].nonzero()[0])] = wrong
        with pytest.raises(InputError, match=f"item {item} by theirs (differs from it|is NaN) where it is observed"):
            GivenImputer("theirs", other).impute(BATCH)
    with pytest.raises(InputError, match=r"of 3 items by theirs, and item 39 is asked for; take items=3"):
        GivenImputer("theirs", draws[:, :3]).impute(BATCH)
    with pytest.raises(InputError, match=r"shape \(2, 40, 4\), and should have \(K, N, 3\)"):
        GivenImputer("theirs", torch.zeros(2, N, 4)).impute(BATCH)
    for made in (torch.zeros(N, D), torch.zeros(2, N, D).long(), torch.zeros(0, N, D)):
        with pytest.raises(InputError, match="give floating point draws"):
            GivenImputer("theirs", made)
