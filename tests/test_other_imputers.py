"""Imputers from the command line: one is trained, another completes or is measured on a saved run."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from viscos.cli import main
from viscos.commands.assemble.saved import unfinished
from viscos.imputers import NeighboursImputer, quiet
from viscos.runs import checkpoint
from viscos.runs.trained import Fitted, load, load_any

SMALL = ("train_items=60", "test_items=12", "imputers=[mean]", "seed=1")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a run of nearest neighbours, and one of a flow."""
    folder = tmp_path_factory.mktemp("imputers")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        knn = ("imputer=knn", "imputer.neighbours=3", "validation=0.2")  # of which it takes no notice
        assert main(["train", *knn, *SMALL, "hydra.run.dir=knn"]) == 0
        few = ("flow.width=4", "flow.steps=2", "posterior.width=4", "max_steps=2", "redraw=8", "rounds=0", "pretrain=1")
        assert main(["train", "flow=continuous", *few, *SMALL, "hydra.run.dir=flow"]) == 0
    return folder


@pytest.fixture
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


def record(folder: str) -> dict:
    return json.loads(Path(folder, "metrics.json").read_text())


def test_what_is_trained_leaves_what_a_flow_leaves(here):
    names = {path.name for path in Path("knn").iterdir()}
    assert names >= {"checkpoint.pt", "config.yaml", "metrics.json", "completions.png", "masks_test.npz"}
    found = record("knn")
    assert found["imputer"] == "knn" and found["rmse"].keys() == {"knn", "mean_imputation"}
    assert found["config"]["imputer"]["neighbours"] == 3 and found["training_seconds"] >= 0
    assert found["cost"]["knn"]["fit_seconds"] >= 0 and found["cost"]["knn"]["network_passes_an_item"] == 0
    state = checkpoint.load("knn/checkpoint.pt")
    assert state["finished"] and state["imputer"]["items"].shape == (60, 1, 8, 8)


def test_a_quiet_fit_says_where_its_numbers_are_and_no_more(here, capsys):
    assert main(["train", "imputer=mean", *SMALL, "verbosity=quiet", "hydra.run.dir=quiet"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("numbers in ") and "metrics.json; curves: tensorboard" in line


def test_a_training_without_holes_stands_in_a_table_of_others(here, capsys):
    """It has no numbers, and its record still says of what it is; of it alone there is no table."""
    assert main(["train", "imputer=mean", "missing=0", *SMALL, "hydra.run.dir=whole"]) == 0
    found = record("whole")
    assert found["imputer"] == "mean" and found["items"] == 12 and "rmse" not in found
    assert main(["impute", "checkpoint=whole", "missing=0.3", "items=2", "hydra.run.dir=by_whole"]) == 0
    capsys.readouterr()
    assert main(["table", "runs=[knn,whole]"]) == 0
    text = capsys.readouterr().out
    assert "1 of mean, 1 of nearest neighbours" in text and "| missing | 0 | 0.5 |" in text
    assert main(["table", "runs=whole"]) == 2
    assert "no number that a table shows: nothing was hidden" in capsys.readouterr().err


def test_what_completes_by_a_flow_is_not_trained(here, capsys):
    assert main(["train", "imputer=repaint", *SMALL]) == 2
    assert "train: RePaint completes by a flow that is trained already: train that" in capsys.readouterr().err


def test_it_is_measured_again_alike(here, capsys):
    assert main(["eval", "checkpoint=knn", "imputers=[mean]", "hydra.run.dir=again"]) == 0
    again, found = record("again"), record("knn")
    assert again["imputer"] == "knn" and again["rmse"] == found["rmse"] and again["mask_hash"] == found["mask_hash"]
    assert main(["train", "resume=knn"]) == 0, "a run that is finished is measured only"
    assert record("knn")["rmse"] == found["rmse"]


def test_it_completes(here):
    assert main(["impute", "checkpoint=knn", "items=5", "hydra.run.dir=completed"]) == 0
    with np.load("completed/completions.npz") as arrays:
        assert arrays["draws"].shape == (1, 5, 1, 8, 8) and arrays["solved"].all()
        observed = arrays["observed"]
        assert (arrays["mean"][observed] == arrays["truth"][observed]).all()
    found = record("completed")
    assert "bound" not in found and "fit" not in found and found["rmse"].keys() == {"knn"}
    assert isinstance(load_any("knn"), Fitted)


def test_another_completes_by_the_flow_of_a_run_or_its_data(here):
    for name, kinds in (("dps", {"dps_mean", "dps_draw"}), ("knn", {"knn"}), ("mean", {"mean_imputation"})):
        steps = ["imputer.steps=3"] if name == "dps" else []
        words = ["impute", "checkpoint=flow", f"imputer={name}", *steps, "items=3", "draws=2"]
        assert main([*words, f"hydra.run.dir=by_{name}"]) == 0
        found = record(f"by_{name}")
        assert found["rmse"].keys() - {"gaussian_mean", "gaussian_draw"} == kinds
        assert found["cost"][name]["network_passes_an_item"] == (2 * 3 if name == "dps" else 0)


def test_another_is_measured_in_the_place_of_the_model_and_the_model_beside_it(here):
    words = ["eval", "checkpoint=flow", "imputer=dps", "imputer.steps=3", "imputers=[viscos,gaussian]"]
    words += ["draws=4", "items=4", "calibration=false"]
    assert main([*words, "hydra.run.dir=measured"]) == 0
    found = record("measured")
    assert list(found["cost"]) == ["dps", "viscos", "gaussian"] and found["imputer"] == "dps"
    assert {"dps_mean", "dps_draw", "mean", "draw", "gaussian_mean"} <= found["rmse"].keys()
    dps, viscos = found["cost"]["dps"], found["cost"]["viscos"]
    assert dps["network_passes_an_item"] == 3 * dps["draws"] and dps["with_gradients"]
    passes = load("flow").model.flow.passes
    solves = viscos["network_passes_an_item"] * 4 / passes  # in all: whole evaluations
    assert passes == 2 and solves == pytest.approx(round(solves)) and solves >= 4 * viscos["draws"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train imputer=dps", "by a flow that is trained already"),
        ("train imputer=knn imputer.neighbours=0", "imputer.neighbours=0: must be a whole number"),
        ("train imputer=knn imputers=[dps]", "there is none; train one first"),
        ("train imputer=knn devices=2", "share the batches of a flow"),
        ("train imputers=[nearest]", "choose from"),
        ("impute checkpoint=knn imputer=dps", "there is none; train one first"),
        ("impute checkpoint=knn imputer=viscos", "there is none; train one first"),
        ("eval checkpoint=knn missing=0", "nothing is hidden"),
        ("bench checkpoint=knn", "trained no flow: it holds nearest neighbours"),
    ],
)
def test_refusals(here, capsys, words, said):
    command, *settings = words.split()
    assert main([command, *(SMALL[:2] if command == "train" else ()), *settings]) == 2
    complaint = capsys.readouterr().err.strip()
    assert said in complaint and "\n" not in complaint


def test_a_fit_that_was_interrupted_goes_on(here, monkeypatch, capsys):
    """Ctrl-C comes with the fourth of ten steps; the run goes on with the fifth."""
    seen = []
    fit, state, load_state = (getattr(NeighboursImputer, name) for name in ("fit", "state", "load_state"))

    def slowly(self, data, seed=0, progress=quiet):
        done = getattr(self, "steps", 0)  # which `fit` of neighbours loses
        fit(self, data)
        for step in range(done + 1, 11):
            seen.append(step)
            self.steps = step
            if seen == [1, 2, 3, 4]:
                signal.raise_signal(signal.SIGINT)
            progress(step, 10, {"loss": 1 / step})
        return self

    def load(self, given):
        load_state(self, given)
        self.steps = given.get("steps", 0)

    monkeypatch.setattr(NeighboursImputer, "fit", slowly)
    monkeypatch.setattr(NeighboursImputer, "state", lambda self: state(self) | {"steps": self.steps})
    monkeypatch.setattr(NeighboursImputer, "load_state", lambda self, given: load_state(self, given))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
    assert main(["train", "imputer=knn", *SMALL, "hydra.run.dir=stopped"]) == 130
    signal.signal(signal.SIGINT, before)
    assert "goes on" in capsys.readouterr().err and not checkpoint.load("stopped/checkpoint.pt")["finished"]
    assert not Path("stopped/metrics.json").exists()
    (line,) = unfinished(load_any("stopped"))
    assert line.endswith("and was not measured; `viscos train resume=stopped` goes on with it")
    shutil.copy("stopped/checkpoint.pt", "elsewhere.pt")
    for command in ("eval", "impute"):
        assert main([command, "checkpoint=stopped"]) == 2
        assert capsys.readouterr().err.strip() == f"viscos {command}: {line}"
        assert main([command, "checkpoint=elsewhere.pt"]) == 2
        assert "elsewhere.pt holds a training that has not come to its end" in capsys.readouterr().err
    monkeypatch.setattr(NeighboursImputer, "load_state", load)
    assert main(["train", "resume=stopped"]) == 0
    assert seen == list(range(1, 11)) and record("stopped")["imputer"] == "knn"
    assert checkpoint.load("stopped/checkpoint.pt")["finished"] and not unfinished(load_any("stopped"))


def test_the_same_imputer_with_other_settings_is_said(here, capsys):
    few = ("items=4", "draws=2", "calibration=false")
    assert main(["eval", "checkpoint=knn", "imputer=knn", "imputer.neighbours=2", "imputers=[knn,mean]", *few]) == 0
    said = capsys.readouterr().out
    assert "fits nearest neighbours again, as the settings are not the run's; for its own leave imputer out" in said
    assert "knn is left out of imputers, as it is measured once, by the settings of imputer" in said
    assert main(["eval", "checkpoint=knn", "imputers=[mean]", *few]) == 0
    assert "again" not in (said := capsys.readouterr().out) and "left out" not in said


@pytest.fixture
def keyboard():
    """Ctrl-C has its usual meaning, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_fit_that_reports_no_step_is_interrupted_at_once(here, monkeypatch, keyboard, capsys):
    def pressed(self, data, seed=0, progress=quiet):
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it must not go on")

    monkeypatch.setattr(NeighboursImputer, "fit", pressed)
    assert main(["train", "imputer=knn", *SMALL, "hydra.run.dir=at_once"]) == 130
    assert capsys.readouterr().err.strip() == "viscos train: interrupted" and not Path("at_once").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_has_been_fitted_is_kept(here, monkeypatch, keyboard, capsys, number):
    """A signal after the last step, before the end is saved."""
    fit, folder = NeighboursImputer.fit, f"fitted_{number}"

    def pressed(self, data, seed=0, progress=quiet):
        fit(self, data)
        progress(1, 1, {})
        monkeypatch.setattr(checkpoint, "save", late)
        return self

    save = checkpoint.save

    def late(*arguments):
        signal.raise_signal(number)
        save(*arguments)

    monkeypatch.setattr(NeighboursImputer, "fit", pressed)
    assert main(["train", "imputer=knn", *SMALL, f"hydra.run.dir={folder}"]) == 130
    assert f"{folder}` goes on" in capsys.readouterr().err
    assert checkpoint.load(f"{folder}/checkpoint.pt")["finished"]
    monkeypatch.setattr(checkpoint, "save", save)
    assert main(["train", f"resume={folder}"]) == 0 and record(folder)["imputer"] == "knn"
