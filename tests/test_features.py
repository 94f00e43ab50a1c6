"""FID and the second accuracy, by an extractor that is known through and through."""

from __future__ import annotations

import json
import math

import pytest
import torch
from problems import Projections, normal

from viscos.commands.assemble.data import Dataset
from viscos.commands.assemble.measuring import reference_of
from viscos.data.images import Images
from viscos.metrics.accuracy import Accuracy
from viscos.metrics.extractor import MnistNet
from viscos.metrics.features import ROWS, FeatureStatistics, Reference
from viscos.metrics.fid import frechet_distance
from viscos.metrics.metric import measured
from viscos.metrics.points import Errors, Recognition
from viscos.metrics.rmse import RMSE

SIZE = Projections.size


def pictures(n, seed=0, name="made up"):
    values = normal(n, 1, 4, 4, seed=seed, dtype=torch.float32).sigmoid()
    return Images(name, values, torch.arange(n) % SIZE, SIZE)


TRAIN, TEST = pictures(2 * ROWS + 5, seed=1), pictures(40, seed=2)
REFERENCE = Reference(Projections(), TRAIN)


def expected(images):
    """The distance, all at once."""
    moments = []
    for values in (images, TRAIN.values):
        features = values.double().flatten(1) @ REFERENCE.extractor.W.detach().double()
        moments += [features.mean(0), features.T.cov()]
    return frechet_distance(*moments)


def test_features_gathered_over_batches():
    """Over batches; completions are clamped, failed ones left out and counted."""
    completed, ok = 1.4 * TEST.values - 0.2, torch.arange(40) % 7 > 0
    completed[~ok] = math.nan
    seen = FeatureStatistics(REFERENCE)
    for rows in torch.arange(40).split(9):
        seen.update(completed[rows], TEST.labels[rows], ok[rows])
    record = json.loads(json.dumps(seen.fid_record(), allow_nan=False))
    assert record["value"] == pytest.approx(expected(completed[ok].clamp(0, 1)), rel=1e-4)
    assert record["items"] == int(ok.sum()) and record["failed_items_left_out"] == int((~ok).sum())
    assert record["reference_items"] == len(TRAIN) and "made up" in record["between"]
    assert (record["extractor"], record["extractor_sha256"]) == (Projections.name, Projections.sha256)

    accuracy = Accuracy()
    features = completed.clamp(0, 1).flatten(1) @ REFERENCE.extractor.W.detach()
    accuracy.update(features[ok].argmax(1), TEST.labels[ok])
    record = seen.accuracy_record()
    assert record["value"] == accuracy.value and record["items"] == int(ok.sum())
    assert record["failed_items_left_out"] == int((~ok).sum()) and record["classifier_sha256"] == Projections.sha256


def test_training_images_against_themselves():
    seen = FeatureStatistics(REFERENCE)
    seen.update(TRAIN.values)
    assert seen.fid_record()["value"] == pytest.approx(0, abs=1e-9)


def test_with_too_few_items_nothing_is_looked_at():
    reference = Reference(Projections(), TRAIN)
    seen = FeatureStatistics(reference)
    seen.update(TEST.values[:SIZE])
    record = seen.fid_record()
    assert record["value"] is None and record["reason"] == "3 items are too few for a covariance of 3 features"
    assert record["items"] == SIZE and "moments" not in vars(reference)
    few = FeatureStatistics(Reference(Projections(), pictures(2)))
    few.update(TEST.values)
    assert few.fid_record()["value"] is None and few.fid_record()["reason"].startswith("2 items are too few")


def filled(test, reference, kinds):
    hidden = torch.rand(TEST.values.shape, generator=torch.Generator().manual_seed(3)) < 0.5
    metrics = Errors(test), Recognition(test, reference)
    for rows in torch.arange(40).split(16):
        truth = measured(test, rows, ~hidden[rows])
        for metric in metrics:
            for kind, completed in kinds.items():
                metric.add(kind, completed[rows], truth, torch.ones(len(rows), dtype=torch.bool))
            metric.update_truth(truth)
    return metrics[0].record() | metrics[1].record(), hidden


def test_the_metrics_of_several_kinds():
    kinds = {"one": TEST.values.flip(0), "two": 0.5 * TEST.values}
    record, hidden = filled(TEST, REFERENCE, kinds)
    assert record.keys() == {"rmse", "fid", "accuracy_complete"} and record["rmse"].keys() == kinds.keys()
    assert record["fid"].keys() == record["accuracy_complete"].keys() == kinds.keys() | {"real"}
    for kind, images in (kinds | {"real": TEST.values}).items():
        assert record["fid"][kind]["value"] == pytest.approx(expected(images), rel=1e-4)
    rmse = RMSE()
    rmse.update(kinds["one"], TEST.values, hidden)
    assert record["rmse"]["one"]["pooled"] == pytest.approx(rmse.pooled)
    assert record["fid"]["one"]["value"] == pytest.approx(record["fid"]["real"]["value"], rel=1e-4), "the same items"


def test_classes_of_other_data_are_not_told_apart():
    others = Images("others", TEST.values, TEST.labels, SIZE)
    record, _ = filled(others, REFERENCE, {"one": TEST.values})
    assert record["fid"]["one"]["value"] is not None and "accuracy_complete" not in record
    unlabelled = Images("made up", TEST.values, None, 0)
    assert "accuracy_complete" not in filled(unlabelled, REFERENCE, {"one": TEST.values})[0]


def test_without_a_reference_the_record_says_why():
    record, _ = filled(TEST, "no such network", {"one": TEST.values})
    assert record["rmse"]["one"]["pooled"] == 0 and record["fid"] == {"reason": "no such network"}
    assert record.keys() == {"rmse", "fid"}


def test_the_reference_of_a_run():
    """It sees all training images, however few of them a run learns from."""
    digits, cpu = Dataset({"name": "digits"}), torch.device("cpu")
    assert isinstance(reference_of(digits, (1, 8, 8), None, cpu), str)
    reference = reference_of(digits, (1, 28, 28), None, cpu)
    assert isinstance(reference.extractor, MnistNet) and len(reference.train) == 1437
