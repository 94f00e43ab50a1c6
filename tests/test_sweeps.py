"""Sweeps: stopped and run again, with failures, in parallel."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from problems import waited
from test_commands import assert_equal, figures, without_clock

import viscos
from viscos import runs
from viscos.cli import main, sweep
from viscos.core.errors import InputError
from viscos.runs import checkpoint, own_files
from viscos.train import Trainer

DEBUG = ("experiment=debug", "flow=iresnet", "flow.blocks=[1]", "flow.channels=4", "threads=1")
SWEEP = ("train", "--multirun", *DEBUG, "missing=0.3,0.6", "test_items=4", "draws=1")
FOLDER = Path("outputs/sweeps/train")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Each test has an empty folder of its own."""
    monkeypatch.chdir(tmp_path)


def jobs(folder: Path = FOLDER) -> dict[str, Path]:
    """The folders of a sweep's jobs, by what was set."""
    return {path.name.rpartition("-")[0]: path for path in sorted(folder.iterdir()) if path.is_dir()}


def times() -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in FOLDER.glob("*/metrics.json")}


@pytest.fixture
def stand_in(monkeypatch):
    """Puts what a training leaves in its place, and gives the settings and the folder of each that ran."""
    seen = []

    def execute(command, cfg, folder, *rest):
        seen.append((cfg, Path(folder)))
        if cfg["missing"] == 1:
            raise InputError("nothing is observed in the training data")
        Path(folder, "metrics.json").write_text("{}")

    monkeypatch.setattr("viscos.cli.app.execute", execute)
    return seen


def test_a_job_is_a_run_like_any_other():
    assert main([*SWEEP, "missing=0.3"]) == 0
    (folder,) = FOLDER.glob("*/")
    assert main(["eval", f"checkpoint={folder}", "threads=1", "calibration=false"]) == 0, "its name needs no quotes"


def test_finished_jobs_are_not_run_again(stand_in, capsys):
    assert main([*SWEEP]) == 0
    before = times()
    assert len(before) == 2
    capsys.readouterr()
    assert main([*SWEEP, "missing=0.3,0.6,0.9", "device=cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    set_alike = "draws=1,flow.blocks=[1],flow.channels=4,flow=iresnet"
    assert [line.split(" in ")[0] for line in lines if ": job " in line] == [
        f"viscos train: job 0 ({set_alike},missing=0.3,test_items=4) is finished,",
        f"viscos train: job 1 ({set_alike},missing=0.6,test_items=4) is finished,",
        f"viscos train: job 2 ({set_alike},missing=0.9,test_items=4)",
    ]
    assert {path: time for path, time in times().items() if path in before} == before and len(times()) == 3


def test_other_settings_are_other_jobs(stand_in):
    assert main([*SWEEP, "missing=0.3"]) == 0
    assert main([*SWEEP, "missing=0.3", "flow.channels=6"]) == 0
    assert main([*SWEEP, "missing=0.3", "log_every=2"]) == 0
    assert len(times()) == 3


def test_other_contents_of_a_data_file_are_another_job(stand_in, capsys):
    """The job runs again where the file has changed since it finished, and not where only its time has."""
    words = ["train", "--multirun", "dataset=table", "dataset.path=x.csv", "mask=file", "mask.path=m.npy"]
    words += ["teach=regression"]

    def ran() -> int:
        stand_in.clear()
        assert main(words) == 0
        return len({folder for _, folder in stand_in})

    Path("x.csv").write_text("a,b\n1,2\n3,4\n")
    Path("m.npy").write_bytes(b"1")
    words.append("seed=0,1")
    assert ran() == 2
    words[-1] = "seed=0"
    os.utime("x.csv", (0, 0))
    assert ran() == 0 and capsys.readouterr().out.count("is finished") == 1
    for path, text in (("x.csv", "a,b\n1,2\n3,5\n"), ("m.npy", "2")):
        Path(path).write_text(text)
        assert ran() == 1
    assert ran() == 0, "and once only"
    assert len(list(FOLDER.glob("*/metrics.json"))) == 4, "what was there is kept"


def test_a_folder_of_pictures_is_its_names_and_contents():
    def digest():
        return own_files.digests({"dataset": {"path": "pictures"}, "mask": {"size": 3}, "flow": None})

    assert digest() == {"dataset.path": None}
    Path("pictures/sub").mkdir(parents=True)
    Path("pictures/a.png").write_bytes(b"1")
    first = digest()["dataset.path"]
    Path("pictures/a.png").rename("pictures/sub/a.png")
    moved = digest()["dataset.path"]
    Path("pictures/sub/a.png").write_bytes(b"23")
    last = digest()["dataset.path"]
    assert len({first, moved, last}) == 3 and len(first) == 16
    for name in (".DS_Store", "sub/.DS_Store", "__MACOSX/a.png", "Thumbs.db"):  # which no data set reads
        Path("pictures", name).parent.mkdir(exist_ok=True)
        Path("pictures", name).write_bytes(b"0")
    assert digest()["dataset.path"] == last
    assert own_files.digests({"dataset": {"name": "mnist"}, "mask": None}) == {}


def test_files_of_every_command_count(tmp_path):
    """A checkpoint's file alone, whatever else lies in its folder; pictures that a pattern matches."""
    for name in ("run/checkpoint.pt", "run/curves", "a-1.png", "a-2.png", "b.png", "other.npz"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(name)
    cfg = {"checkpoint": "run", "input": "a-*.png", "completions": "other.npz"}
    first = own_files.digests(cfg)
    assert set(first) == set(cfg) and all(first.values())
    for name, changed in (
        ("run/curves", set()),
        ("b.png", set()),
        ("a-2.png", {"input"}),
        ("other.npz", {"completions"}),
    ):
        Path(name).write_text("else")
        found = own_files.digests(cfg)
        assert {key for key in cfg if found[key] != first[key]} == changed
        first = found
    Path("run/checkpoint.pt").write_text("else")
    assert own_files.digests(cfg)["checkpoint"] != first["checkpoint"]
    assert own_files.digests({"checkpoint": "nowhere", "input": None}) == {"checkpoint": None}


def test_other_commands_go_on_too(capsys):
    """A finished job of `viscos impute` or `viscos eval` is left alone until its checkpoint is another one."""
    for seed in (0, 1):
        assert main(["train", *DEBUG, "test_items=4", "draws=1", f"seed={seed}", f"hydra.run.dir=run{seed}"]) == 0
    assert main(["train", *DEBUG, "test_items=4", "draws=1", "seed=0", "hydra.run.dir=run"]) == 0
    for command, more in (("impute", ("items=1", "steps=1", "draws=1")), ("eval", ("items=1", "calibration=false"))):
        words = [command, "--multirun", "checkpoint=run", *more, "threads=1", "missing=0.3,0.6"]
        folder = Path("outputs/sweeps", command)
        for jobs_there in (2, 2):
            assert main(words) == 0
            assert len(list(folder.glob("*/metrics.json"))) == jobs_there
        assert capsys.readouterr().out.count("is finished") == 2
    shutil.copy("run1/checkpoint.pt", "run/checkpoint.pt")
    assert main(words) == 0 and len(list(folder.glob("*/metrics.json"))) == 4


def test_failures_of_another_sweep_are_not_listed(stand_in, capsys):
    assert main([*SWEEP[:-3], "missing=1", "test_items=4", "draws=1"]) == 2
    for note in FOLDER.glob(f"*/{sweep.FAILED}"):
        os.utime(note, (0, 0))
    assert main([*SWEEP[:-3], "missing=1", "test_items=8", "draws=1"]) == 2
    listed = capsys.readouterr().err.split("runs only what is not finished:\n")[-1]
    assert "test_items_8" in listed and "test_items_4" not in listed


def test_where_a_job_runs_is_not_in_its_name():
    composed = yaml.safe_load((Path(viscos.__path__[0]) / "configs/hydra/viscos.yaml").read_text())
    assert {*runs.MACHINE, "allow"} <= set(composed["job"]["config"]["override_dirname"]["exclude_keys"])


def test_a_folder_that_any_job_may_use_is_not_trusted(stand_in):
    words = [*SWEEP[:-3], "test_items=4", "draws=1", "hydra.sweep.subdir=here"]
    assert main([*words, "missing=0.3"]) == 0
    assert main([*words, "missing=0.6"]) == 0
    assert [cfg["missing"] for cfg, _ in stand_in] == [0.3, 0.6]


def test_a_job_name_is_a_file_name():
    root = {"flow": {"blocks": [1]}, "dataset": {"name": "x", "root": "/a"}, "threads": 1, "hydra": {"job": "${no}"}}
    from omegaconf import OmegaConf

    def name(overrides, **changes):
        return sweep.job_name(overrides, _root_=OmegaConf.create(root | changes))

    assert name("flow.blocks=[1],path=/a/b c,é=1").startswith("flow.blocks_1_-path_a_b_c-_1-")
    assert name("a=" + "x" * 500).startswith("a_xxx") and len(name("a=" + "x" * 500)) < 120
    assert len(name("")) == 8 and name("../..").count(".") == 0
    elsewhere = {"threads": 4, "dataset": {"name": "x", "root": "/b", "download": False}}
    assert name("", **elsewhere) == name(""), "where a job runs does not matter"
    others = ({"flow": {"blocks": [2]}}, {"seed": 1}, {"seed": 2}, {"solver": {"tolerance": 1e-2}}, {"missing": 0.9})
    assert len({name(""), *(name("", **other) for other in others)}) == 6, "what it is does"


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on(monkeypatch, capsys):
    """Ctrl-C in the second job: the first is finished, the second resumes, and all is as if nothing had been."""
    longer = ("max_steps=null", "epochs=2")
    advance = Trainer.advance

    def pressed(self, batch):
        if self.step == 5 and self.data.observed.double().mean() < 0.5:
            os.kill(os.getpid(), signal.SIGINT)
        return advance(self, batch)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "advance", pressed)
        assert main([*SWEEP, *longer]) == 130
    signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err.endswith("viscos train: interrupted; the same command goes on\n")
    first, second = jobs().values()
    stamp = times()
    assert list(stamp) == [first / "metrics.json"]
    assert checkpoint.load(second / "checkpoint.pt")["trainer"]["step"] == 6
    steps = []
    monkeypatch.setattr(Trainer, "advance", lambda self, batch: (steps.append(self.step), advance(self, batch))[1])
    assert main([*SWEEP, *longer]) == 0
    assert steps == [6, 7] and times()[first / "metrics.json"] == stamp[first / "metrics.json"]
    assert main(["train", *DEBUG, "missing=0.6", "test_items=4", "draws=1", *longer]) == 0
    (alone,) = Path("outputs/train").iterdir()
    assert without_clock(figures(second)) == without_clock(figures(alone))
    assert_equal(checkpoint.load(second / "checkpoint.pt"), checkpoint.load(alone / "checkpoint.pt"))


@pytest.mark.slow
def test_a_killed_sweep_goes_on(monkeypatch):
    """The process is killed outright in the middle of a job, which goes on from its last epoch."""
    words = [*SWEEP, "missing=0.3", "max_steps=null", "epochs=15", "train_items=16"]
    times_saved: set[int] = set()

    def saved_twice() -> bool:
        times_saved.update(path.stat().st_mtime_ns for path in FOLDER.glob("*/checkpoint.pt"))
        return len(times_saved) > 1

    process = subprocess.Popen([sys.executable, "-m", "viscos", *words], stdout=subprocess.PIPE)
    try:
        waited(saved_twice, process)
    finally:
        process.kill()
        process.communicate()
    (saved,) = FOLDER.glob("*/checkpoint.pt")
    done, steps, advance = checkpoint.load(saved)["trainer"]["step"], [], Trainer.advance
    assert not times() and 2 <= done < 30
    monkeypatch.setattr(Trainer, "advance", lambda self, batch: (steps.append(self.step), advance(self, batch))[1])
    assert main(words) == 0
    assert steps == list(range(done, 30)) and len(times()) == 1


def test_failed_jobs_are_listed_at_the_end_and_run_again(stand_in, capsys):
    words = [*SWEEP[:-3], "missing=0.3,0.6,1", "test_items=4", "draws=1"]
    assert main(words) == 2
    assert len(times()) == 2, "the other jobs go on"
    last = capsys.readouterr().err.splitlines()[-2:]
    assert last[0] == f"viscos train: failed in {FOLDER.resolve()}; the same command runs only what is not finished:"
    assert [line[:77] for line in last[1:]] == [
        "  draws_1-flow.blocks_1_-flow.channels_4-flow_iresnet-missing_1-test_items_4-",
    ]
    assert "nothing is observed in the training data" in last[1]
    stamp = times()
    assert main(words) == 2, "what failed is tried again"
    assert times() == stamp
    assert main([*SWEEP]) == 0


def test_a_failure_is_forgotten_when_the_job_runs_again(stand_in, monkeypatch, capsys):
    with monkeypatch.context() as patched:
        patched.setattr("viscos.cli.app.execute", lambda *rest: 1 / 0)
        assert main([*SWEEP]) == 1
    notes = [path / sweep.FAILED for path in jobs().values()]
    assert [note.read_text() for note in notes] == ["ZeroDivisionError: division by zero\n"] * 2
    assert main([*SWEEP]) == 0
    assert not any(note.exists() for note in notes) and len(times()) == 2


@pytest.mark.slow
def test_jobs_side_by_side():
    """Two processes at once; what they print can be told apart, and a failure of one is listed by the other."""
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    parallel = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    words = [sys.executable, "-m", "viscos", *SWEEP, *parallel, "missing=0.3,0.6,1"]
    found = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert found.returncode == 2 and len(times()) == 2, found.stderr
    assert {line[:4] for line in found.stdout.splitlines()} == {"[0] ", "[1] ", "[2] "}
    assert "nothing is observed in the training data" in found.stderr.splitlines()[-1]
    one_by_one = {name: without_clock(figures(path)) for name, path in jobs().items() if "_1-test" not in name}
    for path in times():
        path.unlink()
        (path.parent / "checkpoint.pt").unlink()
    assert main([*SWEEP]) == 0
    assert {name: without_clock(figures(path)) for name, path in jobs().items() if "_1-test" not in name} == one_by_one


def test_the_runs_behind_the_tables(monkeypatch, capsys):
    """Five rates without saying so; a rate or seeds that are given take their place."""
    seen = []
    monkeypatch.setattr("viscos.cli.app.execute", lambda command, cfg, folder, *rest: seen.append((cfg, folder)))
    words = ["train", "--multirun", "experiment=mnist_tables"]
    assert main(words) == 0
    assert [cfg["missing"] for cfg, _ in seen] == [0.5, 0.6, 0.7, 0.8, 0.9]
    assert {cfg["dataset"]["name"] for cfg, _ in seen} == {"mnist"}
    assert {Path(folder).parent for _, folder in seen} == {Path("outputs/sweeps/mnist_tables").resolve()}
    folders = {cfg["missing"]: folder for cfg, folder in seen}
    seen.clear()
    assert main([*words, "missing=0.7", "seed=0,1"]) == 0
    assert [folder == folders[0.7] for _, folder in seen] == [True, False], "more seeds leave the first one's job alone"
    seen.clear()
    assert main([*words, "missing=0.7", "epochs=2", "scale=paper"]) == 0
    assert [(cfg["missing"], cfg["seed"], cfg["epochs"]) for cfg, _ in seen] == [(0.7, 0, 2)]
    assert {(cfg["flow"]["channels"], cfg["learning_rate"], cfg["schedule"]) for cfg, _ in seen} == {
        (128, 0.01, "halve")
    }


def test_what_a_record_says_of_its_run():
    assert main(["train", *DEBUG, "test_items=4"]) == 0
    (folder,) = Path("outputs/train").iterdir()
    record = json.loads((folder / "metrics.json").read_text())
    assert record["seed"] == 0 and record["config"]["missing"] == 0.5 and record["config"]["flow"]["channels"] == 4
    assert record["config"]["dataset"]["name"] == "digits" and not {"root", "download"} & set(
        record["config"]["dataset"]
    )
    assert not {"threads", "device", "resume", "run_dir"} & set(record["config"])
    assert record["machine"]["device"] == "cpu" and record["machine"]["threads"] == 1
    assert record["versions"].keys() == {"viscos", "torch"} and len(record["mask_hash"]) == 16
    assert record["commit"] is None or len(record["commit"].rstrip("+")) == 12
    assert record["training_seconds"] > 0 and str(folder.parent.parent.resolve()) not in json.dumps(record)
