"""Settings that change nothing are refused or said, and so is how much is hidden."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from viscos.cli import main
from viscos.cli.outline import outline
from viscos.cli.validate import RULES
from viscos.commands.assemble.benching import _center
from viscos.commands.assemble.idle import of_another_imputer, of_completing, of_fitting, of_input, of_training, said
from viscos.commands.report import hidden_share
from viscos.core.errors import InputError

DEBUG = ("experiment=debug", "threads=1", "test_items=4")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Each test has an empty folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run whose network is the usual one."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        assert main(["train", *DEBUG, "flow.width=4", "flow.steps=2", "posterior.width=4", "rounds=1"]) == 0
    return next((folder / "outputs/train").iterdir())


def refused(capsys, *words: str) -> str:
    capsys.readouterr()
    assert main(list(words)) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


def idle(capsys) -> str:
    """What is said to be without effect."""
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("without effect here: ")]
    return lines[0].removeprefix("without effect here: ") if lines else ""


IMPUTE = ("items=2", "draws=1", "proposals=0", "threads=1")


def test_another_network_than_the_runs_is_refused(trained, capsys):
    run = ("impute", f"checkpoint={trained}", *IMPUTE)
    says = "network was trained with another posterior.channels, null; posterior=amortised takes it as it is"
    assert says in refused(capsys, *run, "posterior=amortised_paper")
    assert "another posterior.width, 4;" in refused(capsys, *run, "posterior=amortised", "posterior.width=64")
    held_out = ("posterior=amortised", "posterior.width=4", "posterior.held_out=0.3")
    assert "another posterior.held_out, 0.2;" in refused(capsys, *run, *held_out)
    assert main([*run, "posterior=amortised"]) == 0, "the remedy"
    assert "another posterior.corrects, True;" in refused(
        capsys, *run, "posterior=amortised", "posterior.width=4", "posterior.corrects=false"
    )
    assert main([*run, "posterior=amortised", "posterior.width=4"]) == 0, "what it has may be said"


def test_a_run_whose_phases_would_be_others_is_refused_in_words(trained, capsys):
    says = "lengths are settled when it begins; leave out epochs, max_steps, temper"
    for other in ("temper=0", "max_steps=1"):
        assert says in refused(capsys, "train", f"resume={trained}", other)


def test_settings_of_a_fit_without_one_are_said(trained, capsys):
    run = ("impute", f"checkpoint={trained}", *IMPUTE)
    assert main([*run, "learning_rate=0.1", "lad=clade", "posterior.reflections=3"]) == 0
    no_fit = "there is no fit; steps=200 makes one"
    network = "the run's network is taken; steps=200 fits one"
    assert idle(capsys) == f"learning_rate ({no_fit}), lad ({no_fit}), posterior.reflections ({network})"
    assert main([*run, "learning_rate=0.1", "lad=clade", "posterior.reflections=3", "steps=1", "samples=1"]) == 0
    assert idle(capsys) == "", "with the remedy all have an effect"
    assert main([*run, "denoise=false"]) == 0
    assert idle(capsys) == ""
    assert main([*run, "denoise=false", "imputer=flower", "imputer.steps=1"]) == 0
    assert "denoise" not in idle(capsys), "its draws are of the flow"
    assert main([*run, "denoise=false", "imputer=gaussian"]) == 0
    assert "denoise (only draws of the flow carry its noise)" in idle(capsys)


def test_settings_of_another_way_of_training_are_said(capsys):
    words = ("train", *DEBUG, "flow=iresnet", "flow.blocks=[1]", "flow.channels=4", "draws=1")
    assert main([*words, "rounds=3", "teach_masks=any", "denoise=false", "pretrain=0", "lad.probes=2"]) == 0
    assert idle(capsys) == (
        "rounds (for regression on data with holes), teach_masks (only regression has masks to teach under), "
        "denoise (this flow has no noise to take off)"
    )
    (run,) = Path("outputs/train").iterdir()
    assert "given" not in (run / "config.yaml").read_text() and "given" not in (run / "metrics.json").read_text()
    assert main(["train", f"resume={run}", "temper=2"]) == 0
    assert idle(capsys) == "temper (for regression on data with holes)", "also when a run goes on"
    assert main([*words, "missing=0", "teach=none", "lad=clade", "posterior.width=8", "pretrain=1"]) == 0
    assert idle(capsys) == (
        "lad (only the bound has its gradient), posterior.width (teach=none trains no inference network), "
        "pretrain (no held-out entries teach)"
    )


def test_vectors_have_no_classes_and_are_not_squeezed(capsys):
    words = ("train", *DEBUG, "dataset=pinwheel", "dataset.items=60", "flow=iresnet", "flow.blocks=[1]", "draws=1")
    assert main([*words, "flow.first_squeeze=false", "classifier=latents"]) == 0
    assert "flow.first_squeeze (vectors are not squeezed)" in idle(capsys)


def test_a_part_is_said_by_its_own_settings_too():
    assert said(["lad", "lad.probes", "ladder"], {"lad": "no"}) == "without effect here: lad (no), lad.probes (no)"
    assert said(["lad"], {}) is None


class Stand:
    """A trainer, as far as its model and data decide what has an effect."""

    def __init__(self, shape=(1, 8, 8), *, holds_out=True, classifier=True, denoises=True, matched=True, tempers=True):
        self.data = SimpleNamespace(shape=shape)
        flow, kept = (
            SimpleNamespace(can_denoise=denoises, trained_by_matching=matched),
            object() if classifier else None,
        )
        network = SimpleNamespace(tempers=tempers, regressed=tempers)
        self.model = SimpleNamespace(flow=flow, posterior=network, holds_out=holds_out, classifier=kept)


@pytest.mark.parametrize(
    ("changed", "hides", "stand", "idle"),
    [
        ({}, True, {}, set()),
        ({"teach": "bound"}, True, {}, {"teach_masks", "rounds", "redraw", "temper", "imputed_weight"}),
        ({"teach": "regression"}, True, {}, {"lad"}),
        ({"teach": "none"}, True, {}, {"teach_masks", "posterior", "lad"}),
        ({}, False, {}, {"rounds", "redraw", "temper", "imputed_weight", "posterior.held_out"}),
        ({}, True, {"holds_out": False}, {"pretrain"}),
        ({}, True, {"holds_out": False, "tempers": False}, {"pretrain", "temper", "posterior.corrects"}),
        ({"rounds": 0}, True, {}, {"redraw"}),
        ({"rounds": 0}, True, {"matched": False}, {"redraw", "imputed_weight"}),
        ({"posterior": {"channels": [8]}}, True, {}, {"posterior.width"}),
        ({"flow": {"steps": 1}}, True, {}, {"flow.grid"}),
        ({}, True, {"classifier": False}, {"classifier"}),
        ({}, True, {"matched": False}, {"imputed_weight"}),
        ({}, True, {"tempers": False}, {"temper"}),
        ({}, True, {"matched": False, "tempers": False}, {"imputed_weight", "temper"}),
        ({}, True, {"shape": (2,)}, {"flow.first_squeeze"}),
        ({"dataset": {"noise": 0}}, True, {}, {"denoise"}),
        ({"dataset": {"noise": "uniform"}}, True, {}, {"denoise"}),
        ({}, True, {"denoises": False}, {"denoise"}),
        ({"dataset": {"noise": 0.1, "learning_rate": 0.003}}, True, {}, set()),
        ({"dataset": {"noise": 0.1, "learning_rate": 0.006}}, True, {}, {"dataset.learning_rate"}),
    ],
)
def test_what_has_no_effect_on_a_training(changed, hides, stand, idle):
    cfg = {
        "teach": "both",
        "rounds": 2,
        "posterior": {},
        "flow": {"steps": 8},
        "dataset": {"noise": 0.1},
        "learning_rate": 0.003,
    }
    cfg |= changed
    assert of_training(cfg, Stand(**stand), hides).keys() == idle


@pytest.mark.parametrize(
    ("fitted", "free", "idle"),
    [
        (False, True, {"learning_rate", "samples", "lad", "posterior"}),
        (False, False, {"learning_rate", "samples", "lad"}),
        (True, True, set()),
    ],
)
def test_what_has_no_effect_on_completions(fitted, free, idle):
    assert of_completing(Stand().model, 0.1, fitted=fitted, free=free).keys() == idle
    assert "denoise" in of_completing(Stand().model, 0.0, fitted=fitted, free=free)


def test_what_another_imputer_leaves_alone():
    """Every setting has an effect on it or is said to have none; what is said is a setting."""
    learning = (
        "allow batch_size dataset device devices draws experiment gaussian_floor imputer imputers inception log_every "
        "mask metrics missing precision resume scale seed test_items threads train_items verbosity"
    )
    completing = (
        "allow batch_size check checkpoint dataset decimal delimiter denoise device devices draws encoding flow holes "
        "imputer input items mask missing overwrite refine resume seed thousands threads verbosity window"
    )
    for command, taken, found in (("train", learning, of_fitting()), ("impute", completing, of_another_imputer())):
        page = outline(command)
        names = {item.name for item in (*page.options, *page.parts)}
        assert {name for name in found if "." not in name} == names - set(taken.split())
        assert {*taken.split()} | found.keys() <= names | RULES.keys()


def test_two_rates_are_refused(capsys):
    assert "missing=0.3 and mask.missing=0.6 are two rates" in refused(
        capsys, "train", *DEBUG, "missing=0.3", "mask.missing=0.6"
    )


# -------------------------------------------------------------------------------------------------- how much is hidden


def test_the_share_that_is_hidden():
    observed = torch.ones(4, 1, 2, 2, dtype=torch.bool)
    observed[0], observed[1, 0, 0] = False, False
    assert hidden_share(observed, "items") == (
        "items: 37.5 % of the entries are hidden; 2 of 4 are without a hole; 1 of 4 is hidden entirely"
    )
    assert hidden_share(~torch.zeros(2, 3, dtype=torch.bool), "items").endswith("0 % of the entries are hidden; "
                                                                               "all are without a hole")  # fmt: skip
    assert hidden_share(observed[1:2], "items") == "items: 50 % of the entries are hidden"


def test_commands_say_how_much_is_hidden(trained, capsys):
    """A centre of 8 × 8 hides all of the digits."""
    everything = "100 % of the entries are hidden; all are hidden entirely"
    assert main(["impute", f"checkpoint={trained}", *IMPUTE, "mask=center8", "steps=1"]) == 0
    assert f"items: {everything}" in capsys.readouterr().out.splitlines()
    words = "items=3", "threads=1", "mask=center8", "mask.size=4", "calibration=false"
    assert main(["eval", f"checkpoint={trained}", *words]) == 0
    assert "test items: 25 % of the entries are hidden" in capsys.readouterr().out.splitlines()
    assert main(["train", *DEBUG, "flow=iresnet", "flow.blocks=[1]", "draws=1", "missing=0.2"]) == 0
    shares = re.findall(r"^(train|test) items: ([\d.]+) % of the entries are hidden$", capsys.readouterr().out, re.M)
    assert {split: round(float(share), -1) for split, share in shares} == {"train": 20, "test": 20}


# --------------------------------------------------------------------------------------------------------------- bench


@pytest.mark.parametrize(
    ("asked", "shape", "side"),
    [(None, (1, 8, 8), 4), (None, (3, 32, 32), 8), (None, (1, 28, 28), 8), (None, (1, 9, 3), 1), (None, (5,), 0),
     (0, (5,), 0), (0, (1, 8, 8), 0), (7, (1, 8, 8), 7)],
)  # fmt: skip
def test_a_hidden_centre_leaves_a_part(asked, shape, side):
    assert _center(asked, shape) == side


@pytest.mark.parametrize(
    ("asked", "shape", "says"),
    [(8, (1, 8, 8), "center=8 hides all of 8 × 8 pixels; give 1 to 7, or 0"), (2, (5,), "these are vectors; leave it")],
)
def test_a_hidden_centre_that_does_nothing_or_all(asked, shape, says):
    with pytest.raises(InputError, match=says):
        _center(asked, shape)


@pytest.mark.parametrize("given", ["flow=realnvp", "flow.channels=3", "dataset=mnist", "dataset.noise=0.1"])
def test_a_bench_of_a_checkpoint_takes_no_other_flow_or_data(given, trained, capsys):
    line = refused(capsys, "bench", f"checkpoint={trained}", given, "threads=1")
    assert "is measured where there is no checkpoint; leave it out" in line


def test_what_is_for_other_items_is_said():
    given = ["window", "decimal", "seed"]
    assert said(given, of_input(pictures=True, table=False, holes=False)) == "without effect here: decimal (for tables)"
    for holes, more in ((True, ""), (False, ", check (for a table with holes of its own, and no mask)")):
        line = said([*given, "check"], of_input(pictures=False, table=True, holes=holes))
        assert line == f"without effect here: window (for pictures){more}"
