"""The command line, with stand-ins for the commands themselves."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.plugins.sweeper import Sweeper

import viscos.report.figures.drawings
from viscos import runs
from viscos.cli import app, help, main, shell, words
from viscos.cli.outline import COMMANDS, choices, outline, overlays
from viscos.core import choices as choices_of
from viscos.core.build import build
from viscos.core.errors import InputError
from viscos.data.masks import Mask
from viscos.report import figures
from viscos.roots import RootFinder


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Each test has an empty folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def command(monkeypatch):
    """Puts a function in the place of a command, and collects the settings it is called with."""

    def put(function=lambda cfg: None, name="train"):
        seen = []

        def run(cfg):
            seen.append(cfg)
            return function(cfg)

        monkeypatch.setitem(sys.modules, f"viscos.commands.{name}", types.SimpleNamespace(run=run))
        return seen

    return put


def one_line(capsys, start: str) -> str:
    """The one line on standard error, which must begin with `start`."""
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and text.startswith(start), text
    return text


def run_folders() -> list[Path]:
    """Those below outputs that hold more than folders, or nothing."""
    kept = [path for path in Path("outputs").rglob("*") if path.is_dir() and path.name != "tensorboard"]
    return sorted(path for path in kept if not any(each.is_dir() for each in path.iterdir()))


def test_a_run_gets_plain_settings_and_its_own_folder(command):
    seen = command()
    assert main(["train", "missing=0.9", "dataset=mnist", "flow.width=64", "learning_rate=1e-3"]) == 0
    (cfg,) = seen
    assert cfg["missing"] == 0.9 and cfg["mask"]["missing"] == 0.9
    assert cfg["dataset"]["name"] == "mnist" and type(cfg["dataset"]) is dict
    assert cfg["flow"]["width"] == 64 and cfg["learning_rate"] == 1e-3
    assert Path(cfg["run_dir"]).parent == Path("outputs/train").resolve()
    assert "hydra" not in cfg


def test_runs_in_the_same_second_do_not_share_a_folder(command):
    seen = command(lambda cfg: Path(cfg["run_dir"], "metrics.json").touch())
    for _ in range(3):
        assert main(["train"]) == 0
    assert len({cfg["run_dir"] for cfg in seen}) == 3 == len(run_folders())


def test_the_data_folder_of_one_machine_is_not_saved_with_a_run(command, monkeypatch):
    seen = command()
    monkeypatch.setenv("VISCOS_DATA_DIR", "/somewhere")  # read when data are loaded, on whatever machine
    assert main(["train", "dataset=mnist"]) == 0
    assert seen[0]["dataset"]["root"] is None


WRONG = [
    ("train missing=1.7", "missing=1.7: must be a number from 0 to 1"),
    ("train missing=abc", "missing=abc: must be"),
    ("table format=pdf", "format=pdf: must be one of markdown, latex, csv"),
    ("table runs=[]", "runs=[]: must be a word or a path or a list"),
    ("figure", "name=… is needed: name of the figure"),
    ("figure name=6", "name=6: must be one of 2, 3, 4, 5, digits"),
    ("train missing=true", "missing=true: must be"),
    ("train missing=nan", "missing=nan: must be"),
    ("train missing=", "missing="),
    ("train epochs=0", "whole number, 1 or more"),
    ("train epochs=1.5", "whole number"),
    ("train batch_size=null", "whole number"),
    ("train learning_rate=0", "must be a number above 0"),
    ("train learning_rate=inf", "must be a number above 0"),
    ("train device=gpu", "must be cpu, cuda"),
    ("train seed=-1", "whole number, 0 or more"),
    ("train flow=iresnet flow.blocks=3", "must be a list"),
    ("train flow=iresnet flow.blocks=[1,x]", "each entry must be a whole number"),
    ("train flow=iresnet flow.coefficient=1", "must be a number above 0 and below 1"),
    ("train flow=iresnet flow.activation=relu", "must be one of lipswish, elu"),
    ("train solver.tolerance=0", "must be a number above 0"),
    ("train lad.probes=0", "whole number, 1 or more"),
    ("train mask=center8 mask.size=0", "whole number, 1 or more"),
    ("train mask=half mask.side=up", "must be one of right, left, top, bottom"),
    ("train mask=file", "mask.path=… is needed"),
    ("train missin=0.5", "did you mean 'missing'?"),
    ("train flow=iresnet flow.chanels=3", "did you mean 'flow.channels'?"),
    ("train flow=iresnet flow.width=3", "there is no option 'flow.width' here; it is one of flow=continuous"),
    ("train flow.xyz=3", "there is no option 'flow.xyz' here; `viscos train --cfg job` lists them"),
    ("train dataset.path=a.csv", "it is one of dataset=array, dataset=folder, dataset=table"),
    ("train datset=mnist", "did you mean 'dataset'?"),
    ("eval checkpoint=x test_items=16", "did you mean 'items'?"),
    ("train dataset=nope", "choose from array, checkerboard, cifar10, circles, digits"),
    ("train dataset=null", "must be one of its choices"),
    ("train +new=1", "there is no option 'new'"),
    ("train ~flow", "flow is not set"),
    ("train ~nope", "there is no option 'nope'"),
    ("train flow=iresnet flow.blocks.x=1", "cannot use these settings"),
    ("train missing=${nope}", "cannot use these settings: Interpolation key 'nope' not found (in missing)\n"),
    ("train missing=0.5,0.9", "add --multirun"),
    ("train --multirun dataset=digits,nope", "choose from array, checkerboard, cifar10, circles, digits"),
    ("train foo", "settings are written key=value"),
    ("train flow=[a", "cannot read 'flow=[a'"),
    ("train --foo", "--foo; settings are written key=value"),
    ("train --cfg nothing", "nothing"),
    ("train resume=nowhere", "there is no run folder or checkpoint file 'nowhere'"),
    ("impute", "checkpoint=… is needed: run folder"),
    ("impute checkpoint=nowhere", "there is no run folder or checkpoint file 'nowhere'"),
    ("eval checkpoint=.", "has no checkpoint.pt"),
    ("eval mask=center8 checkpoint=3", "must be a word or a path"),
    ("bench rates=[0.5,2]", "each entry must be a number from 0 to 1"),
    ("bench solvers=[newton]", "each entry must be one of anderson"),
]


@pytest.mark.parametrize(("line", "says"), WRONG, ids=[line for line, _ in WRONG])
def test_wrong_input_is_one_line(line, says, command, capsys):
    words = line.split()
    seen = command(name=words[0])
    assert main(words) == 2
    assert says in one_line(capsys, f"viscos {words[0]}: ")
    assert not seen, "the command must not be reached"
    assert not run_folders(), "no half-made run folder may stay behind"
    assert "--multirun" in words or not Path("outputs").exists()


@pytest.mark.parametrize(("word", "says"), [("trian", "did you mean 'train'?"), ("xyz", "commands are train, impute")])
def test_unknown_command(word, says, capsys):
    assert main([word]) == 2
    assert says in one_line(capsys, "viscos: ")


def test_input_error_in_a_command(command, capsys):
    def refuse(cfg):
        runs.save_config(cfg["run_dir"], cfg)
        raise InputError("the file\nis not there")

    command(refuse)
    assert main(["train"]) == 2
    assert one_line(capsys, "viscos train: the file is not there")
    assert not Path("outputs").exists()


def test_input_error_under_a_builder(command, capsys):
    def build(cfg):
        try:
            raise InputError("size 9 is too large")
        except InputError as error:
            raise RuntimeError("Error in call to target") from error

    command(build)
    assert main(["train"]) == 2
    assert one_line(capsys, "viscos train: size 9 is too large")


def test_unexpected_error_keeps_its_traceback(command, capsys):
    def fail(cfg):
        Path(cfg["run_dir"], "events").touch()
        raise ZeroDivisionError("a bug")

    command(fail)
    assert main(["train"]) == 1
    text = capsys.readouterr().err
    assert "Traceback" in text and "in fail" in text and text.count("ZeroDivisionError: a bug") == 1
    assert len(run_folders()) == 1, "what a run has written stays"


def test_a_bug_while_bad_input_is_dealt_with_is_a_bug(command, capsys):
    def fail(cfg):
        try:
            raise InputError("no data")
        except InputError:
            raise ZeroDivisionError("a bug")  # noqa: B904

    command(fail)
    assert main(["train"]) == 1
    assert "ZeroDivisionError: a bug" in capsys.readouterr().err


def test_interrupt(command, capsys):
    def interrupt(cfg):
        raise KeyboardInterrupt

    command(interrupt)
    assert main(["train"]) == 130
    assert one_line(capsys, "viscos train: interrupted")


def test_every_value_of_a_sweep_is_checked_before_the_first_job(command, capsys):
    seen = command()
    assert main(["train", "--multirun", "missing=0.1,7", "epochs=1,0"]) == 2
    line = one_line(
        capsys, "viscos train: job 1 (epochs=0,missing=0.1): epochs=0: must be a whole number, 1 or more, or null; "
    )
    assert "job 2 (epochs=1,missing=7): missing=7: must be a number from 0 to 1, or null; " in line
    assert "job 3 (" in line and "job 0 (" not in line and line.endswith("; no job was started\n")
    assert not seen and not Path("outputs").exists()
    assert main(["train", "--multirun", "mask=random,file"]) == 2
    one_line(capsys, "viscos train: job 1 (mask=file): mask.path=… is needed")
    parallel = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    assert main(["train", "--multirun", "missing=0.1,7", *parallel]) == 2
    one_line(capsys, "viscos train: job 1 (missing=7): missing=7")
    assert not seen and not Path("outputs").exists()


def test_settings_are_composed_once_and_looked_at_once_more_in_a_sweep(command, monkeypatch):
    """Hydra by itself composes all of them a time more."""
    composed, load = [], ConfigLoaderImpl.load_configuration
    monkeypatch.setattr(
        ConfigLoaderImpl, "load_configuration", lambda self, *a, **k: (composed.append(a), load(self, *a, **k))[1]
    )
    seen = command()
    assert main(["train"]) == 0 and len(composed) == len(seen) == 1
    composed.clear()
    assert main(["train", "--multirun", "missing=0.1,0.2"]) == 0
    assert len(composed) == 2 * (1 + 2) and len(seen) == 1 + 2
    assert main(["train", "hydra.mode=MULTIRUN", "missing=0.1"]) == 0 and len(seen) == 1 + 2 + 1
    assert Sweeper.validate_batch_is_legal.__name__ == "validate_batch_is_legal", "and leaves Hydra as it is"


def test_a_failed_job_does_not_stop_a_sweep(command, capsys):
    def run(cfg):
        Path(cfg["run_dir"], "metrics.json").touch()
        if cfg["missing"] in (0.2, 0.3):
            raise InputError("no data")

    seen = command(run)
    assert main(["train", "--multirun", "missing=0.1,0.2,0.3,0.4"]) == 2
    assert [cfg["missing"] for cfg in seen] == [0.1, 0.2, 0.3, 0.4]
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[:2] for line in lines[:2]] == [
        ["viscos train", "job 1 (missing=0.2)"],
        ["viscos train", "job 2 (missing=0.3)"],
    ]
    assert len(run_folders()) == 4, "a failed job's folder says why"


def test_a_bug_in_a_sweep(command, capsys):
    def run(cfg):
        if cfg["missing"] == 0.1:
            raise ZeroDivisionError("a bug")

    seen = command(run)
    assert main(["train", "-m", "missing=0.1,0.2"]) == 1
    assert len(seen) == 2
    text = capsys.readouterr().err
    assert "viscos train: job 0 (missing=0.1): failed with ZeroDivisionError" in text
    assert text.endswith(": ZeroDivisionError: a bug\n")


def test_flags_may_stand_anywhere(command):
    seen = command()
    assert main(["train", "missing=0.1,0.2", "--multirun", "epochs=3"]) == 0
    assert [(cfg["missing"], cfg["epochs"]) for cfg in seen] == [(0.1, 3), (0.2, 3)]


def test_process_state_is_put_back(command, monkeypatch):
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    command()
    argv = list(sys.argv)
    assert main(["train"]) == 0
    assert sys.argv == argv and "HYDRA_FULL_ERROR" not in os.environ and "VISCOS_RUN_ID" not in os.environ


def test_cfg_prints_everything(capsys):
    assert main(["train", "--cfg", "job", "missing=0.25"]) == 0
    text = capsys.readouterr().out
    assert "missing: 0.25" in text and "grid:" in text
    assert not Path("outputs").exists()


@pytest.fixture
def old_run(command) -> Path:
    """A run folder with settings and a checkpoint."""

    def run(cfg):
        runs.save_config(cfg["run_dir"], cfg)
        Path(cfg["run_dir"], runs.CHECKPOINT).write_text("state")

    seen = command(run)
    assert main(["train", "missing=0.9", "epochs=3", "flow=iresnet_mnist"]) == 0
    return Path(seen[0]["run_dir"])


@pytest.mark.parametrize("given", ["", runs.CHECKPOINT])
def test_resume(given, old_run, command):
    seen = command()
    assert main(["train", f"resume={old_run / given}", "epochs=7", "threads=2"]) == 0
    (cfg,) = seen
    assert cfg["run_dir"] == cfg["resume"] == str(old_run)
    assert (cfg["missing"], cfg["epochs"], cfg["threads"], cfg["flow"]["channels"]) == (0.9, 7, 2, 128)
    assert run_folders() == [old_run.relative_to(Path.cwd())]


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ("missing=0.5", "cannot be given with resume"),
        ("--multirun", "cannot be given with resume"),
        ("epochs=0", "epochs=0: must be"),
        ("epochs=[", "cannot read"),
    ],
)
def test_resume_refuses(extra, says, old_run, command, capsys):
    seen = command()
    assert main(["train", f"resume={old_run}", extra]) == 2
    assert says in one_line(capsys, "viscos train: ")
    assert not seen and (old_run / runs.CHECKPOINT).exists()


def test_a_run_that_lacks_a_setting_does_not_go_on(old_run, command, capsys):
    """What it did, nobody knows: the settings of today may stand for something else."""
    seen, cfg = command(), runs.load_config(old_run)
    for lacking in ("teach", "imputed_weight", "temper"):
        runs.save_config(old_run, {key: value for key, value in cfg.items() if key != lacking})
        assert main(["train", f"resume={old_run}"]) == 2
        says = f"is no run of `viscos train` that can go on: it does not set {lacking}"
        assert says in one_line(capsys, "viscos train: ") and not seen
    runs.save_config(old_run, {key: value for key, value in cfg.items() if key != "imputer"})
    assert main(["train", f"resume={old_run}"]) == 2
    assert "imputer is not set" in one_line(capsys, "viscos train: ") and not seen


def test_resume_refuses_a_file_that_it_would_not_go_on_from(old_run, command, capsys):
    seen = command()
    (old_run / "earlier.pt").write_text("another state")
    assert main(["train", f"resume={old_run / 'earlier.pt'}"]) == 2
    assert "goes on from the checkpoint.pt of its folder" in one_line(capsys, "viscos train: ") and not seen


def test_resume_without_settings(old_run, command, capsys):
    (old_run / runs.CONFIG).write_text("[")
    assert main(["train", f"resume={old_run}"]) == 2
    assert "cannot be read" in one_line(capsys, "viscos train: ")
    (old_run / runs.CONFIG).write_text("text")
    assert main(["train", f"resume={old_run}"]) == 2
    assert "holds no settings" in one_line(capsys, "viscos train: ")


def test_the_folder_above_runs_names_the_newest_run(old_run, capsys):
    assert main(["eval", "checkpoint=outputs/train"]) == 2
    assert f"did you mean 'outputs/train/{old_run.name}'?" in one_line(capsys, "viscos eval: ")


def test_overview(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"viscos {name}" in text or f"  {name}" in text for name in COMMANDS)
    assert main([]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name, capsys):
    assert main([name, "--help"]) == 0
    assert main([name, "missing=x", "-h"]) == 0
    text = capsys.readouterr().out
    for option in outline(name).options:
        assert f"  {option.name}=" in text and option.meaning in text
    for part in outline(name).parts:
        of_run = help._OF_RUN.get(part.name) if part.default == "null" else None
        assert all(f"      {choice}" in text for choice in (choices(part.name) if of_run is None else of_run))
    assert "--cfg job" in text and "outputs/" in text
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("viscos tr", ["train "]),
        ("viscos --v", ["--version "]),
        ("viscos --completion ", ["bash "]),
        ("viscos train datas", ["dataset="]),
        ("viscos train scale=", ["scale=paper "]),
        ("viscos table format=", ["format=markdown ", "format=latex ", "format=csv "]),
        ("viscos figure name=im", ["name=implicit "]),
        ("viscos train --multirun missing=0.5 dataset=m", ["dataset=mnist ", "dataset=moons "]),
        ("viscos train device=c", ["device=cpu ", "device=cuda "]),
        ("viscos train flow.w", ["flow.width="]),
        ("viscos train mask=center8 mask.", ["mask.size="]),
        ("viscos eval mask.", []),
        ("viscos impute checkpoint=", []),
        ("viscos train --m", ["--multirun "]),
        ("viscos train --cfg ", ["job "]),
        ("viscos nope x", []),
    ],
)
def test_completion(line, expected):
    assert shell.candidates(line) == expected


@pytest.mark.parametrize("line", ["viscos ", "viscos train dataset=", "viscos train mask=half mask.s"])
def test_completion_in_bash(line, tmp_path):
    """Bash itself, with its rule that = separates words."""
    script = tmp_path / "viscos"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m viscos "$@"\n')
    script.chmod(0o755)
    program = f"""
        source <("{script}" --completion bash)
        COMP_LINE="{line}"; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=("{script}")
        _viscos_complete; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    found = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    last = line.split(" ")[-1]
    prefix = last.partition("=")[0] + "=" if "=" in last else ""
    expected = [candidate.removeprefix(prefix) for candidate in shell.candidates(line)]
    assert expected and found.stdout.splitlines() == expected


def test_completion_knows_bash_only(capsys):
    assert main(["--completion", "zsh"]) == 2
    assert "bash only" in one_line(capsys, "viscos: ")


@pytest.mark.parametrize("setting", words.OWNERS)
def test_words_are_those_of_the_code(setting):
    """As it is when it is imported, which the command line does not wait for."""
    module, _, constant = words.OWNERS[setting].rpartition(".")
    found = getattr(importlib.import_module(module), constant)
    assert words.words(setting) == tuple(found) and len(found) > 1


def test_solvers_are_those_that_can_be_chosen():
    assert {*words.words("solvers"), choices_of.OWN} == set(choices("solver")) > {choices_of.OWN}
    assert all(choices_of.choice("solver", name, RootFinder) for name in words.words("solvers"))


def test_figures_are_the_drawings_that_there_are():
    drawings = [path.stem for path in Path(viscos.report.figures.drawings.__path__[0]).glob("[a-z]*.py")]
    assert sorted(words.figures()) == sorted(drawings)
    assert words.words("name") == ("2", "3", "4", "5", "digits", "comparison", "samples", "implicit", "density")
    for name, number in words.figures().items():
        assert number is None or figures.drawing(str(number)) is figures.drawing(name)


def python(code: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments, "-c", code], capture_output=True, text=True, timeout=60)


def closed_pipe() -> int:
    """The end of a pipe that is written to, of which nobody reads the other."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def test_a_reader_that_has_seen_enough_is_no_fault():
    command = [sys.executable, "-m", "viscos", "train", "--help"]
    done = subprocess.run(command, stdout=closed_pipe(), stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.slow
def test_work_goes_on_when_its_reader_has_left(tmp_path):
    """As in `viscos train … 2>&1 | head -1`."""
    words = ["experiment=debug", "max_steps=4", "threads=1", f"hydra.run.dir={tmp_path / 'run'}"]
    for command in (
        ["train", *words],
        ["impute", f"checkpoint={tmp_path / 'run'}", f"hydra.run.dir={tmp_path / 'new'}"],
    ):
        pipe = closed_pipe()
        whole = [sys.executable, "-m", "viscos", *command]
        done = subprocess.run(whole, stdout=pipe, stderr=pipe, timeout=240)
        assert done.returncode == 0
    assert (tmp_path / "run" / "metrics.json").exists() and (tmp_path / "new" / "completions.npz").exists()


def test_output_that_nobody_reads_is_no_fault():
    command = [sys.executable, "-m", "viscos", "--version"]
    done = subprocess.run(["sh", "-c", f"{shlex.join(command)} >&-"], stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.stderr, done.returncode) == ("", 0)


def test_help_imports_neither_torch_nor_hydra():
    code = "import sys, viscos.cli as c; c.main(['train', '-h']); print({'torch', 'hydra'} & set(sys.modules))"
    assert python(code).stdout.endswith("set()\n")


def test_settings_are_refused_before_torch_is_imported():
    code = "import sys, viscos.cli as c; print(c.main(['train', 'missing=2']), 'torch' in sys.modules)"
    assert python(code).stdout == "2 False\n"


def test_as_a_module():
    found = subprocess.run([sys.executable, "-m", "viscos", "--version"], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("viscos 0.")
    found = subprocess.run([sys.executable, "-m", "viscos", "nope"], capture_output=True, text=True)
    assert found.returncode == 2 and found.stderr.startswith("viscos: ")


EXAMPLES = [line for rows in help._EXAMPLES.values() for line, _ in rows] + [
    line for line, _ in help._OVERVIEW_EXAMPLES
]


@pytest.mark.parametrize("line", dict.fromkeys(EXAMPLES))
def test_examples_are_settings_that_are_taken(line, command, monkeypatch):
    """With names of one's own in the places that are written large; nothing else is changed."""
    monkeypatch.setattr(app, "_check_jobs", lambda *_: None)  # which composes each job once more, for the same verdict
    Path("run").mkdir()
    Path("run", runs.CHECKPOINT).touch()
    runs.save_config("run", {})
    shutil.copytree("run", "outputs/train/RUN")
    Path("outputs/impute/RUN").mkdir(parents=True)
    _, name, *arguments = line.replace("=RUN", "=run").replace("M.F", "module.function").replace("M:F", "m:f").split()
    if "checkpoint=F" in arguments:
        Path("F").touch()
    seen = command(name=name)
    if "resume" in line:
        main([name, *([f"checkpoint={Path('run').absolute()}"] if name == "impute" else [])])
        runs.save_config(f"outputs/{name}/RUN", seen.pop())
    assert main([name, *arguments]) == 0
    assert seen


@pytest.mark.parametrize("line", [line for line in dict.fromkeys(EXAMPLES) if "mask=" in line and "file" not in line])
def test_masks_of_examples_hide_a_part_of_digits(line):
    """Which is what the first example of the page trains on."""
    words = dict(word.split("=") for word in line.split() if word.startswith("mask"))
    settings = choices_of.description("mask", words.pop("mask")) | {
        k.removeprefix("mask."): v for k, v in words.items()
    }
    made = build({key: int(value) if str(value).isdigit() else value for key, value in settings.items()}, Mask)
    assert 0 < made((1, 8, 8), 1, 0, "test").float().mean() < 1


@pytest.mark.parametrize("part", [part.name for part in outline("train").parts if not overlays(part.name)])
def test_help_explains_every_setting_of_every_choice(part, capsys):
    for choice in choices(part):
        assert main(["train", f"{part}={choice}", "--help"]) == 0
        page = capsys.readouterr().out
        assert max(map(len, page.splitlines())) <= 120, page
        told = dict(re.findall(r"^  ([\w.]+)=\S.*?  +(\S.*)$", page, re.M))
        assert set(told) == leaves(part, choices_of.description(part, choice)), choice


def leaves(name, value):
    """The settings below a description, by their full names; what says its kind is none."""
    if not isinstance(value, dict):
        return {name}
    return {leaf for key in value if key not in ("_target_", "name") for leaf in leaves(f"{name}.{key}", value[key])}


def test_help_of_several_choices_and_of_none(capsys):
    assert main(["train", "--help", "dataset=mnist", "flow=glow", "seed=1"]) == 0
    mnist, glow = capsys.readouterr().out.split("\n\n")
    assert mnist.startswith("dataset=mnist\n28 × 28 digits\n  dataset.") and glow.startswith("flow=glow\n")
    assert main(["train", "--help", "flow=nothing"]) == 0
    assert capsys.readouterr().out == help.command("train") + "\n"


def test_help_offers_what_a_command_takes():
    """`viscos impute` has its flow from the run, or from another library."""
    page = help.command("impute")
    assert "      foreign  " in page and "      glow " not in page and "flow.width" not in page
    assert "      moons " not in page and "flow.width=64" in help.command("train")


def test_help_is_a_page_without_trailing_blanks():
    for page in (help.overview(), *map(help.command, COMMANDS)):
        assert all(line == line.rstrip() for line in page.splitlines())


@pytest.mark.parametrize(
    "words",
    [
        ("train", "missing=2"),  # before the command begins
        ("train", "max_steps=2"),  # by the command, which finds files that are not its own
        ("eval", "checkpoint=none"),
    ],
)
def test_a_refusal_removes_nothing_that_was_there(words, capsys):
    Path("mine/tensorboard").mkdir(parents=True)
    Path("mine/tensorboard/events").write_text("precious")
    Path("mine/config.yaml").write_text("mine: true")
    assert main([*words, "hydra.run.dir=mine"]) == 2
    one_line(capsys, f"viscos {words[0]}: ")
    assert Path("mine/tensorboard/events").read_text() == "precious"
    assert Path("mine/config.yaml").read_text() == "mine: true"
    assert {path.name for path in Path("mine").iterdir()} == {"tensorboard", "config.yaml"}
    if words[-1] != "max_steps=2":
        assert main([*words, "hydra.run.dir=new"]) == 2 and not Path("new").exists()
