"""The commands on tables and on points in the plane: what they write and measure, and what they refuse."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import decimal
import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from script_loader import loaded
from test_commands import completions, figures, refused
from test_commands import viscos as ran

import viscos.report
from viscos.cli import main
from viscos.commands.assemble import floor
from viscos.commands.assemble.saved import moved, table_is_there
from viscos.commands.completing import batches, check
from viscos.core.solution import Status
from viscos.data.columns import Column, Scheme
from viscos.data.items import split_rows
from viscos.data.mask_files import load_masks
from viscos.data.sources.registry import load
from viscos.inference.conditional import Conditional
from viscos.report.density import Plane, conditional_density
from viscos.runs import checkpoint
from viscos.runs.trained import load as load_trained

SHORT = ("threads=1", "flow=iresnet", "flow.blocks=[1]", "flow.channels=8", "posterior.width=4", "log_every=5")
MEAN = np.array([5.0, 2000.0, -0.3])
ROOT = np.array([[2.0, 0, 0], [200.0, 200.0, 0], [0.02, 0.01, 0.02]])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Each test has an empty folder of its own."""
    monkeypatch.chdir(tmp_path)


def table_file(folder: Path, holes: float = 0.0) -> Path:
    """Normal rows of three columns with very different units, a class beside them, and some empty cells."""
    rng = np.random.default_rng(0)
    values = MEAN + rng.standard_normal((600, 3)) @ ROOT.T
    cells = [["" if rng.random() < holes else repr(float(value)) for value in row] for row in values]
    path = folder / "table.csv"
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["long", "heavy", "kind", "fine"])
        for row, (a, b, c) in zip(values, cells, strict=True):
            lines.writerow([a, b, "high" if row[0] > MEAN[0] else "low", c])
    return path


def made(tmp_path_factory, name: str, *words: str, **table) -> Path:
    """A run of `viscos train` that several tests share; they must not change it."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(tmp_path_factory.mktemp(name))
        if "dataset=table" in words:
            words += (f"dataset.path={table_file(Path.cwd(), **table)}", "dataset.label=kind")
        return ran("train", *SHORT, *words)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """On rows of which a third of the cells is hidden by a mask or by nature."""
    return made(tmp_path_factory, "table", "dataset=table", "missing=0.25", "max_steps=12", "draws=64", holes=0.1)


@pytest.fixture(scope="module")
def moons(tmp_path_factory):
    """On complete points."""
    return made(tmp_path_factory, "moons", "dataset=moons", "missing=0", "max_steps=12", "dataset.items=500")


def split(run: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The values of a split in their own units, NaN in its own holes, and what was observed of them."""
    cfg = load_trained(run).cfg["dataset"]
    data = load("table", name, path=cfg["path"], label=cfg["label"], drop=cfg["drop"])
    return data.values.numpy(), load_masks(run / f"masks_{name}.npz").numpy()


def conditional_means(values: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """E[y | y^O] of the distribution that the rows were drawn from, row by row."""
    S, out = ROOT @ ROOT.T, np.where(observed, values, MEAN)
    for row, known in zip(out, observed, strict=True):
        if known.any() and not known.all():
            gain = np.linalg.solve(S[np.ix_(known, known)], S[np.ix_(known, ~known)])
            row[~known] = MEAN[~known] + (row[known] - MEAN[known]) @ gain
    return out


def test_errors_are_near_those_of_the_distribution_behind_the_rows(table):
    record = figures(table)
    seen, seen_mask = split(table, "train")
    assert not seen_mask[np.isnan(seen)].any() and 0.25 < 1 - seen_mask.mean() < 0.4
    scale = np.array([seen[mask, k].std() for k, mask in enumerate(seen_mask.T)])
    values, observed = split(table, "test")
    hidden = ~observed & ~np.isnan(values)
    best = conditional_means(values, observed) - values
    rmse = record["rmse"]["mean"]
    assert rmse["entries"] == hidden.sum() and "standard deviations" in rmse["unit"]
    assert rmse["pooled"] == pytest.approx(np.sqrt(((best / scale)[hidden] ** 2).mean()), rel=0.08)
    for k, name in enumerate(("long", "heavy", "fine")):
        assert rmse["columns_own_units"][name] == pytest.approx(np.sqrt((best[hidden[:, k], k] ** 2).mean()), rel=0.12)
    naive = ((seen_mask * np.nan_to_num(seen)).sum(0) / seen_mask.sum(0) - values) / scale
    assert record["rmse"]["mean_imputation"]["pooled"] == pytest.approx(np.sqrt((naive[hidden] ** 2).mean()), rel=1e-5)
    likelihood = record["log_likelihood"]
    whole = np.linalg.solve(ROOT, (values[~np.isnan(values).any(1)] - MEAN).T)
    exact = -0.5 * (whole**2).sum(0).mean() - np.log(np.diag(ROOT)).sum() - 1.5 * math.log(2 * math.pi)
    assert likelihood["value_own_units"] == pytest.approx(exact, abs=0.1)
    assert likelihood["value"] - likelihood["value_own_units"] == pytest.approx(np.log(scale).sum(), rel=1e-5)
    assert likelihood["items"] == (~np.isnan(values)).all(1).sum()
    assert record["fid"] == {"reason": "FID compares images, and these are vectors"}
    assert "bits_per_dim" not in record and record["constant_columns"] == [] and record["accuracy"]["value"] >= 0.5
    assert not list(table.glob("*.png"))


def test_eval_measures_the_same_again(table):
    again = figures(ran("eval", f"checkpoint={table}", "threads=1", "draws=64"))
    assert again["rmse"]["mean"] == figures(table)["rmse"]["mean"]
    mask = ("mask=columns", "mask.columns=[fine,0]", "calibration=false")
    other = figures(ran("eval", f"checkpoint={table}", "threads=1", *mask))
    assert 2 / 3 < other["missing"] < 0.75 and other["rmse"]["mean"]["columns_own_units"]["heavy"] is None


def test_a_run_goes_on(table):
    shutil.copytree(table, "run")
    assert figures(Path("run"))["steps"] == 12
    assert main(["train", "resume=run", "max_steps=14", "threads=1"]) == 0
    assert figures(Path("run"))["steps"] == 14


def test_a_table_is_completed_by_what_did_best_on_hidden_cells_of_training(table, capsys):
    found = figures(table)["floor"]
    values, observed = split(table, "train")
    held = ~np.isnan(values) & ~observed
    held[np.flatnonzero(held.any(1))[200:]] = False
    centre = np.array([values[mask, k].mean() for k, mask in enumerate(observed.T)])
    scale = np.array([values[mask, k].std() for k, mask in enumerate(observed.T)])
    naive = ((values - centre) / scale)[held]
    assert found["cells"] == held.sum() and found["rmse"]["mean"] == pytest.approx(np.sqrt((naive**2).mean()), rel=1e-4)
    assert found["rmse"]["gaussian"] < found["rmse"]["knn"] < found["rmse"]["mean"]
    assert (
        found["rmse_of_shares"] <= min(found["rmse"].values()) and 0.5 < min(found["width"]) < max(found["width"]) < 2
    )
    shares = np.array(list(found["shares"].values()))
    assert found["failed_cells_left_out"] == 0 and shares.shape == (3, 3), "an imputer's, of each column"
    assert (shares >= 0).all() and (0 < shares.sum(0)).all() and (shares.sum(0) < 1.0001).all()
    Path("mine.csv").write_text("fine,long,heavy\n-0.30,,2000\n")
    Path("run").mkdir()
    state = checkpoint.load(table / "checkpoint.pt")
    assert state["floor"] == found

    def completed(**said):
        """By a copy of the checkpoint alone."""
        checkpoint.save("run/checkpoint.pt", state | {"floor": found | said})
        capsys.readouterr()
        run = ran("impute", "checkpoint=run", "input=mine.csv", "threads=1", "draws=4", "proposals=0", "solver=auto")
        return completions(run)["mean"][0, 0], completions(run)["draws"][:, 0, 0], capsys.readouterr().out

    assert "tables are completed by" not in completed(best="viscos")[2]
    flow, draws, said = completed(best="gaussian", shares={"viscos": 1.0}, width=1.0)
    assert f"tables are completed by 1.00 viscos, RMSE {found['rmse_of_shares']:.4f}, unless imputer=viscos" in said
    gaussian, moved, said = completed(best="gaussian", shares={"gaussian": 1.0}, width=2.0)
    assert "without effect here: proposals (another imputer completes)\n" in said, "the solver is that of the draws"
    assert draws.std() > 0.1 and (moved - gaussian) == pytest.approx(2 * (draws - flow), abs=1e-4)
    expected = conditional_means(np.array([[0, 2000, -0.3]]), np.array([[False, True, True]]))[0, 0]
    assert abs(gaussian - expected) < 1.5 and abs(gaussian - flow) > 1e-3
    mean, _, said = completed(best="mean", shares={})
    assert mean == pytest.approx(centre[0], abs=1e-3) and "completed by 1.00 mean, RMSE" in said
    mixed, _, said = completed(best="knn", shares={"viscos": 0.5, "gaussian": 0.25})
    (last, *_) = sorted(Path("outputs/impute").iterdir(), key=lambda run: run.stat().st_mtime, reverse=True)
    about = {"name": "shares", "shares": {"viscos": 0.5, "gaussian": 0.25}, "width": found["width"]}
    assert figures(last)["imputer"] == about
    assert "completed by 0.50 viscos + 0.25 gaussian + 0.25 mean, RMSE" in said
    assert mixed == pytest.approx(0.5 * flow + 0.25 * gaussian + 0.25 * centre[0], abs=1e-3)
    own, _, said = completed(best="knn", shares={"viscos": [0.5, 0.0, 1.0], "gaussian": [0.25, 1.0, 0.0]})
    assert "completed by 0.50 viscos + 0.42 gaussian + 0.08 mean, on average over columns, RMSE" in said
    assert own == pytest.approx(mixed, abs=1e-3)
    near, _, said = completed(best="knn", shares={"knn": 1.0}, width=1.0)
    assert "completed by 1.00 knn, RMSE" in said and abs(near - flow) > 1e-3
    path = Path(load_trained(table).cfg["dataset"]["path"])
    text = path.read_text()
    path.write_text(f"{text}5.5,2100,low,-0.3\n")
    try:
        mixed, _, said = completed(best="knn", shares={"knn": 0.5, "gaussian": 0.5}, width=1.0)
    finally:
        path.write_text(text)
    assert "completed by 1.00 gaussian (without knn, whose table has changed or is gone), unless" in said
    assert mixed == pytest.approx(gaussian, abs=1e-3), "they are of other rows than the run's"


def test_a_run_without_shares_in_its_checkpoint_has_those_of_its_record(table):
    """Unless it has gone on since that was written."""
    shutil.copytree(table, "run")
    state = checkpoint.load("run/checkpoint.pt")
    checkpoint.save("run/checkpoint.pt", {key: value for key, value in state.items() if key != "floor"})
    record = figures(table)
    assert floor.of_run(load_trained("run")) == record["floor"]
    Path("run/metrics.json").write_text(json.dumps(record | {"steps": record["steps"] - 1}))
    assert floor.of_run(load_trained("run")) is None


def test_a_run_that_goes_on_with_other_labels_is_refused(table, capsys):
    shutil.copytree(table, "run")
    path = Path(load_trained(table).cfg["dataset"]["path"])
    text = path.read_text()
    path.write_text(text.replace("low", "swap").replace("high", "low").replace("swap", "high"))
    try:
        says = "the training data are others than the run began with"
        assert says in refused(capsys, "train", "resume=run", "max_steps=14")
    finally:
        path.write_text(text)


def test_holes_of_the_check_that_cannot_be_solved_for_end_no_run(table, monkeypatch):
    """One row is completed once more, and its block is singular."""
    usual = Conditional.condition_number
    monkeypatch.setattr(
        Conditional, "condition_number", lambda each: usual(each) if len(each.batch) > 1 else torch.tensor([math.inf])
    )
    Path("mine.csv").write_text("fine,long,heavy\n-0.30,,2000\n-0.31,4,1900\n-0.29,6,2100\n")
    words = ("impute", f"checkpoint={table}", "input=mine.csv", "threads=1", "draws=2", "steps=1", "samples=1")
    assert figures(ran(*words))["check"]["rows"] == 1


def test_a_table_that_moved_is_named_again(table, capsys):
    path = Path(load_trained(table).cfg["dataset"]["path"])
    shutil.copytree(table, "run")
    away = path.rename(path.with_name("moved.csv"))
    try:
        assert "there is no file" in refused(capsys, "eval", "checkpoint=run")
        words = ("threads=1", "draws=64", "calibration=false")
        again = figures(ran("eval", "checkpoint=run", f"dataset.path={away}", *words))
        timed = ("checkpoint=run", "items=2", "repeats=1", "batch_size=8", "rates=[0.5]", "solvers=[anderson]")
        assert "if the data have moved, say where they are now: dataset.path=…" in refused(capsys, "bench", *timed)
        record = json.loads((ran("bench", *timed, f"dataset.path={away}", "threads=1") / "bench.json").read_text())
        assert record["dataset"] == "table" and record["solvers"][0]["converged"] == 1
        assert again["rmse"]["mean"] == figures(table)["rmse"]["mean"]
        assert main(["train", "resume=run", f"dataset.path={away}", "max_steps=13", "threads=1"]) == 0
        assert "only the place of its data may change" in refused(capsys, "eval", "checkpoint=run", "dataset=moons")
    finally:
        away.rename(path)


def test_whether_a_runs_table_is_there(table):
    run = load_trained(table)
    assert table_is_there(run)
    text = Path(run.cfg["dataset"]["path"]).read_text()
    Path("grown.csv").write_text(f"{text}5.5,2100,low,-0.3\n")
    for path in ("grown.csv", "gone.csv"):
        assert not table_is_there(moved(run, {"path": path}))


def test_rows_that_were_trained_on_are_no_test_rows(table, capsys):
    lines = Path(load_trained(table).cfg["dataset"]["path"]).read_text().splitlines()
    Path("grown.csv").write_text("\n".join([*lines, "5.5,2100,low,-0.3", "4.5,1900,high,-0.25"]) + "\n")
    run = ran("eval", f"checkpoint={table}", "dataset.path=grown.csv", "threads=1", "draws=2", "calibration=false")
    said, trained = capsys.readouterr().out, {line for line in lines[1:]}
    test = load("table", "test", path="grown.csv", label="kind").values
    old, _ = split(table, "train")
    seen = sum(any(np.array_equal(row, other, equal_nan=True) for other in old) for row in test.numpy())
    assert seen > 0 and len(trained) == 600
    assert f"'grown' has changed since the training: {seen} of {len(test)} test rows were trained on" in said
    assert figures(run)["items"] == len(test) - seen
    shutil.copytree(table, "run")
    says = "the training data are others than the run began with"
    assert says in refused(capsys, "train", "resume=run", "dataset.path=grown.csv", "max_steps=14")
    path = load_trained(table).cfg["dataset"]["path"]
    data = ("dataset=table", f"dataset.path={path}", "dataset.label=kind", "missing=0.3", "hydra.run.dir=knn")
    assert main(["train", "imputer=knn", *data, "imputers=[]", "threads=1"]) == 0
    assert says in refused(capsys, "train", "resume=knn", "dataset.path=grown.csv")
    capsys.readouterr()
    ran("impute", f"checkpoint={table}", "input=grown.csv", "imputer=knn", "dataset.path=grown.csv", "draws=1",
        "missing=0.1", "threads=1")  # fmt: skip
    said = capsys.readouterr().out
    assert "'grown' has changed since the training, and an imputer is fitted to what it holds now" in said


def test_a_table_is_completed_in_its_own_cells(table):
    text = "fine,note,long,heavy\n-0.30,a,,2000\n, b ,5.00,1.9e3\n?,c,NA,\n-0.25,d,4,1900\n"
    Path("mine.csv").write_text(text)
    run = ran("impute", f"checkpoint={table}", "input=mine.csv", "threads=1", "steps=3", "samples=2", "draws=100",
              "posterior=full")  # fmt: skip
    with (run / "completed.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    given = [line.split(",") for line in text.splitlines()]
    assert rows[0] == given[0] and rows[4] == given[4] and len(list((run / "draws").iterdir())) == 100
    Path("whole.csv").write_text("fine,long,heavy\r\n1,2,3\r\n")  # nothing to complete
    same = ran("impute", f"checkpoint={table}", "input=whole.csv", "threads=1", "draws=2")
    assert (same / "completed.csv").read_bytes() == Path("whole.csv").read_bytes()
    arrays = completions(run)
    assert arrays["draws"].shape == (100, 4, 3) and arrays["draws"].dtype == np.float64
    nature = {"": True, "?": True, "NA": True}
    for item in range(4):
        for place, entry in ((2, 0), (3, 1), (0, 2)):  # of the columns of training: long, heavy, fine
            cell, was = rows[item + 1][place], given[item + 1][place]
            if nature.get(was):
                assert float(cell) == pytest.approx(arrays["mean"][item, entry], rel=1e-9)
                assert not arrays["observed"][item, entry]
            else:
                assert cell == was and (arrays["draws"][:, item, entry] == float(was)).all()
    values = np.array([[np.nan, 2000, -0.30], [5, 1900, np.nan], [np.nan] * 3])
    expected = conditional_means(np.nan_to_num(values), ~np.isnan(values))
    spread = np.sqrt((ROOT**2).sum(1))
    assert (np.abs(arrays["mean"][:3] - expected) < 0.5 * spread).all()
    np.save("mine.npy", np.array([[np.nan, 2000, -0.3]]))
    run = ran("impute", f"checkpoint={table}", "input=mine.npy", "threads=1", "posterior=amortised", "draws=4")
    assert not (run / "completed.csv").exists() and completions(run)["draws"][0, 0, 1] == 2000


def test_how_far_to_trust_each_row(table, capsys):
    Path("mine.csv").write_text("fine,long,heavy\n-0.30,,2000\n,,\n-0.25,4,1900\n,5.00,1.9e3\n")
    words = [f"checkpoint={table}", "input=mine.csv", "threads=1", "posterior=amortised", "draws=4"]
    run = ran("impute", *words, "refine=imh", "proposals=96", "batch_size=3")
    text = capsys.readouterr().out
    found, record = completions(run), figures(run)["trust"]
    assert record["weighed_draws"] == 96 and record["refine"] == "imh" and 0 < record["acceptance"] <= 1
    holed = found["trust"][[0, 1, 3]]  # of a whole row there is nothing to say
    counts = {word: int((holed == word).sum()) for word in ("good", "fair", "doubtful")}
    assert counts == {word: record[word] for word in counts}
    assert f"{counts['good']} good, {counts['fair']} fair, {counts['doubtful']} doubtful, by 96 weighed draws" in text
    assert found["trust"][1] == found["trust"][2] == "good"  # everything is missing, or nothing
    assert (found["status"] == "converged").all() and (found["residual"] < 1e-3).all()
    with (run / "trust.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["trust"] for row in rows] == found["trust"].tolist() and rows[3]["row"] == "4"
    for name in ("bound", "pareto_k", "effective_sample_size", "failed", "acceptance", "distinct"):
        assert [float(row[name]) for row in rows] == pytest.approx(found[name].tolist(), rel=1e-4, nan_ok=True)
    other = completions(ran("impute", *words, "refine=imh", "proposals=96", "batch_size=1"))
    assert other["draws"] == pytest.approx(found["draws"], rel=1e-3)
    assert "bound" in figures(run) and figures(run)["bound"]["draws"] == 96
    plain = ran("impute", *words, "proposals=0")
    assert "proposals=64 judges" in capsys.readouterr().out and "trust" not in completions(plain)
    assert figures(plain)["trust"]["weighed_draws"] == 0 and (plain / "trust.csv").exists()
    assert figures(ran("impute", *words))["trust"]["weighed_draws"] == 64
    Path("whole.csv").write_text("fine,long,heavy\n-0.25,4,1900\n")
    whole = [word.replace("mine.csv", "whole.csv") for word in words]
    capsys.readouterr()
    assert "trust" not in figures(ran("impute", *whole)) and "\ntrust " not in capsys.readouterr().out
    assert "4 draws cannot be made of 3 proposals" in refused(capsys, "impute", *words, "refine=sir", "proposals=3")
    assert "refine=gibbs: must be one of sir, imh" in refused(capsys, "impute", *words, "refine=gibbs")


def test_what_impute_refuses(table, capsys):
    Path("mine.csv").write_text("fine,long\n1,2\n")
    line = refused(capsys, "impute", f"checkpoint={table}", "input=mine.csv")
    assert "lacks the column 'heavy'; the flow was trained on long, heavy, fine" in line
    Path("mine.csv").write_text("fine,long,heavy\n1,2,tall\n")
    assert "column 'heavy' holds 'tall' in row 1" in refused(
        capsys, "impute", f"checkpoint={table}", "input=mine.csv", "missing=0.3"
    )
    assert "no table" in refused(capsys, "impute", f"checkpoint={table}", "input=mine.png")


def refused_figure(capsys, *words: str) -> str:
    """Of `viscos figure`, which has no threads to set."""
    capsys.readouterr()
    assert main(["figure", *words]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["dataset=moons", "mask=center8"], "use mask=random or mask=columns for vectors"),
        (["dataset=moons", "dataset.noise=uniform"], "for the grey levels of images"),
        (["dataset=moons", "dataset.augment=flip"], "there is no option 'dataset.augment'"),
        (["dataset=moons", "mask=columns", "mask.columns=[1]"], "nothing of column 1 is observed"),
        (["dataset=moons", "inception=download"], "is for images, and these are vectors"),
        (["dataset=table"], "dataset.path"),
        (["dataset=table", "dataset.path=none.csv"], "there is no file 'none.csv'"),
        (["dataset=table", "dataset.path=none.csv", "dataset.drop=id"], "must be a list, such as"),
        (["dataset=digits", "mask=columns", "mask.columns=[1]"], "a mask of columns needs vectors"),
    ],
)
def test_what_train_refuses(words, says, capsys):
    assert says in refused(capsys, "train", *words)


def test_a_constant_column_gives_numbers(capsys):
    rows = [f"{k % 7},3,{k * 0.1}" for k in range(40)]
    Path("t.csv").write_text("\n".join(["a,b,c", *rows]) + "\n")
    run = ran("train", *SHORT, "dataset=table", "dataset.path=t.csv", "missing=0.3", "max_steps=3")
    assert "constant in the training data: b" in capsys.readouterr().out
    record = figures(run)
    assert record["constant_columns"] == ["b"] and record["rmse"]["mean"]["columns_own_units"]["b"] < 0.1
    assert "NaN" not in json.dumps(record)
    assert all(bool(p.isfinite().all()) for p in load_trained(run).model.parameters())
    whole = ran("train", *SHORT, "dataset=table", "dataset.path=t.csv", "missing=0", "max_steps=3")
    assert math.isfinite(figures(whole)["log_likelihood"]["value"])


@pytest.mark.slow
def test_the_density_of_points(moons):
    pytest.importorskip("matplotlib")
    record = figures(moons)
    assert (moons / "density.png").is_file() and not (moons / "samples.png").exists()
    assert record["log_likelihood"]["items"] == 100 and "data's own units" in record["log_likelihood"]["unit"]
    assert "value_own_units" not in record["log_likelihood"] and "bits_per_dim" not in record
    alone = ran("figure", "name=density", f"run={moons}")
    assert {path.name for path in alone.glob("figure*")} == {"figure_density.pdf", "figure_density.png"}
    run = ran("impute", f"checkpoint={moons}", "mask=columns", "mask.columns=[1]", "items=1", "draws=300",
              "posterior=diagonal", "steps=25", "samples=4", "learning_rate=0.1", "proposals=0",
              "threads=1")  # fmt: skip
    beside = ran("figure", "name=density", f"run={run}")
    assert (alone / "figure_density.png").read_bytes() != (beside / "figure_density.png").read_bytes()
    # The flow is hardly more than a Gaussian after twelve steps, so the posterior comes close to the conditional.
    arrays, flow = completions(run), load_trained(moons).model.flow
    grid = torch.linspace(-6, 6, 2001)
    with torch.no_grad():
        exact = conditional_density(flow.log_prob, float(arrays["values"][0, 0]), 1, grid)
    mean = torch.trapezoid(exact * grid, grid.double())
    deviation = torch.trapezoid(exact * (grid - mean) ** 2, grid.double()).sqrt()
    drawn = arrays["draws"][:, 0, 1]
    assert abs(drawn.mean() - float(mean)) < 0.1 * float(deviation)
    assert drawn.std() == pytest.approx(float(deviation), rel=0.15)


def test_points_of_ones_own_are_completed(moons):
    Path("p.csv").write_text("u,v\n0.1,\n,0.30\n")
    np.save("p.npy", np.array([[0.1, np.nan], [np.nan, 0.3]]))
    words = (f"checkpoint={moons}", "steps=2", "samples=2", "draws=3", "posterior=diagonal", "threads=1")
    text, array = (ran("impute", *words, f"input={file}") for file in ("p.csv", "p.npy"))
    one, other = completions(text), completions(array)
    assert all(np.array_equal(one[key], other[key], equal_nan=one[key].dtype.kind == "f") for key in one)
    assert (one["draws"][:, 0, 0] == 0.1).all() and np.isfinite(one["draws"]).all()
    lines = (text / "completed.csv").read_text().splitlines()
    assert (
        lines[0] == "u,v" and lines[1].startswith("0.1,") and lines[2].endswith(",0.30") and "rmse" not in figures(text)
    )


def test_two_columns_without_a_whole_test_row():
    rows = [f"{k % 7}," if k % 2 else f",{k % 5}" for k in range(40)]
    Path("t.csv").write_text("\n".join(["a,b", *rows]) + "\n")
    run = ran("train", *SHORT, "dataset=table", "dataset.path=t.csv", "missing=0", "max_steps=2")
    assert not (run / "density.png").exists() and figures(run)["log_likelihood"] is None


def test_one_column():
    Path("t.csv").write_text("\n".join(["a", *(str(k % 7) for k in range(40))]) + "\n")
    run = ran("train", *SHORT, "dataset=table", "dataset.path=t.csv", "missing=0.3", "max_steps=2")
    assert 0 < figures(run)["rmse"]["mean"]["pooled"] < 3


def test_what_a_density_needs(moons, table, capsys):
    pytest.importorskip("matplotlib")
    assert "make it by `viscos impute" in refused_figure(capsys, "name=density")
    assert "is over items of 3; a density is drawn of two" in refused_figure(capsys, "name=density", f"run={table}")
    assert "is for name=comparison" in refused_figure(capsys, "name=density", f"run={moons}", "other=x")
    run = ran("impute", f"checkpoint={moons}", "mask=columns", "mask.columns=[0,1]", "items=2", "draws=2", "steps=1",
              "threads=1")  # fmt: skip
    assert "no item with one hidden coordinate" in refused_figure(capsys, "name=density", f"run={run}")
    assert "completes vectors, and this figure is of images" in refused_figure(capsys, "name=2", f"run={run}")


def test_without_matplotlib_training_says_so(capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("viscos.report.figures")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(viscos.report, "figures", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run = ran("train", *SHORT, "dataset=moons", "max_steps=2", "dataset.items=50", "missing=0.4")
    assert "no density.png: pictures of densities need matplotlib" in capsys.readouterr().out
    assert {path.name for path in run.glob("*.png")} == set() and figures(run)["rmse"]["mean"]["entries"] > 0


def test_bench_takes_vectors(table):
    words = ("items=2", "repeats=1", "batch_size=8", "rates=[0.5]", "solvers=[anderson]", "threads=1")
    for data in (["dataset=circles"], [f"checkpoint={table}"]):
        record = json.loads((ran("bench", *data, *words) / "bench.json").read_text())
        assert [row["missing"] for row in record["solvers"]] == ["50 %"] and record["solvers"][0]["converged"] == 1
        assert record["step"]["missing"] == 0.5


def test_flows_side_by_side(moons, capsys, monkeypatch):
    """scripts/bench_flows.py: a line of figures for each run, with the partition that was asked for."""
    script = Path(__file__).parent.parent / "scripts" / "bench_flows.py"
    words = [str(moons), f"{moons}:maxvol", "--rates", "0.5", "--items", "4", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", [str(script), *words])
    loaded(script).main()
    heads, _, *rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert [row[1] for row in rows] == ["same", "maxvol"] and all(len(row) == len(heads) for row in rows)
    assert all(row[2] == "auto" and float(row[3]) >= 1 and row[5] == "0 %" for row in rows)  # evaluations, failed


def test_bench_of_a_coupling_and_of_a_flow_that_is_matched():
    """The one with its own partition, the other with its own kind of step."""
    words = ("dataset=moons", "items=4", "repeats=1", "batch_size=8", "rates=[0.5]", "solvers=[anderson]", "threads=1")
    record = json.loads((ran("bench", *words, "flow=realnvp", "partition=maxvol") / "bench.json").read_text())
    assert record["partition"] == "maxvol" and record["solvers"][0]["converged"] == 1
    record = json.loads((ran("bench", *words, "flow=continuous") / "bench.json").read_text())
    assert record["partition"] == "same" and record["step"]["missing"] == 0


def test_what_a_column_is_was_found_out_when_a_run_began():
    """And it stays so, if by a row for testing that has changed since it would be found otherwise."""
    rows = [f"{1 + k % 12},{math.sin(k):.3f}" for k in range(120)]
    Path("codes.csv").write_text("\n".join(["code,x", *rows]) + "\n")
    words = ("dataset=table", "dataset.path=codes.csv", "missing=0.2", "draws=2", "hydra.run.dir=run", "max_steps=6")
    assert main(["train", *SHORT, *words]) == 0
    assert main(["train", "threads=1", "imputer=knn", *words[:5], "hydra.run.dir=knn"]) == 0
    assert load_trained("run").scaling.columns == ("code", "x")
    changed = int(split_rows(len(rows), "test")[0])
    rows[changed] = f"0{rows[changed]}"
    Path("codes.csv").write_text("\n".join(["code,x", *rows]) + "\n")
    assert load("table", "train", path="codes.csv").columns != ("code", "x"), "digits behind a 0 are codes"
    assert main(["train", "resume=run", "max_steps=8", "threads=1"]) == 0
    assert main(["train", "resume=knn", "threads=1"]) == 0
    assert load_trained("run").scaling.columns == ("code", "x")


def some(table, rows: int = 60) -> int:
    """Writes the first rows of the run's table to some.csv; returns how many have a hole."""
    lines = (table.parents[2] / "table.csv").read_text().splitlines()[: rows + 1]
    Path("some.csv").write_text("\n".join(lines) + "\n")
    return sum(any(not cell for cell in line.split(",")) for line in lines[1:])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("imputer=gaussian", "draws=4"), "has no intervals of {} of {} rows with holes: of 90 % they need 19"),
        (("imputer=gaussian", "draws=19"), ""),
        (("imputer=knn", "draws=32"), "knn gives one completion: there are no intervals in summary.csv"),
    ],
)
def test_rows_without_intervals_are_counted(table, words, line, capsys):
    holed = some(table)
    assert main(["impute", f"checkpoint={table}", "input=some.csv", "check=null", "threads=1", *words]) == 0
    out = capsys.readouterr().out
    assert line.format(holed, holed) in out if line else "no intervals" not in out
    assert ("without effect here: draws (it gives one completion)" in out) == ("imputer=knn" in words)


@pytest.fixture
def failing(monkeypatch):
    """Every draw of every second item with a hole is one that could not be solved."""
    drawn = batches.drawn

    def some_failed(job, conditional):
        done, batch = drawn(job, conditional), conditional.batch
        off = (batch.index % 2 == 1) & batch.hidden.any(1)
        status = done.solution.status.view(done.draws.shape[:2]).masked_fill(off, int(Status.STALLED)).flatten()
        draws = done.draws.masked_fill(off[:, None] & batch.hidden, math.nan)
        return dataclasses.replace(done, draws=draws, solution=dataclasses.replace(done.solution, status=status))

    monkeypatch.setattr(batches, "drawn", some_failed)


def test_draws_that_failed_are_counted_among_those_that_were_asked_for(table, failing, capsys):
    """Rows without a hole, most of a usual table, have nothing to solve."""
    holed = some(table, 80)
    words = ("input=some.csv", "imputer=viscos", "draws=4", "proposals=8", "check=null", "threads=1")
    run = ran("impute", f"checkpoint={table}", *words)
    saved, out = np.load(run / "completions.npz"), capsys.readouterr().out
    rows = (~saved["observed"]).any(1)
    assert rows.sum() == holed < len(rows) / 2
    solver, failed = figures(run)["solver"], (rows & (np.arange(len(rows)) % 2 == 1)).sum()
    assert solver["failed"] == pytest.approx(failed / holed) and solver["solves"] == 4 * holed
    assert "of solves failed, and the numbers leave their draws out" in out
    empty, hidden = np.isnan(saved["mean"]).sum(), (~saved["observed"]).sum()
    assert 0 < empty < hidden
    assert f"completed: {empty} of {hidden} hidden cells stay empty, as no draw of them was solved" in out


def test_what_is_checked_is_compared_on_the_same_cells(table, failing, monkeypatch):
    """With the columns' means, at those cells alone that draws could be solved for."""
    some(table)
    seen, constant = [], check._error
    monkeypatch.setattr(check, "_error", lambda *given: seen.append(len(given[2])) or constant(*given))
    words = ("input=some.csv", "imputer=viscos", "draws=2", "proposals=8", "check=0.5", "threads=1")
    columns = figures(ran("impute", f"checkpoint={table}", *words))["check"]["columns"].values()
    assert all(0 < each["failed"] < each["cells"] for each in columns)
    assert seen == [each["cells"] - each["failed"] for each in columns for _ in range(2)]


def test_a_density_says_how_many_draws_failed(moons):
    pytest.importorskip("matplotlib")
    from viscos.commands.figure import _plane
    from viscos.report.figures import Source
    from viscos.report.figures.drawings import density

    words = ("mask=columns", "mask.columns=[1]", "items=1", "draws=200", "solver.tolerance=1e-9", "threads=1")
    run = ran("impute", f"checkpoint={moons}", *words)
    failed = int((~np.load(run / "completions.npz")["solved"][:, 0]).sum())
    assert 0 < failed < 200
    legend = density.draw(Source(run, None, lambda: _plane(run, load_trained(moons)))).axes[1].get_legend()
    assert legend.get_texts()[0].get_text() == f"draws of the posterior ({failed} of 200 failed, left out)"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """On a column by its logarithm, one of three categories, dates and plain numbers."""
    rng = np.random.default_rng(0)
    latent = rng.standard_normal(200)
    kinds = ("abc"[int(z > -0.5) + int(z > 0.5)] for z in latent)
    days = (f"2024-{1 + k % 12:02d}-03" for k in range(200))
    rows = [
        f"{math.exp(8 + 1.5 * z):.6g},{kind},{day},{z:.4f}" for z, kind, day in zip(latent, kinds, days, strict=True)
    ]
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(tmp_path_factory.mktemp("mixed"))
        Path("mixed.csv").write_text("\n".join(["income,kind,day,x", *rows]) + "\n")
        path = f"dataset.path={Path.cwd() / 'mixed.csv'}"
        return ran("train", *SHORT, "dataset=table", path, "missing=0.3", "max_steps=4", "draws=2")


def test_completions_of_a_table_are_numbers_of_its_columns(mixed, capsys):
    """As `viscos impute` leaves them: of what is learnt by its logarithm no logarithms, of categories their numbers."""
    alike = ("items=20", "draws=4", "threads=1")
    made = ran("impute", f"checkpoint={mixed}", "imputer=gaussian", *alike)
    assert completions(made)["draws"].shape == (4, 20, 4) and load_trained(mixed).scaling.columns[0] == "log income"
    eval = ("eval", f"checkpoint={mixed}", "imputer=gaussian", "calibration=false", *alike)
    record = figures(ran(*eval, f"completions={made}"))["rmse"]
    mine, theirs = (record[f"{name}_draw"]["columns_own_units"] for name in ("gaussian", f"given_{made.name}"))
    for column in ("log income", "x"):
        assert theirs[column] == pytest.approx(mine[column], rel=1e-3)
    assert "completed by" in (line := refused(capsys, *eval, f"completions={made}", "missing=0.9")), line
    with np.load(made / "completions.npz") as arrays:
        draws, hidden = arrays["draws"], ~arrays["observed"]
    np.savez("narrow.npz", draws=draws, observed=~hidden[:, 1:])
    assert "have shape (20, 3); give (20, 4), or leave them out" in refused(capsys, *eval, "completions=narrow.npz")
    logs, codes = "holds -3, but is learnt by its logarithm", "holds 1.5, but its categories are numbered from 0 to 2"
    for place, number, says in ((0, -3, logs), (1, 1.5, codes)):
        wrong = draws.copy()
        wrong[0, hidden[:, place].argmax(), place] = number
        np.savez("wrong.npz", draws=wrong)
        assert says in refused(capsys, *eval, "completions=wrong.npz")
    np.savez("more.npz", draws=np.concatenate([draws, draws[..., :1]], -1))
    assert "shape (4, 20, 5); give (K, N, 4), a number for each column" in refused(
        capsys, *eval, "completions=more.npz"
    )
    draws[0, 0] = np.where(hidden[0], np.inf, draws[0, 0])
    np.savez("failed.npz", draws=draws)
    assert figures(ran(*eval, "completions=failed.npz"))["rmse"]["given_failed_draw"]["columns_own_units"]


def test_draws_of_a_column_by_its_logarithm_stand_on_the_axis_of_the_density():
    pytest.importorskip("matplotlib")
    from viscos.report.figures.drawings import density
    from viscos.report.figures.source import Source

    scheme = Scheme((Column("income", log=True), Column("x")))
    plane = Plane(lambda y: -y.square().sum(1), torch.tensor([[7.0, -2.0], [9.0, 2.0]]), ("a", "b"), scheme.encode)
    drawn = np.exp(np.linspace(7.5, 8.5, 20))
    np.savez(
        "completions.npz",
        values=np.array([[np.nan, 0.5]]),
        truth=np.array([[math.exp(8), 0.5]]),
        observed=np.array([[False, True]]),
        draws=np.stack([drawn, np.full(20, 0.5)], 1)[:, None],
    )
    axis = density.draw(Source(Path(), lambda: None, lambda: plane)).axes[1]
    edges = [bar.get_x() for bar in axis.patches]
    assert min(edges) == pytest.approx(7.5) and max(edges) < 8.5
    (true,) = [line for line in axis.lines if line.get_label() == "true value"]
    assert true.get_xdata()[0] == pytest.approx(8)


def test_draws_near_the_last_date_there_is_are_dates():
    """A missing date is often written as 9999-12-31: a normal law around it has half its mass beyond."""
    cells = ["9999-12-31" if k % 2 else f"2024-01-{1 + k % 28:02d}" for k in range(80)]
    Path("t.csv").write_text("day,x\n" + "".join(f"{cell},{k % 2}.{k % 7}\n" for k, cell in enumerate(cells)))
    run = ran("train", "imputer=gaussian", "threads=1", "dataset=table", "dataset.path=t.csv", "missing=0.1", "draws=2")
    Path("mine.csv").write_text("day,x\n" + "".join(f",1.{k}\n" for k in range(6)))
    done = ran("impute", f"checkpoint={run}", "input=mine.csv", "draws=20", "threads=1")
    days = {line.split(",")[0] for path in (done / "draws").iterdir() for line in path.read_text().splitlines()[1:]}
    assert "9999-12-31" in days and all(len(day) == 10 for day in days)


def test_parquet_of_other_types_than_in_training_is_completed_or_refused_at_once(capsys, monkeypatch):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    clock = [datetime.time(6 + k % 3) for k in range(60)]
    rows = {"n": [k + 0.5 for k in range(60)], "price": [k % 7 + 0.5 for k in range(60)], "at": clock}
    parquet.write_table(arrow.table(rows), "t.parquet")
    words = ("dataset=table", "dataset.path=t.parquet", "missing=0.1", "draws=2", "threads=1")
    run = ran("train", "imputer=gaussian", *words)
    price = arrow.array([decimal.Decimal("2.50"), None, decimal.Decimal("3.25")], arrow.decimal128(5, 2))
    mine = arrow.table({"n": arrow.array([1, 2, None]), "price": price, "at": clock[:3]})
    parquet.write_table(mine, "mine.parquet")
    asked = ("impute", f"checkpoint={run}", "input=mine.parquet", "draws=3", "threads=1", "check=null")
    capsys.readouterr()
    done = ran(*asked)
    assert "column 'n' is written as double: int64 does not hold all of its completions" in capsys.readouterr().out
    tables = [parquet.read_table(path) for path in (done / "completed.parquet", *(done / "draws").iterdir())]
    assert figures(done)["draws"] == 3 and len(tables) == 4
    for table in tables:
        assert [table.schema.field(k).type for k in (0, 1, 2)] == ["double", price.type, mine["at"].type]
        assert not any(column.null_count for column in table.columns) and table["price"][0].as_py() == price[0].as_py()
    parquet.write_table(mine.set_column(2, "at", arrow.array([clock[0], None, clock[1]])), "mine.parquet")
    monkeypatch.setattr("viscos.commands.impute.complete", lambda *job: pytest.fail("a batch is computed"))
    assert "column 'at' is of type time64[us], in which no cell such as '06:00:00' can be" in refused(capsys, *asked)


def test_what_is_observed_comes_back_bit_for_bit_from_logarithms():
    """Numbers of all digits that a double has, of which exp(log y) is another."""
    numbers = np.exp(np.random.default_rng(0).normal(size=(60, 2)) * [3, 0.3])
    numbers[3, 1] = numbers[7, 0] = np.nan
    cells = [",".join("" if np.isnan(cell) else repr(float(cell)) for cell in row) for row in numbers]
    Path("own.csv").write_text("\n".join(["wide,near", *cells]) + "\n")
    words = ("dataset=table", "dataset.path=own.csv", "missing=0.2", "draws=2", "hydra.run.dir=run", "max_steps=4")
    assert main(["train", *SHORT, *words]) == 0
    assert [column.log for column in load_trained("run").scheme.columns] == [True, False]
    found = completions(ran("impute", "checkpoint=run", "input=own.csv", "threads=1", "draws=3", "proposals=0"))
    there = ~np.isnan(numbers)
    for key in ("draws", "mean"):
        each = found[key] if key == "draws" else found[key][None]
        assert all(np.array_equal(draw[there], numbers[there]) for draw in each), key
