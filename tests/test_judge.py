"""FID and the second accuracy, by an extractor that is known through and through."""

from __future__ import annotations

import json
import math

import pytest
import torch
from problems import Projections, normal

from viscos.commands.common import make_judge
from viscos.data.sources.registry import Images
from viscos.metrics.accuracy import Accuracy
from viscos.metrics.extractor import MnistNet
from viscos.metrics.fid import frechet_distance
from viscos.metrics.judge import ROWS, Judge, Verdict
from viscos.metrics.rmse import RMSE
from viscos.metrics.tally import Tally

SIZE = Projections.size


def pictures(n, seed=0, name="made up"):
    values = normal(n, 1, 4, 4, seed=seed, dtype=torch.float32).sigmoid()
    return Images(name, values, torch.arange(n) % SIZE, SIZE)


TRAIN, TEST = pictures(2 * ROWS + 5, seed=1), pictures(40, seed=2)
JUDGE = Judge(Projections(), TRAIN)


def expected(images):
    """The distance, all at once."""
    moments = []
    for values in (images, TRAIN.values):
        features = values.double().flatten(1) @ JUDGE.extractor.W.detach().double()
        moments += [features.mean(0), features.T.cov()]
    return frechet_distance(*moments)


def test_a_verdict():
    """Over batches; completions are clamped, failed ones left out and counted."""
    completed, ok = 1.4 * TEST.values - 0.2, torch.arange(40) % 7 > 0
    completed[~ok] = math.nan
    verdict = Verdict(JUDGE)
    for rows in torch.arange(40).split(9):
        verdict.update(completed[rows], TEST.labels[rows], ok[rows])
    record = json.loads(json.dumps(verdict.fid_record(), allow_nan=False))
    assert record["value"] == pytest.approx(expected(completed[ok].clamp(0, 1)), rel=1e-4)
    assert record["items"] == int(ok.sum()) and record["failed_items_left_out"] == int((~ok).sum())
    assert record["reference_items"] == len(TRAIN) and "made up" in record["between"]
    assert (record["extractor"], record["extractor_sha256"]) == (Projections.name, Projections.sha256)

    accuracy = Accuracy()
    features = completed.clamp(0, 1).flatten(1) @ JUDGE.extractor.W.detach()
    accuracy.update(features[ok].argmax(1), TEST.labels[ok])
    record = verdict.accuracy_record()
    assert record["value"] == accuracy.value and record["items"] == int(ok.sum())
    assert record["failed_items_left_out"] == int((~ok).sum()) and record["classifier_sha256"] == Projections.sha256


def test_training_images_against_themselves():
    verdict = Verdict(JUDGE)
    verdict.update(TRAIN.values)
    assert verdict.fid_record()["value"] == pytest.approx(0, abs=1e-9)


def test_with_too_few_items_nothing_is_looked_at():
    judge = Judge(Projections(), TRAIN)
    verdict = Verdict(judge)
    verdict.update(TEST.values[:SIZE])
    record = verdict.fid_record()
    assert record["value"] is None and record["reason"] == "3 items are too few for a covariance of 3 features"
    assert record["items"] == SIZE and "reference" not in vars(judge)
    few = Verdict(Judge(Projections(), pictures(2)))
    few.update(TEST.values)
    assert few.fid_record()["value"] is None and few.fid_record()["reason"].startswith("2 items are too few")


def filled(tally, kinds):
    hidden = torch.rand(TEST.values.shape, generator=torch.Generator().manual_seed(3)) < 0.5
    for rows in torch.arange(40).split(16):
        for kind, completed in kinds.items():
            tally.update(kind, completed[rows], hidden[rows], rows, torch.ones(len(rows), dtype=torch.bool))
        tally.update_truth(rows)
    return tally.record(), hidden


def test_a_tally():
    kinds = {"one": TEST.values.flip(0), "two": 0.5 * TEST.values}
    record, hidden = filled(Tally(TEST, JUDGE), kinds)
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
    record, _ = filled(Tally(others, JUDGE), {"one": TEST.values})
    assert record["fid"]["one"]["value"] is not None and "accuracy_complete" not in record
    unlabelled = Images("made up", TEST.values, None, 0)
    assert "accuracy_complete" not in filled(Tally(unlabelled, JUDGE), {"one": TEST.values})[0]


def test_without_a_judge_the_record_says_why():
    record, _ = filled(Tally(TEST, "no such network"), {"one": TEST.values})
    assert record["rmse"]["one"]["pooled"] == 0 and record["fid"] == {"reason": "no such network"}
    assert record.keys() == {"rmse", "fid"}


def test_the_judge_of_a_run():
    """It sees all training images, however few of them a run learns from."""
    digits, cpu = {"name": "digits", "root": None, "download": False}, torch.device("cpu")
    assert isinstance(make_judge(digits, (1, 8, 8), None, cpu), str)
    judge = make_judge(digits, (1, 28, 28), None, cpu)
    assert isinstance(judge.extractor, MnistNet) and len(judge.train) == 1437
