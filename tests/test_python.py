"""`viscos.condition` and `viscos.load` as Python code has them: arrays, units, and what a posterior tells."""

from __future__ import annotations

import copy
import datetime
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from problems import F64, AffineFlow, SmoothFlow, normal, scaling_of, within

import viscos
from viscos.core.errors import InputError
from viscos.data.columns import Column, Scheme
from viscos.data.scaling import Scaling
from viscos.flows import Flow
from viscos.flows.families.stack import whole
from viscos.inference.fitting import fixed
from viscos.posteriors import Amortised, Diagonal, Householder
from viscos.roots import anderson
from viscos.runs.conditioning import condition_run
from viscos.runs.trained import Trained
from viscos.train.model import Model

NAN = math.nan
TIGHT = anderson(1e-9, 100)
ROWS = np.array([[0.5, NAN, -1.0], [NAN, 1.5, 0.3]])
CENTER, SCALE = np.array([5.0, 2000.0, -0.3]), np.array([2.0, 300.0, 0.02])


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def law(flow: AffineFlow, row: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Hidden entries, their conditional mean and covariance, and log p(y^O), of a row with NaN."""
    H, on = np.isnan(row).nonzero()[0], (~np.isnan(row)).nonzero()[0]
    found = flow.gaussian()
    mean, S = found.mean.numpy(), found.covariance.numpy()
    gain = S[np.ix_(H, on)] @ np.linalg.inv(S[np.ix_(on, on)])
    evidence = torch.distributions.MultivariateNormal(torch.tensor(mean[on]), torch.tensor(S[np.ix_(on, on)]))
    inner = S[np.ix_(H, H)] - gain @ S[np.ix_(on, H)]
    return H, mean[H] + gain @ (row[on] - mean[on]), inner, float(evidence.log_prob(torch.tensor(row[on])))


# ------------------------------------------------------------------------------------------------------ arrays, and NaN


def test_what_is_nan_is_hidden():
    flow, y = AffineFlow(3), torch.tensor(ROWS)
    wanted = viscos.condition(flow, y, ~y.isnan()).sample(2)
    assert torch.equal(viscos.condition(flow, y).sample(2), wanted)


def test_the_scaling_is_the_callers_to_change():
    flow, center, scale = AffineFlow(3), torch.tensor(CENTER), torch.tensor(SCALE)
    q = viscos.condition(flow, ROWS * SCALE + CENTER, scaling=(center, scale))
    before = q.mean()
    center += 100
    scale *= 2
    np.testing.assert_array_equal(q.mean(), before)
    alike = viscos.condition(flow, torch.tensor(ROWS), scaling=(0.0, 2.0)).mean()
    torch.testing.assert_close(alike, viscos.condition(flow, torch.tensor(ROWS), scaling=([0] * 3, [2] * 3)).mean())


def test_completions_of_whole_numbers_are_none():
    flow, scaling = AffineFlow(2), ([0, 0], [2, 2])
    y, observed = torch.tensor([[3, 4]]), torch.tensor([True, False])
    drawn = viscos.condition(flow, y, observed, scaling=scaling).sample(4)
    assert drawn.dtype == F64 and bool((drawn[..., 1] != drawn[..., 1].round()).all())
    np.testing.assert_allclose(drawn, viscos.condition(flow, y.numpy(), observed, scaling=scaling).sample(4))


def test_one_draw_has_no_deviation():
    q = viscos.condition(AffineFlow(3), ROWS)
    assert (np.isnan(q.std(1)) == np.isnan(ROWS)).all() and (q.std(1)[~np.isnan(ROWS)] == 0).all()
    assert np.isnan(q.summary(1).std[np.isnan(ROWS)]).all()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"scaling": (1.0,)}, r"scaling is \(1.0,\); give \(center, scale\)"),
        ({"solver": None}, "solver is None; give a name, or an object that has solve"),
        ({"solver": type(TIGHT)}, "solver is <class .*; give a name"),
        ({"lad": 3}, "lad is 3; give a name, or an object that has surrogate"),
        ({"posterior": None}, "posterior is None; give a name, or a Posterior"),
        ({"solver": object()}, "an object that has solve and tolerance"),
        ({"seed": 1.5}, "seed must be a whole number, 0 or more, got 1.5"),
        ({"noise": -1}, "noise is -1; give the standard deviation"),
        ({"guess": "x"}, "guess must be a tensor or an array of numbers, got str"),
        (
            {"posterior": Diagonal(torch.zeros(2, 3))},
            r"y is torch\.float64 on cpu, the posterior is of torch\.float32",
        ),
    ],
)
def test_what_is_no_setting(settings, says):
    with pytest.raises(InputError, match=says):
        viscos.condition(AffineFlow(3), ROWS, **settings)


def test_nothing_to_condition():
    with pytest.raises(InputError, match="y has no items"):
        viscos.condition(AffineFlow(3), ROWS[:0])


def test_a_flow_elsewhere():
    with pytest.raises(InputError, match=r"y is torch\.float64 on cpu, the flow is of torch\.float64 on meta"):
        viscos.condition(AffineFlow(3).to("meta"), torch.tensor(ROWS))


@pytest.mark.parametrize("given", [ROWS, ROWS.astype(np.float32), ROWS.tolist()], ids=["double", "single", "list"])
def test_arrays_come_back_as_arrays_of_their_own_precision(given):
    flow = viscos.flows.iresnet(3, blocks=1, channels=8)  # in single precision
    q = viscos.condition(flow, given, posterior="diagonal")
    dtype, known = getattr(given, "dtype", np.float64), ~np.isnan(ROWS)
    for values in (q.sample(2), q.mean(4), q.quantile(0.3, 4), q.quantile([0.1, 0.9], 4)):
        assert isinstance(values, np.ndarray) and values.dtype == dtype
        assert (values[..., known] == np.asarray(given)[known]).all()  # bit for bit
    assert q.std(4).dtype == dtype and (q.std(4)[known] == 0).all()
    assert isinstance(q.bound(2), np.ndarray) and isinstance(q.log_prob(q.mean(4)), np.ndarray)
    as_tensor = viscos.condition(flow, torch.tensor(ROWS).float(), posterior="diagonal")
    assert np.allclose(q.mean(4), as_tensor.mean(4), atol=1e-6)
    assert isinstance(as_tensor.std(4), torch.Tensor) and isinstance(as_tensor.bound(2), torch.Tensor)


def test_whole_numbers_and_masks_are_taken_from_arrays_and_never_changed():
    flow, y = AffineFlow(3), np.array([[1, 2, 3]])
    observed = np.array([True, False, True])
    q = viscos.condition(flow, y, observed, index=np.array([7]))
    wanted = q.sample(1)
    assert wanted.dtype == np.float64 and (wanted[0, 0, [0, 2]] == [1, 3]).all()
    y[:], observed[:] = 9, False
    again = viscos.condition(flow, np.array([[1, 0, 3]]), [True, False, True], index=np.array([7])).sample(1)
    assert (again == wanted).all()
    assert (q.mean()[0, [0, 2]] == [1, 3]).all()


def test_what_an_array_masks_is_hidden():
    y = np.ma.masked_array([[0.5, -999.0, 1.0]], mask=[[False, True, False]])
    assert viscos.condition(AffineFlow(3), y).terms.observed.tolist() == [[True, False, True]]
    whole = np.ma.masked_array([[5, -999, 1]], mask=[[False, True, False]])
    assert viscos.condition(AffineFlow(3), whole).terms.observed.tolist() == [[True, False, True]]
    said = np.ma.masked_array([[True, True, True]], mask=[[False, True, False]])
    assert viscos.condition(AffineFlow(3), np.ones((1, 3)), said).terms.observed.tolist() == [[True, False, True]]
    for strange in (np.array([[0, 1, 1]]), np.array([True, False])):
        with pytest.raises(InputError, match="observed"):
            viscos.condition(AffineFlow(3), y, strange)
    both = viscos.condition(AffineFlow(3), y, np.array([[False, True, True]]))
    assert both.terms.observed.tolist() == [[False, False, True]]
    swapped = ROWS.astype(">f8")
    assert np.array_equal(viscos.condition(AffineFlow(3), swapped).terms.given.numpy(), ROWS, equal_nan=True)


class Logit(viscos.flows.ClosedForm):
    def forward_and_ladj(self, y, generator=None):
        return torch.logit(y), -(y.log() + torch.log1p(-y)).sum(1)


def test_a_flow_that_is_not_defined_where_solves_begin_is_refused():
    y = torch.tensor([[0.5, 0.2], [0.5, NAN]])
    with pytest.raises(InputError, match=r"no finite latent of an item with zeros in its holes.* defined everywhere"):
        viscos.condition(Flow([Logit()], (2,)), y)
    assert len(viscos.condition(Flow([Logit()], (2,)), y[:1]).sample()) == 1  # nothing is hidden there


@pytest.mark.parametrize("layer", [torch.nn.Dropout(), torch.nn.BatchNorm1d(3)], ids=lambda layer: type(layer).__name__)
def test_layers_in_training_mode_are_refused(layer):
    flow = Flow([AffineFlow(3).layers[0]], (3,))
    flow.layers[0].inner = layer
    with pytest.raises(InputError, match=rf"inner of the flow, a {type(layer).__name__}, is in training mode"):
        viscos.condition(flow, ROWS)
    viscos.condition(flow.eval(), ROWS)


def test_fits_in_several_threads_leave_the_flow_as_it_was():
    flow = AffineFlow(3)
    frozen = next(flow.parameters()).requires_grad_(False)
    first, second = fixed(list(flow.parameters())), fixed(list(flow.parameters()))
    with first:
        second.__enter__()
        assert not any(p.requires_grad for p in flow.parameters())
    assert not any(p.requires_grad for p in flow.parameters()), "the other one still fits"
    second.__exit__(None, None, None)
    assert [p.requires_grad for p in flow.parameters()] == [p is not frozen for p in flow.parameters()]


def test_rates_that_are_none():
    q = viscos.condition(AffineFlow(3), ROWS)
    for rate in (0, -1.0, math.inf, NAN, "1e-3"):
        with pytest.raises(InputError, match="fit needs learning_rate > 0"):
            q.fit(1, learning_rate=rate)
    q.fit(1, learning_rate=np.float32(0.1))


@pytest.mark.parametrize("y", [None, "photo.png", [["a", "b", "c"]], {"a": 1}, [[1j, 2, 3]]])
def test_what_holds_no_numbers_is_refused_in_a_line(y):
    with pytest.raises(InputError, match="y must be a tensor or an array of numbers") as caught:
        viscos.condition(AffineFlow(3), y)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------- what a posterior tells


@pytest.mark.parametrize("scaling", [None, (CENTER, SCALE)], ids=["the flow's units", "units of their own"])
def test_an_affine_flow_has_its_closed_forms(scaling):
    """Mean, deviation, quantiles, bound and density of the hidden entries, after a fit that can be exact."""
    flow, row = AffineFlow(3), np.array([[NAN, 0.4, NAN]])
    center, scale = (np.zeros(3), np.ones(3)) if scaling is None else scaling
    H, mean, covariance, evidence = law(flow, row[0])
    mean, root = center[H] + scale[H] * mean, np.diag(scale[H])
    covariance, evidence = root @ covariance @ root, evidence - math.log(scale[1])
    q = viscos.condition(flow, center + scale * row, posterior="full", scaling=scaling, solver=TIGHT)
    q.fit(120)
    deviation = np.sqrt(np.diag(covariance))
    assert (abs(q.mean(2)[0, H] - mean) < 0.02 * deviation).all()
    assert (abs(q.std(2000)[0, H] / deviation - 1) < 0.06).all()
    assert (abs(q.quantile(0.95, 2000)[0, H] - mean - 1.645 * deviation) < 0.12 * deviation).all()
    assert abs(q.bound(50)[0] - evidence) < 0.01
    exact = torch.distributions.MultivariateNormal(torch.tensor(mean), torch.tensor(covariance))
    draws = q.sample(5)
    assert np.allclose(q.log_prob(draws)[:, 0], exact.log_prob(torch.tensor(draws[:, 0, H])), atol=0.05)
    if scaling is None:  # log p(y) less the bound is the same where q is exact
        whole_row = torch.tensor(draws[:, 0])
        assert np.allclose(q.log_prob(draws)[:, 0], flow.log_prob(whole_row).detach().numpy() - q.bound(50), atol=0.05)


def test_the_density_of_completions_is_normalised_whatever_q_is():
    """Over the one hidden entry of a nonlinear flow, by a sum."""
    flow, y = SmoothFlow(3), normal(1, 3)
    posterior = Diagonal(y)
    posterior.mean.data.fill_(0.4)
    posterior.log_scale.data.fill_(-0.7)
    q = viscos.condition(flow, y, torch.tensor([True, False, True]), posterior=posterior)
    grid = torch.linspace(-8, 8, 4001, dtype=F64)
    completions = y.repeat(len(grid), 1)[:, None].clone()
    completions[:, 0, 1] = grid
    density = q.log_prob(completions).exp()[:, 0]
    assert float(density.sum() * (grid[1] - grid[0])) == pytest.approx(1, abs=1e-6)
    at = float((density * grid).sum() * (grid[1] - grid[0]))
    assert within(q.sample(500)[:, 0, 1:2], torch.tensor([at], dtype=F64)).all()  # of which the draws are


def test_an_item_with_everything_missing_has_the_flows_own_density():
    flow, y = SmoothFlow(3), normal(2, 3)
    q = viscos.condition(flow, torch.full((2, 3), NAN, dtype=F64))
    q.posterior.mean.data.fill_(2.0)
    assert torch.allclose(q.log_prob(y), flow.log_prob(y))


def test_refused_completions_and_shares():
    q = viscos.condition(AffineFlow(3), ROWS)
    for y, words in ((np.zeros((2, 4)), "give \\(2, 3\\), or draws of them"), (ROWS, "not finite where it is hidden")):
        with pytest.raises(InputError, match=words):
            q.log_prob(y)
    for call in (lambda: q.quantile(1.5), lambda: q.quantile([[0.5]]), lambda: q.std(0)):
        with pytest.raises(InputError):
            call()
    shape, zero = r"center has shape \(2,\); give finite numbers, one an entry, \(3,\)", "scale holds 0; give positive"
    for bad, words in (((CENTER[:2], SCALE), shape), ((CENTER, SCALE * [1, 0, 1]), zero)):
        with pytest.raises(InputError, match=f"the scaling's {words}"):
            viscos.condition(AffineFlow(3), ROWS, scaling=bad)
    for bad in ((CENTER, -SCALE), (CENTER * np.inf, SCALE), (CENTER * np.nan, SCALE)):
        with pytest.raises(InputError, match=r"the scaling's \w+ holds -?\w"):
            viscos.condition(AffineFlow(3), ROWS, scaling=bad)


def test_a_posterior_says_what_it_is_in_words():
    q = viscos.condition(AffineFlow(3), ROWS, posterior="diagonal")
    assert repr(q) == "Conditional(2 items of (3,), 33.3% hidden; Diagonal, not fitted; seed 0)"
    assert "fitted in 3 steps" in repr(q.fit(3))
    summary = q.summary(20)
    lines = str(summary).splitlines()
    assert lines[0].split() == ["item", "entry", "mean", "std", "5", "%", "95", "%"] and len(lines) == 3
    assert lines[1].split() == ["0", "1", *(f"{v[0, 1]:.4g}" for v in (q.mean(), q.std(20), summary.low, summary.high))]
    assert (summary.low <= summary.mean).all() and (summary.mean <= summary.high).all()
    image = viscos.flows.iresnet((1, 2, 2), blocks=1, channels=8)
    of_images = viscos.condition(image, np.array([[[[0.1, NAN], [0.2, 0.3]]]])).summary(4)
    assert str(of_images).splitlines()[1].split()[:2] == ["0", "25.0%"]


def test_a_fit_shows_a_bar_if_asked(capsys):
    q = viscos.condition(AffineFlow(3), ROWS, posterior="diagonal")
    q.fit(2)
    assert capsys.readouterr().err == ""
    q.fit(3, progress=True)
    assert "fitting 3/3" in capsys.readouterr().err
    seen = []
    q.fit(2, progress=lambda step, figures: seen.append(step))
    assert seen == [0, 1]


# ------------------------------------------------------------------------------------------------------------ of a run


def run_of(flow: Flow, posterior=None, scaling: Scaling | None = None, shape=(3,)) -> Trained:
    state = {"shape": list(shape), "scaling": None if scaling is None else scaling.state()}
    state["gaussian"] = {"mean": torch.zeros(math.prod(shape)), "covariance": torch.eye(math.prod(shape))}
    cfg = {"dataset": {"noise": 0.0}}
    return Trained(model=Model(flow, posterior, None), cfg=cfg, state=state, path=Path("checkpoint.pt"))


COLUMNS = Scheme((Column("long"), Column("heavy"), Column("fine")))
SCALING = scaling_of(COLUMNS, torch.tensor(CENTER), torch.tensor(SCALE))


def test_a_table_run_takes_and_gives_the_tables_own_units():
    flow, rows = AffineFlow(3), CENTER + SCALE * ROWS
    run = run_of(flow, scaling=SCALING)
    q, plain = run.condition(rows, posterior="diagonal"), viscos.condition(flow, ROWS, posterior="diagonal")
    plain.posterior.center(flow.to_latent(torch.tensor(ROWS).nan_to_num(0)))  # the Gaussian's completion
    known = ~np.isnan(rows)
    assert (q.mean()[known] == rows[known]).all()
    assert np.allclose(q.mean(), CENTER + SCALE * plain.mean()) and np.allclose(q.std(), SCALE * plain.std())
    assert np.allclose(q.bound(), plain.bound() - (np.log(SCALE) * known).sum(1))
    assert "heavy" in str(q.summary(2))
    mixed = pd.DataFrame(
        {name: list(column) for name, column in zip(("fine", "long", "heavy"), rows.T[[2, 0, 1]], strict=True)}
    )
    assert np.allclose(run.condition(mixed, posterior="diagonal").mean(), q.mean())
    hidden = mixed.notna().assign(heavy=False)
    by_name = run.condition(mixed.assign(other=1.0), hidden.assign(other=True), posterior="diagonal")
    assert by_name.terms.observed.tolist() == (known & [True, False, True]).tolist()
    with pytest.raises(InputError, match=r"rows of a table have shape \(3,\); give \(B, 3\), one number a column"):
        run.condition(rows[0])
    with pytest.raises(InputError, match="have 4 numbers each; this run has 3 columns: long, heavy, fine"):
        run.condition(np.full((2, 4), np.nan))
    with pytest.raises(InputError, match="no column 'fine', it has long, heavy, fines; did you mean 'fines'"):
        run.condition(pd.DataFrame({"long": [1.0], "heavy": [2.0], "fines": [3.0]}))


def test_a_data_frame_has_the_runs_categories_by_their_names():
    scheme = Scheme((Column("size"), Column("kind", levels=("high", "low", "mid")), Column("on", levels=("0", "1"))))
    run = run_of(AffineFlow(5), scaling=scaling_of(scheme, torch.zeros(5), torch.ones(5)), shape=(5,))
    frame = pd.DataFrame({"on": [1, None], "kind": ["low", None], "size": [2.0, 3.5]})
    q = run.condition(frame)
    assert np.array_equal(q.terms.given.numpy(), [[2, 0, 1, 0, 1], [3.5, NAN, NAN, NAN, NAN]], equal_nan=True)
    assert "kind=low" in str(q.summary(2))
    with pytest.raises(InputError, match="column 'kind' holds 'huge', which the run did not see"):
        run.condition(pd.DataFrame({"on": [1], "kind": ["huge"], "size": [2.0]}))


def test_arrays_may_have_a_number_for_each_column_of_the_run():
    """A category of three levels has three entries; the mask may be of columns or entries."""
    scheme = Scheme((Column("size"), Column("kind", levels=("high", "low", "mid"))))
    run = run_of(AffineFlow(4), scaling=scaling_of(scheme, torch.zeros(4), torch.ones(4)), shape=(4,))
    entries = np.array([[2.0, 0, 1, 0], [NAN, 0, 0, 1], [3.5, NAN, NAN, NAN]])
    columns = np.array([[2.0, 1], [NAN, 2], [3.5, NAN]])
    of_entries = run.condition(entries)
    for given in (columns, torch.tensor(columns), columns.tolist()):
        q = run.condition(given)
        assert np.array_equal(q.terms.given.numpy(), entries, equal_nan=True)
        assert np.allclose(q.mean(4), of_entries.mean(4))
    mask = ~np.isnan(columns)
    for known in (mask, ~np.isnan(entries)):
        assert np.array_equal(run.condition(np.nan_to_num(columns), known).terms.observed.numpy(), ~np.isnan(entries))
    with pytest.raises(InputError, match=r"column 'size' must be a tensor or an array of numbers, .* that holds '2'"):
        run.condition(pd.DataFrame({"size": ["2", "3"], "kind": ["low", "mid"]}, dtype=object))


def test_numbers_of_a_column_by_its_logarithm_are_its_own():
    scheme = Scheme((Column("income", log=True), Column("x")))
    run = run_of(AffineFlow(2), scaling=scaling_of(scheme, torch.zeros(2), torch.ones(2)), shape=(2,))
    rows = np.array([[100.0, 1.0], [NAN, 2.0]])
    q = run.condition(rows)
    of_frame = run.condition(pd.DataFrame(rows, columns=["income", "x"]))
    wanted = np.array([[np.log(100.0), 1.0], [NAN, 2.0]])
    for each in (q, of_frame):
        assert np.allclose(each.terms.given.numpy(), wanted, equal_nan=True)
    masked = run.condition(np.ma.masked_array([[100.0, 1.0], [-999.0, 2.0]], mask=[[False, False], [True, False]]))
    assert np.allclose(masked.terms.given.numpy(), wanted, equal_nan=True)
    twice = pd.DataFrame([[100.0, 1.0, 2.0]], columns=["income", "x", "x"])
    with pytest.raises(InputError, match="the table has 2 columns 'x'; leave one"):
        run.condition(twice)
    back = run.scaling.scheme.decode(q.mean(4))  # what a caller of arrays has are arrays
    assert float(back[0, 0]) == pytest.approx(100.0) and bool(back.isfinite().all())


def test_a_run_is_named_in_a_line():
    assert repr(run_of(AffineFlow(4), shape=(4,))).endswith("items of 4)") and len(repr(run_of(AffineFlow(4)))) < 100


def test_results_have_no_gradient_in_the_observation():
    """Its observed entries would have one of 1, and what depends on them none: no gradient rather than a wrong one."""
    y = torch.tensor(ROWS).requires_grad_(True)
    q = viscos.condition(AffineFlow(3), y, posterior="diagonal").fit(2)
    for values in (q.sample(2), q.mean(4), q.std(4), q.quantile(0.5, 4), q.bound(2), q.log_prob(q.mean(4))):
        assert not values.requires_grad


def framed(scheme: Scheme, **columns) -> list[list[float]]:
    """What a run over a table takes of a data frame, as numbers of its columns."""
    d = len(scheme.entries)
    run = run_of(AffineFlow(d), scaling=scaling_of(scheme, torch.zeros(d), torch.ones(d)), shape=(d,))
    return scheme.decode(run.condition(pd.DataFrame(columns)).terms.given).tolist()


def test_a_data_frame_may_have_the_holes_of_pandas():
    scheme = Scheme((Column("n", whole=True), Column("word", levels=("a", "b")), Column("day", format="%Y-%m-%d")))
    n, word = pd.array([3, None], dtype="Int64"), pd.array([None, "b"], dtype="string")
    day = pd.to_datetime(["1970-01-03", None])
    first, second = framed(scheme, n=n, word=word, day=day)
    assert first[::2] == [3, 2] and math.isnan(first[1])
    assert second[1] == 1 and math.isnan(second[0]) and math.isnan(second[2])


@pytest.mark.parametrize("levels", [("false", "true"), ("False", "True"), ("0", "1"), ("0.0", "1.0")])
@pytest.mark.parametrize("dtype", ["bool", "boolean", object])
def test_truth_values_of_a_data_frame_are_those_of_any_table(levels, dtype):
    scheme = Scheme((Column("on", levels=levels), Column("x")))
    on = pd.Series([True, False, True], dtype=dtype)
    assert framed(scheme, on=on, x=[0.0, 0.0, 0.0]) == [[1, 0], [0, 0], [1, 0]]


def test_dates_of_a_data_frame_are_read_in_the_form_of_training():
    kinds = Column("day", format="%d.%m.%Y"), Column("at", format="%Y-%m-%d %H:%M")
    day = [pd.Timestamp("1970-01-02"), datetime.date(1969, 12, 31), "11.01.1970"]
    at = [datetime.datetime(1970, 1, 2, 12), pd.Timestamp("1970-01-02 06:00"), "1970-01-01 18:00"]
    assert framed(Scheme(kinds), day=day, at=at) == [[1, 1.5], [-1, 1.25], [10, 0.75]]
    with pytest.raises(InputError, match=r"column 'day' holds '1970-01-02', which is no date like %d\.%m\.%Y"):
        framed(Scheme(kinds), day=["1970-01-02"], at=at[:1])
    abroad = pd.Timestamp("1970-01-02", tz="Asia/Tokyo")  # whose day may be another here
    with pytest.raises(InputError, match="which is no date like"):
        framed(Scheme(kinds), day=[abroad], at=at[:1])


def test_categories_that_are_numbers_are_those_of_any_precision():
    scheme = Scheme((Column("k", levels=("0.1", "0.30000000000000004", "7")), Column("x")))
    x = [0.0, 0.0, 0.0]
    assert framed(scheme, k=[0.1 + 0.2, 0.1, 7], x=x) == [[1, 0], [0, 0], [2, 0]]
    assert framed(scheme, k=[7, 7, 7], x=x) == [[2, 0]] * 3
    assert framed(Scheme((Column("k", levels=("0.3", "1")), Column("x"))), k=[0.1 + 0.2, 1, 1], x=x)[0] == [0, 0]


def test_a_run_refuses_images_out_of_its_units():
    run = run_of(viscos.flows.iresnet((1, 2, 2), blocks=1, channels=8), shape=(1, 2, 2))
    y = np.random.default_rng(0).random((2, 1, 2, 2))
    y[0, 0, 0, 0] = NAN
    assert run.condition(y).sample(1).shape == (1, 2, 1, 2, 2)
    for bad, remedy in ((255 * y, r"values / 255"), (2 * y - 1, r"\(values \+ 1\) / 2")):
        with pytest.raises(InputError, match=remedy) as caught:
            run.condition(bad)
        assert "\n" not in str(caught.value)
    hidden = np.where(np.isnan(y), 255.0, y)
    assert run.condition(hidden, ~np.isnan(y)).sample(1).shape == (1, 2, 1, 2, 2)  # what is hidden may be anything


def test_a_run_completes_by_its_network_and_a_fit_goes_on_from_there():
    network = Amortised((3,), width=4, gaussian=False, held_out=0.0, regressed=True).double()
    torch.nn.init.normal_(network.heads["mean"].weight)
    run = run_of(AffineFlow(3), network)
    before = copy.deepcopy(network.state_dict())
    q = run.condition(torch.tensor(ROWS))
    assert q.posterior is network
    there = network(q.batch, q.flow)
    begun = run.condition(torch.tensor(ROWS), posterior="diagonal")
    assert isinstance(begun.posterior, Diagonal)
    assert torch.allclose(begun.posterior(q.batch, q.flow).mean[q.batch.hidden], there.mean[q.batch.hidden])
    bound = q.bound(64)
    q.fit(20)
    assert isinstance(q.posterior, Householder) and (q.bound(64) > bound - 0.05).all()
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert run.condition(ROWS, posterior="network").posterior is network
    assert run.condition(ROWS, posterior="amortised").posterior is network, "as the command line calls it"
    with pytest.raises(InputError, match="no inference network"):
        run_of(AffineFlow(3)).condition(ROWS, posterior="network")


# ------------------------------------------------------------------------------------------------- plain numbers


def test_a_plain_number_of_blocks_is_one_scale():
    for make in (viscos.flows.iresnet, viscos.flows.realnvp, viscos.flows.glow):
        assert len(make((4,), blocks=2).layers) == len(make([4], blocks=[2]).layers) == len(make(4, blocks=2).layers)
    assert viscos.flows.planar(3).shape == viscos.flows.continuous(3).shape == (3,)
    assert whole(2, "flow.blocks") == (2,) and whole([4, 4], "flow.blocks") == (4, 4)
    for bad in (2.5, "ab", [], [1.0], True, -1):
        with pytest.raises(InputError, match=r"flow.blocks is .*; give a whole number, or a list of them"):
            viscos.flows.iresnet((2,), blocks=bad)


# --------------------------------------------------------------------------------------------- what is no such number


def test_longer_floats_are_read_in_double_precision():
    flow = AffineFlow(3)
    assert np.array_equal(
        viscos.condition(flow, ROWS.astype(np.longdouble)).sample(2), viscos.condition(flow, ROWS).sample(2)
    )


def test_a_flow_refuses_what_is_no_tensor():
    with pytest.raises(InputError, match="a flow takes tensors, got ndarray"):
        AffineFlow(3).log_prob(ROWS)


@pytest.mark.parametrize("dtype, remedy", [(np.uint8, "divide by 255"), (bool, "y.float()"), (np.int64, "y.float()")])
def test_pictures_that_are_no_floats_are_refused(dtype, remedy):
    """A 1 is almost black among bytes, and white among truth values."""
    flow = viscos.flows.iresnet((1, 4, 4), blocks=[1], channels=4, start="none")
    pictures = np.ones((2, 1, 4, 4), dtype)
    settings = {"scaling": None, "posterior": "auto", "partition": "same"}
    with pytest.raises(InputError, match="floating point values in") as refused:
        condition_run(flow, None, None, y=pictures, observed=np.ones((4, 4), bool), **settings)
    assert remedy in str(refused.value)
