"""The commands themselves, on tiny data: what they write, what they refuse, and how a run goes on."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from viscos import runs
from viscos.cli import main
from viscos.commands import impute as imputing
from viscos.commands import training
from viscos.commands.assemble.choice import Asked, Choice
from viscos.commands.assemble.saved import unfinished
from viscos.commands.interrupt import held
from viscos.core import atomic, progress
from viscos.core.choices import description, names
from viscos.core.progress import bar
from viscos.core.solution import Status
from viscos.data.mask_files import load_masks, mask_hash, save_masks
from viscos.data.sources.registry import load
from viscos.inference import impute
from viscos.linear.gaussian_em import em_gaussian
from viscos.posteriors import PerItem
from viscos.runs import checkpoint
from viscos.runs.trained import load as load_trained
from viscos.train import Trainer
from viscos.train.classifier import LatentClassifier

DEBUG = ("experiment=debug", "flow=iresnet", "flow.blocks=[1]", "flow.channels=4", "threads=1")
TINY = ("threads=1", "items=3", "steps=2", "samples=2", "draws=2", "proposals=0")
NO_FIT = ("threads=1", "items=3", "draws=2")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Each test has an empty folder of its own."""
    monkeypatch.chdir(tmp_path)


def viscos(command: str, *words: str) -> Path:
    """Runs a command that must succeed; returns its run folder."""
    before = set(Path("outputs", command).glob("*"))
    assert main([command, *words]) == 0
    (folder,) = set(Path("outputs", command).glob("*")) - before
    return folder.resolve()


def refused(capsys, *words: str) -> str:
    """Runs a command that must be refused: in one line, with status 2, and leaving nothing behind. Returns the line."""
    capsys.readouterr()
    before = {path for path in Path("outputs").rglob("*") if path.is_file()}
    assert main([*words, "threads=1"]) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith(f"viscos {words[0]}: "), captured.err
    assert {path for path in Path("outputs").rglob("*") if path.is_file()} == before
    return lines[0]


def figures(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text())


def completions(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "completions.npz") as arrays:
        return dict(arrays)


def made_in(tmp_path_factory, name: str, *words: str) -> Path:
    """A run of `viscos train` that several tests share; they must not change it."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(tmp_path_factory.mktemp(name))
        return viscos("train", *DEBUG, *words)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """On incomplete digits."""
    return made_in(tmp_path_factory, "incomplete")


@pytest.fixture(scope="module")
def likelihood(tmp_path_factory):
    """On complete digits."""
    return made_in(tmp_path_factory, "complete", "missing=0")


@pytest.fixture(scope="module")
def untaught(tmp_path_factory):
    """On complete digits, without an inference network."""
    return made_in(tmp_path_factory, "untaught", "missing=0", "teach=none")


@pytest.fixture(scope="module")
def longer(tmp_path_factory):
    """Two epochs of four steps, in one go."""
    return made_in(tmp_path_factory, "longer", *LONGER)


@pytest.fixture(scope="module")
def coupling(tmp_path_factory):
    """A flow of couplings, on complete digits."""
    return made_in(tmp_path_factory, "coupling", "missing=0", "flow=glow", *SMALL["glow"], "test_items=4")


@pytest.fixture(scope="module")
def regressed(tmp_path_factory):
    """On incomplete digits, half of whose pixels are missing, with a network that was taught under such masks alone."""
    return made_in(tmp_path_factory, "regressed", "missing=0.5", "teach=regression", "test_items=4")


LONGER = ("max_steps=null", "epochs=2")


# ---------------------------------------------------------------------------------------------------------------- train


def test_what_a_run_leaves(trained):
    files = {path.name for path in trained.iterdir()}
    assert files == {
        "config.yaml", "checkpoint.pt", "masks_train.npz", "masks_test.npz", "metrics.json", "completions.png",
        "items.csv", "tensorboard",
    }  # fmt: skip
    record, cfg = figures(trained), runs.load_config(trained)
    assert record["command"] == "train" and record["steps"] == 2 and record["items"] == 8
    assert cfg["missing"] == 0.5 and cfg["resume"] is None and "run_dir" not in cfg
    observed = load_masks(trained / "masks_test.npz")
    assert observed.shape == (8, 1, 8, 8) and record["mask_hash"] == mask_hash(observed)
    assert load_masks(trained / "masks_train.npz").shape == (32, 1, 8, 8)
    with Image.open(trained / "completions.png") as picture:
        assert picture.mode == "RGB" and min(picture.size) > 100
    assert checkpoint.load(trained / "checkpoint.pt")["trainer"]["step"] == 2


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    board = EventAccumulator(str(folder / "tensorboard")).Reload()
    return [(event.step, event.value) for event in board.Scalars(name)]


def test_tensorboard(trained):
    board = EventAccumulator(str(trained / "tensorboard")).Reload()
    tags = board.Tags()
    assert tags["images"] == ["pictures/completions"]
    for name in ("bound", "evaluations", "residual", "rate", "gradient", "accuracy"):
        assert f"train/{name}" in tags["scalars"]
    assert [step for step, _ in scalars(trained, "train/bound")] == [0, 1]
    ((step, value),) = scalars(trained, "test/rmse/mean")
    assert step == 2 and value == pytest.approx(figures(trained)["rmse"]["mean"]["pooled"])


def test_the_gaussian_of_a_run_knows_the_noise_of_training(trained):
    """The flow sees noisy values, and so does what it starts from."""
    cfg, gaussian = runs.load_config(trained), load_trained(trained).gaussian
    values, observed = load("digits", "train").values[:32], load_masks(trained / "masks_train.npz")
    noise, floor = cfg["dataset"]["noise"], cfg["gaussian_floor"]
    wanted, without = (em_gaussian(values, observed, floor, each).covariance for each in (noise, 0.0))
    torch.testing.assert_close(gaussian.covariance, wanted, atol=1e-6, rtol=1e-5)
    assert noise > 0 and (wanted - without).diagonal().min() > 0.5 * noise**2


def without_clock(record: dict) -> dict:
    """What two equal runs have in common, whenever they were made."""
    kept = {key: value for key, value in record.items() if not key.endswith("_seconds") and key != "commit"}
    for each in (kept.get("cost") or {}).values():
        each.pop("seconds_an_item", None)
    return kept


def test_the_same_seed_gives_the_same_run(trained):
    again = viscos("train", *DEBUG)
    assert without_clock(figures(again)) == without_clock(figures(trained))
    assert_equal(checkpoint.load(again / "checkpoint.pt"), checkpoint.load(trained / "checkpoint.pt"))


def assert_equal(a, b, place="state"):
    """Two checkpoints hold the same, bit for bit, but for the time that was spent."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), place
        for key in a.keys() - {"seconds"}:
            assert_equal(a[key], b[key], f"{place}[{key!r}]")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), place
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal(x, y, f"{place}[{k}]")
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b), place
    else:
        assert a == b, place


@pytest.mark.slow
def test_nothing_but_results_is_printed():
    """No warnings, no chatter of libraries."""
    words = [sys.executable, "-m", "viscos", "train", *DEBUG]
    found = subprocess.run(words, capture_output=True, text=True, check=True)
    err = found.stderr.splitlines()
    assert len(err) == 2, found.stderr
    assert re.fullmatch(r"training 2/2 in 0:00:\d\d  bound \S+  residual \S+  failed 0", err[0])
    assert re.fullmatch(r"measuring 8/8 in 0:00:\d\d  rmse \S+  failed 0", err[1])
    out = found.stdout.splitlines()
    assert re.fullmatch(r"32 items, 2 steps, [\d,]+ parameters; run folder /.*", out[0])
    assert all(re.fullmatch(r"(train|test) items: \S+ % of the entries are hidden", line) for line in out[1:3])
    assert out[3] == "RMSE on hidden pixels, in [0, 1]:" and out[5].startswith("  viscos, posterior mean ")
    assert out[11].startswith("scores of 19 independent draws of 8 items")
    assert out[15] == "cost of an item, all draws together:"
    assert f"{'FID':28}none: it takes grey images of 28 × 28, or colour images, and these are of 1 × 8 × 8" in out
    assert out[-1].startswith("numbers in ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("missing=1", "nothing is observed in the training data"),
        ("imputers=[nearest]", "imputers has 'nearest'; choose from d_flow, diffputer"),
        ("imputers=[repaint]", "take flow=continuous"),
        ("imputers=mean", "must be [] or a list, such as [mean,knn]"),
        ("metrics=[viscos.metrics.nothing]", "viscos.metrics.nothing"),
        ("metrics=[collections.OrderedDict]", "'collections.OrderedDict', which is not a Metric"),
        ("mask=half missing=0.9", "missing=0.9 is for mask=random"),
        ("mask=center8", "nothing is observed in the training data"),
        ("mask=center8 mask.size=9", "centre size 9 does not fit images of 8x8"),
        ("mask=file mask.path=nowhere.npy", "there is no mask file nowhere.npy"),
        ("posterior=householder", "posterior=amortised"),
        ("posterior=full", "posterior=amortised"),
        ("flow.blocks=[1,1,1,1]", "cannot be squeezed"),
        ("inception=weights.pth", "inception=weights.pth is for colour images, and these are of 1 × 8 × 8"),
        ("flow.blocks=[1,1] flow.channels=[4]", "give one for each scale"),
        ("dataset=mnist dataset.root=nowhere dataset.download=false", "MNIST is not complete in nowhere"),
        ("device=cuda:99", "device is cuda:99, but torch sees"),
    ],
)
def test_train_refuses(words, says, capsys):
    assert says in refused(capsys, "train", *DEBUG, *words.split())
    assert not Path("outputs").exists()


@pytest.mark.parametrize("labelled", ["train", "test"])
def test_labels_of_one_split(labelled):
    """What is trained knows the classes of the training items, if they have any."""
    rng = np.random.default_rng(0)
    images = {f"x_{split}": rng.random((n, 8, 8), dtype=np.float32) for split, n in (("train", 20), ("test", 6))}
    labels = {f"y_{labelled}": rng.integers(0, 3, len(images[f"x_{labelled}"]))}
    np.savez("data.npz", **images, **labels)
    folder = viscos("train", *DEBUG, "dataset=array", "dataset.path=data.npz")
    assert load_trained(folder).state["classes"] == (3 if labelled == "train" else 0)
    viscos("eval", f"checkpoint={folder}", "threads=1", "draws=2")


def test_a_split_without_items_is_refused_before_training(capsys):
    np.savez("data.npz", x_train=np.zeros((9, 8, 8), np.float32), x_test=np.zeros((0, 8, 8), np.float32))
    assert "array has no test items" in refused(capsys, "train", *DEBUG, "dataset=array", "dataset.path=data.npz")


def test_a_folder_in_which_a_process_works_is_refused(capsys):
    def says(folder: str) -> str:
        return f"another process is at work in {Path(folder).resolve()}; wait for it, or give another folder"

    with runs.alone("run"):
        assert says("run") in refused(capsys, "train", *DEBUG, "hydra.run.dir=run")
    assert main(["train", *DEBUG, "hydra.run.dir=run", "threads=1"]) == 0
    with runs.alone("run"):
        assert says("run") in refused(capsys, "train", "resume=run", "max_steps=20")
    with runs.alone("done"):
        assert says("done") in refused(capsys, "impute", "checkpoint=run", "hydra.run.dir=done", *TINY)


def test_a_training_is_saved_within_a_long_epoch(monkeypatch):
    monkeypatch.setattr(training, "SAVED_EVERY", 0.0)
    saved, usual = [], checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda path, state: saved.append(state) or usual(path, state))
    assert main(["train", *DEBUG, "threads=1"]) == 0
    steps = [state["trainer"]["step"] for state in saved]
    assert set(range(1, max(steps) + 1)) <= set(steps)


def test_a_metric_of_the_users_own_is_made_before_training(capsys, monkeypatch):
    """What its code raises must not be seen only when hours of training are over."""
    Path("own_metrics.py").write_text("def of_colours(test):\n    raise LookupError(f'no colours in {test.name}')\n")
    monkeypatch.delitem(sys.modules, "own_metrics", raising=False)
    assert main(["train", *DEBUG, "metrics=[own_metrics.of_colours]", "threads=1"]) == 1
    assert "LookupError: no colours in digits" in capsys.readouterr().err
    assert not Path("outputs").exists()


@pytest.mark.parametrize("words", ["mask=half mask.side=top", "mask=center8 mask.size=3", "mask=file mask.path=m.npy"])
def test_train_with_other_masks(words):
    np.save("m.npy", np.arange(64).reshape(8, 8) % 3 > 0)
    folder = viscos("train", *DEBUG, *words.split())
    hidden = ~load_masks(folder / "masks_test.npz")
    assert int(hidden[0].sum()) == {"half": 32, "center8": 9, "file": 22}[words.split()[0].partition("=")[2]]
    assert (hidden == hidden[:1]).all()


@pytest.mark.parametrize("solver", names("solver"))
def test_train_with_every_solver(solver):
    folder = viscos("train", *DEBUG, f"solver={solver}", "train_items=16", "test_items=4")
    assert figures(folder)["solver"]["failed"] == 0


@pytest.mark.parametrize("lad", names("lad"))
def test_train_with_every_estimator(lad):
    viscos("train", *DEBUG, f"lad={lad}", "train_items=16", "test_items=4")


SMALL = {
    "implicit": ["flow.blocks=[2]", "flow.channels=4"],
    "planar": ["flow.layers=2"],
    "radial": ["flow.layers=2"],
    "sylvester": ["flow.layers=2", "flow.reflections=2"],
    "realnvp": ["flow.blocks=[2,2]", "flow.channels=4"],
    "glow": ["flow.blocks=[2]", "flow.channels=4"],
}


@pytest.mark.parametrize("flow", SMALL)
def test_every_flow_is_trained_on_complete_data_and_conditioned_after(flow):
    """Couplings with another partition, of which the record says how well it is conditioned."""
    debug = ("experiment=debug", "threads=1", f"flow={flow}", *SMALL[flow])
    run = viscos("train", *debug, "missing=0", "test_items=4")
    assert figures(run)["bits_per_dim"]["value"] > 0
    partition = "maxvol" if flow in ("realnvp", "glow") else "same"
    done = viscos("impute", f"checkpoint={run}", "missing=0.5", "lad=clade", f"partition={partition}", *TINY)
    record = figures(done)
    assert record["solver"]["failed"] == 0
    assert record["partition"]["kind"] == partition and 1 <= record["partition"]["condition_largest"] < 1e6


def test_an_implicit_flow_is_trained_on_incomplete_data():
    debug = ("experiment=debug", "threads=1", "flow=implicit", *SMALL["implicit"])
    assert figures(viscos("train", *debug, "missing=0.9", "lad=clade", "test_items=4"))["solver"]["failed"] == 0


def test_an_inference_network_knows_one_partition(trained, capsys):
    words = (f"checkpoint={trained}", "partition=maxvol")
    assert "take partition=same" in refused(capsys, "impute", *words, "posterior=amortised")
    line = refused(capsys, "impute", *words, "start=network")
    assert line.endswith("does not know the latents of partition=maxvol; take start=gaussian")


def test_a_fit_with_another_partition_begins_at_the_gaussian(likelihood):
    """The network's latents are in the order of the flow's own."""
    words = (f"checkpoint={likelihood}", "missing=0.5", "items=3", "threads=1", "steps=0", "partition=maxvol")
    plain, gaussian = figures(viscos("impute", *words)), figures(viscos("impute", *words, "start=gaussian"))
    assert plain["rmse"] == gaussian["rmse"] and plain["fit"]["start"] == "gaussian"


def test_the_network_of_a_coupling_flow_is_no_way_around_a_singular_block(coupling, capsys, monkeypatch):
    words = ["impute", f"checkpoint={coupling}", "missing=0.5", "items=3", "threads=1"]
    assert figures(viscos(*words, "partition=maxvol", "steps=0"))["solver"]["failed"] == 0
    # two steps of training make none singular
    monkeypatch.setattr("viscos.inference.partition._limit", lambda condition: 1.0)
    capsys.readouterr()
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "nearly singular for 3 of 3 items" in line and line.endswith("take partition=maxvol")


def test_schedule_and_uniform_noise():
    viscos("train", *DEBUG, "schedule=halve", "dataset.noise=uniform", "test_items=4")


def test_a_sweep_of_two_jobs(capsys):
    assert main(["train", "--multirun", *DEBUG, "missing=0.3,0.6", "test_items=4"]) == 0
    folders = sorted(Path("outputs/sweeps/train").glob("*missing_*"))
    assert [runs.load_config(folder)["missing"] for folder in folders] == [0.3, 0.6]
    assert figures(folders[0])["missing"] < 0.45 < figures(folders[1])["missing"]
    # A job does not depend on the one before.
    alone = viscos("train", *DEBUG, "missing=0.6", "test_items=4")
    assert without_clock(figures(alone)) == without_clock(figures(folders[1]))


# -------------------------------------------------------------------------------------------------------- complete data


def test_maximum_likelihood(likelihood):
    record = figures(likelihood)
    assert record["missing"] == 0 and 0 < record["bits_per_dim"]["value"] < 20
    assert "rmse" not in record and not (likelihood / "completions.png").exists()
    again = figures(viscos("eval", f"checkpoint={likelihood}", "threads=1", "batch_size=8", "calibration=false"))
    assert again["bits_per_dim"] == record["bits_per_dim"] and again["accuracy"] == record["accuracy"]


def test_a_flow_without_inference_network(untaught, capsys):
    assert checkpoint.load(untaught / "checkpoint.pt")["parts"]["posterior"] is None
    line = refused(capsys, "impute", f"checkpoint={untaught}", "posterior=amortised", "missing=0.5")
    assert "has no inference network; take posterior=householder" in line
    line = refused(capsys, "impute", f"checkpoint={untaught}", "start=network", "missing=0.5")
    assert "has no inference network; take start=gaussian" in line
    assert "checkpoint=null: must be" in refused(capsys, "eval", "checkpoint=null")
    line = refused(capsys, "eval", f"checkpoint={untaught}", "missing=0.5")
    assert "has no inference network; use `viscos impute`" in line
    folder = viscos("impute", f"checkpoint={untaught}", "missing=0.5", *TINY)
    assert figures(folder)["solver"]["failed"] == 0
    line = refused(capsys, "impute", f"checkpoint={untaught}", *TINY)  # its own masks
    assert "nothing is hidden under the masks of the run" in line


@pytest.mark.parametrize("holes", ["missing=0.9", "mask=center8", "mask=half"])
def test_a_network_that_was_taught_on_complete_data_serves_every_mask_without_a_fit(likelihood, holes):
    size = ["mask.size=3"] if holes == "mask=center8" else []
    folder = viscos("impute", f"checkpoint={likelihood}", holes, *size, "items=3", "threads=1", "proposals=0")
    record = figures(folder)
    assert record["solver"]["failed"] == 0 and "first_iteration_draw" not in record["rmse"]
    words = (holes, *size, "items=3", "threads=1", "calibration=false")
    measured = figures(viscos("eval", f"checkpoint={likelihood}", *words))
    assert measured["rmse"]["draw"]["pooled"] == pytest.approx(record["rmse"]["draw"]["pooled"], rel=1e-5)


def test_a_fit_begins_where_the_network_is(likelihood):
    words = ["missing=0.5", "items=3", "threads=1", "steps=0", "draws=4", "proposals=0"]
    network = [word for word in words if word != "steps=0"]
    taught = figures(viscos("impute", f"checkpoint={likelihood}", *network, "posterior=amortised"))
    fitted = figures(viscos("impute", f"checkpoint={likelihood}", *words, "posterior=diagonal"))
    prior = figures(viscos("impute", f"checkpoint={likelihood}", *words, "posterior=diagonal", "start=prior"))
    assert fitted["rmse"]["mean"]["pooled"] == pytest.approx(taught["rmse"]["mean"]["pooled"], rel=1e-6)
    assert prior["rmse"]["mean"]["pooled"] != pytest.approx(taught["rmse"]["mean"]["pooled"], rel=1e-6)

    noise = {"noise_taken_off": 0.0}  # this flow cannot
    for record, fit in (
        (taught, {"posterior": "network", "steps": 0, "start": None}),
        (fitted, {"posterior": "Diagonal", "steps": 0, "start": "network"}),
        (prior, {"posterior": "Diagonal", "steps": 0, "start": "prior"}),
    ):
        assert record["fit"] == fit and record.items() >= noise.items()


def test_a_taught_network_serves_every_mask(regressed, likelihood, capsys):
    small = ("items=2", "draws=2", "threads=1")

    def said(run: Path, *words: str) -> tuple[str, str]:
        capsys.readouterr()
        posterior = figures(viscos("impute", f"checkpoint={run}", *words, *small))["fit"]["posterior"]
        return posterior, capsys.readouterr().out.splitlines()[0]

    from_there = "steps=200 fits a posterior from there"
    mine = f"no fit: the run's network was taught under its own masks (missing=0.5); {from_there}"
    for words in ([], ["missing=0.6"], ["mask=half"]):
        assert said(regressed, *words) == ("network", mine)
    any_masks = f"no fit: the run's network was taught under masks of every kind; {from_there}"
    assert said(likelihood, "mask=half") == ("network", any_masks)
    as_it_is = "no fit: posterior=amortised takes the run's network as it is"
    assert said(regressed, "mask=half", "posterior=amortised") == ("network", as_it_is)


def test_a_hole_is_completed_alike_however_it_is_given(regressed):
    """By transparency, by a mask file, by NaN in an array."""
    values = (load("digits", "test").values[10, 0].numpy() * 255).round().astype(np.uint8)
    hole = np.zeros((8, 8), bool)
    hole[2:5, 3:6] = True
    Image.fromarray(values).save("plain.png")
    Image.fromarray(np.where(hole, 0, 255).astype(np.uint8)).save("mask.png")
    Image.fromarray(np.stack([values, np.where(hole, 0, 255).astype(np.uint8)], -1), "LA").save("holed.png")
    np.save("holed.npy", np.where(hole, np.nan, values / np.float32(255)).astype(np.float32))
    small = (f"checkpoint={regressed}", "draws=2", "threads=1")
    ways = (["input=holed.png"], ["input=plain.png", "observed=mask.png"], ["input=holed.npy"])
    done = [viscos("impute", *small, *way) for way in ways]
    draws = [completions(folder)["draws"] for folder in done]
    assert all(np.array_equal(each, draws[0]) for each in draws)
    assert {figures(folder)["fit"]["posterior"] for folder in done} == {"network"}
    names = zip(done, ("holed", "plain", "0"), strict=True)
    pictures = [folder / "completed" / name / "mean.png" for folder, name in names]
    assert len({path.read_bytes() for path in pictures}) == 1


def test_a_network_that_was_taught_by_the_bound_alone_is_fitted(trained, capsys):
    capsys.readouterr()
    record = figures(viscos("impute", f"checkpoint={trained}", "steps=1", "items=2", "draws=2", "threads=1"))
    assert record["fit"]["posterior"] == "Householder" and record["fit"]["steps"] == 1
    job = Choice(load_trained(trained), Asked(description("posterior", "auto"), "same", None, None))
    fresh = job.posterior(torch.zeros(1, 1, 8, 8))
    assert isinstance(fresh, PerItem)
    assert job.line(fresh) == (
        "fitting a posterior to each item in 200 steps: the run's network was taught by the bound alone; "
        "posterior=amortised takes it as it is, steps=50 fits for less long"
    )


@pytest.mark.parametrize("words", ["steps=2", "start=network", "start=prior"])
def test_a_network_as_it_is_takes_no_settings_of_a_fit(words, likelihood, capsys):
    line = refused(capsys, "impute", f"checkpoint={likelihood}", "missing=0.5", "posterior=amortised", words)
    assert f"as it is, without a fit; leave {words.partition('=')[0]}= out" in line


# ----------------------------------------------------------------------------------------------------------------- eval


def test_eval_repeats_the_figures_of_training(trained):
    folder = viscos("eval", f"checkpoint={trained}", "draws=2", "batch_size=8", "threads=1")
    mine, theirs = figures(folder), figures(trained)
    assert mine["command"] == "eval" and mine["checkpoint"] == str(trained / "checkpoint.pt")
    for key in ("items", "mask_hash", "missing", "draws", "rmse", "solver", "accuracy", "bound", "lipschitz", "seed"):
        assert mine[key] == theirs[key], key
    assert (folder / "completions.png").read_bytes() == (trained / "completions.png").read_bytes()
    assert (folder / "items.csv").read_bytes() == (trained / "items.csv").read_bytes()
    items = pd.read_csv(folder / "items.csv")
    assert items["item"].tolist() == list(range(8)) and items["label"].between(0, 9).all()
    assert items["entries"].tolist() == (~load_masks(trained / "masks_test.npz")).flatten(1).sum(1).tolist()
    assert items["rmse_mean"].mean() == pytest.approx(mine["rmse"]["mean"]["per_image_mean"], rel=1e-6)


def test_an_evaluation_of_another_imputer_stands_in_a_table_beside_another_one(trained, capsys):
    """Of one run and some of its items: both know the run's settings, and what they were measured by."""
    size = (f"checkpoint={trained}", "items=5", "draws=2", "threads=1", "imputers=[]")
    median, knn = (viscos("eval", *size, f"imputer={name}") for name in ("median", "knn"))
    config, theirs = figures(knn)["config"], figures(trained)["config"]
    assert config["test_items"] == 5 and config["draws"] == 2 and config["flow"] == theirs["flow"]
    assert config["imputer"]["_target_"].endswith("NeighboursImputer") and config["missing"] == theirs["missing"]
    capsys.readouterr()
    assert main(["table", f"runs=[{median},{knn}]"]) == 0
    rmse = capsys.readouterr().out.partition("**RMSE")[2]
    assert "| median imputation | 0." in rmse and "| nearest neighbours | 0." in rmse


def test_eval_of_a_file_alone(trained):
    """Without the run's folder, the masks are made again from its settings."""
    shutil.copy(trained / "checkpoint.pt", "alone.pt")
    folder = viscos("eval", "checkpoint=alone.pt", "draws=2", "items=5", "threads=1", "calibration=false")
    assert figures(folder)["mask_hash"] == mask_hash(load_masks(trained / "masks_test.npz")[:5])


def test_eval_measures_completions_by_another_method(trained, capsys):
    """Those of the run itself, given as a file, have its own errors; those of other items are refused."""
    alike = ("items=5", "draws=4", "threads=1")
    made = viscos("impute", f"checkpoint={trained}", "posterior=amortised", "proposals=0", *alike)
    eval = ("eval", f"checkpoint={trained}", "imputers=[]", "calibration=false", *alike)
    record = figures(viscos(*eval, f"completions={made}"))
    name = made.name
    for mine, theirs in (("mean", f"given_{name}_mean"), ("draw", f"given_{name}_draw")):
        assert record["rmse"][theirs]["pooled"] == pytest.approx(record["rmse"][mine]["pooled"], rel=1e-5)
    for metric in ("energy", "spread_skill"):  # of the first of each pair alone
        mine, theirs = (record[metric][key] for key in ("draw", f"given_{name}_draw"))
        assert theirs["value"] == pytest.approx(mine["value"], rel=1e-4) and theirs["draws"] == mine["draws"] == 2
    assert name not in record["cost"] and "viscos" in record["cost"], "nobody knows what it took"
    with np.load(made / "completions.npz") as arrays:
        np.savez("shuffled.npz", draws=arrays["draws"][:, ::-1])
    assert "differs from it where it is observed" in refused(capsys, *eval, "completions=shuffled.npz")
    with np.load(made / "completions.npz") as arrays:
        np.savez("single.npz", draws=arrays["draws"][0])
        np.savez("open.npz", draws=np.where(arrays["observed"], np.nan, arrays["draws"]))
        failed = (np.arange(5) < 3)[:, None, None, None] & ~arrays["observed"]
        np.savez("gappy.npz", draws=np.where(failed, np.nan, arrays["draws"]))
        np.savez("gaussian.npz", draws=arrays["draws"])
    capsys.readouterr()
    viscos(*eval, "completions=gappy.npz")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("gappy")]
    assert len(lines) >= 2 and all(line.endswith("3 of 5 items") for line in lines[:2])
    twice = ("eval", f"checkpoint={trained}", "calibration=false", *alike)
    assert "two imputers are called 'gaussian'" in refused(capsys, *twice, "completions=gaussian.npz")
    assert "two imputers are called 'knn'" in refused(capsys, *twice, "imputers=[knn,knn]")
    assert "give draws[None]" in refused(capsys, *eval, "completions=single.npz")
    assert "is NaN where it is observed; fill in" in refused(capsys, *eval, "completions=open.npz")
    assert "take items=5" in refused(capsys, *eval, f"completions={made}", "items=6")
    assert "no file of completions" in refused(capsys, *eval, "completions=nowhere.npz")


@pytest.mark.parametrize("words", ["missing=0.2", "mask=half", "mask=center8 mask.size=3", "mask=file mask.path=m.npz"])
def test_eval_with_other_masks(words, trained):
    save_masks("m.npz", torch.arange(64).reshape(8, 8) % 3 > 0)
    few = ("items=5", "draws=2", "threads=1", "calibration=false")
    record = figures(viscos("eval", f"checkpoint={trained}", *few, *words.split()))
    assert record["mask_hash"] != figures(trained)["mask_hash"]
    assert 0.1 < record["missing"] < 0.51


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("mask=center8 mask.size=9", "does not fit images of 8x8"),
        ("mask=half missing=0.3", "missing=0.3 is for mask=random"),
        ("mask=random", "needs a rate"),
        ("mask=file mask.path=m.npy", "has shape (7, 7)"),
    ],
)
def test_eval_and_impute_refuse(words, says, trained, capsys):
    np.save("m.npy", np.ones((7, 7), bool))
    for command in ("eval", "impute"):
        assert says in refused(capsys, command, f"checkpoint={trained}", *words.split())


def test_a_damaged_checkpoint(trained, capsys):
    shutil.copytree(trained, "run")
    data = Path("run/checkpoint.pt").read_bytes()
    Path("run/checkpoint.pt").write_bytes(data[: len(data) // 2])
    assert "is truncated" in refused(capsys, "eval", "checkpoint=run")
    checkpoint.save("run/checkpoint.pt", {"step": 3})
    assert "is not a checkpoint of `viscos train`" in refused(capsys, "eval", "checkpoint=run")
    state = checkpoint.load(trained / "checkpoint.pt")
    checkpoint.save("run/checkpoint.pt", state | {"config": state["config"] | {"flow": {"_target_": "os.getcwd"}}})
    assert "os.getcwd is code outside viscos" in refused(capsys, "eval", "checkpoint=run")
    state["config"]["flow"]["channels"] = 5
    checkpoint.save("run/checkpoint.pt", state)
    assert "it may have been edited" in refused(capsys, "eval", "checkpoint=run")


# --------------------------------------------------------------------------------------------------------------- impute


def assert_completes(folder: Path, values: np.ndarray, observed: np.ndarray, *, weighed: bool = False):
    """The file holds completions whose observed entries are those of `values`, bit for bit; and verdicts if weighed."""
    arrays = completions(folder)
    arrays.pop("names", None)
    assert arrays.keys() >= {"draws", "mean", "observed", "solved", "values", "truth", "status"}
    assert arrays.keys() & {"trust", "reason"} == ({"trust", "reason"} if weighed else set())
    assert (arrays["truth"][observed] == values[observed]).all()
    draws = arrays["draws"]
    assert draws.shape == (2, *values.shape) and draws.dtype == np.float32
    assert (arrays["observed"] == observed).all() and arrays["solved"].all()
    assert (draws[:, observed] == values[observed]).all() and (arrays["mean"][observed] == values[observed]).all()
    assert np.isfinite(draws).all() and np.isnan(arrays["values"][~observed]).all()
    if not observed.all():
        assert (draws[0] != draws[1])[~observed].any()


@pytest.mark.parametrize(
    "words",
    [
        f"{part}={choice}"
        for part in ("posterior", "solver", "lad")
        for choice in names(part)
        if choice not in ("amortised_paper", "amortised_mixture")  # another network than the run's is refused
    ],
)
def test_impute_with_every_part(words, trained):
    fitted = not words.startswith("posterior=amortised")
    small = TINY if fitted else NO_FIT
    small = [word.replace("samples=2", "samples=4") for word in small]  # a mixture takes a draw for each component
    folder = viscos("impute", f"checkpoint={trained}", words, *small)
    values = load("digits", "test").values[:3].numpy()
    assert_completes(folder, values, load_masks(trained / "masks_test.npz")[:3].numpy(), weighed=not fitted)
    record = figures(folder)
    assert record["items"] == 3 and record["draws"] == 2 and record["bound"]["items"] == 3
    rows = {"mean", "draw", "gaussian_mean", "gaussian_draw"}
    assert record["rmse"].keys() == rows | ({"first_iteration_draw"} if fitted else set())
    assert (folder / "completions.png").exists() and (folder / "config.yaml").exists()


def test_impute_is_reproducible(trained):
    words = (f"checkpoint={trained}", *TINY)
    a, b, c = viscos("impute", *words), viscos("impute", *words), viscos("impute", *words, "seed=1")
    draws = [completions(folder)["draws"] for folder in (a, b, c)]
    assert np.array_equal(draws[0], draws[1]) and not np.array_equal(draws[0], draws[2])


def test_error_in_the_record(trained):
    folder = viscos("impute", f"checkpoint={trained}", *TINY)
    arrays, truth = completions(folder), load("digits", "test").values[:3].numpy()
    hidden = ~arrays["observed"]
    for name, completed in (("mean", arrays["draws"].mean(0)), ("draw", arrays["draws"][0])):
        error = np.sqrt(np.mean((np.clip(completed, 0, 1) - truth)[hidden].astype(np.float64) ** 2))
        assert figures(folder)["rmse"][name]["pooled"] == pytest.approx(error, rel=1e-5)


def test_everything_hidden_gives_unconditional_samples(trained):
    folder = viscos("impute", f"checkpoint={trained}", "mask=center8", *TINY)
    assert_completes(folder, np.zeros((3, 1, 8, 8), np.float32), np.zeros((3, 1, 8, 8), bool))


def holes() -> np.ndarray:
    """Two digits (2, 8, 8) with NaN in them."""
    values = load("digits", "test").values[10:12, 0].numpy().copy()
    values[0, 2:5, 3:6] = values[1, 6, 1] = np.nan
    return values


def transparent(values: np.ndarray) -> Image.Image:
    grey = (np.nan_to_num(values) * 255).round().astype(np.uint8)
    return Image.fromarray(np.stack([grey, np.where(np.isnan(values), 0, 255).astype(np.uint8)], -1), "LA")


def test_impute_arrays(trained):
    np.save("a.npy", holes())
    np.savez("a.npz", values=holes()[:, None])
    for name in ("a.npy", "a.npz"):
        folder = viscos("impute", f"checkpoint={trained}", f"input={name}", *TINY)
        assert_completes(folder, holes()[:, None], ~np.isnan(holes()[:, None]))
        assert "rmse" not in figures(folder), "nothing is known of what is hidden"


def test_all_items_of_a_file_are_completed_unless_a_number_is_given(trained):
    values = np.tile(holes(), (10, 1, 1))
    np.save("a.npy", values)
    small = ("steps=0", "draws=2", "threads=1")
    assert figures(viscos("impute", f"checkpoint={trained}", "input=a.npy", *small))["items"] == 20
    assert figures(viscos("impute", f"checkpoint={trained}", "input=a.npy", "items=7", *small))["items"] == 7


def test_impute_pictures(trained):
    Path("folder").mkdir()
    for k, values in enumerate(holes()):
        transparent(values).save(f"folder/{k}.png")
    grey = (holes() * 255).round()[:, None] / np.float32(255)
    folder = viscos("impute", f"checkpoint={trained}", "input=folder", *TINY)
    assert_completes(folder, grey, ~np.isnan(grey))
    folder = viscos("impute", f"checkpoint={trained}", "input=folder/1.png", *TINY)
    assert_completes(folder, grey[1:], ~np.isnan(grey[1:]))


def test_a_mask_besides_holes(trained):
    """Both hide; the error is measured where the truth is known."""
    np.save("a.npy", holes())
    folder = viscos("impute", f"checkpoint={trained}", "input=a.npy", "mask=half", *TINY)
    known = ~np.isnan(holes()[:, None])
    observed = known.copy()
    observed[..., 4:] = False
    assert_completes(folder, holes()[:, None], observed)
    assert figures(folder)["rmse"]["mean"]["entries"] == int((known & ~observed).sum())


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.full((2, 7, 8), 0.5, np.float32), "the flow takes (1, 8, 8)"),
        (np.full((2, 8, 8), 200.0), "divide 0-255 values by 255"),
        (np.zeros((2, 8, 8), np.int32), "holds int32; give floats in [0, 1] or uint8"),
        (np.full((2, 8, 8), 0.5), "has no holes (NaN, transparent pixels); say what is missing"),
        (None, "there is no file 'a.npy'"),
    ],
    ids=["shape", "range", "dtype", "no holes", "no file"],
)
def test_impute_refuses(array, says, trained, capsys):
    if array is not None:
        np.save("a.npy", array)
    assert says in refused(capsys, "impute", f"checkpoint={trained}", "input=a.npy")


def test_failed_solves_are_marked_and_counted(trained):
    hard = ("solver.budget=1", "solver.newton_budget=1", "solver.tolerance=1e-12")
    folder = viscos("impute", f"checkpoint={trained}", *TINY, *hard)
    arrays, record = completions(folder), figures(folder)
    observed = arrays["observed"]
    assert not arrays["solved"].any() and record["solver"]["failed"] == 1 and record["solver"]["fallback"] == 1
    assert np.isnan(arrays["draws"][:, ~observed]).all() and np.isnan(arrays["mean"][~observed]).all()
    values = load("digits", "test").values[:3].numpy()
    assert (arrays["draws"][:, observed] == values[observed]).all()
    assert (arrays["mean"][observed] == values[observed]).all()
    assert record["rmse"]["mean"]["pooled"] is None and record["rmse"]["mean"]["failed_items_left_out"] == 3
    assert "bound" not in record


# --------------------------------------------------------------------------------------------------------------- colour


@pytest.fixture(scope="module")
def colour(tmp_path_factory):
    """On complete pictures in colour, from a file with a relative path."""
    coarse = np.random.default_rng(0).integers(0, 256, (60, 4, 4, 3))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(tmp_path_factory.mktemp("colour"))
        np.savez("x.npz", images=np.kron(coarse, np.ones((1, 4, 4, 1))).astype(np.uint8), labels=np.arange(60) % 3)
        words = ("dataset=array", "dataset.path=x.npz", "missing=0", "train_items=null", "max_steps=4")
        return viscos("train", *DEBUG, *words)


FIT = ("mask=center8", "posterior.reflections=3", "items=3", "draws=6", "threads=1", "proposals=0")


def test_samples_of_a_flow_for_colour(colour):
    assert Path(runs.load_config(colour)["dataset"]["path"]).is_absolute()
    with Image.open(colour / "samples.png") as picture:
        assert picture.mode == "RGB" and picture.size[0] == picture.size[1] > 8 * 16  # 64 samples in a square
        assert len(picture.getcolors(2**20)) > 1000
    board = EventAccumulator(str(colour / "tensorboard")).Reload()
    assert board.Tags()["images"] == ["pictures/samples"]
    record = figures(colour)
    assert record["items"] == 6 and record["bits_per_dim"]["value"] > 0 and "accuracy" in record
    again = figures(viscos("eval", f"checkpoint={colour}", "threads=1", "batch_size=8"))  # from another folder
    assert again["bits_per_dim"] == record["bits_per_dim"]


@pytest.mark.parametrize("lad", [pytest.param("nlade", marks=pytest.mark.slow), "clade"])
def test_first_iteration_against_last(lad, colour):
    words = (*FIT, f"lad={lad}", "steps=20", "learning_rate=0.05", "start=prior")
    folder = viscos("impute", f"checkpoint={colour}", *words)
    record = figures(folder)
    assert record["solver"]["failed"] == 0 and record["bound"]["items"] == 3 and record["missing"] == 0.25
    assert record["bound"]["mean"] > record["bound"]["first_iteration"] + 1
    assert record["rmse"].keys() == {"mean", "draw", "first_iteration_draw", "gaussian_mean", "gaussian_draw"}
    assert all(row["items"] == 3 and row["per_image_std"] > 0 for row in record["rmse"].values())
    trained = load_trained(colour)
    with np.load(folder / "completions.npz") as arrays:
        values, observed = (torch.from_numpy(arrays[name]) for name in ("values", "observed"))
    wanted = trained.gaussian.log_prob_observed(values.nan_to_num(0), observed).mean()
    assert record["bound"]["gaussian_log_prob"] == pytest.approx(float(wanted), rel=1e-6)
    with Image.open(folder / "draws.png") as picture:  # the original, the same masked, and six draws in one row
        assert picture.size == (8 * (48 + 2) + 2, 48 + 4)
    board = EventAccumulator(str(folder / "tensorboard")).Reload()
    assert board.Tags()["images"] == ["impute/completions", "impute/draws"]


def test_without_a_fit_the_first_iteration_is_the_last(colour):
    record = figures(viscos("impute", f"checkpoint={colour}", *FIT, "steps=0"))
    first, last = (record["rmse"][key]["pooled"] for key in ("first_iteration_draw", "draw"))
    assert first == pytest.approx(last, rel=1e-5)  # the same noise, in batches of another size
    assert record["bound"]["first_iteration"] == record["bound"]["mean"]


def test_a_fit_begins_at_the_gaussian_or_at_the_prior(colour):
    """Of a flow that is nearly Gaussian: there the mean is the Gaussian's at once, and the bound higher."""
    words = ("impute", f"checkpoint={colour}", *FIT, "steps=0", "draws=16")
    near, far = (figures(viscos(*words, f"start={start}")) for start in ("gaussian", "prior"))
    assert near["rmse"]["mean"]["pooled"] == pytest.approx(near["rmse"]["gaussian_mean"]["pooled"], rel=1e-3)
    assert near["bound"]["mean"] > far["bound"]["mean"] + 100


def test_training_and_test_images_of_two_sizes(capsys):
    np.savez("x.npz", x_train=np.zeros((8, 8, 8), np.uint8), x_test=np.zeros((4, 6, 6), np.uint8))
    line = refused(capsys, "train", *DEBUG, "dataset=array", "dataset.path=x.npz")
    assert "training images are (1, 8, 8) (channels, height, width) and test images (1, 6, 6)" in line


# ------------------------------------------------------------------------------------------------------ impute, resume

SEVERAL = ("threads=1", "items=5", "batch_size=2", "steps=2", "samples=2", "draws=2", "proposals=16")


@pytest.fixture(scope="module")
def whole(trained, tmp_path_factory):
    """Five items in three batches, without an interruption."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(tmp_path_factory.mktemp("whole"))
        return viscos("impute", f"checkpoint={trained}", *SEVERAL)


def ended(monkeypatch, trained, batch: int, happens, *words: str) -> tuple[int, Path]:
    """A run of `viscos impute` to which something happens while it completes a batch: its exit status and folder."""
    complete = imputing.complete

    def disturbed(job, rows, log):
        if int(rows[0]) == 2 * batch:
            happens()
        return complete(job, rows, log)

    with monkeypatch.context() as patched:
        patched.setattr(imputing, "complete", disturbed)
        status = main(["impute", f"checkpoint={trained}", *SEVERAL, *words])
    (folder,) = Path("outputs/impute").resolve().iterdir()
    return status, folder


def begins(monkeypatch) -> list[tuple[int, int]]:
    """The seed and the first item of each batch that is begun from now on."""
    complete, begun = imputing.complete, []

    def noted(each, rows, log):
        begun.append((each.job.seed, int(rows[0])))
        return complete(each, rows, log)

    monkeypatch.setattr(imputing, "complete", noted)
    return begun


def press(number: int, times: int = 1):
    return lambda: [os.kill(os.getpid(), number) for _ in range(times)]


def assert_same_completions(folder: Path, whole: Path) -> None:
    done, wanted = completions(folder), completions(whole)
    assert done.keys() == wanted.keys()
    for name, array in wanted.items():
        assert array.dtype == done[name].dtype and array.tobytes() == done[name].tobytes(), name
    assert without_clock(figures(folder)) == without_clock(figures(whole))
    assert (folder / "completions.png").read_bytes() == (whole / "completions.png").read_bytes()
    assert not (folder / "shards").exists() and runs.load_config(folder) == runs.load_config(whole)


@pytest.mark.parametrize(("batch", "number"), [(0, signal.SIGINT), (1, signal.SIGTERM), (2, signal.SIGINT)])
def test_interrupted_completions_go_on_bit_for_bit(batch, number, trained, whole, monkeypatch, keyboard, capsys):
    status, folder = ended(monkeypatch, trained, batch, press(number))
    line = f"viscos impute: interrupted; `viscos impute resume={folder}` goes on"
    assert status == 130 and capsys.readouterr().err.splitlines()[-1] == line
    assert len(list((folder / "shards").iterdir())) == batch + 1, "the present batch is finished first"
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    begun = begins(monkeypatch)
    assert main(["impute", f"resume={folder}", "threads=1"]) == 0
    assert begun == [(0, 0), (0, 2), (0, 4)][batch + 1 :], "what is finished is not done again"
    assert_same_completions(folder, whole)
    capsys.readouterr()
    assert main(["impute", f"resume={folder}"]) == 0
    assert capsys.readouterr().out == f"the run is finished; completions in {folder / 'completions.npz'}\n"


def test_the_latest_completions_go_on(trained, whole, monkeypatch, keyboard, capsys):
    """Those that stopped, by their batches; a run that is finished is newer then."""
    assert "latest: there is no run of `viscos impute` below" in refused(capsys, "impute", "resume=latest")
    _, folder = ended(monkeypatch, trained, 1, press(signal.SIGINT))
    assert main(["impute", "resume=latest"]) == 0
    assert_same_completions(folder, whole)
    shutil.copytree(folder, "outputs/impute/older")
    for name in ("older/completions.npz", "older"):
        os.utime(Path("outputs/impute", name), (0, 0))
    viscos("train", *DEBUG, "max_steps=1", "imputers=[]")  # newer, and of another kind
    capsys.readouterr()
    assert main(["impute", "resume=latest"]) == 0
    assert capsys.readouterr().out == f"the run is finished; completions in {folder / 'completions.npz'}\n"
    Path("latest").mkdir()
    assert "latest/config.yaml cannot be read" in refused(capsys, "impute", "resume=latest")


def test_batches_without_a_fit_show_how_far_they_are(trained, monkeypatch):
    seen = []

    @contextmanager
    def recorded(what):
        yield lambda done, total, scalars: seen.append((what, done, total))

    monkeypatch.setattr(imputing, "patient_bar", recorded)
    small = ("threads=1", "items=5", "batch_size=2", "draws=2", "posterior=amortised")
    viscos("impute", f"checkpoint={trained}", *small)
    assert seen == [("completing", done, 5) for done in (2, 4, 5)]
    viscos("impute", f"checkpoint={trained}", *SEVERAL)
    assert len(seen) == 3, "a fit has a bar of its own"


def test_a_second_ctrl_c_loses_the_present_batch(trained, whole, monkeypatch, keyboard, capsys):
    status, folder = ended(monkeypatch, trained, 1, press(signal.SIGINT, 2))
    assert status == 130 and f"`viscos impute resume={folder}` goes on" in capsys.readouterr().err
    assert [path.name for path in (folder / "shards").iterdir()] == ["00000000.pt"]
    assert main(["impute", f"resume={folder}"]) == 0
    assert_same_completions(folder, whole)


def test_an_interruption_before_anything_is_finished_leaves_nothing(trained, monkeypatch, keyboard, capsys):
    with pytest.raises(FileNotFoundError):  # not even the folder above its own
        ended(monkeypatch, trained, 0, press(signal.SIGINT, 2))
    assert capsys.readouterr().err.splitlines()[-1] == "viscos impute: interrupted"


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_fills_up_loses_the_present_batch_alone(trained, whole, monkeypatch, capsys):
    with monkeypatch.context() as patched:
        status, folder = ended(patched, trained, 1, lambda: patched.setattr(atomic.os, "fsync", full))
    line = capsys.readouterr().err.splitlines()[-1]
    assert status == 2 and re.fullmatch(
        rf"viscos impute: {folder}/shards/00000002.pt cannot be written: the disk of {folder}/shards is full \(.* MiB "
        rf"free\); make room there, or write to another disk; then `viscos impute resume={folder}` goes on", line
    )  # fmt: skip
    assert [path.name for path in (folder / "shards").iterdir()] == ["00000000.pt"]
    assert main(["impute", f"resume={folder}"]) == 0
    assert_same_completions(folder, whole)


def test_a_disk_that_is_full_before_the_first_batch_leaves_no_folder(trained, monkeypatch, capsys):
    """The settings are written first, into a run folder that Hydra has made."""
    monkeypatch.setattr(atomic.os, "fsync", full)
    assert main(["impute", f"checkpoint={trained}", *NO_FIT]) == 2
    assert "is full" in capsys.readouterr().err and not Path("outputs").exists()


def test_completions_do_not_go_on_with_other_items(trained, monkeypatch, keyboard, capsys):
    values = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)).numpy()
    np.save("x.npy", values)
    words = ("input=x.npy", "missing=0.5")
    _, folder = ended(monkeypatch, trained, 1, press(signal.SIGINT), *words)
    np.save("x.npy", values[:, :, ::-1])
    assert "begun with other items than are there now" in refused(capsys, "impute", f"resume={folder}")
    np.save("x.npy", values)
    assert "'draws=3' cannot be given with resume" in refused(capsys, "impute", f"resume={folder}", "draws=3")
    line = refused(capsys, "impute", f"resume={trained}")
    assert f"{trained} is a training: `viscos train resume={trained}` goes on with it" in line
    shutil.copytree(trained, "old", ignore=shutil.ignore_patterns("checkpoint.pt"))
    assert "old is no run of `viscos impute` that can go on" in refused(capsys, "impute", "resume=old")
    assert "nowhere/config.yaml cannot be read" in refused(capsys, "impute", "resume=nowhere")
    cfg = runs.load_config(folder)
    runs.save_config(folder, cfg | {"steps": 3})
    assert "begun with other settings than are there now" in refused(capsys, "impute", f"resume={folder}")
    runs.save_config(folder, cfg)
    assert main(["impute", f"resume={folder}"]) == 0


AT_ONCE = ("threads=1", "items=3", "batch_size=1", "draws=1", "posterior=amortised", "hydra.run.dir=run")


def killed_at(monkeypatch, batch: int, *words: str) -> None:
    """A run that is killed in a batch; the ones before are kept."""
    complete, begun = imputing.complete, []

    def killed(job, rows, log):
        begun.append(rows)
        if len(begun) > batch:
            raise RuntimeError("the machine went down")
        return complete(job, rows, log)

    with monkeypatch.context() as patched:
        patched.setattr(imputing, "complete", killed)
        assert main(["impute", *words]) == 1


@pytest.mark.parametrize(("batch", "finished"), [(0, True), (1, False)])
def test_a_run_that_takes_the_place_of_another_goes_on_by_itself(batch, finished, trained, monkeypatch):
    words = (f"checkpoint={trained}", *AT_ONCE)
    if finished:
        assert main(["impute", *words]) == 0
    else:
        killed_at(monkeypatch, 2, *words)
    killed_at(monkeypatch, batch, *words, "seed=5", "overwrite=true")
    assert main(["impute", "resume=run"]) == 0
    assert main(["impute", *words, "seed=5", "overwrite=true", "hydra.run.dir=whole"]) == 0
    assert_same_completions(Path("run"), Path("whole"))


def test_an_interrupted_sweep_of_completions_goes_on(trained, monkeypatch, keyboard, capsys):
    words = ("seed=0,1", "hydra.sweep.dir=sweep", "--multirun")
    with pytest.raises(FileNotFoundError):
        ended(monkeypatch, trained, 1, press(signal.SIGINT), *words)
    assert "interrupted; the same command goes on" in capsys.readouterr().err
    begun = begins(monkeypatch)
    assert main(["impute", f"checkpoint={trained}", *SEVERAL, *words]) == 0
    assert begun == [(0, 4), (1, 0), (1, 2), (1, 4)]


# --------------------------------------------------------------------------------------------------------------- resume


@pytest.fixture
def keyboard():
    """Ctrl-C has its usual meaning, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "it is put back"
    signal.signal(signal.SIGINT, before)


def interrupted(monkeypatch, step: int, presses: int = 1, words=LONGER, number=signal.SIGINT) -> Path:
    """A run in which Ctrl-C is pressed, or another signal comes, in the middle of a step."""
    advance = Trainer.advance

    def pressed(self, batch):
        if self.step == step:
            for _ in range(presses):
                os.kill(os.getpid(), number)
        return advance(self, batch)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "advance", pressed)
        assert main(["train", *DEBUG, *words]) == 130
    (folder,) = Path("outputs/train").resolve().iterdir()
    time.sleep(1 - time.time() % 1)  # TensorBoard reads the files of one second in the order of their names
    return folder


@pytest.mark.parametrize("step", [1, 3, 6])  # the middle of an epoch, its end, the middle of the next
def test_an_interrupted_run_goes_on_as_if_nothing_had_been(step, longer, monkeypatch, keyboard, capsys):
    folder = interrupted(monkeypatch, step)
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"viscos train: interrupted; `viscos train resume={folder}` goes on"
    )
    assert checkpoint.load(folder / "checkpoint.pt")["trainer"]["step"] == step + 1, "the step is finished first"
    assert not (folder / "metrics.json").exists()
    assert main(["train", f"resume={folder}"]) == 0
    assert [path.name for path in Path("outputs/train").iterdir()] == [folder.name]
    assert_equal(checkpoint.load(folder / "checkpoint.pt"), checkpoint.load(longer / "checkpoint.pt"))
    assert without_clock(figures(folder)) == without_clock(figures(longer))
    assert runs.load_config(folder) == runs.load_config(longer)
    assert scalars(folder, "train/bound") == scalars(longer, "train/bound")
    assert (folder / "completions.png").read_bytes() == (longer / "completions.png").read_bytes()


def test_what_uses_a_training_that_has_not_come_to_its_end_says_so(longer, monkeypatch, keyboard, capsys):
    folder = interrupted(monkeypatch, 5)
    line = "this training has not come to its end (it stands at step 6) and was not measured; "
    line += f"`viscos train resume={folder}` goes on with it\n"
    for command, words in (("impute", TINY), ("eval", NO_FIT)):
        assert main([command, f"checkpoint={folder}", *words]) == 0 and line in capsys.readouterr().out
    assert not unfinished(load_trained(longer))
    shutil.copy(folder / "checkpoint.pt", "alone.pt")
    assert not unfinished(load_trained("alone.pt")), "nothing is known of a file alone"


def test_a_run_that_is_terminated_before_its_first_step_says_so(monkeypatch, keyboard, capsys):
    """As while the Gaussian is fitted, which may take minutes; there is nothing that could go on."""

    def ended(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("viscos.commands.assemble.training.em_gaussian", ended)
    assert main(["train", *DEBUG]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "viscos train: interrupted"
    assert not Path("outputs").exists()
    Path("run").mkdir()
    runs.save_config("run", {"seed": 0, "threads": None})
    assert "was ended before it had learnt anything; give its command again" in refused(
        capsys, "eval", "checkpoint=run"
    )


def test_a_second_ctrl_c_does_not_wait(longer, monkeypatch, keyboard):
    """Nothing half done is saved: the run goes on from its last epoch."""
    folder = interrupted(monkeypatch, 5, presses=2)
    assert checkpoint.load(folder / "checkpoint.pt")["trainer"]["step"] == 4
    assert main(["train", f"resume={folder}"]) == 0
    assert_equal(checkpoint.load(folder / "checkpoint.pt"), checkpoint.load(longer / "checkpoint.pt"))
    assert [step for step, _ in scalars(folder, "train/bound")] == list(range(8)), "no step stands there twice"


@pytest.mark.parametrize("times", [1, 2])  # a batch system may send it to several processes, which pass it on
def test_sigterm_saves_and_ends(times, longer, monkeypatch, keyboard, capsys):
    folder = interrupted(monkeypatch, 5, presses=times, number=signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert f"interrupted; `viscos train resume={folder}` goes on" in capsys.readouterr().err
    assert checkpoint.load(folder / "checkpoint.pt")["trainer"]["step"] == 6, "the step is finished first"
    assert main(["train", f"resume={folder}"]) == 0
    assert_equal(checkpoint.load(folder / "checkpoint.pt"), checkpoint.load(longer / "checkpoint.pt"))


@pytest.mark.slow
def test_an_interrupted_run_with_an_average_goes_on(monkeypatch, keyboard):
    words = (*LONGER, "ema=0.9", "accumulate=2", "dataset.augment=[flip,shift]", "warmup=3")
    whole = viscos("train", *DEBUG, *words)
    Path("second").mkdir()
    monkeypatch.chdir("second")
    folder = interrupted(monkeypatch, 5, words=words)
    assert main(["train", f"resume={folder}"]) == 0
    assert_equal(checkpoint.load(folder / "checkpoint.pt"), checkpoint.load(whole / "checkpoint.pt"))
    assert without_clock(figures(folder)) == without_clock(figures(whole))
    shutil.copytree(folder, "eval")
    assert (
        figures(viscos("eval", "checkpoint=eval", "draws=2", "threads=1", "calibration=false"))["rmse"]
        == figures(whole)["rmse"]
    )


def test_an_ignored_ctrl_c_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held() as pressed:
            os.kill(os.getpid(), signal.SIGINT)
            assert not pressed()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_sigterm_while_a_training_is_measured_says_what_goes_on(longer, monkeypatch, capsys):
    def kill(*arguments, **settings):
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("it must not go on")

    shutil.copytree(longer, "run")
    Path("run/metrics.json").unlink()
    with monkeypatch.context() as patched:
        patched.setattr("viscos.commands.training.measure", kill)
        assert main(["train", "resume=run"]) == 130
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"`viscos train resume={Path('run').resolve()}` goes on")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert main(["train", "resume=run"]) == 0 and Path("run/metrics.json").exists()


def test_a_killed_run_goes_on_from_its_last_epoch(longer, monkeypatch):
    def die(self, batch):
        if self.step == 6:
            raise RuntimeError("the machine went down")
        return advance(self, batch)

    advance = Trainer.advance
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "advance", die)
        assert main(["train", *DEBUG, *LONGER]) == 1
    (folder,) = Path("outputs/train").iterdir()
    assert main(["train", f"resume={folder}"]) == 0
    assert_equal(checkpoint.load(folder / "checkpoint.pt"), checkpoint.load(longer / "checkpoint.pt"))


def test_a_finished_run_is_only_measured_again(longer):
    shutil.copytree(longer, "run")
    assert main(["train", "resume=run"]) == 0
    assert figures(Path("run"))["training_seconds"] >= figures(longer)["training_seconds"] / 2, "it is not set back"
    assert without_clock(figures(Path("run"))) == without_clock(figures(longer))
    assert_equal(checkpoint.load("run/checkpoint.pt"), checkpoint.load(longer / "checkpoint.pt"))


def test_a_finished_run_with_more_epochs_goes_on(longer, capsys):
    shutil.copytree(longer, "run")
    assert main(["train", "resume=run", "epochs=3"]) == 0
    assert figures(Path("run"))["steps"] == 12 and runs.load_config("run")["epochs"] == 3
    rates = dict(scalars(Path("run"), "train/rate"))
    assert sorted(rates) == list(range(12))
    assert rates[8] > rates[9] > rates[10] > rates[11], "down the cosine of the longer run"
    assert main(["train", "resume=run"]) == 0, "the new number is the run's own now"
    assert "are 8 steps, and the run has done 12 already" in refused(capsys, "train", "resume=run", "epochs=2")


@pytest.mark.parametrize("words", [("train", *DEBUG), ("train", *DEBUG, "imputer=knn"), ("impute",), ("eval",)])
def test_nothing_is_written_over_a_training(words, trained, capsys):
    shutil.copytree(trained, "run")
    before = {path: path.read_bytes() for path in sorted(Path("run").iterdir()) if path.is_file()}
    of = () if words[0] == "train" else (f"checkpoint={trained}", *(NO_FIT if words[0] == "impute" else ()))
    says = f"{Path('run').resolve()} holds a training, which this run would write over"
    assert says in refused(capsys, *words, *of, "hydra.run.dir=run")
    assert {path: path.read_bytes() for path in sorted(Path("run").iterdir()) if path.is_file()} == before


@pytest.mark.parametrize("command", ["train", "impute", "eval"])
def test_nothing_is_written_over_files_of_no_run(command, trained, capsys):
    """A folder of one's own may hold what has the name of something that a run would replace or remove."""
    files = {"draws/notes.txt": "mine", "completed/photo.txt": "mine", "masked.csv": "a\n1\n", "config.yaml": "a: 1\n"}
    for name, text in files.items():
        path = Path("mine", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    words = DEBUG if command == "train" else (f"checkpoint={trained}", *(NO_FIT if command == "impute" else ()))
    says = (
        f"{Path('mine').resolve()} holds completed, which is of no run and might be written over; leave the folder to"
    )
    for more in ((), ("overwrite=true",) if command == "impute" else ("seed=1",)):
        assert says in refused(capsys, command, *words, *more, "hydra.run.dir=mine")
    assert {name: Path("mine", name).read_text() for name in files} == files


def test_a_result_of_another_command_is_not_written_over(trained, capsys):
    of = (f"checkpoint={trained}", "hydra.run.dir=out")
    assert main(["impute", *of, *NO_FIT, "items=2"]) == 0
    before = Path("out/metrics.json").read_bytes()
    for words in (("eval", *of), ("train", *DEBUG, "hydra.run.dir=out")):
        assert "out holds a result of `viscos impute`, which this run would write over" in refused(capsys, *words)
    assert Path("out/metrics.json").read_bytes() == before
    assert main(["eval", of[0], "hydra.run.dir=measured", "items=4", "calibration=false"]) == 0
    assert main(["eval", of[0], "hydra.run.dir=measured", "items=4", "calibration=false"]) == 0, "by the same command"


def test_a_run_that_max_steps_stopped_goes_on(trained):
    shutil.copytree(trained, "run")
    assert main(["train", "resume=run", "max_steps=null", "epochs=1"]) == 0
    assert figures(Path("run"))["steps"] == 4


@pytest.mark.parametrize("words", [(), ("imputer=knn",)])
def test_a_training_does_not_go_on_with_other_data(words, capsys):
    def write(path: str, seed: int) -> None:
        values = np.random.default_rng(seed).random((40, 8, 8))
        np.savez(path, x_train=values[:30], x_test=values[30:])

    write("a.npz", 0)
    small = ("dataset=array", "dataset.path=a.npz", "batch_size=8", "draws=1", "hydra.run.dir=run", *words)
    assert main(["train", *DEBUG, *small]) == 0
    write("a.npz", 1)
    assert "the training data are others than the run began with" in refused(capsys, "train", "resume=run")
    write("there.npz", 0)
    assert main(["train", "resume=run", "dataset.path=there.npz"]) == 0
    assert len(checkpoint.load("run/checkpoint.pt")["files"]["dataset.path"]) == 16


def test_a_mask_file_is_found_from_any_folder(monkeypatch, tmp_path):
    """By the settings that a run saves, as its data are; and below the home folder."""
    np.save("m.npy", np.arange(64).reshape(8, 8) % 2)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["train", *DEBUG, "missing=null", "mask=file", 'mask.path="~/m.npy"', "hydra.run.dir=run"]) == 0
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    assert main(["train", f"resume={tmp_path}/run", "max_steps=null", "epochs=1"]) == 0
    assert runs.load_config(tmp_path / "run")["mask"]["path"] == str(tmp_path / "m.npy")


def test_items_of_data_that_have_moved_are_completed(capsys):
    values = np.random.default_rng(0).random((40, 8, 8))
    np.savez("a.npz", x_train=values[:30], x_test=values[30:])
    data = ("dataset=array", "dataset.path=a.npz", "batch_size=8", "draws=1")
    assert main(["train", *DEBUG, *data, "hydra.run.dir=run"]) == 0
    Path("a.npz").rename("b.npz")
    words = ("checkpoint=run", *NO_FIT, "items=2")
    assert "if the data have moved, say where they are now: dataset.path=…" in refused(capsys, "impute", *words)
    assert main(["impute", *words, "dataset.path=b.npz", "hydra.run.dir=out"]) == 0
    assert runs.load_config("out")["dataset"] == {"path": str(Path("b.npz").absolute())}
    assert "only path, root, download may change" in refused(capsys, "impute", *words, "dataset.size=9")


def test_other_settings_or_masks_cannot_go_on(longer, capsys):
    shutil.copytree(longer, "run")
    assert "cannot be given with resume" in refused(capsys, "train", "resume=run", "missing=0.2")
    save_masks("run/masks_test.npz", ~load_masks("run/masks_test.npz"))
    assert "holds other masks than the settings give" in refused(capsys, "train", "resume=run")


@pytest.mark.slow
def test_what_is_as_near_to_the_paper_as_there_is():
    small = ("dataset=digits", "flow.blocks=[1]", "flow.channels=4", "flow.fully_connected=1", "train_items=64")
    words = (*small, "missing=0.5", "test_items=4", "max_steps=2", "draws=1", "threads=1", "hydra.run.dir=run")
    assert main(["train", "experiment=mnist_paper", *words]) == 0
    model = load_trained("run").model
    assert not model.posterior.precision.numel() and not model.posterior.held_out, "filled by the median"
    assert isinstance(model.classifier, LatentClassifier) and model.latent_classifier is None
    record = figures(Path("run"))
    assert record["config"]["solver"]["_target_"] == "viscos.roots.paper" and record["config"]["pretrain"] == 0
    assert record["steps"] == 2 and 0 < record["rmse"]["mean"]["pooled"] < 1


# ------------------------------------------------------------------------------------------------------------- progress


class Terminal:
    """What a terminal of some width has been shown."""

    def __init__(self, tmp_path: Path, width: int, **kind: bool) -> None:
        self.file = (tmp_path / "screen").open("w+")
        self.console = Console(file=self.file, width=width, **kind)

    def text(self) -> str:
        self.file.seek(0)
        shown = self.file.read()
        self.file.close()
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)


FIGURES = {"bound": -1234.5678, "residual": 0.000987654, "failed": 0.015625}
SHOWN = "bound -1.23e+03  residual 0.000988  failed 0.0156"


@pytest.mark.parametrize("width", [100, 120])
def test_figures_are_not_cut(width, tmp_path):
    screen = Terminal(tmp_path, width, force_terminal=True)
    with bar("measuring", 112500, console=screen.console) as progress:
        progress.update(100000, FIGURES)
    last = [line for line in screen.text().splitlines() if line.strip()][-1]
    assert SHOWN in last and "100000/112500" in last and "…" not in last and len(last.rstrip()) <= width


def test_figures_that_are_not_given_stay(tmp_path):
    screen = Terminal(tmp_path, 100, force_terminal=False)
    with bar("training", 3, console=screen.console) as progress:
        progress.update(1, {"bound": 1.0})
        progress.update(2, {"failed": 0.5})
    assert screen.text() == "training 2/3 in 0:00:00, 0:00:00 left  bound 1  failed 0.5\n"


def test_a_line_now_and_then_without_a_terminal(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    screen = Terminal(tmp_path, 100, force_terminal=False)
    with bar("training", 110, 10, console=screen.console) as shown:
        for step in range(11, 111):
            clock[0] += 1
            shown.update(step, {"bound": step})
    assert screen.text().splitlines() == [
        "training 40/110 in 0:00:30, 0:01:10 left  bound 40",
        "training 70/110 in 0:01:00, 0:00:40 left  bound 70",
        "training 100/110 in 0:01:30, 0:00:10 left  bound 100",
        "training 110/110 in 0:01:40  bound 110",
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_long_run_says_once_what_it_will_take(terminal, tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    screen = Terminal(tmp_path, 100, force_terminal=terminal)
    with bar("training", 1000, 100, console=screen.console) as shown:
        for step in range(101, 300):
            clock[0] += 2
            shown.update(step)
    lines = [line.strip() for line in screen.text().splitlines() if "about" in line]
    assert lines == ["training: about 0:33:20 for all 1000, 2 s each"]


def test_verdicts_in_batches_are_those_of_their_items(trained, monkeypatch):
    """Two draws of five items, of which the fourth item's first and the second one's second are not solved."""

    def failing(flow, posterior, batch, *rest, draws=1, **settings):
        done = impute(flow, posterior, batch, *rest, draws=draws, **settings)
        bad = torch.zeros(draws, len(batch), dtype=torch.bool)
        for draw, item in FAILED[:draws]:
            bad[draw] = batch.index == item
        status = torch.where(bad.flatten(), int(Status.STALLED), done.solution.status)
        hidden = (bad.view(*bad.shape, 1, 1, 1) & batch.hidden).to(done.draws.device)
        return replace(
            done, draws=torch.where(hidden, float("nan"), done.draws), solution=replace(done.solution, status=status)
        )

    FAILED = [(0, 3), (1, 1)]
    monkeypatch.setattr("viscos.inference.approximation.impute", failing)
    words = (f"checkpoint={trained}", "items=5", "batch_size=2", "draws=2", "posterior=amortised", "threads=1")
    folder = viscos("impute", *words)
    found, record = completions(folder), figures(folder)
    assert np.argwhere(~found["solved"]).tolist() == [list(place) for place in FAILED]
    assert (np.isfinite(found["draws"]).all((2, 3, 4)) == found["solved"]).all()
    assert record["solver"]["failed"] == 0.2 and record["solver"]["solves"] == 10


def test_impute_in_batches_is_impute_at_once(trained):
    words = (f"checkpoint={trained}", "items=4", "draws=2", "steps=2", "samples=2", "threads=1", "lad=clade")
    whole, parts = viscos("impute", *words), viscos("impute", *words, "batch_size=3")
    a, b = completions(whole), completions(parts)
    assert a["draws"].shape == b["draws"].shape == (2, 4, 1, 8, 8)
    np.testing.assert_allclose(a["draws"], b["draws"], atol=5e-3)  # a fit does not depend on its batch
    assert figures(parts)["bound"]["items"] == 4
