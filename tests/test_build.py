"""Objects from descriptions, which may come from a stranger's checkpoint."""

from __future__ import annotations

import sys
from typing import Protocol

import pytest
import torch

import viscos
from viscos.cli import main
from viscos.core.build import allowing, build
from viscos.core.errors import InputError
from viscos.data.items import Data
from viscos.data.mask_files import save_masks
from viscos.data.masks import CenterMask, Mask
from viscos.flows import Flow, Series
from viscos.logdet import Exact, LogDetEstimator
from viscos.posteriors import Householder, PerItem, Posterior
from viscos.roots import RootFinder
from viscos.runs import checkpoint

IRESNET = {"_target_": "viscos.flows.iresnet", "blocks": [1], "channels": 4}


def test_a_description_inside_another():
    series = {"_target_": "viscos.flows.Series", "terms": 3}
    flow = build(IRESNET | {"series": series}, Flow, (2,))
    assert flow.shape == (2,)
    assert next(layer.series for layer in flow.layers if hasattr(layer, "series")) == Series(terms=3)


def test_arguments_from_the_caller():
    posterior = build({"_target_": "viscos.posteriors.Householder", "reflections": 3}, PerItem, torch.zeros(2, 4))
    assert isinstance(posterior, Householder) and posterior.vectors.shape == (2, 3, 4)
    assert build({"_target_": "viscos.data.masks.CenterMask"}, Mask, size=3) == CenterMask(3)


def test_protocols_are_kinds():
    assert build({"_target_": "viscos.logdet.Exact"}, LogDetEstimator) == Exact()
    assert build({"_target_": "viscos.roots.paper"}, RootFinder).tolerance == 1e-3


class Anything(Protocol):
    """What says nothing of itself."""

    __module__ = "viscos.flows.anything"


def test_a_protocol_that_names_nothing_is_no_kind():
    with pytest.raises(InputError, match="neither is an Anything"):
        build({"_target_": "viscos.flows.planar"}, Anything, (2,))


REFUSED = {
    "os.system": "os.system is code outside viscos, which would be run; if you trust it, say allow=os.system",
    "builtins.eval": "code outside viscos",
    "torch.load": "code outside viscos",
    "viscosity.flows.iresnet": "code outside viscos",
    "viscos.flowsy.iresnet": "must be a public name in viscos.flows",
    "viscos.runs.discard_if_empty": "must be a public name in viscos.flows",
    "viscos.cli.main": "must be a public name in viscos.flows",
    "viscos.__main__.main": "must be a public name in viscos.flows",
    "viscos.core.build.build": "must be a public name in viscos.flows",
    "viscos.data.masks.CenterMask": "must be a public name in viscos.flows",  # a mask in the place of a flow
    "viscos.roots.anderson": "must be a public name in viscos.flows",
    "": "must be a public name in viscos.flows",
    "iresnet": "must be a public name in viscos.flows",
    "viscos.flows.nothing": "has no 'nothing'",
    "viscos.flows.nothing.more": "there is no module 'viscos.flows.nothing'",
    "viscos.flows.chain.torch": "neither is",  # what a module imports is not its own
    "viscos.flows.chain.torch.load": "there is no module",
    "viscos.flows.foreign.foreign.anderson": "neither is",
    "viscos.flows.iresnet.__globals__": "must be a public name",
    "viscos.flows.flow.Flow.__init__": "must be a public name",
    "viscos.flows.__doc__": "must be a public name",
    "viscos.flows.layers.residual": "neither is",
    "viscos.flows.Series": "neither is",  # a part of a flow in the place of a flow
    "viscos.flows.Whitening": "neither is",
    "viscos.flows.foreign.examine.examine": "neither is",
    "viscos.flows.foreign.libraries.source_of": "neither is",
}


@pytest.mark.parametrize("target", REFUSED)
def test_only_what_makes_a_flow_is_called(target):
    before = set(sys.modules)
    with pytest.raises(InputError, match=REFUSED[target]) as caught:
        build({"_target_": target}, Flow)
    assert "\n" not in str(caught.value)
    assert all(name.startswith("viscos.") for name in set(sys.modules) - before), "nothing else is imported"


@pytest.mark.parametrize("target", [*REFUSED, "viscos.flows.planar", "viscos.flows.Flow"])
def test_inside_a_flow_only_its_parts(target):
    if target == "viscos.flows.Series":
        return
    with pytest.raises(InputError):
        build(IRESNET | {"series": {"_target_": target}}, Flow, (2,))


def test_a_flow_of_elsewhere_that_a_module_imports(monkeypatch):
    elsewhere = type("Elsewhere", (Flow,), {"__module__": "elsewhere"})
    monkeypatch.setattr(sys.modules["viscos.flows.families.planar"], "Elsewhere", elsewhere, raising=False)
    with pytest.raises(InputError, match="neither is"):
        build({"_target_": "viscos.flows.families.planar.Elsewhere"}, Flow)


MASKS = ["save_masks", "load_masks", "any_masks", "mask_hash", "np", "Path", "SIDES", "_read", "atomic", "Shape"]


@pytest.mark.parametrize("name", MASKS)
def test_of_the_masks_only_their_makers_are_called(name):
    with pytest.raises(InputError, match="_target_ is"):
        build({"_target_": f"viscos.data.masks.{name}"}, Mask)


def test_data_sets_are_no_masks():
    with pytest.raises(InputError, match="neither is"):
        build({"_target_": "viscos.data.sources.toys.moons", "split": "train"}, Mask)
    assert len(build({"_target_": "viscos.data.sources.toys.moons", "split": "train", "items": 10}, Data)) == 10


@pytest.mark.parametrize("place", ["series", "start", "flow", "posterior"])
def test_a_checkpoint_writes_no_file(place, tmp_path, monkeypatch, capsys):
    """`save_masks` in each place of a checkpoint where something is built, or a plain value stands."""
    monkeypatch.chdir(tmp_path)
    victim = tmp_path / "victim.npz"
    victim.write_text("mine")
    attack = {"_target_": "viscos.data.mask_files.save_masks", "path": str(victim), "observed": torch.ones(2).bool()}
    config = {"flow": IRESNET, "posterior": {"_target_": "viscos.posteriors.Amortised"}, "classifier": "completions"}
    config = config | {place: attack} if place in config else config | {"flow": IRESNET | {place: attack}}
    posterior = {} if place == "posterior" else None
    state = {"config": config, "shape": [2], "classes": 0, "parts": {"flow": {}, "posterior": posterior}}
    checkpoint.save("run.pt", state)
    with pytest.raises(InputError, match="save_masks"):
        viscos.load("run.pt")
    assert main(["eval", "checkpoint=run.pt", "threads=1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert victim.read_text() == "mine"
    save_masks(victim, torch.ones(2).bool())
    assert victim.read_bytes()[:2] == b"PK", "the attack would have written"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A package of somebody's own in the current folder, which the import path does not have."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", ".")])
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text(
        "from shutil import rmtree\n"
        "from viscos.flows import Series, planar\n\n\n"
        "def flow(shape):\n    return planar(shape)\n\n\n"
        "def series():\n    return Series(5)\n"
    )
    (tmp_path / "own_package" / "broken.py").write_text("import nowhere_at_all\n")
    yield "own_package"
    for name in [name for name in sys.modules if name.split(".")[0] == "own_package"]:
        del sys.modules[name]


def test_code_of_ones_own_is_run_if_it_was_allowed(own):
    spec = {"_target_": f"{own}.flow"}
    with pytest.raises(InputError, match=f"allow={own}.flow"):
        build(spec, Flow, (3,))
    assert own not in sys.modules, "it was not even imported"
    for name in (own, f"{own}.flow"):
        with allowing([name]):
            before = list(sys.path)
            assert build(spec, Flow, (3,)).shape == (3,)
            assert sys.path == before
    with pytest.raises(InputError, match="allow="):
        build(spec, Flow, (3,))


@pytest.mark.parametrize("name", ["viscos", "viscos.data", "own", "own_package.fl", "own_package.flow.more"])
def test_other_names_allow_nothing(name, own):
    with allowing([name]):
        with pytest.raises(InputError, match="allow="):
            build({"_target_": f"{own}.flow"}, Flow, (3,))
        with pytest.raises(InputError, match="must be a public name"):
            build({"_target_": "viscos.data.mask_files.save_masks"}, Flow)


def test_what_an_allowed_module_imports_is_not_allowed(own, tmp_path):
    (tmp_path / "kept").mkdir()
    with allowing([own]), pytest.raises(InputError, match="does not define"):
        build({"_target_": f"{own}.rmtree", "path": str(tmp_path / "kept")}, Flow)
    assert (tmp_path / "kept").is_dir()


def test_code_of_ones_own_has_its_kind_too(own):
    with allowing([own]):
        with pytest.raises(InputError, match=r"own_package.series returned a Series, not a Flow"):
            build({"_target_": f"{own}.series"}, Flow)
        flow = build(IRESNET | {"series": {"_target_": f"{own}.series"}}, Flow, (2,))
        assert next(layer.series for layer in flow.layers if hasattr(layer, "series")) == Series(5)
        with pytest.raises(InputError, match="has no 'nothing'"):
            build({"_target_": f"{own}.nothing"}, Flow)
        with pytest.raises(InputError, match=r"there is no module 'own_package.no'; it is looked for in"):
            build({"_target_": f"{own}.no.flow"}, Flow)
        with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):  # a bug of theirs, with its traceback
            build({"_target_": f"{own}.broken.flow"}, Flow)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"_target_": "viscos.data.masks.CenterMask", "sise": 3}, "unexpected keyword argument 'sise'"),
        ({"_target_": "viscos.data.masks.RandomMask"}, "missing a required argument: 'missing'"),
        ({"_target_": "viscos.data.masks.RandomMask", "missing": None}, "missing is None"),
        ({"size": 3}, "must be a public name"),
    ],
)
def test_wrong_arguments_are_one_line(spec, says):
    with pytest.raises(InputError, match=says) as caught:
        build(spec, Mask)
    assert "\n" not in str(caught.value)


def test_a_bug_inside_is_not_bad_input():
    with pytest.raises(TypeError):
        build({"_target_": "viscos.flows.iresnet", "coefficient": "high"}, Flow, (2,))


def test_every_kind_has_its_place():
    for kind, target in (
        (Flow, "viscos.posteriors.Full"),
        (Posterior, "viscos.flows.planar"),
        (Mask, "viscos.roots.auto"),
    ):
        with pytest.raises(InputError, match="must be a public name"):
            build({"_target_": target}, kind)
