"""The figures of an evaluation, against figures computed in another way."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from problems import Projections, normal

from viscos.core.batch import incomplete
from viscos.core.labels import RMSE, Measure
from viscos.core.rng import generator
from viscos.core.solution import Solution, Status
from viscos.data.images import Images
from viscos.data.mask_files import mask_hash
from viscos.data.vectors import Vectors
from viscos.evaluate import Protocol, evaluate, standard_metrics
from viscos.flows import Affine, Flow, Whitening, continuous
from viscos.imputers import GaussianImputer, MeanImputer
from viscos.inference import Objective, impute
from viscos.linear.gaussian import Gaussian
from viscos.metrics import Coverage, Errors
from viscos.metrics.features import FeatureStatistics, Reference
from viscos.metrics.likelihood import log_likelihood_record
from viscos.metrics.ranks import Calibration
from viscos.roots import anderson
from viscos.train.classifier import LatentClassifier, make_classifier
from viscos.train.model import Model, build_model

SHAPE = (1, 4, 4)
N, CLASSES = 13, 3
CFG = {
    "flow": {
        "_target_": "viscos.flows.iresnet",
        "blocks": [2],
        "channels": 4,
        "first_squeeze": False,
        "series": {"_target_": "viscos.flows.Series", "terms": 4},
    },
    "posterior": {"_target_": "viscos.posteriors.Amortised", "channels": [4]},
    "classifier": "latents",
}
PROTOCOL = Protocol(draws=4, batch_size=5, seed=3, bound_items=6, bound_draws=2)


def pictures(n=N, labels=True):
    values = torch.sigmoid(normal(n, 3, seed=1) @ normal(3, 16, seed=2)).float().view(n, *SHAPE)
    return Images("made up", values, torch.arange(n) % CLASSES if labels else None, CLASSES if labels else 0)


TEST = pictures()
OBSERVED = torch.rand(N, *SHAPE, generator=generator(0, "mask")) < 0.5
GAUSSIAN = Gaussian.from_incomplete(pictures(200).values, torch.ones(200, *SHAPE, dtype=torch.bool), floor=0.01)

OTHERS = (MeanImputer(GAUSSIAN.mean.view(SHAPE)), GaussianImputer(GAUSSIAN))


@pytest.fixture(scope="module")
def model():
    """A model that is not at its start."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_model(CFG["flow"], CFG["posterior"], CFG["classifier"], SHAPE, CLASSES)
        model.prepare(TEST.values, OBSERVED, GAUSSIAN)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1 * torch.randn(p.shape))
        model.flow.renormalize(50)
    return model


OBJECTIVE = Objective(anderson(1e-5))


@pytest.fixture(scope="module")
def measured(model):
    return evaluate(model, TEST, OBSERVED, OBJECTIVE, PROTOCOL, others=OTHERS)


def completions(model, objective=OBJECTIVE):
    """All draws in one batch."""
    batch = incomplete(TEST.values, OBSERVED)
    return impute(model.flow, model.posterior, batch, objective.solver, draws=4, seed=3, antithetic=True)


def pooled(completed, truth, hidden):
    """The root mean square over all hidden entries at once."""
    return math.sqrt(float((completed.clamp(0, 1) - truth)[hidden].double().square().mean()))


def test_error_against_a_plain_computation(model, measured):
    record, first = measured
    done, hidden = completions(model), ~OBSERVED
    assert done.ok.all()
    assert record["rmse"]["mean"]["pooled"] == pytest.approx(pooled(done.draws.mean(0), TEST.values, hidden), rel=1e-4)
    assert record["rmse"]["draw"]["pooled"] == pytest.approx(pooled(done.draws[0], TEST.values, hidden), rel=1e-4)
    assert torch.equal(first.draws[:, OBSERVED[:5]], TEST.values[:5][OBSERVED[:5]].expand(4, -1))
    torch.testing.assert_close(first.draws, done.draws[:, :5], atol=1e-4, rtol=0)


def test_baselines_against_a_plain_computation(measured):
    rows, hidden, values = measured[0]["rmse"], ~OBSERVED, TEST.values
    mean = GAUSSIAN.mean.view(SHAPE).float().expand_as(values)
    assert rows["mean_imputation"]["pooled"] == pytest.approx(pooled(mean, values, hidden), rel=1e-5)
    S, mu, filled = GAUSSIAN.covariance, GAUSSIAN.mean, []
    for y, o in zip(values.double().flatten(1), OBSERVED.flatten(1), strict=True):
        y = y.clone()
        y[~o] = mu[~o] + S[~o][:, o] @ torch.linalg.solve(S[o][:, o], y[o] - mu[o])
        filled.append(y)
    filled = torch.stack(filled).view_as(values)
    assert rows["gaussian_mean"]["pooled"] == pytest.approx(pooled(filled, values, hidden), rel=1e-4)
    assert rows["gaussian_draw"]["pooled"] > rows["gaussian_mean"]["pooled"]


def test_what_the_record_says(measured):
    record, _ = measured
    assert record.keys() == {
        "items", "mask_hash", "missing", "draws", "rmse", "fid", "solver", "accuracy", "bound", "lipschitz",
        "noise_taken_off_draws", "labels", "cost", "energy", "coverage", "spread_skill",
    }  # fmt: skip
    assert record["items"] == N and record["draws"] == 4
    assert record["mask_hash"] == mask_hash(OBSERVED)
    assert record["missing"] == pytest.approx(float((~OBSERVED).float().mean()))
    kinds = {"mean", "draw", "prediction", "mean_imputation", "gaussian_mean", "gaussian_draw"}
    assert record["rmse"].keys() == kinds
    for row in record["rmse"].values():
        assert row["items"] == N and row["entries"] == int((~OBSERVED).sum()) and row["failed_items_left_out"] == 0
    solver = record["solver"]
    assert solver["solves"] == 4 * N and solver["failed"] == solver["fallback"] == 0
    assert 0 < solver["residual"] <= 1e-5 and solver["evaluations"] > 1
    assert 0 < record["lipschitz"] < 1
    cost = record["cost"]["viscos"]
    assert list(record["cost"]) == ["viscos", "network", "mean", "gaussian"]
    assert cost["draws"] == 4 and cost["seconds_an_item"] > 0
    assert cost["network_passes_an_item"] == pytest.approx(4 * solver["evaluations"]) and not cost["with_gradients"]
    json.dumps(record, allow_nan=False)


def test_scores_are_of_the_first_draws_of_pairs(model, measured):
    """Two of four draws: with their own noise, each is of another pair."""
    record, hidden = measured[0], ~OBSERVED
    y, z = completions(model).draws[::2].clamp(0, 1).double()
    each = []
    for a, b, t, h in zip(y, z, TEST.values, hidden, strict=True):
        each.append(float((a - t)[h].norm() + (b - t)[h].norm() - (a - b)[h].norm()) / 2)
    for metric in ("energy", "spread_skill"):
        assert record[metric].keys() == {"draw", "gaussian_draw"}
        assert record[metric]["draw"]["drawn"].startswith("independent draws: the first of each antithetic pair")
        for row in record[metric].values():
            assert row["items"] == N and row["draws"] == 2 and row["failed_draws_left_out"] == 0
    assert record["energy"]["draw"]["value"] == pytest.approx(sum(each) / N, rel=1e-3)
    variance, error = ((y - z) ** 2 / 2)[hidden].sum(), (((y + z) / 2 - TEST.values) ** 2)[hidden].sum()
    assert record["spread_skill"]["draw"]["value"] == pytest.approx(float((1.5 * variance / error).sqrt()), rel=1e-3)


def test_the_coverage_is_of_as_many_independent_draws_as_an_interval_of_90_percent_takes(model, measured):
    record, hidden = measured[0], ~OBSERVED
    batch = incomplete(TEST.values, OBSERVED)
    drawn = impute(
        model.flow, model.posterior, batch, OBJECTIVE.solver, draws=19, seed=PROTOCOL.seed, purpose="intervals"
    )
    y = drawn.draws.clamp(0, 1)
    inside = (y.amin(0) <= TEST.values) & (TEST.values <= y.amax(0))
    for row in record["coverage"].values():
        assert row["nominal"] == pytest.approx(0.9) and row["draws"] == 19 and row["items"] == N
    assert record["coverage"]["draw"]["value"] == pytest.approx(float(inside[hidden].double().mean()), abs=1e-3)
    few = dataclasses.replace(PROTOCOL, interval_items=5)
    assert evaluate(model, TEST, OBSERVED, OBJECTIVE, few)[0]["coverage"]["draw"]["items"] == 5
    enough = dataclasses.replace(PROTOCOL, draws=38)
    assert "antithetic" in evaluate(model, TEST, OBSERVED, OBJECTIVE, enough)[0]["coverage"]["draw"]["drawn"]


def test_metrics_of_many_draws_share_them_and_each_has_its_own_number(model):
    """Calibration, of 39 draws, leaves the coverage, of the first 19 of them, what it is alone."""
    together = evaluate(model, TEST, OBSERVED, OBJECTIVE, PROTOCOL, metrics=[Coverage(TEST), Calibration(TEST)])[0]
    for metric, key, draws in ((Coverage(TEST), "coverage", 19), (Calibration(TEST), "calibration", 39)):
        alone = evaluate(model, TEST, OBSERVED, OBJECTIVE, PROTOCOL, metrics=[metric])[0]
        assert together[key] == alone[key] and alone[key]["draw"]["draws"] == draws


def test_a_metric_of_ones_own_says_how_a_table_shows_it(model):
    class Largest(Errors):
        measures = (Measure("largest", "Largest error", "lower", 3), RMSE)

    record, _ = evaluate(model, TEST, OBSERVED, OBJECTIVE, PROTOCOL, metrics=[Largest(TEST)])
    assert [Measure(**told) for told in record["measures"]] == [Largest.measures[0]]
    plain, _ = evaluate(model, TEST, OBSERVED, OBJECTIVE, PROTOCOL, metrics=[Errors(TEST)])
    assert "measures" not in plain


def test_one_independent_draw_has_no_scores(model):
    record, _ = evaluate(model, TEST, OBSERVED, OBJECTIVE, dataclasses.replace(PROTOCOL, draws=2), others=OTHERS)
    assert not record.keys() & {"energy", "spread_skill"} and record["draws"] == 2
    plain, _ = evaluate(model, TEST, OBSERVED, OBJECTIVE, PROTOCOL)
    assert plain["energy"].keys() == {"draw"}


def timeless(record):
    """A record without the seconds that it took."""
    return {key: value for key, value in record.items() if key != "cost"}


def test_the_same_seed_gives_the_same_record(model, measured):
    again, first = evaluate(model, TEST, OBSERVED, OBJECTIVE, PROTOCOL, others=OTHERS)
    assert timeless(again) == timeless(measured[0])
    assert torch.equal(first.draws, measured[1].draws)


def test_another_seed_or_batch_size(model, measured):
    other, _ = evaluate(model, TEST, OBSERVED, OBJECTIVE, dataclasses.replace(PROTOCOL, seed=4))
    assert other["rmse"]["draw"]["pooled"] != measured[0]["rmse"]["draw"]["pooled"]
    alone, _ = evaluate(model, TEST, OBSERVED, OBJECTIVE, dataclasses.replace(PROTOCOL, batch_size=1))
    for name in ("draw", "mean"):
        assert alone["rmse"][name]["pooled"] == pytest.approx(measured[0]["rmse"][name]["pooled"], rel=1e-4)
    assert alone["accuracy"] == measured[0]["accuracy"]


def test_measuring_changes_nothing(model):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.train()
    evaluate(model, TEST, OBSERVED, OBJECTIVE, PROTOCOL)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_accuracy_counts(model, measured):
    done = completions(model)
    with torch.no_grad():
        seen = (done.latents, done.draws, OBSERVED.expand_as(done.draws))
        scores = model.classifier(*(part.flatten(0, 1) for part in seen)).softmax(1).view(4, N, CLASSES).mean(0)
    accuracy = measured[0]["accuracy"]
    assert accuracy["items"] == N
    assert accuracy["value"] == pytest.approx(float((scores.argmax(1) == TEST.labels).double().mean()))


def test_accuracy_by_latents_stands_beside_that_of_the_network(model):
    """Of a model with both classifiers: of the flow's draws, and of what the network alone makes of the items."""
    torch.manual_seed(1)
    posterior = build_model(CFG["flow"], CFG["posterior"] | {"held_out": 0.2}, "both", SHAPE, CLASSES).posterior
    posterior.prepare(TEST.values, OBSERVED, GAUSSIAN)
    completions_, latents = make_classifier("both", SHAPE, CLASSES), make_classifier("latents", SHAPE, CLASSES)
    both = Model(model.flow, posterior, completions_, latents).eval()
    record, _ = evaluate(both, TEST, OBSERVED, OBJECTIVE, PROTOCOL)
    assert record["accuracy"]["classifier"].endswith("completions and masks, without the flow")
    assert record["accuracy_latents"]["classifier"] == "trained along, on latents, leaving the flow as it is"
    alone, _ = evaluate(Model(model.flow, posterior, latents).eval(), TEST, OBSERVED, OBJECTIVE, PROTOCOL)
    drop = ("classifier",)
    assert {k: v for k, v in record["accuracy_latents"].items() if k not in drop} == (
        {k: v for k, v in alone["accuracy"].items() if k not in drop}
    )
    assert "accuracy_latents" not in alone


def test_the_extractor_sees_every_kind_of_completion(model, measured):
    reference = Reference(Projections(), pictures(200))
    record, _ = evaluate(
        model, TEST, OBSERVED, OBJECTIVE, PROTOCOL, others=OTHERS, metrics=standard_metrics(TEST, reference)
    )
    assert measured[0]["fid"] == {"reason": "no extractor was given"}
    same = measured[0].keys() - {"fid", "cost"}
    assert {key: record[key] for key in same} == {key: measured[0][key] for key in same}
    assert record["fid"].keys() == record["accuracy_complete"].keys() == record["rmse"].keys() | {"real"}
    done = completions(model)
    for kind, images in (("draw", done.draws[0]), ("mean", done.mean()), ("real", TEST.values)):
        verdict = FeatureStatistics(reference)
        verdict.update(images, TEST.labels)
        assert record["fid"][kind]["value"] == pytest.approx(verdict.fid_record()["value"], rel=1e-3)
        assert record["fid"][kind]["items"] == N and record["fid"][kind]["reference_items"] == 200
        assert record["accuracy_complete"][kind]["value"] == verdict.accuracy_record()["value"]
    json.dumps(record, allow_nan=False)


def test_without_labels_there_is_no_accuracy(model):
    record, _ = evaluate(model, pictures(labels=False), OBSERVED, OBJECTIVE, PROTOCOL)
    assert "accuracy" not in record


def test_the_bound_is_a_bound(measured, model):
    bound = measured[0]["bound"]
    assert bound["items"] == 6 and bound["draws"] == 2 and math.isfinite(bound["mean"]) and bound["standard_error"] > 0


def test_a_failed_solve_is_left_out_and_counted(model):
    @dataclasses.dataclass(frozen=True)
    class Failing:
        """Fails at the items of which the first entry is hidden."""

        tolerance: float = 1e-5

        def solve(self, equation, start):
            found = anderson(1e-5).solve(equation, start)
            failed = equation.hidden.flatten(1)[:, 0]
            status = torch.where(failed, int(Status.STALLED), found.status)
            return Solution(found.value, status, found.residual, found.evaluations, found.fallback)

    reference = Reference(Projections(), pictures(200))
    metrics = standard_metrics(TEST, reference)
    record, first = evaluate(model, TEST, OBSERVED, Objective(Failing()), PROTOCOL, others=OTHERS, metrics=metrics)
    failed = ~OBSERVED.flatten(1)[:, 0]
    assert 0 < int(failed.sum()) < N
    assert record["solver"]["failed"] == pytest.approx(float(failed.double().mean()))
    assert record["rmse"]["mean"]["failed_items_left_out"] == int(failed.sum())
    assert record["rmse"]["mean"]["items"] == record["accuracy"]["items"] == N - int(failed.sum())
    assert record["rmse"]["gaussian_mean"]["items"] == record["fid"]["real"]["items"] == N
    assert (
        record["energy"]["draw"]["items"] == N - int(failed.sum()) and record["energy"]["gaussian_draw"]["items"] == N
    )
    assert record["energy"]["draw"]["failed_items_left_out"] == int(failed.sum())
    for kind in ("draw", "mean"):
        row = record["fid"][kind]
        assert row["items"] == N - int(failed.sum()) and row["failed_items_left_out"] == int(failed.sum())
    done = completions(model)
    ok = ~failed
    each = {name: numbers for metric in metrics for name, numbers in metric.per_item().items()}
    for name in ("rmse_mean", "rmse_draw", "energy_draw"):
        assert torch.equal(each[name].isnan(), failed), name
    assert each["rmse_gaussian_mean"].isfinite().all() and each["energy_gaussian_draw"].isfinite().all()
    item = int(ok.nonzero()[-1])
    alone = pooled(done.draws[0][item : item + 1], TEST.values[item : item + 1], ~OBSERVED[item : item + 1])
    assert float(each["rmse_draw"][item]) == pytest.approx(alone, rel=1e-4)
    assert float(each["energy_draw"].nanmean()) == pytest.approx(record["energy"]["draw"]["value"])
    expected = pooled(done.draws[0][ok], TEST.values[ok], ~OBSERVED[ok])
    assert record["rmse"]["draw"]["pooled"] == pytest.approx(expected, rel=1e-4)
    assert torch.equal(first.draws[0].isnan().flatten(1).any(1), failed[:5])
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize(("rows", "asked"), [(slice(0, None, 2), N // 2), (slice(5, 10), N - 5)])
def test_what_is_said_of_the_solver_is_of_items_with_a_hole(model, rows, asked):
    """A whole batch may have none."""
    observed = OBSERVED.clone()
    observed[rows] = True
    record, _ = evaluate(model, TEST, observed, OBJECTIVE, PROTOCOL)
    solver = record["solver"]
    assert solver["solves"] == 4 * asked and solver["failed"] == 0 and solver["evaluations"] > 1


def test_when_every_solve_fails(model):
    @dataclasses.dataclass(frozen=True)
    class Hopeless:
        tolerance: float = 1e-5

        def solve(self, equation, start):
            n = len(start)
            nan = start.new_full((n,), math.nan)
            return Solution(start * math.nan, torch.full((n,), int(Status.NON_FINITE)), nan, nan * 0 + 1)

    reference = Reference(Projections(), pictures(200))
    record, _ = evaluate(
        model, TEST, OBSERVED, Objective(Hopeless()), PROTOCOL, metrics=standard_metrics(TEST, reference)
    )
    assert record["solver"]["failed"] == 1 and record["solver"]["residual"] is None
    assert record["rmse"]["mean"]["pooled"] is None and record["bound"] is None
    assert record["fid"]["mean"]["value"] is None and "0 items are too few" in record["fid"]["mean"]["reason"]
    assert record["accuracy_complete"]["draw"]["value"] is None


# -------------------------------------------------------------------------------------------------------- complete data


def gaussian_model(mean, deviation, classifier=None):
    """A flow that is a Gaussian with independent entries."""
    layer = Affine(SHAPE, learn=False)
    layer.set_moments(mean, deviation)
    return Model(Flow([layer], SHAPE), None, classifier)


ALL = torch.ones(N, *SHAPE, dtype=torch.bool)


def test_bits_per_dimension_of_a_gaussian():
    mean, deviation = 0.3 + 0.4 * normal(*SHAPE, seed=5).float().sigmoid(), 0.2 + normal(*SHAPE, seed=6).float().abs()
    levels = 33
    model = gaussian_model(mean, deviation)
    protocol = dataclasses.replace(PROTOCOL, levels=levels)
    grey = Images("grey", (TEST.values * (levels - 1)).round() / (levels - 1), None, 0)
    record, first = evaluate(model, grey, ALL, OBJECTIVE, protocol)
    assert first is None and "rmse" not in record

    law = torch.distributions.Normal(mean.double(), deviation.double())
    k = (grey.values * (levels - 1)).round().double()
    # The probability of a grey level is that of its cell, of size 1/(levels − 1).
    u = torch.rand(k.shape, generator=generator(protocol.seed, "dequantise")) - 0.5
    total = float((law.log_prob((k + u) / (levels - 1)) - math.log(levels - 1)).sum())
    assert record["bits_per_dim"]["value"] == pytest.approx(-total / (N * 16 * math.log(2)), abs=1e-5)


def test_densities_do_not_depend_on_the_size_of_batches():
    """Of a flow whose log-determinant is estimated by probes: an item has its own."""
    shape, sizes = (1, 9, 9), (1, 5, N)
    flow = continuous(shape, width=4, steps=3)
    with torch.no_grad():
        for k, parameter in enumerate(flow.velocity.parameters()):
            parameter.add_(0.1 * normal(*parameter.shape, seed=k).float())
    images = Images("large", torch.sigmoid(normal(N, *shape)).float(), None, 0)
    everything, protocols = images.known, [dataclasses.replace(PROTOCOL, batch_size=size) for size in sizes]
    records = [evaluate(Model(flow, None, None), images, everything, OBJECTIVE, each)[0] for each in protocols]
    bits = [record["bits_per_dim"]["value"] for record in records]
    nats = [log_likelihood_record(flow, images, size)["value"] for size in sizes]
    for first, *others in (bits, nats):
        assert others == pytest.approx([first] * 2, rel=1e-5)


def test_the_likelihood_of_a_flow_without_parameters():
    flow, rows = Flow([Whitening((3,))], (3,)), normal(4, 3).float()
    record = log_likelihood_record(flow, Vectors("rows", rows, None, 0), 2)
    assert record["value"] == pytest.approx(float(flow.log_prob(rows).mean()), rel=1e-5)


def test_bits_per_dimension_in_closed_form():
    """With one grey level, the noise's mean and variance give the expected value: 1/2 and 1/12 of a squared cell."""
    levels, n, s = 4, 2000, 0.4
    model = gaussian_model(torch.full(SHAPE, 0.5), torch.full(SHAPE, s))
    images = Images("grey", torch.full((n, *SHAPE), 1 / 3), None, 0)
    protocol = Protocol(levels=levels, batch_size=500)
    value = evaluate(model, images, torch.ones(n, *SHAPE, dtype=torch.bool), OBJECTIVE, protocol)[0]["bits_per_dim"]
    squared = ((1 / 3 - 0.5) ** 2 + 1 / (12 * (levels - 1) ** 2)) / s**2
    nats = 0.5 * squared + math.log(s) + 0.5 * math.log(2 * math.pi) + math.log(levels - 1)
    assert value["value"] == pytest.approx(nats / math.log(2), abs=2e-3)
    assert f"{levels} levels" in value["how"]


def test_bits_per_dimension_of_a_flat_density():
    """Where the density is p everywhere, a pixel takes log2(levels − 1) − log2(p) bits."""
    model = gaussian_model(torch.full(SHAPE, 0.5), torch.full(SHAPE, 1e3))
    record, _ = evaluate(model, TEST, ALL, OBJECTIVE, PROTOCOL)
    density = -math.log2(1e3 * math.sqrt(2 * math.pi))
    assert record["bits_per_dim"]["value"] == pytest.approx(math.log2(255) - density, abs=1e-4)


def test_accuracy_on_complete_data():
    classifier = LatentClassifier(16, CLASSES)
    model = gaussian_model(torch.zeros(SHAPE), torch.ones(SHAPE), classifier)
    record, _ = evaluate(model, TEST, ALL, OBJECTIVE, PROTOCOL)
    classifier.eval()
    with torch.no_grad():
        hits = classifier(TEST.values, TEST.values, OBSERVED).argmax(1) == TEST.labels
    assert record["accuracy"]["items"] == N
    assert record["accuracy"]["value"] == pytest.approx(float(hits.double().mean()))


def test_progress_reaches_the_end(model):
    for mask, m in ((OBSERVED, model), (ALL, gaussian_model(torch.zeros(SHAPE), torch.ones(SHAPE)))):
        done = []
        evaluate(m, TEST, mask, OBJECTIVE, PROTOCOL, progress=lambda k, figures, done=done: done.append(k))
        assert done == [5, 10, 13]
