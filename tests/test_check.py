"""How far off the completions of a table are: known cells that a second pass hides, and what is said of them."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_commands import completions, figures
from test_commands import viscos as ran
from test_vector_runs import elsewhere, table  # noqa: F401

from viscos.commands.assemble.imputing import Items
from viscos.commands.completing import check
from viscos.commands.completing.check import hidden_cells, measured
from viscos.commands.completing.results import Results
from viscos.core.rng import generator
from viscos.data.columns import Column, Scheme
from viscos.data.rows import fingerprints
from viscos.data.scaling import Scaling
from viscos.data.vectors import Vectors
from viscos.inference import Completions
from viscos.report.checked import check_lines


def seen_of(n: int, *holes: float) -> torch.Tensor:
    """Cells (n, columns) of which each column lacks a share."""
    g = torch.Generator().manual_seed(0)
    return torch.rand(n, len(holes), generator=g) >= torch.tensor(holes)


def test_a_share_of_the_known_cells_of_columns_with_holes_is_hidden():
    seen = seen_of(90, 0.5, 0.0, 0.1)
    seen[0, 0], seen[1] = False, torch.tensor([False, False, False])
    seen[:, 1] = True
    hidden = hidden_cells(seen, 0.2, generator(0, "x"))
    assert not (hidden & ~seen).any() and not hidden[:, 1].any()
    for column in (0, 2):
        assert int(hidden[:, column].sum()) == pytest.approx(0.2 * int(seen[:, column].sum()), abs=1)
    assert torch.equal(hidden, hidden_cells(seen, 0.2, generator(0, "x")))
    assert not torch.equal(hidden, hidden_cells(seen, 0.2, generator(1, "x")))


def test_a_row_keeps_a_cell_and_a_column_gives_one():
    seen = torch.tensor([[True, False], [False, True], [True, True], [True, True]])
    hidden = hidden_cells(seen, 0.01, generator(0, "x"))
    assert not hidden[:2].any() and (seen & ~hidden).any(1).all() and 1 <= int(hidden.sum()) <= 2
    able = torch.arange(90) % 2 == 0
    some = hidden_cells(seen_of(90, 0.5, 0.1), 0.5, generator(0, "x"), able).any(1)
    assert some[able].any() and not some[~able].any()
    alone = torch.tensor([[True, False], [False, True]])
    assert not hidden_cells(alone, 0.5, generator(0, "x")).any(), "nothing would be known of these rows"


@pytest.mark.parametrize(("holed", "most"), [(3, 100), (300, 300), (3000, 1000)])
def test_the_second_pass_is_no_longer_than_the_first(holed, most):
    seen = torch.ones(5000, 4, dtype=torch.bool)
    seen[:holed, 0] = False
    hidden = hidden_cells(seen, 0.5, generator(0, "x"))
    assert int(hidden.any(1).sum()) == most


def test_errors_are_in_the_units_of_each_column():
    scheme = Scheme((Column("kind", levels=("a", "b", "c")), Column("n", whole=True), Column("x")))
    truth = torch.tensor([[0, 3, 1.5], [1, 4, 2.5], [1, 7, 3.5], [2, 9, 5.5]], dtype=torch.float64)
    data = Vectors("t", scheme.encode(truth), None, 0, columns=scheme.entries, scheme=scheme)
    scaling = Scaling.fit(data, data.known)
    hidden = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 0, 1]]).bool()
    observed = ~hidden[:, list(scheme.groups)]
    draws = torch.stack([truth, truth, truth])
    draws[:2, 1, 0], draws[0, 0, 0] = 2, 1  # the second row is wrong by most draws, the first by one
    draws[:, 1, 1] = torch.tensor([5, 6, 6])  # their mean is nearest to 6
    draws[:, 2, 2] = torch.tensor([3.5, 4.5, 5.5])
    values = torch.stack([scaling.standardise(scheme.encode(each)) for each in draws])
    done = Completions.exact(values, values.mean(0))
    done.draws[:, 3] = torch.where(observed[3], done.draws[:, 3], torch.nan)  # no draw of the last row was solved
    trained_on = fingerprints(scaling.aligned(data))[1:3]
    saved = SimpleNamespace(scaling=scaling, scheme=scheme, rows=trained_on)
    checked = SimpleNamespace(items=Items(data, data.known, observed), data=data, saved=saved, imputer=None)
    more = Vectors("t", torch.cat([data.values, data.values[:1]]), None, 0, columns=scheme.entries, scheme=scheme)
    job = SimpleNamespace(items=Items(more, more.known, more.known), data=more, saved=saved, imputer=None, check=0.25)
    nothing = torch.zeros(4)
    record = measured(
        job, checked, Results(draws=done, bound=nothing, condition=nothing, fit_seconds=1.0, draw_seconds=2.0)
    )
    found = record["check"]["columns"]
    assert (found["kind"]["measure"], found["kind"]["error"], found["kind"]["cells"]) == ("wrong", 0.5, 2)
    assert found["kind"]["of_constant"] == 0.5  # all are as frequent, and the first is taken
    assert (found["n"]["measure"], found["n"]["error"]) == ("rmse", 2.0)
    assert found["n"]["of_constant"] == pytest.approx(abs(4 - (3 + 7 + 9 + 3) / 4))
    m = (1.5 + 2.5 + 1.5) / 3
    assert (found["x"]["error"], found["x"]["failed"]) == (pytest.approx(1.0), 1)
    assert found["x"]["of_constant"] == pytest.approx(3.5 - m)  # at the same cell
    assert record["check"] | {"seconds": 3.0, "cells": 5, "rows": 4} == record["check"]
    lines = check_lines(record)
    assert "25 % of the known cells of columns with holes (5 in 4 rows)" in lines[0]
    assert (
        lines[-1].strip()
        == "2 of these rows were trained on, with what is hidden here: of other rows it may be further off"
    )
    assert [line.split() for line in lines[2:-1]] == [
        ["kind", "2", "50", "%", "wrong", "50", "%", "wrong"],
        ["n", "1", "2", "1.5"],
        ["x", "2", "(1", "failed)", "1", "1.667"],
    ]


def cells_of(path: Path, delimiter: str = ",") -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file, delimiter=delimiter))


def test_a_table_with_holes_is_measured_and_its_draws_stay(table, capsys):  # noqa: F811
    """The figures are those of a table whose cells somebody has emptied."""
    rng = np.random.default_rng(1)
    rows = [[f"{5 + 2 * a:.3f}", f"{2000 + 200 * a + 200 * b:.2f}", "-0.3"] for a, b in rng.standard_normal((60, 2))]
    for row in rows[:20]:
        row[rng.integers(2)] = ""
    header = ["long", "heavy", "fine"]
    Path("mine.csv").write_text("\n".join(";".join(row).replace(".", ",") for row in [header, *rows]) + "\n")
    words = [f"checkpoint={table}", "threads=1", "posterior=amortised", "draws=3", "proposals=0"]
    german = ["input=mine.csv", 'decimal=","']
    run, plain = ran("impute", *words, *german, "check=0.2"), ran("impute", *words, *german, "check=null")
    said = capsys.readouterr().out
    assert completions(run)["draws"].tobytes() == completions(plain)["draws"].tobytes()
    assert (run / "completed.csv").read_bytes() == (plain / "completed.csv").read_bytes()
    assert "check" not in figures(plain) and not (plain / "check.csv").exists()
    found = figures(run)["check"]
    assert found["columns"].keys() == {"long", "heavy"} and "how far off: 20 % of the known cells" in said

    seen = torch.tensor([[bool(cell) for cell in row] for row in rows])
    hidden = hidden_cells(seen, 0.2, generator(0, check.NAME)).numpy()
    emptied = [["" if gone else cell for cell, gone in zip(row, out, strict=True)]
               for row, out in zip(rows, hidden, strict=True) if out.any()]  # fmt: skip
    truth = [row for row, out in zip(rows, hidden, strict=True) if out.any()]
    Path("emptied.csv").write_text("\n".join(",".join(row) for row in [header, *emptied]) + "\n")
    again = cells_of(ran("impute", *words, "input=emptied.csv", "check=null") / "completed.csv")[1:]
    for place, name in enumerate(header[:2]):
        gone = [k for k, out in enumerate(hidden[hidden.any(1)]) if out[place]]
        errors = [float(again[k][place]) - float(truth[k][place]) for k in gone]
        assert found["columns"][name]["cells"] == len(gone) > 5
        assert found["columns"][name]["error"] == pytest.approx(np.sqrt(np.mean(np.square(errors))), rel=1e-4)

    lines = {line[0]: line for line in cells_of(run / "check.csv", ";")[1:]}
    assert float(lines["long"][5].replace(",", ".")) == pytest.approx(found["columns"]["long"]["error"])
    summary = cells_of(run / "summary.csv", ";")
    assert summary[0][:3] == ["row", "column", "value"] and "," in summary[1][2] and "." not in summary[1][2]
    first = next(line for line in cells_of(run / "draws_long.csv", ";") if line[0] == "1")
    assert float(first[3].replace(",", ".")) == pytest.approx(completions(run)["draws"][0][~seen.numpy()][0], rel=1e-9)
    assert "," in cells_of(run / "trust.csv", ";")[1][1], "the residual, in the signs of the table"


def test_a_mask_or_a_whole_table_is_not_measured_so(table, capsys):  # noqa: F811
    Path("mine.csv").write_text("long,heavy,fine\n5,,-0.3\n4,1900,-0.2\n3,1800,-0.1\n")
    words = [f"checkpoint={table}", "threads=1", "posterior=amortised", "draws=2", "proposals=0", "input=mine.csv"]
    assert "check" in figures(ran("impute", *words))
    capsys.readouterr()
    assert "check" not in figures(ran("impute", *words, "missing=0.3", "check=0.1"))
    assert "without effect here: check (for a table with holes of its own, and no mask)" in capsys.readouterr().out
    Path("mine.csv").write_text("long,heavy,fine\n5,,-999\n")
    assert "check" not in figures(ran("impute", *words, "check=0.5"))
    said = capsys.readouterr().out
    assert "no column with holes has a known cell to hide" in said
    assert "column 'fine' holds -999 in row 1, far from all of training" in said and "holes=[-999]" in said
    ran("impute", *words, "verbosity=quiet")
    quiet = capsys.readouterr().out.splitlines()
    assert "column 'fine' holds -999" in quiet[0] and len(quiet) <= 3, "what went wrong, and where the results are"
