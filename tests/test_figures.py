"""Figures of the paper: files from a small run, the same each time, and what is refused."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_commands import DEBUG, NO_FIT, TINY
from test_commands import viscos as ran

from viscos.cli import main
from viscos.runs import load_config

pytest.importorskip("matplotlib")

import viscos.report
from viscos.report import figures

NAMES = {"2": "digits", "3": "comparison", "4": "samples", "5": "implicit"}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Each test has an empty folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(tmp_path_factory.mktemp("figures"))
        return ran("train", *DEBUG)


@pytest.fixture(scope="module")
def imputed(trained):
    """A posterior fitted to four items."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(trained.parent)
        return ran("impute", f"checkpoint={trained}", *TINY, "items=4", "draws=6")


@pytest.fixture(scope="module")
def implicit(tmp_path_factory):
    """By an implicit flow."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(tmp_path_factory.mktemp("implicit"))
        trained = ran("train", *DEBUG, "flow=implicit", "flow.blocks=[2]")
        return ran("impute", f"checkpoint={trained}", *NO_FIT, "items=4", "posterior=amortised", "proposals=0")


@pytest.mark.parametrize(("number", "name"), NAMES.items())
def test_files_for_print(number, name, imputed, implicit, capsys, monkeypatch):
    """At full resolution once, which takes its time."""
    dpi = 600 if name == "digits" else 75
    monkeypatch.setattr("viscos.report.figures.page.DPI", dpi)
    imputed = implicit if name == "implicit" else imputed
    first, second = (ran("figure", f"name={word}", f"run={imputed}") for word in (number, name))
    stem = f"figure_{number}_{name}"
    assert {path.name for path in first.glob("figure*")} == {f"{stem}.pdf", f"{stem}.png"}
    assert str(first / f"{stem}.pdf") in capsys.readouterr().out
    for ending in (".pdf", ".png"):
        assert (first / stem).with_suffix(ending).read_bytes() == (second / stem).with_suffix(ending).read_bytes()
    assert (first / f"{stem}.pdf").read_bytes().startswith(b"%PDF")
    with Image.open(first / f"{stem}.png") as picture:
        assert picture.width >= 2300 * dpi / 600 and round(picture.info["dpi"][0]) == dpi
        assert len(np.unique(np.asarray(picture))) > 20, "there is a picture on it"


def test_what_a_run_holds(imputed, trained):
    done = figures.Completed.read(imputed)
    assert done.draws.shape == (3, 4, 1, 8, 8) and done.first.shape == done.truth.shape == (4, 1, 8, 8)
    assert not torch.equal(done.first, done.draws[0])
    assert torch.equal(done.first[done.observed], done.truth[done.observed])
    amortised = ran("impute", f"checkpoint={trained}", *NO_FIT, "posterior=amortised", "proposals=0")
    assert figures.Completed.read(amortised).first is None


def test_beside_another_method(imputed, monkeypatch):
    monkeypatch.setattr("viscos.report.figures.page.DPI", 75)
    with np.load(imputed / "completions.npz") as file:
        np.savez("PL-MCMC.npz", draws=np.where(file["observed"], file["draws"], 1 - file["draws"]))
    alone = ran("figure", "name=3", f"run={imputed}")
    beside = ran("figure", "name=3", f"run={imputed}", "other=PL-MCMC.npz")
    again = ran("figure", "name=3", f"run={imputed}", f"other={imputed}")
    pictures = [(folder / "figure_3_comparison.png").read_bytes() for folder in (alone, beside, again)]
    assert len(set(pictures)) == 3


def test_another_methods_file_is_read_as_eval_reads_it(imputed, monkeypatch):
    """An array alone, and completions under another name: the same picture, and the same numbers."""
    monkeypatch.setattr("viscos.report.figures.page.DPI", 75)
    with np.load(imputed / "completions.npz") as file:
        draws, config = file["draws"][::2], load_config(imputed)
    folders = [Path(name) for name in ("array", "named", "drawn")]
    for folder in folders:
        folder.mkdir()
    np.save("array/mine.npy", draws)
    np.savez("named/mine.npz", completions=draws, other=np.zeros(3))
    np.savez("drawn/mine.npz", draws=draws)
    files = [next(folder.iterdir()) for folder in folders]
    made = [ran("figure", "name=3", f"run={imputed}", f"other={file}") / "figure_3_comparison.png" for file in files]
    assert len({path.read_bytes() for path in made}) == 1
    words = (f"checkpoint={config['checkpoint']}", "items=4", "draws=2", "imputers=[]", "calibration=false")
    for file in files:
        record = json.loads((ran("eval", *words, "threads=1", f"completions={file}") / "metrics.json").read_text())
        assert record["labels"]["given_mine_mean"] == "mine, mean"


@pytest.mark.parametrize("number", NAMES)
def test_without_a_run_the_recipe_is_given(number, capsys):
    line = refused_figure(capsys, f"name={number}")
    assert f"figure {number} needs run=<folder>; make it by `viscos impute checkpoint=<training" in line


def refused_figure(capsys, *words: str) -> str:
    capsys.readouterr()
    assert main(["figure", *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and not Path("outputs/figure").exists()
    return captured.err


def test_refusals(trained, imputed, capsys):
    assert "completions.npz cannot be read; give a run folder of" in refused_figure(capsys, "name=2", f"run={trained}")
    assert "of two coordinates" in refused_figure(capsys, "name=density", f"run={imputed}")
    assert "other=x is for name=comparison" in refused_figure(capsys, "name=2", f"run={imputed}", "other=x")
    np.savez("old.npz", mean=np.zeros(3))
    run = ran("impute", f"checkpoint={trained}", *NO_FIT, "posterior=amortised", "proposals=0")
    assert "in this run no posterior was fitted" in refused_figure(capsys, "name=3", f"run={run}")
    says = "completions of old are torch.float64 of shape (3,); give floating point draws"
    assert says in refused_figure(capsys, "name=3", f"run={imputed}", "other=old.npz")
    assert "no file of completions" in refused_figure(capsys, "name=3", f"run={imputed}", "other=nowhere.npz")
    np.savez("two.npz", a=np.zeros(3), b=np.zeros(3))
    line = refused_figure(capsys, "name=3", f"run={imputed}", "other=two.npz")
    assert "name the completions `draws` or `completions`" in line
    with np.load(imputed / "completions.npz") as file:
        np.savez("turned.npz", draws=file["draws"][:, ::-1])
    line = refused_figure(capsys, "name=3", f"run={imputed}", "other=turned.npz")
    assert "by turned differs from it where it is observed" in line
    np.savez("other.npz", draws=np.zeros((2, 3, 1, 8, 8)))
    line = refused_figure(capsys, "name=3", f"run={imputed}", "other=other.npz")
    assert "have shape (3, 1, 8, 8), the run's have (4, 1, 8, 8)" in line


def test_without_matplotlib(imputed, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("viscos.report.figures")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(viscos.report, "figures")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    line = refused_figure(capsys, "name=2", f"run={imputed}")
    assert line == "viscos figure: figures need matplotlib: pip install 'viscos[figures]'\n"


def test_colour_and_failed_solves():
    """Three channels are drawn in colour; a failed solve is seen."""
    truth = torch.rand(4, 3, 8, 8)
    observed = torch.rand(4, 3, 8, 8) < 0.5
    draws = torch.rand(2, 4, 3, 8, 8)
    draws[0, 1] = float("nan")
    done = figures.Completed(truth, observed, draws, truth / 2)
    for name in ("digits", "comparison", "samples", "implicit"):
        page = getattr(figures.drawing(name), name)(done)
        assert page.axes and all(axis.images for axis in page.axes)
    image = np.asarray(figures.drawing("5").implicit(done).axes[0].images[0].get_array())
    assert (np.abs(image - np.array([0.75, 0.25, 0.20])) < 1e-6).all(-1).sum() == 56 * 56


def test_figure_5_is_of_an_implicit_flow(imputed, capsys):
    line = refused_figure(capsys, "name=5", f"run={imputed}")
    assert f"figure 5 is of an implicit flow, and that of {imputed} is none; train flow=implicit" in line


def test_the_flow_of_a_run_is_found_from_any_folder(implicit, monkeypatch, tmp_path):
    """It was given by a path that leads there from one folder alone."""
    monkeypatch.setattr("viscos.report.figures.page.DPI", 75)
    above = next(folder for folder in implicit.parents if (folder / "outputs").is_dir())
    monkeypatch.chdir(above)
    trained = next(Path("outputs/train").iterdir())
    run = ran("impute", f"checkpoint={trained}", *NO_FIT, "posterior=amortised", "proposals=0")
    evaluated = ran("eval", f"checkpoint={trained}", *NO_FIT, "calibration=false")
    records = [json.loads((folder / "metrics.json").read_text()) for folder in (run, evaluated)]
    assert {record["checkpoint"] for record in records} == {str(above / trained / "checkpoint.pt")}
    monkeypatch.chdir(tmp_path)
    assert (ran("figure", "name=5", f"run={run}") / "figure_5_implicit.pdf").is_file()


def test_recipes_are_commands_that_exist():
    from viscos.cli.outline import choices, outline
    from viscos.cli.words import figure, figures

    assert {str(number): name for name, number in figures().items() if number} == NAMES
    known = {option.name for option in outline("impute").options} | {part.name for part in outline("impute").parts}
    for name in figures():
        recipe = re.sub("<.*>", "RUN", figure(name, "RECIPE"))
        settings = dict(word.split("=", 1) for word in recipe.removeprefix("viscos impute ").split())
        assert {key.partition(".")[0] for key in settings} <= known
        assert all(value in choices(key) for key, value in settings.items() if key in ("mask", "posterior", "lad"))
