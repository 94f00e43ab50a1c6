"""Points in the plane and tables: how they are read, masked, scaled and measured, against answers known otherwise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from problems import F64, normal, sees_the_observation_alone

from viscos.commands.assemble.masks import Masks
from viscos.core.batch import incomplete
from viscos.core.errors import InputError
from viscos.core.rng import generator
from viscos.data.augment import augment
from viscos.data.columns import Column, Scheme
from viscos.data.incomplete import IncompleteData
from viscos.data.items import OWN, Units
from viscos.data.masks import CenterMask, ColumnsMask, FileMask, HalfMask, RandomMask
from viscos.data.scaling import Scaling, fit_scaling, standardised
from viscos.data.sources.registry import load
from viscos.data.sources.table import read_rows
from viscos.data.vectors import Vectors
from viscos.flows import Flow, Whitening, iresnet
from viscos.inference import Objective
from viscos.linear.gaussian import Gaussian
from viscos.logdet import CLADE
from viscos.metrics.extractor import extractor_for
from viscos.metrics.rmse import RMSE
from viscos.posteriors import Amortised
from viscos.report.density import Plane, conditional_density, first_slice
from viscos.roots import anderson
from viscos.train import Plan, Trainer
from viscos.train.classifier import CompletionClassifier
from viscos.train.model import build_model

NAN = float("nan")
TOYS = ("moons", "circles", "pinwheel", "checkerboard", "eight_gaussians")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Each test has an empty folder of its own."""
    monkeypatch.chdir(tmp_path)


# -------------------------------------------------------------------------------------------------- points in the plane


@pytest.mark.parametrize("name", TOYS)
def test_toys_are_always_the_same(name):
    train, test = load(name, "train", items=100), load(name, "test", items=100)
    assert train.values.shape == (100, 2) and test.values.shape == (20, 2) and train.values.dtype == torch.float32
    assert torch.equal(train.values, load(name, "train", items=100).values)
    assert not torch.equal(train.values[:20], test.values)
    assert train.shape == (2,) and bool(train.known.all()) and not train.units.clamped
    assert (train.labels is None) == (train.classes == 0) == (name == "checkerboard")
    if train.labels is not None:
        assert set(train.labels.tolist()) == set(range(train.classes))


def test_toys_have_their_shape():
    moons = load("moons", "train", spread=0)
    centre = torch.where(moons.labels == 0, 0.0, 1.0)[:, None] * torch.tensor([1.0, 0.5])
    torch.testing.assert_close((moons.values - centre).norm(dim=1), torch.ones(5000), atol=1e-5, rtol=0)
    circles = load("circles", "train", spread=0)
    torch.testing.assert_close(circles.values.norm(dim=1), 1 - 0.5 * circles.labels, atol=1e-5, rtol=0)
    field = load("checkerboard", "train").values.div(2).floor()  # fields have sides of 2
    assert field.min() == -2 and field.max() == 1 and (field.sum(1) % 2 == 0).all()
    assert len(field.unique(dim=0)) == 8
    eight = load("eight_gaussians", "train", spread=0).values
    torch.testing.assert_close(eight.norm(dim=1), torch.full((5000,), 8**0.5))
    assert len(eight.round(decimals=3).unique(dim=0)) == 8
    wheel = load("pinwheel", "train", spread=0)
    means = torch.stack([wheel.values[wheel.labels == k].mean(0) for k in range(5)])
    angles = torch.atan2(means[:, 1], means[:, 0])
    gaps = ((angles.roll(-1) - angles) / (2 * math.pi / 5)) % 5
    torch.testing.assert_close(gaps, torch.ones(5), atol=0.02, rtol=0)


# --------------------------------------------------------------------------------------------------------------- tables


def write(text: str, name: str = "t.csv") -> str:
    with open(name, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    return name


def test_a_mixed_table():
    rows = [f"{k},{'' if k == 3 else k / 4},{('no', 'yes')[k % 2]},{'NA' if k % 5 == 0 else 10 - k}" for k in range(20)]
    path = write("\ufeffid, size ,kind,left\r\n" + "\r\n".join(rows) + "\r\n\r\n")
    train, test = (load("table", split, path=path, label="kind", drop=["id"]) for split in ("train", "test"))
    assert len(train) == 18 and len(test) == 2 and train.columns == ("size", "left") and train.classes == 2
    values, labels = torch.cat([train.values, test.values]), torch.cat([train.labels, test.labels])
    number = torch.where(values[:, 0].isnan(), 3, 4 * values[:, 0]).long()
    assert sorted(number.tolist()) == list(range(20)) and torch.equal(labels, number % 2)
    assert torch.equal(values[:, 1].isnan(), number % 5 == 0)
    kept = number % 5 != 0
    assert torch.equal(values[kept, 1], (10 - number[kept]).double())
    assert torch.equal(train.known, ~train.values.isnan())


def test_arrays_as_tables():
    values = np.arange(30.0).reshape(10, 3)
    values[4, 1] = NAN
    np.save("t.npy", values.astype(np.float32))
    np.savez("t.npz", x=values, y=np.array(["a", "b"] * 5))
    for path in ("t.npy", "t.npz"):
        train, test = load("table", "train", path=path), load("table", "test", path=path)
        assert train.columns == ("0", "1", "2") and len(train) == 9 and len(test) == 1
        assert int(train.values.isnan().sum() + test.values.isnan().sum()) == 1
    assert load("table", "train", path="t.npz").classes == 2
    np.save("i.npy", np.arange(20).reshape(10, 2) // 6)
    train = load("table", "train", path="i.npy", label=1)
    assert train.columns == ("0",) and train.classes == 4


@pytest.mark.parametrize(
    ("text", "settings", "says"),
    [
        (
            "a,b\n1,2\n1,x\n",
            {},
            "column 'b' holds 'x' in row 2, which is no finite number; if it is a category, say "
            "dataset.categories=[b], if it means a missing value, say dataset.holes=[x], or leave the column out "
            "(dataset.drop=[b] in training)",
        ),
        ("a,b\n1,2\n1,inf\n", {}, "column 'b' holds 'inf' in row 2"),
        ("a,b\n1,\n1,NaN\n", {}, "column 'b' has no values; leave it out, dataset.drop=[b]"),
        ("a,b\n1,2\n", {}, "has 1 row; a training and a test split need at least 2"),
        ("a,b\n", {}, "has 0 rows"),
        ("", {}, "is empty; give a header"),
        ("a,a\n1,2\n1,2\n", {}, "has two columns 'a'"),
        (",\n1,2\n1,2\n", {}, "begins with an empty line; give it a header"),
        ("1,2\n1,2\n1,2\n", {}, "begins with numbers; give it a header"),
        ("a,b\n1,2\n1\n", {}, "row 2 has 1 cells, and the header 2"),
        ("a,b\n1,2\n1,2\n", {"label": "c"}, "dataset.label=c: t.csv has the columns a, b"),
        ("a,b\n1,2\n1,2\n", {"drop": ["c"]}, "dataset.drop=c: t.csv has the columns a, b"),
        ("a,b\n1,2\n1,\n", {"label": "b"}, "the label in column 'b', row 2, is missing"),
        ("a,b\n1,2\n1,2\n", {"label": "b", "drop": ["a"]}, "no column left"),
        ('a,b\n1,"2\n', {}, "cannot be read as CSV"),
    ],
)
def test_tables_that_are_refused(text, settings, says):
    with pytest.raises(InputError) as caught:
        load("table", "train", path=write(text), **settings)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_are_no_tables():
    with pytest.raises(InputError, match=r"there is no file 'none\.csv'"):
        load("table", "train", path="none.csv")
    with pytest.raises(InputError, match=r"is no table; give \.csv"):
        load("table", "train", path=write("a", "t.xlsx"))
    np.save("v.npy", np.zeros(3))
    with pytest.raises(InputError, match=r"of shape \(3,\); give numbers of shape \(rows, columns\)"):
        load("table", "train", path="v.npy")
    np.save("v.npy", np.array([[1.0, math.inf], [0, 1]]))
    with pytest.raises(InputError, match=r"infinite value, in row 1, column '1'"):
        [load("table", split, path="v.npy") for split in ("train", "test")]
    with open("latin.csv", "wb") as file:
        file.write("größe\n1\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"is no utf-8 .*: save it as UTF-8, or say its encoding, e\.g\. dataset\.enc"):
        load("table", "train", path="latin.csv")
    with open("latin.csv", "wb") as file:
        file.write("größe\n1\n2\n".encode("latin-1"))
    assert load("table", "train", path="latin.csv", encoding="latin-1").columns == ("größe",)


def numbers(*names: str) -> Scheme:
    return Scheme(tuple(map(Column, names)))


def test_rows_to_complete_are_found_by_name():
    path = write("note;b;a\nx; 1.50;2\ny;;3\nz;4;?\n")
    rows = read_rows(path, numbers("a", "b"))
    assert rows.names == ("a", "b") and rows.data.columns == ("a", "b")
    torch.testing.assert_close(
        rows.data.values, torch.tensor([[2, 1.5], [3, NAN], [NAN, 4]], dtype=F64), equal_nan=True
    )
    assert len(read_rows(path, numbers("a", "b"), limit=1).data) == 1
    with pytest.raises(InputError, match=r"lacks the column 'bb'; .* on a, bb, .* has note, b, a \(is it 'b'\?\)"):
        read_rows(path, numbers("a", "bb"))
    plain = write("u,v\n1,\n", "p.csv")
    assert read_rows(plain, numbers("0", "1")).names == ("u", "v")
    with pytest.raises(InputError, match="has 2 columns, the flow takes 3"):
        read_rows(plain, numbers("0", "1", "2"))
    np.save("r.npy", np.array([[1.0, NAN]]))
    assert read_rows("r.npy", numbers("a", "b")).sheet is None
    with pytest.raises(InputError, match="has no rows"):
        read_rows(write("a,b\n", "e.csv"), numbers("a", "b"))


# -------------------------------------------------------------------------------------------------------------- scaling


def rows_of(values, columns=None) -> Vectors:
    values = torch.as_tensor(values, dtype=F64)
    return Vectors("t", values, None, 0, columns=columns or tuple("abcdefgh"[: values.shape[1]]))


def test_scaling_by_what_is_observed():
    values = normal(50, 3) * torch.tensor([1e-6, 1e3, 1.0]) + torch.tensor([0, 0, 1.7e9])
    observed = torch.rand(50, 3, generator=torch.Generator().manual_seed(0)) < 0.7
    scaling = fit_scaling(rows_of(values), observed)
    for k in range(3):
        mine = values[observed[:, k], k].numpy()
        assert scaling.center[k] == pytest.approx(mine.mean()) and scaling.scale[k] == pytest.approx(mine.std())
    garbage = torch.where(observed, values, torch.full_like(values, -1e12))
    other = fit_scaling(rows_of(garbage), observed)
    assert torch.equal(other.scale, scaling.scale) and torch.equal(other.center, scaling.center)
    scaled = standardised(rows_of(values), scaling)
    assert scaled.values.dtype == torch.float32 and scaled.units.columns == ("a", "b", "c")
    back = scaling.restore(scaled.values)
    assert ((back - values).abs() < 1e-6 * scaling.scale).all()  # seconds since 1970, and thousandths of them
    again = type(scaling).from_state(scaling.state())
    assert torch.equal(again.standardise(values), scaled.values)


def test_constant_columns_and_columns_without_values():
    values = torch.tensor([[0.1, 0, 1], [0.1, 0, 2], [0.1, 0, NAN]])
    scaling = fit_scaling(rows_of(values), ~values.isnan())
    assert scaling.constant == ("a", "b") and bool((scaling.scale > 0).all())
    assert not scaling.standardise(values)[:2].isnan().any()
    with pytest.raises(InputError, match="nothing of column 'c' is observed in the training data"):
        fit_scaling(rows_of(values), torch.tensor([True, True, False]).expand(3, 3))
    points = Vectors("p", torch.zeros(3, 2), None, 0)
    assert fit_scaling(points, torch.ones(3, 2, dtype=torch.bool)) is None
    with pytest.raises(InputError, match="nothing of column 1 is observed"):
        fit_scaling(points, torch.tensor([True, False]).expand(3, 2))


# ---------------------------------------------------------------------------------------------------------------- masks


def test_masks_of_vectors():
    observed = ColumnsMask([0, 2])((4,), 3, 0, "test")
    assert torch.equal(observed, torch.tensor([False, True, False, True]).expand(3, 4))
    np.save("m.npy", np.array([1, 0]))
    assert torch.equal(FileMask("m.npy")((2,), 3, 0, "test"), torch.tensor([True, False]).expand(3, 2))
    np.save("m.npy", np.eye(2))
    assert torch.equal(FileMask("m.npy")((2,), 2, 0, "test"), torch.eye(2).bool())
    share = float((~RandomMask(0.3)((5,), 4000, 0, "test")).double().mean())
    assert abs(share - 0.3) < 0.01


def test_holes_of_the_data_join_those_of_the_mask():
    table = rows_of([[1, NAN, 3], [4, 5, 6]])
    random = {"_target_": "viscos.data.masks.RandomMask", "missing": 0}
    assert torch.equal(Masks(random, 0).of(table, "train"), table.known)
    columns = {"_target_": "viscos.data.masks.ColumnsMask", "columns": ["c", 0]}
    expected = torch.tensor([[False, False, False], [False, True, False]])
    assert torch.equal(Masks(columns, 0).of(table, "train"), expected)
    with pytest.raises(InputError, match="'t' has no column 'd'; it has a, b, c, or numbers from 0 to 2"):
        Masks({**columns, "columns": ["d"]}, 0).of(table, "train")


@pytest.mark.parametrize("mask", [CenterMask(), HalfMask()])
def test_masks_of_images_are_refused(mask):
    with pytest.raises(InputError, match="use mask=random or mask=columns for vectors"):
        mask((4,), 1, 0, "test")


def test_what_is_for_images_is_refused():
    with pytest.raises(InputError, match="a mask of columns needs vectors"):
        ColumnsMask([0])((1, 8, 8), 1, 0, "test")
    with pytest.raises(InputError, match="there is no column 4 to hide; give numbers from 0 to 3"):
        ColumnsMask([4])((4,), 1, 0, "test")
    batch = incomplete(torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(InputError, match="augment=flip moves images about"):
        augment(batch, ["flip"], torch.Generator())
    with pytest.raises(InputError, match="is of convolutions, for images; take posterior=amortised"):
        Amortised((3,), channels=(4, 8))
    assert extractor_for((3,)) == "FID compares images, and these are vectors"
    with pytest.raises(InputError, match="inception=download is for images"):
        extractor_for((3,), "download")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (torch.zeros(2, 3, 4), "give float32 or float64 of shape (N, d)"),
        (torch.zeros(2, 3, dtype=torch.int64), "give float32 or float64 of shape (N, d)"),
        (torch.tensor([[0.0, math.inf]]), "'v' has an infinite value, in row 1, column 1"),
    ],
)
def test_vectors_that_are_refused(values, says):
    with pytest.raises(InputError) as caught:
        Vectors("v", values, None, 0)
    assert says in str(caught.value)


# -------------------------------------------------------------------------------------------------------------- metrics


def test_errors_in_both_units():
    units = Units("standard deviations", "columns", columns=("a", "b", "c"), scales=(10.0, 0.5, 1.0))
    metric = RMSE(units)
    truth = torch.tensor([[0.0, 5.0, NAN], [1.0, 2.0, 3.0]])
    completed = torch.tensor([[3.0, 9.0, 0.0], [5.0, 2.0, 3.0]])
    metric.update(completed, truth, torch.tensor([[True, True, False], [True, False, False]]))
    record = metric.record()
    assert record["pooled"] == pytest.approx(math.sqrt((9 + 16 + 16) / 3))  # nothing is clamped
    assert record["columns_own_units"] == {"a": pytest.approx(10 * math.sqrt(12.5)), "b": pytest.approx(2), "c": None}
    assert record["unit"] == "standard deviations" and "clamped" not in record["over"] and "per_item_mean" in record
    assert "columns_own_units" not in RMSE(OWN).record()
    with pytest.raises(InputError, match="a hidden true value is not finite"):
        metric.update(completed, truth, torch.ones(2, 3, dtype=torch.bool))


# ------------------------------------------------------------------------------------------------------------- networks


def test_the_network_begins_at_the_gaussian_and_sees_what_is_observed():
    root = torch.eye(5, dtype=F64) + 0.2 * normal(5, 5)
    gaussian = Gaussian(normal(5, seed=2), root @ root.T)
    network = Amortised((5,), width=4).double()
    network.prepare(torch.full((1, *network.shape), 0.0), torch.ones(1, *network.shape, dtype=torch.bool), gaussian)
    values, hidden = normal(4, 5), torch.rand(4, 5, generator=torch.Generator().manual_seed(1)) < 0.5
    flow = torch.nn.Identity()
    flow.to_latent = lambda y: y
    begun = network(incomplete(values, ~hidden), flow)
    torch.testing.assert_close(begun.mean, gaussian.conditional(values, ~hidden), rtol=1e-2, atol=1e-2)
    assert (begun.log_scale == 0).all()
    one = sees_the_observation_alone(network, values, hidden)
    (one.mean.square().sum() + one.log_scale.square().sum()).backward()
    network.predict(incomplete(values, ~hidden)).square().sum().backward()
    assert all(float(p.grad.abs().sum()) > 0 for p in network.parameters())


CFG = {
    "flow": {"_target_": "viscos.flows.iresnet", "blocks": [2], "channels": 8, "start": "gaussian"},
    "posterior": {"_target_": "viscos.posteriors.Amortised", "width": 4},
    "classifier": "completions",
}


def trained(values, observed, labels):
    """The parameters after some steps on both losses."""
    torch.manual_seed(0)
    data = IncompleteData(values, observed, labels)
    model = build_model(CFG["flow"], CFG["posterior"], CFG["classifier"], data.shape, 3)
    assert isinstance(model.classifier, CompletionClassifier)
    model.prepare(torch.where(observed, values, 0), observed, Gaussian.from_incomplete(values, observed))
    plan = Plan(epochs=1, batch_size=8, learning_rate=1e-2, pretrain=1)
    Trainer(model, data, Objective(anderson(), CLADE()), plan).run(lambda report: None, lambda epoch: None)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_hidden_values_are_never_looked_at():
    values, labels = normal(20, 3, dtype=torch.float32) * 5 - 40, torch.arange(20) % 3
    observed = torch.rand(20, 3, generator=generator(0, "mask")) < 0.6
    observed[3] = False  # an item of which nothing is known
    one = trained(values, observed, labels)
    assert torch.isfinite(one).all()
    for fill in (NAN, 1e30):
        assert torch.equal(one, trained(torch.where(observed, values, fill), observed, labels))


# -------------------------------------------------------------------------------------------------------------- density


def gaussian_flow():
    S = torch.tensor([[2.0, 0.9], [0.9, 0.7]], dtype=F64)
    layer = Whitening((2,))
    layer.set_gaussian(Gaussian(torch.tensor([1.0, -2.0], dtype=F64), S))
    return Flow([layer], (2,)), S


@pytest.mark.parametrize("hidden", [0, 1])
def test_the_conditional_of_a_gaussian_by_quadrature(hidden):
    flow, S = gaussian_flow()
    mean, known = torch.tensor([1.0, -2.0]), 0.3
    grid = torch.linspace(-12, 12, 4001)
    found = conditional_density(flow.log_prob, known, hidden, grid)
    given = 1 - hidden
    centre = float(mean[hidden] + S[hidden, given] / S[given, given] * (known - mean[given]))
    variance = float(S[hidden, hidden] - S[hidden, given] ** 2 / S[given, given])
    exact = torch.distributions.Normal(centre, math.sqrt(variance)).log_prob(grid).exp()
    torch.testing.assert_close(found, exact.double(), atol=2e-4, rtol=0)


def test_a_density_is_a_density_in_the_columns_own_units():
    from viscos.commands.report import plane

    values = normal(400, 2) @ torch.tensor([[30.0, 0.02], [0, 0.01]], dtype=F64) + torch.tensor([500.0, 2.0])
    table = rows_of(values)
    scaling = fit_scaling(table, table.known)
    drawn = plane(iresnet((2,), blocks=[2], channels=8), standardised(table, scaling), scaling)
    first, second, density = drawn.grid(size=300, margin=1.5)
    assert drawn.names == ("a", "b") and density.shape == (300, 300)
    total = torch.trapezoid(torch.trapezoid(density.double(), first.double(), dim=1), second.double(), dim=0)
    assert float(total) == pytest.approx(1, abs=0.02)
    torch.testing.assert_close(drawn.points.double(), values, rtol=1e-5, atol=1e-4)


def test_the_item_whose_conditional_is_drawn():
    observed = torch.tensor([[True, True], [False, False], [True, False], [False, True]])
    values = torch.where(observed, torch.arange(8.0).view(4, 2), NAN)
    draws = torch.where(observed, values, normal(6, 4, 2, dtype=torch.float32))
    cut = first_slice(values, torch.arange(8.0).view(4, 2), observed, draws)
    assert (cut.item, cut.known, cut.hidden, cut.truth) == (2, 4.0, 1, 5.0) and torch.equal(cut.draws, draws[:, 2, 1])
    draws[:, 2, 1], draws[0, 3, 0] = NAN, NAN
    cut = first_slice(values, values, observed, draws)
    assert cut.item == 3 and cut.hidden == 0 and torch.equal(cut.draws, draws[1:, 3, 0])
    assert first_slice(values[:2], values[:2], observed[:2], draws[:, :2]) is None
    with pytest.raises(InputError, match="no test point without holes"):
        Plane(lambda y: y.sum(1), torch.zeros(0, 2), ("a", "b")).grid()


def test_a_column_whose_squares_overflow_is_named():
    values = torch.tensor([[1.0, 1e300], [2.0, -1e300], [3.0, 2e300]], dtype=torch.float64)
    data = Vectors("t", values, None, 0, columns=("small", "huge"))
    with pytest.raises(InputError, match=r"column 'huge' holds values as large as 2e\+300, beyond single precision"):
        Scaling.fit(data, torch.ones(3, 2, dtype=torch.bool))


def test_a_level_that_was_never_seen_is_of_the_size_of_the_others():
    """Of a cell that has it all the same, a hundred deviations would outweigh all else."""
    scheme = Scheme((Column("x"), Column("kind", levels=("a", "b", "c"))))
    values = torch.tensor([[0.0, 1, 0, 0], [1.0, 0, 1, 0], [2.0, 1, 0, 0], [3.0, 0, 0, 1]], dtype=torch.float64)
    data = Vectors("t", values, None, 0, columns=scheme.entries, scheme=scheme)
    observed = torch.ones(4, 4, dtype=torch.bool)
    observed[3, 1:] = False
    scaling = Scaling.fit(data, observed)
    assert scaling.standardise(values)[3, 3] == 1 and "kind=c" in scaling.constant
