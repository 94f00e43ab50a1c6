"""A user's own tables: how they are read, what their columns become, and that a completed file is the one given."""

from __future__ import annotations

import csv
import datetime
import decimal
import math
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from problems import F64, normal

from viscos.commands.assemble.masks import Masks
from viscos.commands.completing.results import Results, completed
from viscos.commands.completing.tables import Filled, interval
from viscos.core.errors import InputError
from viscos.data.columns import FORMATS, Column, Scheme
from viscos.data.dialect import Dialect
from viscos.data.far_out import far_from_training, far_out
from viscos.data.incomplete import IncompleteData
from viscos.data.rows import fingerprints
from viscos.data.scaling import Scaling, fit_scaling
from viscos.data.sources.registry import load
from viscos.data.sources.sheet import read_sheet
from viscos.data.sources.table import read_rows
from viscos.data.vectors import Vectors
from viscos.inference import Completions
from viscos.metrics.calibration import FEWEST
from viscos.posteriors.holdout import hold_out

NAN = float("nan")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Each test has an empty folder of its own."""
    monkeypatch.chdir(tmp_path)


def write(data: str | bytes, name: str = "t.csv") -> Path:
    Path(name).write_bytes(data.encode() if isinstance(data, str) else data)
    return Path(name)


def whole(**settings) -> Vectors:
    """Both splits of t.csv."""
    parts = [load("table", split, path="t.csv", **settings) for split in ("train", "test")]
    return Vectors("t", torch.cat([part.values for part in parts]), None, 0, columns=parts[0].columns)


# ---------------------------------------------------------------------------------------------------------------- signs


@pytest.mark.parametrize(
    ("text", "signs", "expected"),
    [
        ("1.5", {}, 1.5),
        ("-.5e3", {}, -500.0),
        ("1_000", {}, NAN),
        ("0x10", {}, NAN),
        ("inf", {}, NAN),
        ("1e999", {}, NAN),
        ("1,5", {"decimal": ","}, 1.5),
        ("1.5", {"decimal": ","}, NAN),
        ("1.234.567,5", {"decimal": ",", "thousands": "."}, 1234567.5),
        ("1,234.5", {"thousands": ","}, 1234.5),
        ("12,34.5", {"thousands": ","}, NAN),
        ("1 234", {"thousands": " "}, 1234.0),
        ("-1'000", {"thousands": "'"}, -1000.0),
        ("12.345", {"decimal": ",", "thousands": "."}, 12345.0),
        ("0.540", {"decimal": ",", "thousands": "."}, NAN),
        ("-0.750", {"decimal": ",", "thousands": "."}, NAN),
        ("1234.567", {"decimal": ",", "thousands": "."}, NAN),
        (",123", {"thousands": ","}, NAN),
        ("-,123", {"thousands": ","}, NAN),
        ("012,345", {"thousands": ","}, NAN),
    ],
)
def test_a_number_is_read_by_its_signs(text, signs, expected):
    assert Dialect(**signs).numbers(np.array([text])) == pytest.approx([expected], nan_ok=True)


@pytest.mark.parametrize(
    ("cell", "advised"), [("1,5", "decimal=,"), ("1,234.5", "thousands=,"), ("1.234,5", "decimal=,")]
)
def test_other_signs_are_advised_as_they_can_be_typed(cell, advised):
    said = Dialect().advice(cell)
    words = [word.replace('"', "") for word in shlex.split(said.partition("say ")[2])]
    assert f"dataset.{advised}" in words
    signs = dict(word.removeprefix("dataset.").split("=") for word in words)
    assert not np.isnan(Dialect(**signs).numbers(np.array([cell]))).any()
    assert Dialect().advice("tall") == ""


@pytest.mark.parametrize(
    ("value", "signs", "written"),
    [
        (1602040919121.0, {}, "1602040919121"),
        (1.7e18 + 256, {}, "1700000000000000256"),
        (1602040919121.25, {}, "1602040919121"),
        (-12345678901234567.0, {}, "-12345678901234568"),
        (1e20, {}, "100000000000000000000"),
        (1e22, {}, "1e+22"),
        (NAN, {}, "nan"),
        (1 / 3, {"decimal": ","}, "0,333333333333"),
        (0.0, {}, "0"),
    ],
)
def test_a_number_is_written_by_its_signs(value, signs, written):
    assert Dialect(**signs).number(value) == written


def test_holes_are_words_and_numbers():
    write("a,b\n" + "-999,1\n 2 ,missing\n-999.0,3\n4,N/A\n")
    values = whole(holes=["-999", "missing"]).values
    assert values.isnan().sum(0).tolist() == [2, 2]
    assert sorted(values.nan_to_num(0).sum(0).tolist()) == [4, 6]


def test_a_hole_that_was_typed_with_a_point_is_found_whatever_the_sign_of_the_table():
    for typed, cell in (("-99.9", "-99,9"), ("-99,9", "-99,90"), ("-999.0", "-999")):
        assert Dialect(decimal=",", holes=(typed,)).empty(np.array([cell, "99,9", "1"])).tolist() == [
            True,
            False,
            False,
        ]


def test_the_setting_of_further_holes_keeps_those_that_are():
    signs = Dialect(decimal=",", holes=("-9", "x"), prefix="")
    (word,) = shlex.split(signs.with_holes([-1.5, 99.0, 99.0]))
    assert word == 'holes=[-9,x,"-1,5",99]'
    more = Dialect(decimal=",", holes=("-9", "x", "-1,5", "99"))
    assert more.empty(np.array(["-9,0", "X", "-1,50", "99", "1"])).tolist() == [True] * 4 + [False]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1", "cp1252"])
def test_encodings(encoding):
    path = write("größe,b\n1,2\n3,\n".encode(encoding))
    dialect = Dialect(encoding=encoding) if encoding in ("latin-1", "cp1252") else Dialect()
    sheet = read_sheet(path, dialect)
    assert sheet.header == ("größe", "b") and sheet.cells("größe").tolist() == ["1", "3"]
    sheet.write(Path("out.csv"), {"b": np.array([None, "7"], dtype=object)})
    assert Path("out.csv").read_bytes() == path.read_bytes()[: -1 if encoding != "utf-16" else -2] + "7\n".encode(
        "utf-16-le" if encoding == "utf-16" else encoding.removesuffix("-sig")
    )


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("größe\n1\n".encode("latin-1"), "say its encoding, e.g. dataset.encoding=latin-1"),
        ("größe,b\n1,2\n".encode("utf-16-le"), "dataset.encoding=utf-16"),
        ("a,b\n1,2,3\n", "row 1 has 3 cells, and the header 2"),
        ('a,b\n1,"2\n', "cannot be read as CSV"),
        ("", "is empty"),
        ("\n\n", "is empty"),
    ],
)
def test_what_is_no_table(data, says):
    with pytest.raises(InputError) as caught:
        read_sheet(write(data), Dialect())
    assert says in str(caught.value) and "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------------------- byte for byte

SHEETS = {
    "plain": "a,b\n1,\n,2\n",
    "returns": "a;b\r\n1;\r\n;2.50\r\n",
    "mark, blanks and no last end": "\ufeff\n\na\tb\n 1 \t\n\n\t 2.50",
    "quotes": '"a, x",b\n"1",\n"",2\n',
    "trailing": "a,b\n1,\n,2\n,\n,\n",
    "old": "a,b\r1,\r,2\r",
}


@pytest.mark.parametrize("name", SHEETS)
def test_a_completed_file_is_the_file_but_for_its_holes(name):
    path = write(SHEETS[name])
    sheet = read_sheet(path, Dialect())
    first, second = sheet.header
    assert len(sheet) == 2 and sheet.trailing == (2 if name == "trailing" else 0)
    sheet.write(Path("same.csv"), {})
    assert Path("same.csv").read_bytes() == path.read_bytes()
    new = {first: np.array([None, "X"], dtype=object), second: np.array(['y"z', None], dtype=object)}
    sheet.write(Path("out.csv"), new)
    before, after = path.read_bytes().decode(), Path("out.csv").read_bytes().decode()
    assert after.replace('"y""z"', "").replace("X", "") == before.replace('\n"",', "\n,")
    again = read_sheet(Path("out.csv"), Dialect())
    assert again.cells(first)[1] == "X" and again.cells(second)[0] == 'y"z'
    sheet.head(1).write(Path("one.csv"), {})
    assert len(read_sheet(Path("one.csv"), Dialect())) == 1 and before.startswith(Path("one.csv").read_bytes().decode())


def test_an_index_that_pandas_writes_along_is_no_column_of_parquet():
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"a": [1.5, 2.5, 0.5, 4.5], "b": [2.0, 3.0, math.nan, 5.0]})
    frame[frame.a > 1].to_parquet("t.parquet")
    assert load("table", "train", path="t.parquet").columns == ("a", "b")
    sheet = read_sheet(Path("t.parquet"), Dialect())
    sheet.write(Path("o.parquet"), {"b": np.array([None, None, None], dtype=object)})
    assert pandas.read_parquet("o.parquet").index.tolist() == [0, 1, 3], "it stays in the file"


def test_parquet_keeps_its_types():
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table(
        {
            "n": arrow.array([1, None, 3], arrow.int32()),
            "x": arrow.array([0.1, math.nan, None], arrow.float64()),
            "t": arrow.array(["u", None, "v, w"]),
            "b": arrow.array([True, None, False]),
            "d": arrow.array([0, None, 86_400_000_000], arrow.timestamp("us")),
            "c": arrow.array(["k", None, "l"]).dictionary_encode(),
        }
    )
    parquet.write_table(table, "t.parquet")
    sheet = read_sheet(Path("t.parquet"), Dialect(decimal=","))
    assert sheet.cells("x").tolist() == ["0.1", "nan", ""] and sheet.cells("b").tolist() == ["true", "", "false"]
    new = {"n": "2", "x": "0.25", "t": "z", "b": "true", "d": "1970-01-01 12:00:00", "c": "k"}
    sheet.write(Path("o.parquet"), {key: np.array([None, cell, None], dtype=object) for key, cell in new.items()})
    done = parquet.read_table("o.parquet")
    assert done.schema.names == table.schema.names
    assert [field.type for field in done.schema][:5] == [field.type for field in table.schema][:5]
    middle = done.slice(1, 1).to_pylist()[0]
    assert middle["d"].isoformat() == "1970-01-01T12:00:00"
    assert {key: middle[key] for key in "nxtbc"} == {"n": 2, "x": 0.25, "t": "z", "b": True, "c": "k"}
    assert done.slice(0, 1).to_pylist() == table.slice(0, 1).to_pylist()


def with_room(column, *cells: str):
    """A column of Parquet with a hole in its middle, completed by each of the cells, and the lines that are said."""
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pytest.importorskip("pyarrow").table({"a": column}), "t.parquet")
    sheet, lines = read_sheet(Path("t.parquet"), Dialect()).with_room({"a": cells})
    done = []
    for cell in cells:
        sheet.write(Path("o.parquet"), {"a": np.array([None, cell, None], dtype=object)})
        done.append(parquet.read_table("o.parquet").column("a"))
    assert all(each.type == done[0].type for each in done)
    return done, lines


def test_decimals_of_parquet_are_rounded_and_get_the_digits_that_they_need():
    arrow, D = pytest.importorskip("pyarrow"), decimal.Decimal
    column = arrow.array([D("1.25"), None, D("-3.50")], arrow.decimal128(5, 2))
    (done,), lines = with_room(column, "2.53333333333")
    assert done.to_pylist() == [D("1.25"), D("2.53"), D("-3.50")] and done.type == column.type and lines == ()
    large = (("123456.789", "123456.79", arrow.decimal128(8, 2)), ("1e+40", "1e+40", arrow.decimal256(43, 2)))
    for cell, rounded, kind in large:
        (done, small), lines = with_room(column, cell, "0.005")
        assert done.type == kind and done.to_pylist() == [D("1.25"), D(rounded), D("-3.50")] and small[1].as_py() == 0
        assert lines == (f"column 'a' is written as {kind}: {column.type} does not hold all of its completions",)


@pytest.mark.parametrize("kind", ["int64", "uint8", "int32"])
def test_whole_numbers_of_parquet_become_doubles_only_where_they_must(kind):
    arrow = pytest.importorskip("pyarrow")
    column = arrow.array([1, None, 3], kind)
    (done, other), lines = with_room(column, "2", "7.0")
    assert done.type == column.type and done.to_pylist() == [1, 2, 3] and other[1].as_py() == 7 and lines == ()
    (done, other), lines = with_room(column, "2.5", "2")
    assert done.to_pylist() == [1, 2.5, 3] and other.type == "double"
    assert lines == (f"column 'a' is written as double: {kind} does not hold all of its completions",)
    assert with_room(column, "1e+20")[0][0].to_pylist() == [1, 1e20, 3]
    if kind == "int64":  # of which a double lacks the last digit
        large = arrow.array([2**60 + 1, None, 3])
        assert with_room(large, "2.5", "-1e+20")[0][0].to_pylist() == [2**60 + 1, 2, 3]


def test_columns_of_parquet_without_values_and_of_other_types():
    arrow = pytest.importorskip("pyarrow")
    nothing = arrow.array([None] * 3)
    assert with_room(nothing, "0.5")[0][0].to_pylist() == [None, 0.5, None]
    assert with_room(nothing, "low", "0.5")[0][0].to_pylist() == [None, "low", None]
    assert with_room(nothing.cast("float64"), "low")[0][0].to_pylist() == [None, "low", None]
    assert with_room(arrow.array(["a", None, "b"]), "")[0][0].to_pylist() == ["a", None, "b"], "a draw that failed"
    date = datetime.datetime(2024, 1, 1)
    (late,), lines = with_room(arrow.array([date, None, date], arrow.timestamp("ns")), "9999-12-31 00:00:00")
    assert late[1].as_py().year == 9999 and "written as timestamp[us]" in lines[0]
    codes = arrow.array([1, None, 3]).dictionary_encode()
    assert with_room(codes, "2")[0][0].to_pylist() == [1, 2, 3]
    kinds = {"time64": datetime.time(1), "duration": datetime.timedelta(1), "binary": b"a", "list": [1]}
    for kind, value in kinds.items():
        with pytest.raises(InputError, match=f"column 'a' is of type {kind}.*, in which no cell such as 'k' can be"):
            with_room(arrow.array([value, None, value]), "k")
    with pytest.raises(InputError, match="of type time32"):
        with_room(arrow.array([datetime.time(1), None, None], arrow.time32("ms")), "01:00:00")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        with_room(arrow.array([2**60, None, 0], arrow.timestamp("us")), "2024-01-01 00:00:00")  # of the year 38504


# -------------------------------------------------------------------------------------------------------------- columns


def test_what_the_columns_of_a_mixed_table_are():
    rows = [f"{k},{k / 3:.3f},{'abc'[k % 3]},{k % 2},2024-01-{k + 1:02d},{'yes' if k % 4 else 'no'}" for k in range(20)]
    write("n,x,kind,flag,day,word\n" + "\n".join(rows) + "\n,,,,,\n")
    train = load("table", "train", path="t.csv")
    columns = {column.name: column for column in train.scheme.columns}
    assert columns["n"].whole and not columns["x"].whole and columns["day"].format == "%Y-%m-%d"
    assert columns["kind"].levels == ("a", "b", "c") and columns["word"].levels == ("no", "yes")
    assert train.columns == ("n", "x", "kind=a", "kind=b", "kind=c", "flag", "day", "word")
    assert train.groups == (0, 1, 2, 2, 2, 3, 4, 5) and (train.values[:, 2:5].sum(1) == 1).all()
    assert "1 empty row at the end left out" in train.notes[0] and "kind (3 categories)" in train.notes[1]
    assert Scheme.from_state(train.scheme.state()) == train.scheme
    numbers = train.scheme.decode(train.values)
    assert torch.equal(train.scheme.encode(numbers), train.values)
    assert columns["day"].text(float(numbers[0, 4])) == f"2024-01-{int(numbers[0, 0]) + 1:02d}"
    given = load("table", "train", path="t.csv", categories=["n"])
    assert len(given.columns) == 27 and load("table", "train", path="t.csv", drop=["kind"]).shape == (5,)


def test_categories_are_written_as_their_cells_are():
    rows = [("01,1.0,0.0,7", "02,2.0,1.0,8", "10,2.0,1,09")[k % 3] for k in range(18)]
    write("region,g,flag,many\n" + "\n".join(rows) + "\n,,,\n")
    train = load("table", "train", path="t.csv", categories=["g"])
    columns = train.scheme.columns
    assert [column.levels for column in columns[:3]] == [("01", "02", "10"), ("1.0", "2.0"), ("0.0", "1.0")]
    assert "region (3 categories)" in train.notes[1]
    numbers = read_rows(write("region,g,flag,many\n1,2,0,7\n010,1.0,1.00,9\n", "new.csv"), train.scheme).data
    assert train.scheme.decode(numbers.values).tolist() == [[0, 1, 0, 0], [2, 0, 1, 2]], "1 is 01, and 2 is 2.0"
    old = Scheme((Column("region", whole=True), Column("g", levels=("1", "2")), *columns[2:]))
    values = old.encode(torch.tensor([[1.0, 0, 0, 0], [2, 1, 1, 1]]))
    whole = Vectors("t", values, None, 0, columns=old.entries, scheme=old)
    aligned = Scaling.fit(whole, whole.known).aligned(train)
    assert torch.equal(aligned.values[:, 0].float(), torch.tensor([1.0, 2, 10])[train.values[:, :3].argmax(1)])
    assert torch.equal(old.decode(aligned.values)[:, 1:3], train.scheme.decode(train.values)[:, 1:3])


def test_a_category_is_read_in_other_signs():
    write("g;x\n" + "".join(f"{(1 + k % 3) / 2:g};{k}\n".replace(".", ",") for k in range(12)))
    column = load("table", "train", path="t.csv", categories=["g"], decimal=",").scheme.columns[0]
    assert column.levels == ("0,5", "1", "1,5")
    cells = np.array(["0.5", "1.50", "1", "", "2"], dtype=object)
    assert column.numbers(cells).tolist() == pytest.approx([0, 2, 1, NAN, NAN], nan_ok=True)
    assert column.numbers(np.array(["1,50"]), Dialect(decimal=",")).tolist() == [2]


def test_many_codes_are_named():
    write("code,x\n" + "".join(f"{97 + k:05d},{k % 7}.5\n" for k in range(100)))
    lines = load("table", "train", path="t.csv").notes
    assert any("holds '00097', which looks like a code" in line and "dataset.drop=[code]" in line for line in lines)
    write("code,x\n" + "".join(f"{97 + k},{k % 7}.5\n" for k in range(100)))
    assert "looks like a code" not in " ".join(load("table", "train", path="t.csv").notes)


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (["1", "x", "2"], "holds 'x' in row 2, which is no finite number"),
        (["1,5", "2,5", "1,5"], "if it is one, say"),
        (["1.234,5"] * 3, "dataset.thousands=."),
        (["inf", "inf", ""], "holds 'inf' in row 1"),
        ([f"word {k}" for k in range(60)], "60 different texts in 60 rows"),
        (["01/02/2024", "03/02/2024"], "whose day and month cannot be told apart"),
        ([f"{k % 28 + 1} March {1950 + k}" for k in range(60)], "dates are read if all are written alike"),
        ([f"07/05/21 {k % 12}:{k} PM" for k in range(10, 60)], "as 2024-12-31, 31.12.2024 or 2024-12-31 14:30; leave"),
        ([f"{k % 28 + 1:02d}.05.{40 + k}" for k in range(60)], "dates are read if all are written alike"),
    ],
)
def test_columns_that_are_refused(cells, says):
    write("b;a\n" + "".join(f"0;{cell}\n" for cell in cells))
    with pytest.raises(InputError) as caught:
        load("table", "train", path="t.csv")
    assert says in str(caught.value) and "column 'a'" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("form", FORMATS)
def test_dates_are_read_and_written_in_their_form(form):
    begin = datetime.datetime(2021, 1, 1, 12, 30, 15)
    cells = [(begin + datetime.timedelta(days=3 * k, minutes=7 * k)).strftime(form) for k in range(300)]
    write("day,x\n" + "".join(f"{cell},{k}\n" for k, cell in enumerate(cells)))
    column = load("table", "train", path="t.csv").scheme.columns[0]
    days = column.numbers(np.array(cells))
    assert column.format == form and [column.text(day) for day in days] == cells
    assert days[0] == pytest.approx(18628 + ("%H" in form) * (12.5 / 24 + ("%S" in form) * 15 / 86400))


@pytest.mark.parametrize("form", FORMATS)
def test_days_without_a_date_are_written_as_the_nearest_one(form):
    column = Column("day", format=form)
    first, last = column.text(-1e9), column.text(1e9)
    assert "0001" in first and "9999" in last and column.text(2932896.9999999) == last
    days = column.numbers(np.array([first, last]))
    assert days[0] == -719162 and 2932896 <= days[1] < 2932897, "both are read again"


def test_draws_of_dates_are_within_those_observed():
    scheme = Scheme((Column("day", format="%Y-%m-%d"), Column("same", format="%Y-%m-%d")))
    numbers = torch.tensor([[19000.0, 5.0], [19010.0, 5.0], [2932896.0, 5.0]], dtype=F64)
    data = Vectors("t", numbers, None, 0, columns=scheme.entries, scheme=scheme)
    scaling = fit_scaling(data, data.known)
    far = scaling.standardise(torch.tensor([[4e6, 9.0], [-1e6, 1.0], [19005.0, 5.0]], dtype=F64))
    settled, moved = scaling.cells(far)
    torch.testing.assert_close(settled, torch.tensor([[2932896, 5], [19000, 5], [19005, 5]], dtype=F64), rtol=0, atol=1)
    assert moved.tolist() == [[True, False], [True, False], [False, False]]


def test_version_numbers_are_no_dates():
    write("version,x\n" + "".join(f"3.{9 + k % 3}.18,{k}\n" for k in range(12)))
    assert load("table", "train", path="t.csv").scheme.columns[0].levels == ("3.10.18", "3.11.18", "3.9.18")


def test_named_categories_are_no_dates():
    write("day,x\n" + "".join(f"0{1 + k % 3}/05/2021,{k}\n" for k in range(12)))
    column = load("table", "train", path="t.csv", categories=["day"]).scheme.columns[0]
    assert column.levels == ("01/05/2021", "02/05/2021", "03/05/2021")


def test_the_entries_of_a_column_are_hidden_together():
    rows = [f"{'abc'[k % 3]},{k},{'' if k % 5 else k}" for k in range(40)]
    write("kind,n,m\n" + "\n".join(rows) + "\n")
    table = load("table", "train", path="t.csv")
    masks = Masks({"_target_": "viscos.data.masks.RandomMask", "missing": 0.4}, 0).of(table, "train")
    assert (masks[:, :3] == masks[:, :1]).all() and 0.3 < 1 - float(masks[:, 0].double().mean()) < 0.6
    assert not torch.equal(masks[:, 0], masks[:, 3]) and not (masks & ~table.known).any()
    named = Masks({"_target_": "viscos.data.masks.ColumnsMask", "columns": ["kind", 2]}, 0).of(table, "train")
    assert not named[:, [0, 1, 2, 4]].any() and named[:, 3].all()
    data = IncompleteData(table.values, table.known, None, table.groups)
    batch = data.batch(torch.arange(len(data)))
    kept = hold_out(batch, 0.5, torch.Generator().manual_seed(0), data.groups).observed
    assert (kept[:, :3] == kept[:, :1]).all() and 0.2 < float(kept[:, 0].double().mean()) < 0.8
    assert not torch.equal(kept[:, 0], kept[:, 3])
    apart = IncompleteData(table.values, table.known, None, (0, 1, 2, 3, 4))
    assert apart.groups is None


def test_large_whole_numbers_are_written_out():
    scheme = Scheme((Column("ms", whole=True),))
    rows = read_rows(write("ms,x\n1602040919121,\n,1\n"), scheme)
    draws = torch.full((2, 2, 1), 1602040919122.0, dtype=F64)
    Filled(rows, scheme, draws.mean(0) + 0.4, draws, ~rows.data.values.isnan(), ~rows.data.values.isnan()).write(Path())
    assert Path("completed.csv").read_text() == "ms,x\n1602040919121,\n1602040919122,1\n"
    assert Path("draws_long.csv").read_text().splitlines()[1:] == [f"{k},2,ms,1602040919122" for k in (1, 2)]


def test_rows_are_read_as_in_training():
    scheme = Scheme((Column("k", levels=("0", "1", "7")), Column("d", format="%d.%m.%Y"), Column("n", whole=True)))
    rows = read_rows(write("d,n,k\n02.01.1970,2.5,1.0\n,,7\n"), scheme)
    expected = torch.tensor([[0, 1, 0, 1, 2.5], [0, 0, 1, NAN, NAN]], dtype=F64)
    torch.testing.assert_close(rows.data.values, expected, equal_nan=True)
    with pytest.raises(InputError, match=r"'3' in row 1, which is no category of the training data \('0', '1', '7'"):
        read_rows(write("d,n,k\n,,3\n"), scheme)
    with pytest.raises(InputError, match="holds '1970-01-02' in row 1, which is no date like"):
        read_rows(write("d,n,k\n1970-01-02,,\n"), scheme)


def test_columns_that_are_called_by_numbers_are_taken_by_name():
    """Years are names; and so are numbers from 0, as those of an array are, where a file has them in its header."""
    write("id,2019,2020,2021\n" + "".join(f"n{k},{k}.5,{100 + k}.5,{200 + k}.5\n" for k in range(12)))
    scheme = load("table", "train", path="t.csv", drop=["id"]).scheme
    own = read_rows("t.csv", scheme)
    assert own.names == ("2019", "2020", "2021") and own.data.values[0].tolist() == [0.5, 100.5, 200.5]
    swapped = read_rows(write("id,2021,2019,2020\na,3,1,2\n", "swapped.csv"), scheme)
    assert swapped.data.values.tolist() == [[1, 2, 3]] and swapped.names == scheme.names
    with pytest.raises(InputError, match=r"lacks the column '2020'; the flow was trained on 2019, 2020, 2021.*'2022'"):
        read_rows(write("id,2019,2022,2021\na,1,2,3\n", "other.csv"), scheme)
    of_array = Scheme((Column("0"), Column("1")))
    assert read_rows(write("u,v\n1,2\n"), of_array).names == ("u", "v"), "which has no names"
    assert read_rows(write("id,1,0\na,2,1\n"), of_array).data.values.tolist() == [[1, 2]]
    with pytest.raises(InputError, match="lacks the column '1'"):
        read_rows(write("0,v\n1,2\n"), of_array)


def test_an_array_of_which_columns_were_left_out_is_completed_whole_or_without_them():
    np.save("t.npy", np.arange(30.0).reshape(10, 3))
    scheme = load("table", "train", path="t.npy", drop=[0]).scheme
    assert scheme.names == ("1", "2") and read_rows("t.npy", scheme).data.values[0].tolist() == [1, 2]
    np.save("two.npy", np.arange(4.0).reshape(2, 2))
    assert read_rows("two.npy", scheme).data.values.tolist() == [[0, 1], [2, 3]]
    plain = Scheme((Column("0"), Column("1")))
    with pytest.raises(InputError, match=r"t\.npy has 3 columns, the flow takes 2"):
        read_rows("t.npy", plain)


def test_completions_are_values_that_a_column_may_have():
    columns = (Column("n", whole=True), Column("share"), Column("x"), Column("k", levels=("a", "b", "c")), Column("y"))
    scheme = Scheme(columns)
    numbers = torch.tensor([[0, 0.1, 5, 0, -1], [4, 0.9, 7, 1, 1], [2, 0.5, 6, 2, NAN]], dtype=F64)
    data = Vectors("t", scheme.encode(numbers), None, 0, columns=scheme.entries, scheme=scheme)
    scaling = fit_scaling(data, data.known)
    inside, moved = scaling.cells(scaling.standardise(data.values))
    torch.testing.assert_close(inside, numbers, equal_nan=True, atol=1e-6, rtol=0)
    assert not moved[:, [0, 3, 4]].any()  # the others are moved by what single precision lacks
    far = scaling.standardise(
        torch.tensor([[5.7, 1.2, -3, 0.2, 0.6, 0.1, -9], [2.4, 0.3, 50, 0, 0.4, 0.5, 9]], dtype=F64)
    )
    settled, moved = scaling.cells(far)
    torch.testing.assert_close(
        settled, torch.tensor([[4, 1, 5, 1, -9], [2, 0.3, 50, 2, 9]], dtype=F64), rtol=0, atol=1e-5
    )
    assert moved.tolist() == [[True, True, True, False, False], [False] * 5]
    again = Scaling.from_state(scaling.state())
    assert all(torch.equal(a, b) for a, b in zip(again.cells(far), (settled, moved), strict=True))


def skewed(rows: int = 200) -> np.ndarray:
    """Numbers of two digits after the point, whose logarithms are normal."""
    return np.exp(5 + 1.5 * np.random.default_rng(0).standard_normal(rows)).round(2)


@pytest.mark.parametrize(
    ("cells", "log"),
    [
        (skewed(), True),
        (skewed().round() + 20, True),
        (skewed().round() + 1, False),  # counts, of which another may be 0
        (np.random.default_rng(0).geometric(0.15, 200), False),
        (skewed() - skewed().min(), False),  # of which one is 0
        (-skewed(), False),
        (np.arange(1, 201), False),  # more than 20 times, and less skewed as they are
        (1000 + skewed() / 10, False),  # not 20 times
        (np.full(200, 3.5), False),
        (np.r_[np.full(6, 9999), 18 + np.arange(194) % 60], False),  # but for 9999, which may mean a missing value
    ],
)
def test_positive_numbers_over_several_scales_are_learnt_by_their_logarithm(cells, log):
    write("a,b\n" + "".join(f"{cell},{k / 7:.3f}\n" for k, cell in enumerate(cells)))
    train = load("table", "train", path="t.csv", log=None)
    assert [column.log for column in train.scheme.columns] == [log, False]
    assert (
        train.columns == ("log a" if log else "a", "b") and any("by logarithm" in line for line in train.notes) == log
    )
    plain = load("table", "train", path="t.csv", log=[])
    assert not any(column.log for column in plain.scheme.columns)
    assert torch.equal(train.scheme.decode(train.values), plain.values), "bit for bit"
    if log:
        torch.testing.assert_close(train.values[:, 0], plain.values[:, 0].log())


@pytest.mark.parametrize(("cells", "sentinel"), [(18 + np.arange(194) % 60, 9999), (skewed(), 99999)])
def test_what_may_mean_a_missing_value_is_named_in_its_column_by_logarithm_or_not(cells, sentinel):
    write("a\n" + "".join(f"{cell}\n" for cell in [sentinel] * 6 + cells.tolist()))
    for log in (None, [], ["a"]):
        lines = load("table", "train", path="t.csv", log=log).notes
        assert f"has {sentinel} in 6 rows" in lines[-2]
        assert f"it means a missing value, say dataset.holes=[{sentinel}]" in lines[-1]


def test_large_numbers_over_several_scales_are_not_named():
    heavy = np.exp(3 * np.random.default_rng(0).standard_normal(5000))
    write("a\n" + "".join(f"{cell}\n" for cell in heavy))
    assert not any("far from" in line for line in load("table", "train", path="t.csv", log=None).notes)
    assert any("far from" in line for line in load("table", "train", path="t.csv", log=[]).notes)


def test_which_columns_are_learnt_by_their_logarithm_can_be_said():
    write("a,b,k,z\n" + "".join(f"{cell},{k + 1},{'xy'[k % 2]},{k % 3}.5\n" for k, cell in enumerate(skewed(50))))
    columns = load("table", "train", path="t.csv", log=["b"]).scheme.columns
    assert [column.log for column in columns] == [False, True, False, False] and columns[1].whole
    assert columns[1].about == "whole numbers, by logarithm"
    with pytest.raises(InputError, match=r"column 'k' has 2 categories; leave it out of dataset.log"):
        load("table", "train", path="t.csv", log=["k"])
    with pytest.raises(InputError, match=r"dataset\.log=c: t.csv has the columns a, b, k, z"):
        load("table", "train", path="t.csv", log=["c"])
    Path("t.csv").write_text(Path("t.csv").read_text() + "-3,4,x,1.5\n")
    with pytest.raises(
        InputError, match=r"holds -3 in row 51, .* train with dataset.log=\[\], .* dataset.holes=\[-3\]"
    ):
        load("table", "train", path="t.csv", log=["a"])
    assert Scheme.from_state(Scheme(columns).state()) == Scheme(columns)


def test_a_logarithm_is_of_positive_numbers():
    scheme = Scheme((Column("income", log=True), Column("b")))
    rows = read_rows(write("b,income\n1,2.5\n2,\n"), scheme)
    expected = torch.tensor([[2.5, 1], [NAN, 2]], dtype=F64)
    torch.testing.assert_close(scheme.decode(rows.data.values), expected, rtol=0, atol=0, equal_nan=True)
    with pytest.raises(InputError, match=r"column 'income' holds -999 in row 2.*empty the cell.* holes=\[-999\]"):
        read_rows(write("b,income\n1,2.5\n2,-999\n"), scheme)
    holes = read_rows(write("b,income\n1,2.5\n2,-999\n"), scheme, dialect=Dialect(holes=("-999",), prefix=""))
    assert holes.data.values[1, 0].isnan()
    both, signs = Scheme((Column("income", log=True), Column("b", log=True))), Dialect(holes=("-9", "x"), prefix="")
    with pytest.raises(
        InputError, match=r"'b' holds -1 in row 2.* train with dataset.log=\[income\], .* holes=\[-9,x,-1\]"
    ):
        read_rows(write("b,income\n-9,2.5\n-1,x\n"), both, dialect=signs)
    with pytest.raises(InputError, match=r"'income' holds -999 in row 2.*'holes=\[-9,x,-999,\"-1.5\",-1\]"):
        read_rows(write("b,income\n-1.5,2.5\n-1,-999\n"), both, dialect=signs)
    np.save("t.npy", np.array([[0.0, 1.0]]))
    with pytest.raises(InputError, match=r"column 'income' holds 0 in row 1.* train with dataset.log=\[\], or"):
        read_rows("t.npy", scheme)
    with pytest.raises(InputError, match=r"train with dataset.log=\[b\], or if"):
        read_rows("t.npy", Scheme((Column("income", log=True), Column("b", log=True))))
    with pytest.raises(InputError, match="column 'income' holds 0, but is learnt by its logarithm"):
        scheme.encode(torch.zeros(1, 2))


def test_completions_of_logarithms_are_positive():
    scheme = Scheme((Column("x", log=True), Column("n", whole=True, log=True), Column("share", log=True)))
    numbers = torch.tensor([[1.5, 1, 0.001], [1000, 40, 0.5], [20, 3, 0.02]], dtype=F64)
    data = Vectors("t", scheme.encode(numbers), None, 0, columns=scheme.entries, scheme=scheme)
    scaling = fit_scaling(data, data.known)
    assert torch.allclose(scaling.center, numbers.log().mean(0)), "of the logarithms"
    wild = scaling.standardise(torch.tensor([[-5.0, -5, -9], [9, 9, 0.5]]))
    settled, moved = scaling.cells(wild)
    expected = torch.tensor([[math.exp(-5), 1, math.exp(-9)], [math.exp(9), 40, 1]], dtype=F64)
    torch.testing.assert_close(settled, expected, rtol=1e-5, atol=0)
    assert moved.tolist() == [[False, True, False], [False, True, True]]


def test_a_changed_table_is_read_by_the_logarithms_of_training():
    values = skewed()
    write("a,b\n" + "".join(f"{cell},{k}.5\n" for k, cell in enumerate(values)))
    by_log = load("table", "train", path="t.csv")
    plain = load("table", "train", path="t.csv", log=[])
    for ours, theirs in ((by_log, plain), (plain, by_log)):
        assert torch.equal(fit_scaling(ours, ours.known).aligned(theirs).values, ours.values)
    write("a,b\n" + "".join(f"{cell - 100},{k}.5\n" for k, cell in enumerate(values)))
    with pytest.raises(InputError, match=r"column 'a' holds -.*but is learnt by its logarithm"):
        fit_scaling(by_log, by_log.known).aligned(load("table", "train", path="t.csv"))


def test_rows_of_a_changed_table_are_known_again():
    """By columns that are as in training, in any order, whatever another one holds now; logarithms have 17 digits."""
    income, whole = normal(30, seed=3).exp(), torch.arange(30.0, dtype=F64)
    now = Scheme((Column("k"), Column("income", log=True)))
    then = Scheme((Column("income", log=True), Column("k", whole=True)))

    def data(scheme, *columns):
        values = scheme.encode(torch.stack(columns, 1))
        return Vectors("t", values, None, 0, columns=scheme.entries, scheme=scheme)

    trained = data(then, income, whole)
    found = Scaling.fit(trained, trained.known).aligned(data(now, whole, income))
    assert torch.equal(found.values, trained.values) and found.scheme == then
    assert torch.equal(fingerprints(found), fingerprints(trained))


def test_long_numbers_are_categories_of_an_array_that_are_told_apart():
    codes = np.array([1234567890123.0, 1234567890124.0, 1234567890125.5])
    rows = np.stack([codes[np.arange(60) % 3], np.arange(60.0)], 1)
    np.save("t.npy", rows)
    scheme = load("table", "train", path="t.npy", categories=[0]).scheme
    assert len(set(scheme.columns[0].levels)) == 3
    assert read_rows("t.npy", scheme).numbers[:, 0].tolist() == [0, 1, 2] * 20


def test_completed_numbers_have_the_digits_in_which_their_column_varies():
    values = torch.tensor([[1700000000123.25, 1.7e18 + 2560.0], [0.0, 0.0]], dtype=F64)
    write("ms,ns\n,\n1700000000124.5,1700000000000000000\n")
    columns = Scheme((Column("ms"), Column("ns", whole=True)))
    rows, known = read_rows("t.csv", columns), torch.tensor([[False, False], [True, True]])
    Filled(rows, columns, values, values[None], known, known).write(Path())
    written = Path("completed.csv").read_text().splitlines()
    assert written[1] == "1700000000123.25,1700000000000002560"


def test_completions_of_a_constant_column_are_its_value():
    scheme = Scheme((Column("a"), Column("b", log=True), Column("x")))
    numbers = torch.tensor([[0.1, 2.5, -1], [0.1, 2.5, 3]], dtype=F64)
    data = Vectors("t", scheme.encode(numbers), None, 0, columns=scheme.entries, scheme=scheme)
    scaling = fit_scaling(data, data.known)
    settled, moved = scaling.cells(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)))
    assert (settled[:, :2] == numbers[0, :2]).all() and not moved.any() and len(settled[:, 2].unique()) == 50


def test_a_mean_that_is_known_is_no_whole_number():
    scheme = Scheme((Column("n", whole=True), Column("x")))
    numbers = torch.tensor([[0.0, 1], [4, 3], [NAN, 2]], dtype=F64)
    data = Vectors("t", numbers, None, 0, columns=scheme.entries, scheme=scheme)
    scaling, observed = fit_scaling(data, data.known), data.known
    draws, mean = (scaling.standardise(torch.where(observed, numbers, n)) for n in (1.2, 1.4))
    nothing = torch.zeros(3)
    done = Results(draws=Completions.exact(draws[None], mean), bound=nothing, condition=nothing, draw_seconds=0.0)
    job = SimpleNamespace(
        items=SimpleNamespace(data=data, known=observed, observed=observed, numbers=None),
        saved=SimpleNamespace(scaling=scaling),
    )
    found = completed(job, done)
    assert found.mean[2].tolist() == pytest.approx([1.4, 2]) and found.draws[0, 2].tolist() == [1, 2]


def test_a_mean_is_that_of_the_draws_as_they_are_written():
    """Where draws were moved, and of logarithms; else it is the expectation that is known."""
    scheme = Scheme((Column("x"), Column("y", log=True), Column("z")))
    numbers = torch.tensor([[1.0, 1, 1], [9, 90, 9], [NAN, NAN, NAN], [NAN, NAN, NAN]], dtype=F64)
    data = Vectors("t", scheme.encode(numbers), None, 0, columns=scheme.entries, scheme=scheme)
    scaling, observed = fit_scaling(data, data.known), data.known
    cells = torch.tensor([[[-3.0, 2, 4]] * 4, [[5, 8, 7]] * 4], dtype=F64)
    cells[:, 3, 0], cells[1, 3] = torch.tensor([2, 4.0]), NAN  # nothing is moved in the last row, and a draw failed
    entries = torch.stack([cells[..., 0], cells[..., 1].log(), cells[..., 2]], -1)
    expected = torch.tensor([3.5, math.log(5), 6], dtype=F64).expand(4, 3)
    draws, mean = (scaling.standardise(torch.where(observed, data.values, each)) for each in (entries, expected))
    nothing = torch.zeros(4)
    done = Results(draws=Completions.exact(draws, mean), bound=nothing, condition=nothing, draw_seconds=0.0)
    job = SimpleNamespace(
        items=SimpleNamespace(data=data, known=observed, observed=observed, numbers=None),
        saved=SimpleNamespace(scaling=scaling),
    )
    found = completed(job, done)
    assert found.mean[2].tolist() == pytest.approx([3, 5, 6]), "x: (1 + 5) / 2, y: (2 + 8) / 2, z as expected"
    assert found.mean[3].tolist() == pytest.approx([3.5, 2, 6])
    assert found.mean[0].tolist() == [1, 1, 1]


def test_a_changed_table_is_read_by_the_categories_of_training():
    write("a,b\n" + "".join(f"{'xyz'[k % 3]},{k}.5\n" for k in range(12)))
    scaling = fit_scaling(data := load("table", "train", path="t.csv"), data.known)
    write("a,b\n" + "".join(f"{'zy'[k % 2]},{k}.5\n" for k in range(12)))
    assert scaling.standardised(load("table", "train", path="t.csv")).shape == (4,)
    write("a,b\n" + "".join(f"{'zyw'[k % 3]},{k}.5\n" for k in range(12)))
    with pytest.raises(InputError, match="column 'a' of 't' holds other kinds of values"):
        scaling.standardised(load("table", "train", path="t.csv"))


# ---------------------------------------------------------------------------------------------------------- far values


@pytest.mark.parametrize(("sentinels", "count"), [([-999.0], 3), ([-3.4e38, 3.4e38], 2), ([99.0], 1), ([], 0)])
def test_values_far_out_are_named(sentinels, count):
    values = torch.randn(200, 1, generator=torch.Generator().manual_seed(0), dtype=F64)
    for place in range(count):
        values[place] = sentinels[place % len(sentinels)]
    lines = far_out(Scheme((Column("a b"),)), values, Dialect())
    assert len(lines) == 2 * bool(sentinels)
    if lines:
        assert "column 'a b'" in lines[0] and f"in {count} row" in lines[0]
        (word,) = shlex.split(lines[1].partition("say ")[2])
        named = word.removeprefix("dataset.holes=").strip("[]").replace('"', "").split(",")
        assert sorted(map(float, named)) == sorted(sentinels)


def test_dates_far_out_are_named_as_they_are_written():
    cells = [f"{1 + k % 28:02d}.{1 + k % 12:02d}.{2015 + k % 7}" for k in range(200)]
    cells[3] = cells[50] = "31.12.9999"
    cells[9] = "01.01.1900"  # which is near enough for a date, but one that often means a missing value
    path = write("day;x\n" + "".join(f"{cell};{k % 9}\n" for k, cell in enumerate(cells)))
    notes = load("table", "train", path=path, decimal=",").notes
    line, remedy = notes[-2:]
    assert "column 'day' has 31.12.9999 and 01.01.1900 in 3 rows, far from the others (01.01.2015 to " in line
    assert remedy.endswith("say dataset.holes=[31.12.9999,01.01.1900]")
    table = load("table", "train", path=path, decimal=",", holes=["31.12.9999", "01.01.1900"])
    assert not any("far from" in note for note in table.notes) and int(table.values.isnan().sum()) > 0
    scaling, (word,) = fit_scaling(table, table.known), ("holes=[31.12.9999]",)
    rows = read_rows(write("day;x\n31.12.9999;\n01.06.2017;3\n", "m.csv"), table.scheme, None, Dialect(";", ","))
    lines = far_from_training(scaling, rows.data.values, Dialect(";", ",", prefix=""))
    assert "column 'day' holds 31.12.9999 in row 1, far from all of training" in lines[0] and word in lines[1]
    before = torch.tensor(
        [[-300.0, 3.0]], dtype=F64
    )  # of 1969, where training may have 1970 alone: no sign, but a date
    of_1970 = replace(scaling, low=torch.zeros(2, dtype=F64), span=torch.tensor([[0, 0], [364, 8]], dtype=F64))
    assert far_from_training(of_1970, before, Dialect()) == ()


def test_values_far_from_training_are_named():
    names = ("age", "income", "x", "k", *"abcdef")
    kinds = {"age": {"whole": True}, "income": {"log": True}, "k": {"levels": ("n", "y")}}
    scheme = Scheme(tuple(Column(name, **kinds.get(name, {})) for name in names))
    g = torch.Generator().manual_seed(0)
    numbers = torch.rand(300, 10, generator=g, dtype=F64)
    numbers[:, 0] = (20 + 50 * numbers[:, 0]).round()
    numbers[:, 1:4] = torch.stack([(9 + numbers[:, 1]).exp(), numbers[:, 2] - 0.5, numbers[:, 3].round()], 1)
    data = Vectors("t", scheme.encode(numbers), None, 0, columns=scheme.entries, scheme=scheme)
    scaling = fit_scaling(data, data.known)
    signs = Dialect(holes=("unknown", "-9"), prefix="")
    assert far_from_training(scaling, data.values, signs) == ()
    rows = numbers[:4].clone()
    rows[1, 0], rows[2, 0], rows[3, 0], rows[2, 1], rows[3, 2] = 370, 1000, -1, 1e9, 1.2
    rows[0, 4:], rows[0, 5] = NAN, 0.5
    lines = far_from_training(scaling, scheme.encode(rows), signs)
    assert len(lines) == 3, "1.2 is above the x of training, from -0.5 to 0.5, by less than the width"
    assert "column 'age' holds 1000 and 370 and -1 in 3 rows, first in row 2, far from all of training" in lines[0]
    assert "column 'income' holds 1000000000 in row 3, far" in lines[1]
    assert lines[2] == "if they mean a missing value, say holes=[unknown,-9,1000,370,-1,1000000000]"
    rows[2, 1] = 3.5 * numbers[:, 1].max()
    assert "column 'income' holds" in far_from_training(scaling, scheme.encode(rows), signs)[1], "in numbers"
    rows[2, 1] = 0.01 * numbers[:, 1].min()
    assert "column 'income' holds" in far_from_training(scaling, scheme.encode(rows), signs)[1], "in logarithms"
    rows[:, 2] = 99
    assert "column 'x' holds 99 in 4 rows, first in row 1" in far_from_training(scaling, scheme.encode(rows), signs)[2]
    rows[:, 4:] = -3.5
    lines = far_from_training(scaling, scheme.encode(rows), signs)
    assert len(lines) == 7 and lines[-2] == "warning: 4 other columns hold such values too"


# ---------------------------------------------------------------------------------------------------------------- files


def test_the_files_of_a_completed_table():
    path = write("id,n,kind,x,day\n1,3,,0.50,2024-01-01\n2,,b,,\n3,5,a,1.5,2024-01-03\n")
    scheme = Scheme(
        (Column("n", whole=True), Column("kind", levels=("a", "b", "c")), Column("x"), Column("day", format="%Y-%m-%d"))
    )
    rows = read_rows(path, scheme)
    known = ~scheme.decode(rows.data.values).isnan()
    observed = known.clone()
    observed[2, 2] = False  # hidden by a mask
    draws = torch.tensor([[3, 1, 0.5, 19723], [4, 1, 0.25, 19724.2], [5, 0, 1.25, 19725]], dtype=F64)
    draws = torch.stack([draws, draws, draws + torch.tensor([1, 1, 1, 2])], 0)
    draws[2, 1] = NAN  # a draw that failed
    names = Filled(rows, scheme, draws.nanmean(0), draws, known, observed).write(Path("out"))
    assert names == ["completed.csv", "masked.csv", "draws/", "draws_long.csv", "summary.csv"]
    text = Path("out/completed.csv").read_text()
    assert text == "id,n,kind,x,day\n1,3,b,0.50,2024-01-01\n2,4,b,0.25,2024-01-02\n3,5,a,1.5,2024-01-03\n"
    masked = Path("out/masked.csv").read_text()
    assert masked == text.replace("5,a,1.5,", "5,a,1.58333333333333,")
    assert sorted(each.name for each in Path("out/draws").iterdir()) == [f"draw_00{k}.csv" for k in (1, 2, 3)]
    assert Path("out/draws/draw_003.csv").read_text().splitlines()[1:3] == ["1,3,c,0.50,2024-01-01", "2,,b,,"]
    with open("out/summary.csv", newline="") as file:
        lines = {(line["row"], line["column"]): line for line in csv.DictReader(file)}
    assert set(lines) == {("1", "kind"), ("2", "n"), ("2", "x"), ("2", "day"), ("3", "x")}
    assert lines["1", "kind"]["value"] == "b" and float(lines["1", "kind"]["share"]) == pytest.approx(2 / 3, abs=1e-6)
    cell = lines["3", "x"]
    three = np.array([1.25, 1.25, 2.25])
    assert cell["was"] == "1.5" and float(cell["deviation"]) == pytest.approx(three.std(ddof=1))
    assert cell["low"] == cell["high"] == "", "three draws have no interval"
    assert lines["2", "x"]["draws"] == "2" and lines["2", "day"]["mean"] == "2024-01-02"
    with open("out/draws_long.csv", newline="") as file:
        long = list(csv.DictReader(file))
    assert len(long) == 3 * 5 and {line["value"] for line in long if line["column"] == "kind"} == {"b", "c"}


@pytest.mark.parametrize(
    ("levels", "given", "done"),
    [
        (("0,0", "1,0"), "1.0 . 1", "1.0 0.0 1"),
        (("0,0", "1,0"), "0.00 . 0.00", "0.00 0.00 0.00"),
        (("0.5", "1.5"), "1,50 . 1,50", "1,50 0,5 1,50"),
        (("01", "02"), "1 . 2", "1 1 2"),
        (("0,5", "a"), "a . a", "a 0,5 a"),
    ],
)
def test_categories_are_written_as_the_table_to_complete_writes_them(levels, given, done):
    scheme = Scheme((Column("k", levels=levels),))
    signs = Dialect(delimiter=";", decimal="," if "," in given else ".", prefix="")
    rows = read_rows(write("k;x\n" + "".join(f"{cell.strip('.')};0\n" for cell in given.split())), scheme, None, signs)
    known = rows.data.known
    Filled(rows, scheme, torch.zeros(3, 1), torch.zeros(2, 3, 1), known, known).write(Path())
    assert Path("completed.csv").read_text() == "k;x\n" + "".join(f"{cell};0\n" for cell in done.split())
    assert {line.split(";")[-1] for line in Path("draws_long.csv").read_text().split()[1:]} == {done.split()[1]}
    assert f";{done.split()[1]};" in Path("summary.csv").read_text()


@pytest.mark.parametrize("count", [1, 18, 19, 20, 32, 39, 100])
def test_an_interval_covers_its_share_of_further_draws(count):
    draws = torch.randn(4000, count + 1, generator=torch.Generator().manual_seed(0), dtype=F64).exp()
    ends = torch.tensor([interval(row) for row in draws[:, 1:]])
    if count < FEWEST:
        assert ends.isnan().all()
        return
    covered = float(((ends[:, 0] <= draws[:, 0]) & (draws[:, 0] <= ends[:, 1])).double().mean())
    nominal = 1 - 2 * ((count + 1) // 20) / (count + 1)
    assert 0.9 <= nominal < 0.95 and covered == pytest.approx(nominal, abs=4 * (0.09 / 4000) ** 0.5)


def test_a_comma_that_would_stand_for_two_things_is_refused():
    Path("t.csv").write_text("a,b\n1,\n")
    with pytest.raises(InputError, match=r"t\.csv has commas between its cells.*say decimal=\. if"):
        read_sheet(Path("t.csv"), Dialect(decimal=",", prefix=""))
    Path("one.csv").write_text("a\n1,5\n")
    one = read_sheet(Path("one.csv"), Dialect(decimal=","))
    assert one.header == ("a",) and one.dialect.numbers(one.cells("a")).tolist() == [1.5]
    Path("no.csv").write_text("")
    with pytest.raises(InputError, match=r"no\.csv is empty"):
        read_sheet(Path("no.csv"), Dialect(decimal=","))


# ------------------------------------------------------------------------------------------------------ without a name

INDEX = ",a,b\n0,1,2\n1,,3\n2,2,5\n3,4,\n"


def test_a_column_without_a_name_is_left_out_and_kept_in_the_file():
    """As the index that `DataFrame.to_csv` writes; its header cannot be typed, so nobody could drop it."""
    write(INDEX)
    train = load("table", "train", path="t.csv")
    assert train.columns == ("a", "b")
    assert train.notes[0] == "t.csv: column 1 has no name, as an index that was written along, and is left out"
    rows = read_rows("t.csv", train.scheme)
    assert rows.names == ("a", "b") and rows.data.notes == train.notes[:1]
    assert rows.data.values.nan_to_num(-1).tolist() == [[1, 2], [-1, 3], [2, 5], [4, -1]]
    rows.sheet.write(Path("new.csv"), {"a": [None, "9", None, None], "b": [None, None, None, "7"]})
    assert Path("new.csv").read_text() == INDEX.replace("1,,3", "1,9,3").replace("3,4,", "3,4,7")


def test_a_delimiter_at_the_end_of_each_line_makes_no_column():
    write("a,b,\n1,2,\n3,4,\n")
    assert load("table", "train", path="t.csv").columns == ("a", "b")
    with pytest.raises(InputError, match="lacks the column 'c'; the flow was trained on a, c, and the file has a, b"):
        read_rows("t.csv", Scheme((Column("a"), Column("c"))))


def test_words_for_a_missing_value_among_categories_are_said():
    """ "None" of a kind of masonry is a category to whoever wrote it."""
    kinds = enumerate(["None", "Brick", "Stone"] * 4)
    rows = ["kind,other,size", *(f"{kind},{'NA' if k == 2 else 'a'},{k}" for k, kind in kinds)]
    Path("t.csv").write_text("\n".join(rows) + "\n")
    notes = load("table", "train", path="t.csv", categories=["kind"]).notes
    line = "'None' means a missing value in 4 cells of column 'kind'; if it is a category there, write another word"
    assert line in notes and not any("'size'" in note for note in notes)
    Path("t.csv").write_text("a,b\n1,NA\nnull,2\n3,4\n")
    assert not any("means a missing value" in note for note in load("table", "train", path="t.csv").notes)
