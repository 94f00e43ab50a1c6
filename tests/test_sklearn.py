"""`viscos.sklearn`: scikit-learn's own checks of an estimator, and what an imputer promises beyond them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.impute import SimpleImputer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import estimator_checks_generator

from viscos.linear.gaussian import Gaussian
from viscos.sklearn import FlowImputer

NAN = np.nan
SHORT = {"max_steps": 2, "draws": 2, "random_state": 0, "calibrate": False}
RNG = np.random.default_rng(0)
WHOLE = RNG.normal(size=(80, 2)) @ [[1.0, 0.9, 0.2], [0.0, 0.3, 1.0]] * [2.0, 300.0, 0.01] + [5.0, 2000.0, -0.3]
HOLES = RNG.random(WHOLE.shape) < 0.25
ROWS = np.where(HOLES, NAN, WHOLE)


# All that there are, but for that of arrays of other libraries, which scikit-learn itself skips by default.
CHECKS = [
    (estimator, check)
    for estimator, check in estimator_checks_generator(FlowImputer(**SHORT), mark=None)
    if check.func.__name__ != "check_array_api_input"
]


@pytest.mark.parametrize(("estimator", "check"), CHECKS, ids=[check.func.__name__ for _, check in CHECKS])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def fitted() -> FlowImputer:
    return FlowImputer(max_steps=20, random_state=0).fit(ROWS)


def test_holes_are_filled_better_than_by_means_and_the_rest_is_as_it_was(fitted):
    found = fitted.transform(ROWS)
    assert (found[~HOLES] == WHOLE[~HOLES]).all() and np.isfinite(found).all()
    scale = WHOLE.std(0)
    of_means = SimpleImputer().fit_transform(ROWS)
    errors = [np.sqrt((((each - WHOLE) / scale)[HOLES] ** 2).mean()) for each in (found, of_means)]
    assert errors[0] < 0.75 * errors[1]


def test_shares_and_width_are_said_and_kept_to(fitted):
    """Of the mean, at most 1 together, in which the flow or what is like it has most; draws are so far from it."""
    assert list(fitted.shares_) == ["viscos", "gaussian", "knn"]
    shares = np.array(list(fitted.shares_.values()))
    assert shares.shape == (3, 3) and (shares >= 0).all(), "an imputer's, of each column"
    assert (0.5 < shares.sum(0)).all() and (shares.sum(0) < 1.001).all()
    assert fitted.width_.shape == (3,) and (0.5 < fitted.width_).all() and (fitted.width_ < 2).all()
    alone = FlowImputer(max_steps=60, random_state=0, calibrate=False).fit(ROWS)
    assert [share.tolist() for share in alone.shares_.values()] == [[1] * 3, [0] * 3, [0] * 3]
    assert alone.width_.tolist() == [1] * 3


@pytest.mark.slow
def test_a_column_that_another_tells_is_not_shrunk_because_of_others():
    """A copy among six columns of noise: one set of shares for all made its error six times the flow's."""
    rng = np.random.default_rng(0)
    age = rng.normal(50, 15, 150)
    rows = np.c_[age, 1.2 * age + rng.normal(0, 0.1, 150), rng.normal(size=(150, 6))]
    holes = rng.random(rows.shape) < 0.15
    holes[:, 1] = False
    found = (
        FlowImputer(max_steps=40, random_state=0).fit(np.where(holes, NAN, rows)).transform(np.where(holes, NAN, rows))
    )
    assert np.sqrt(((found - rows)[:, 0][holes[:, 0]] ** 2).mean()) < 1.5


@pytest.mark.slow
@pytest.mark.parametrize("hole", [(7, 1), (slice(0, 400, 3), 1)], ids=["one hole", "holes in one column"])
def test_a_column_without_holes_in_training_is_completed_as_well(hole):
    """What q knows of a column must not depend on whether that column had holes: a curve, whose noise is of 0.1."""
    rng = np.random.default_rng(0)
    t = rng.uniform(-2, 2, 600)
    rows = np.c_[t, np.sin(2 * t), t**2 / 2] + 0.1 * rng.normal(size=(600, 3))
    train, new = rows[:400].copy(), rows[400:]
    train[hole] = NAN
    imputer = FlowImputer(calibrate=False, random_state=0).fit(train)
    holed = new.copy()
    holed[:, 2] = NAN
    assert np.sqrt((imputer.transform(holed) - new)[:, 2].var()) < 0.2, "it was 0.5"
    assert np.sqrt(((imputer.sample(holed)[0] - new)[:, 2] ** 2).mean()) < 0.4, "it was 0.8"


def test_a_number_too_far_out_is_named(fitted):
    rows = ROWS.copy()
    rows[4] = [1e300, NAN, 0]
    with pytest.raises(ValueError, match=r"column 'x0' has 1e\+300 in row 5, counted from 1, too far from"):
        fitted.transform(rows)
    rows[4] = [1e300, 2, 0]
    assert fitted.transform(rows)[4, 0] == 1e300, "nothing is missing there"


def test_a_row_does_not_depend_on_the_rows_beside_it(fitted):
    order = np.random.default_rng(1).permutation(len(ROWS))
    whole = fitted.transform(ROWS)
    np.testing.assert_allclose(fitted.transform(ROWS[order]), whole[order], rtol=1e-4)
    np.testing.assert_allclose(fitted.transform(ROWS[3:4]), whole[3:4], rtol=1e-4)


def test_samples_are_joint_draws_around_the_mean(fitted):
    draws = fitted.sample(ROWS, 40)
    assert draws.shape == (40, *ROWS.shape) and (draws[:, ~HOLES] == WHOLE[~HOLES]).all()
    spread = draws.std(0)
    assert (spread[HOLES] > 0).all()
    away = abs(draws.mean(0) - fitted.transform(ROWS))[HOLES] / spread[HOLES]
    assert np.median(away) < 0.25  # a standard error is 0.16
    assert (fitted.sample(ROWS, 2) == fitted.sample(ROWS, 2)).all()
    assert (fitted.sample(ROWS, 2, random_state=1) != fitted.sample(ROWS, 2))[:, HOLES].all()
    apart, both = draws - draws.mean(0), np.isnan(ROWS[:, 0]) & np.isnan(ROWS[:, 1])
    assert np.corrcoef(apart[:, both, 0].ravel(), apart[:, both, 1].ravel())[0, 1] > 0.25  # 0.11 would be chance


def test_the_same_state_is_the_same_imputer_and_leaves_torchs_own_alone():
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    a, b = (FlowImputer(**SHORT).fit_transform(ROWS) for _ in range(2))
    assert (a == b).all() and torch.equal(torch.random.get_rng_state(), before)
    assert (FlowImputer(**SHORT | {"random_state": 1}).fit_transform(ROWS) != a)[HOLES].all()


def test_it_is_pickled_and_cloned(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    assert (again.transform(ROWS) == fitted.transform(ROWS)).all()
    assert clone(fitted).get_params() == fitted.get_params()


def test_columns_have_names_and_come_as_a_data_frame():
    frame = pd.DataFrame(ROWS, columns=["long", "heavy", "fine"]).assign(empty=NAN)
    imputer = FlowImputer(**SHORT, add_indicator=True).set_output(transform="pandas")
    found = imputer.fit_transform(frame)
    indicators = [f"missingindicator_{name}" for name in ("long", "heavy", "fine", "empty")]
    assert list(found.columns) == ["long", "heavy", "fine", *indicators] == list(imputer.get_feature_names_out())
    assert (found["missingindicator_heavy"] == HOLES[:, 1]).all() and not found.isna().any().any()
    kept = FlowImputer(**SHORT, keep_empty_features=True).fit(frame)
    assert list(kept.get_feature_names_out()) == list(frame.columns)
    assert (kept.transform(frame)[:, 3] == 0).all() and kept.sample(frame, 2).shape == (2, 80, 4)


def test_constant_columns_rows_without_a_value_and_complete_tables():
    table = np.column_stack([ROWS, np.where(HOLES[:, 0], NAN, 7.0)])
    table[5] = NAN
    found = FlowImputer(**SHORT).fit_transform(table)
    assert (found[:, 3] == 7).all() and np.isfinite(found[5]).all()
    complete = FlowImputer(**SHORT).fit(WHOLE)
    assert (complete.transform(WHOLE) == WHOLE).all() and np.isfinite(complete.transform(ROWS)).all()


def test_what_fills_holes_is_within_limits():
    """Where it lay within them before it is what it was; a known value may lie beyond them. Single precision stays."""
    low, high = [1.0, 4.9, -np.inf, -0.31], [2.0, 5.1, 2000.0, np.inf]
    table = np.column_stack([np.full(len(ROWS), NAN), ROWS])[:40].astype(np.float32)
    settings = SHORT | {"keep_empty_features": True}
    free = FlowImputer(**settings, min_value=-1e9, max_value=None).fit(table)
    held = FlowImputer(**settings, min_value=low, max_value=high).fit(table)
    for found, wanted in (
        (held.transform(table), free.transform(table)),
        (held.sample(table, 2), free.sample(table, 2)),
    ):
        within = np.clip(wanted, low, high).astype(np.float32)
        assert found.dtype == np.float32 and (within != wanted)[..., np.isnan(table)].any()
        assert (found == np.where(np.isnan(table), within, table)).all()


def test_a_pipeline_is_cross_validated():
    X, y = load_wine(return_X_y=True)
    X = np.where(np.random.default_rng(0).random(X.shape) < 0.2, NAN, X)
    scores = cross_val_score(make_pipeline(FlowImputer(**SHORT), DecisionTreeClassifier()), X, y, cv=2)
    assert scores.shape == (2,) and np.isfinite(scores).all()


@pytest.mark.parametrize(
    ("settings", "table", "words"),
    [
        ({"max_steps": 0}, ROWS, "max_steps must be a whole number, 1 or more, got 0"),
        ({"calibrate": "yes"}, ROWS, "calibrate is 'yes'; give True or False"),
        ({"max_steps": 2.5}, ROWS, "max_steps must be a whole number, 1 or more, got 2.5"),
        ({"min_value": [0, 0]}, ROWS, r"min_value has the shape \(2,\); give one number, or one for each of the 3"),
        ({"min_value": [0, 1, 0], "max_value": 1}, ROWS, "min_value is 1 and max_value 1 for column x1"),
        ({"max_value": NAN}, ROWS, "max_value nan for column x0"),
        ({"flow": "pixelcnn"}, ROWS, "flow is 'pixelcnn'; choose one of"),
        ({"flow": object()}, ROWS, r"flow is of type object; choose one of [\w, ]+$"),
        ({}, np.full((4, 2), NAN), "nothing is observed"),
        ({}, np.where(HOLES, np.inf, WHOLE), "infinity"),
    ],
)
def test_refusals(settings, table, words):
    with pytest.raises(ValueError, match=words):
        FlowImputer(**SHORT | settings).fit(table)


def test_the_callers_default_precision_does_not_matter(fitted):
    torch.set_default_dtype(torch.float64)
    try:
        again = FlowImputer(max_steps=20, random_state=0).fit(ROWS)
        assert np.array_equal(again.transform(ROWS), fitted.transform(ROWS))
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_neither_the_callers_gradient_mode_nor_its_threads_matter(fitted):
    def again(_):
        with torch.inference_mode():
            return FlowImputer(max_steps=20, random_state=0).fit(ROWS).transform(ROWS)

    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(again, range(2)):
            assert np.array_equal(found, fitted.transform(ROWS))
    assert torch.get_default_dtype() == torch.float32


def test_refused_numbers_of_samples(fitted):
    for n in (0, 1.5):
        with pytest.raises(ValueError, match="the number of completions"):
            fitted.sample(ROWS, n)


def test_what_no_solve_finds_is_said_and_filled(fitted, monkeypatch):
    flow = fitted._method.imputers[0]
    done = flow.best_mean

    def failing(rows, draws, seed):
        found = done(rows, draws, seed)
        lost = torch.arange(len(rows)) == 2
        return replace(found, draws=torch.where(lost[:, None] & rows.hidden, NAN, found.draws))

    monkeypatch.setattr(flow, "best_mean", failing)
    with pytest.warns(UserWarning, match="found no completion of 1 of"):
        found = fitted.transform(ROWS)
    place = np.isnan(ROWS).any(1).nonzero()[0][2]
    known = ~np.isnan(ROWS[place])
    scaled = fitted.scaling_.standardise(torch.tensor(ROWS[place]))[None]
    guess = fitted.scaling_.restore(fitted.gaussian_.conditional(scaled.nan_to_num(0), torch.tensor(known)[None]))
    np.testing.assert_allclose(found[place], np.where(known, ROWS[place], guess[0]), rtol=1e-5)


def test_a_draw_that_no_solve_finds_is_the_gaussians_and_not_its_mean(fitted, monkeypatch):
    """Or the holes of that row would be the same in all imputations."""
    flow = fitted._method.imputers[0]
    done = flow.impute

    def failing(rows, *words):
        found = done(rows, *words)
        lost = (torch.arange(len(rows)) == 2)[:, None] & rows.hidden
        draws = found.draws.clone()
        draws[1:] = torch.where(lost, NAN, draws[1:])
        return replace(found, draws=draws)

    usual = fitted.sample(ROWS, 6)
    monkeypatch.setattr(flow, "impute", failing)
    with pytest.warns(UserWarning, match="found no completion of 5 of"):
        found = fitted.sample(ROWS, 6)
    place = np.isnan(ROWS).any(1).nonzero()[0][2]
    hole = np.isnan(ROWS[place]).argmax()
    others = np.arange(len(ROWS)) != place
    assert np.array_equal(found[:, others], usual[:, others]) and np.array_equal(found[0], usual[0])
    assert len(np.unique(found[:, place, hole])) == 6 and not np.isnan(found).any()
    assert np.array_equal(found[:, place, ~np.isnan(ROWS[place])], usual[:, place, ~np.isnan(ROWS[place])])


def test_verbose_shows_a_bar(capsys):
    FlowImputer(**SHORT).fit(ROWS)
    assert capsys.readouterr().err == ""
    FlowImputer(**SHORT, verbose=1).fit(ROWS)
    assert "training" in capsys.readouterr().err


def test_importing_viscos_does_not_import_scikit_learn():
    code = "import sys, viscos; viscos.condition; print('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_a_covariance_that_rounding_made_asymmetric_is_taken():
    """As that of 20 rows of three whole numbers was, in single precision."""
    whole = (3 * np.random.RandomState(0).uniform(size=(20, 5)).astype(np.float32)).astype(np.int64)
    x = torch.from_numpy(whole).double()
    x = ((x - x.mean(0)) / x.std(0, unbiased=False)).float()
    found = Gaussian.from_incomplete(x, torch.ones_like(x, dtype=torch.bool), 0.0025, 0.05)
    assert torch.allclose(found.covariance, torch.cov(x.T.double(), correction=0) + 0.0025 * torch.eye(5), atol=1e-6)
