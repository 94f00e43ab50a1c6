"""Code of one's own: named on the command line or in a folder of settings, and never by a checkpoint alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import viscos
import viscos.configs
from viscos.cli import main
from viscos.core.errors import InputError
from viscos.runs import checkpoint

ROOT = Path(viscos.__path__[0]).resolve()

OWN = '''
import torch
from torch import nn

from viscos.data.masks import Mask
from viscos.data.vectors import Vectors
from viscos.flows import ClosedForm, Flow
from viscos.flows.layers.start import first_layers
from viscos.imputers import Imputer
from viscos.posteriors import Diagonal
from viscos.roots import anderson


class Ripple(ClosedForm):
    def __init__(self, shape):
        super().__init__()
        self.size = nn.Parameter(torch.zeros(shape))

    def _slope(self, y):
        return 1 + torch.tanh(self.size) * torch.cos(y)

    def forward(self, y):
        return y + torch.tanh(self.size) * torch.sin(y)

    def forward_and_ladj(self, y, generator=None):
        return self(y), self._slope(y).log().flatten(1).sum(1)


def ripple(shape, *, layers=4):
    return Flow([*first_layers("standardise", tuple(shape)), *[Ripple(shape) for _ in range(layers)]], shape)


def dots(split, *, items=40):
    g = torch.Generator().manual_seed(int(split == "train"))
    return Vectors("dots", torch.randn(items, 3, generator=g), None, 0)


class Narrow(Diagonal):
    """Starts at a scale of its own."""

    def __init__(self, like, scale=-1.0):
        super().__init__(like)
        nn.init.constant_(self.log_scale, scale)


class First(Mask):
    def __init__(self, count):
        self.count = count

    def __call__(self, shape, n, seed, split):
        observed = torch.ones(n, *shape, dtype=torch.bool)
        observed[::2, : self.count] = False
        return observed


def patient(budget=77):
    return anderson(budget=budget)


def hostile(path):
    open(path, "w").close()
'''
DEBUG = ("experiment=debug", "threads=1", "imputers=[]")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A package in the current folder, which, as with the installed command, the import path does not have."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", ".", str(tmp_path))])
    Path("mypkg").mkdir()
    Path("mypkg/__init__.py").write_text("")
    Path("mypkg/parts.py").write_text(OWN)
    yield
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "mypkg"]:
        del sys.modules[name]


def only(pattern: str) -> Path:
    (found,) = Path().glob(pattern)
    return found


def refused(capsys, *words: str) -> str:
    capsys.readouterr()
    forget()
    assert main([*words]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "mypkg" not in sys.modules, "it must not even be imported"
    return line


def test_a_flow_and_data_of_ones_own(own, capsys):
    flow = ("flow._target_=mypkg.parts.ripple", "flow.layers=2")
    data = ("dataset._target_=mypkg.parts.dots", "dataset.items=30", "dataset.noise=0.1")
    assert main(["train", *DEBUG, "missing=0.3", *flow, *data]) == 0
    run = only("outputs/train/*")
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert saved["flow"] == {"_target_": "mypkg.parts.ripple", "layers": 2}
    assert saved["dataset"]["items"] == 30 and saved["dataset"]["name"] == "mypkg.parts.dots"
    assert json.loads((run / "metrics.json").read_text())["dataset"] == "mypkg.parts.dots"

    impute = ("impute", f"checkpoint={run}", "threads=1", "steps=2", "items=3", "draws=2")
    line = refused(capsys, *impute)
    assert line == (
        "viscos impute: mypkg.parts.ripple is code outside viscos, which would be run; "
        "if you trust it, say allow=mypkg.parts.ripple, or its package\n"
    )
    assert main([*impute, "allow=mypkg.parts.ripple"]) == 2
    assert "say allow=mypkg.parts.dots" in capsys.readouterr().err
    assert "say allow=mypkg.parts.ripple" in refused(capsys, "eval", f"checkpoint={run}", "threads=1")
    assert "say allow=mypkg.parts" in refused(capsys, "train", f"resume={run}", "max_steps=3")
    with pytest.raises(InputError, match=r"allow=mypkg\.parts\.ripple"):
        viscos.load(run)

    assert main([*impute, "allow=mypkg"]) == 0
    with np.load(only("outputs/impute/*/completions.npz")) as file:
        assert file["draws"].shape == (2, 3, 3) and np.isfinite(file["draws"]).all()
    few = ("threads=1", "imputers=[]", "draws=2", "calibration=false")
    assert main(["eval", f"checkpoint={run}", *few, "allow=[mypkg.parts]"]) == 0
    assert main(["train", f"resume={run}", "max_steps=3", "allow=mypkg"]) == 0
    assert json.loads((run / "metrics.json").read_text())["steps"] == 3
    assert type(viscos.load(run, allow=["mypkg"]).model.flow.layers[1]).__name__ == "Ripple"
    assert "say allow=" in refused(capsys, "train", f"resume={run}", "max_steps=4"), "a run's own file allows nothing"


def test_what_a_checkpoint_names_beside_what_was_allowed(own, capsys):
    """Its name was not given, so nothing is imported; where it was, its kind must fit."""
    assert main(["train", *DEBUG, "flow=planar", "dataset=moons", "missing=0.3"]) == 0
    run = only("outputs/train/*")
    state = checkpoint.load(run / "checkpoint.pt")
    state["config"]["flow"] = {"_target_": "mypkg.parts.hostile", "path": "victim"}
    checkpoint.save(run / "checkpoint.pt", state)
    assert "say allow=mypkg.parts.hostile" in refused(capsys, "eval", f"checkpoint={run}", "allow=mypkg.parts.ripple")
    line = refused(capsys, "eval", f"checkpoint={run}", "solver._target_=mypkg.parts.patient")
    assert "say allow=mypkg.parts.hostile" in line, "the name of a solver is not that of a flow"
    assert not Path("victim").exists()


def test_settings_of_ones_own(own, capsys):
    """A folder of YAML files beside those of viscos."""
    for part, text in {
        "flow/ripple": "_target_: mypkg.parts.ripple\nlayers: 3\n",
        "dataset/dots": "_target_: mypkg.parts.dots\nname: dots\nitems: 20\nnoise: 0.0\nepochs: 1\n",
        "mask/first": "_target_: mypkg.parts.First\ncount: 1\n",
        "posterior/narrow": "_target_: mypkg.parts.Narrow\nscale: -2.0\n",
        "solver/patient": "_target_: mypkg.parts.patient\nbudget: 50\n",
    }.items():
        Path("settings", part).parent.mkdir(parents=True, exist_ok=True)
        Path("settings", f"{part}.yaml").write_text(text)
    chosen = ("flow=ripple", "flow.layers=1", "dataset=dots", "mask=first", "solver=patient", "solver.budget=40")
    assert main(["train", *DEBUG, "--config-dir", "settings", *chosen]) == 0
    run = only("outputs/train/*")
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert saved["flow"]["layers"] == 1 and saved["solver"]["budget"] == 40
    words = (f"checkpoint={run}", "threads=1", "steps=1", "items=2", "draws=2", "posterior=narrow", "allow=mypkg")
    assert main(["impute", "--config-dir", "settings", *words]) == 0
    with np.load(only("outputs/impute/*/completions.npz")) as file:
        assert file["observed"].tolist() == [[False, True, True], [True, True, True]]
    record = json.loads(only("outputs/impute/*/metrics.json").read_text())
    assert record["fit"]["posterior"] == "Narrow"
    capsys.readouterr()
    assert main(["train", *DEBUG, *chosen]) == 2
    assert "there is no such choice" in capsys.readouterr().err


WRONG = [
    ("flow._target_=mypkg.parts.nothing", "mypkg.parts has no 'nothing'"),
    ("flow._target_=mypkg.nowhere.flow", "there is no module 'mypkg.nowhere'"),
    ("flow._target_=mypkg.parts.ripple flow.depth=3", "got an unexpected keyword argument 'depth'"),
    ("flow._target_=mypkg.parts.patient", "returned a Fallback, not a Flow"),
    ("flow=own", "flow._target_"),
    ("dataset._target_=mypkg.parts.patient", "returned a Fallback; return"),
    ("dataset._target_=mypkg.parts.dots dataset.noise=x", "dataset.noise=x: must be"),
    ("dataset._target_=mypkg.parts.dots dataset.size=3", "unexpected keyword argument 'size'"),
]


@pytest.mark.parametrize(("words", "says"), WRONG, ids=[words for words, _ in WRONG])
def test_mistakes_are_one_line(words, says, own, capsys):
    data = () if "dataset" in words else ("dataset=moons",)
    assert main(["train", *DEBUG, *data, *words.split()]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and says in line, line
    assert not Path("outputs").exists()


ADDED = {
    "viscos/flows/families/ripple.py": '''
"""Ripples."""
from viscos.flows import Flow, planar

def ripple(shape, *, layers: int = 2) -> Flow:
    return planar(shape, layers=layers)
''',
    "viscos/configs/flow/ripple.yaml": "# ripples\n_target_: viscos.flows.families.ripple.ripple\nlayers: 2\n",
    "viscos/roots/methods/patient.py": '''
"""Anderson with patience."""
from viscos.roots import RootFinder, anderson

def patient(budget: int = 77) -> RootFinder:
    return anderson(budget=budget)
''',
    "viscos/configs/solver/patient.yaml": "# patience\n_target_: viscos.roots.methods.patient.patient\nbudget: 66\n",
    "viscos/posteriors/narrow.py": '''
"""Diagonal."""
from viscos.posteriors import Diagonal

class Narrow(Diagonal):
    pass
''',
    "viscos/configs/posterior/narrow.yaml": "# narrow\n_target_: viscos.posteriors.narrow.Narrow\n",
    "viscos/data/sources/bars.py": '''
"""Bars."""
import torch
from viscos.data.images import Images

def bars(split: str, *, size: int = 6) -> Images:
    values = torch.rand(12, 1, size, size, generator=torch.Generator().manual_seed(0))
    return Images("bars", values, None, 0)
''',
    "viscos/configs/dataset/bars.yaml": (
        "# bars\n_target_: viscos.data.sources.bars.bars\nname: bars\nsize: 5\nnoise: 0.01\nepochs: 1\n"
    ),
    "viscos/report/figures/drawings/strip.py": '''
"""Figure: a strip of draws."""
from matplotlib.figure import Figure
from viscos.report.figures.page import panels, shown
from viscos.report.figures.source import Source

RECIPE = "viscos impute checkpoint=<training>"

def draw(source: Source) -> Figure:
    return panels([[("", shown(source.completed().draws[0])[0])]])
''',
}


@pytest.mark.slow
def test_a_part_is_two_files_and_a_figure_is_one(tmp_path):
    """In a copy of the package, on which nothing else is changed: train, impute, time and draw with what was added."""
    pytest.importorskip("matplotlib")
    copy = tmp_path / "copy"
    shutil.copytree(ROOT, copy / "viscos", ignore=shutil.ignore_patterns("__pycache__", "configs"))
    shutil.copytree(Path(viscos.configs.__path__[0]), copy / "viscos/configs")  # beside the package in a source tree
    for name, text in ADDED.items():
        assert not (copy / name).exists()
        (copy / name).write_text(text)
    code = """
import sys, glob
from viscos.cli import main, shell, words
sys.argv = ["viscos"]
def run(*words):
    assert main([*words]) == 0, words
    return max(glob.glob(f"outputs/{words[0]}/*"))
parts = "flow=ripple", "dataset=bars", "solver=patient"
trained = run("train", "experiment=debug", "threads=1", "imputers=[]", *parts, "missing=0.3")
done = run("impute", f"checkpoint={trained}", "threads=1", "steps=1", "items=2", "draws=2", "posterior=narrow")
small = "rates=[0.5]", "center=0", "items=2", "repeats=1", "threads=1"
run("bench", f"checkpoint={trained}", "solvers=[patient]", *small)
run("figure", "name=strip", f"run={done}")
assert glob.glob("outputs/figure/*/figure_strip.pdf")
assert "name=strip " in shell.candidates("viscos figure name=")
import torch, viscos
from viscos.data.sources.registry import load
assert load("bars", "train").shape == (1, 6, 6)
flow = viscos.load(trained).model.flow
q = viscos.condition(flow, torch.rand(1, 1, 5, 5), torch.rand(1, 5, 5) < 0.5, posterior="narrow", solver="patient")
assert type(q.posterior).__name__ == "Narrow" and q.objective.solver.first.budget == 66
print("all of it")
"""
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(copy), "PATH": "", "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0 and "all of it" in found.stdout, found.stderr
