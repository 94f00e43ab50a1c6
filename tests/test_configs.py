"""Every YAML file composes, says what it is, and holds values that are accepted."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

import viscos.configs
from viscos.cli.outline import COMMANDS, choices, outline, overlays, settings
from viscos.cli.validate import RULES, validate
from viscos.core.build import build, makes
from viscos.core.errors import InputError
from viscos.data.mask_files import save_masks
from viscos.data.masks import Mask
from viscos.data.sources.registry import OF_TRAINING
from viscos.flows import Flow, Residual
from viscos.imputers import Imputer, OnFlow, kinds_of
from viscos.logdet import LogDetEstimator
from viscos.posteriors import Amortised, Posterior
from viscos.roots import RootFinder, anderson

FOLDER = Path(viscos.configs.__file__).parent
OWN_PARTS = ("imputer", "dataset", "flow", "mask", "posterior", "solver", "lad")
NEEDED = {
    "mask=file": ["mask.path=masks.npz"],
    "dataset=array": ["dataset.path=images.npz"],
    "dataset=folder": ["dataset.path=pictures"],
    "dataset=table": ["dataset.path=table.csv"],
    "mask=columns": ["mask.columns=[0,2]"],
    "flow=foreign": ["flow.factory=module:function"],
    **{f"{part}=own": [f"{part}._target_=module.function"] for part in OWN_PARTS},
    "impute": ["checkpoint=run.pt"],
    "eval": ["checkpoint=run.pt"],
    "figure": ["name=2"],
}
CASES = [
    (command, f"{part.name}={choice}")
    for command in COMMANDS
    for part in outline(command).parts
    for choice in choices(part.name)
]


def composed(command: str, *overrides: str) -> dict:
    """Plain settings, as a command gets them."""
    return copy.deepcopy(_composed(command, *overrides))


@cache
def _composed(command: str, *overrides: str) -> dict:
    needed = [extra for key in (command, *overrides) for extra in NEEDED.get(key, ())]
    with initialize_config_module("viscos.configs", version_base="1.3"):
        cfg = OmegaConf.to_container(compose(command, [*overrides, *needed]), resolve=True, throw_on_missing=True)
    return cfg


@pytest.fixture(autouse=True)
def checkpoint(tmp_path, monkeypatch):
    """A file of the name that NEEDED gives."""
    monkeypatch.chdir(tmp_path)
    Path("run.pt").touch()


@pytest.mark.parametrize(("command", "override"), CASES, ids=[f"{command} {override}" for command, override in CASES])
def test_every_choice_composes(command, override):
    validate(command, composed(command, override))


BUILT = {
    override: command  # any of those that have it, since a choice is one file
    for command, override in CASES
    if "_target_" in settings(*override.split("=")) and not override.startswith("dataset") and "own" not in override
}
SHAPES = {"iresnet_mnist": (1, 28, 28), "iresnet164": (3, 32, 32)}


@pytest.mark.parametrize("override", BUILT)
def test_every_choice_builds(override):
    part, choice = override.split("=")
    cfg = composed(BUILT[override], override)
    if override == "mask=random":
        cfg[part]["missing"] = 0.5
    if part == "mask":
        save_masks("masks.npz", torch.arange(64).reshape(8, 8) > 3)
        shape = (4,) if choice == "columns" else (1, 8, 8)
        observed = build(cfg[part], Mask)(shape, 3, 0, "test")
        assert observed.shape == (3, *shape) and observed.dtype == torch.bool and not observed.all()
    elif part == "flow":
        assert build(cfg[part], Flow, SHAPES.get(choice, (1, 8, 8))).shape == SHAPES.get(choice, (1, 8, 8))
    elif part == "posterior":
        arguments = (1, 8, 8) if choice.startswith("amortised") else torch.zeros(2, 1, 8, 8)
        build(cfg[part], Posterior, arguments)
    elif part == "solver":
        assert build(cfg[part], RootFinder).tolerance == cfg[part]["tolerance"]
    elif part == "imputer":
        trained = build(settings("flow", "continuous"), Flow, (1, 8, 8))
        given = [trained] if makes(cfg[part], OnFlow) else []
        given = [trained, Amortised((1, 8, 8)), anderson(1e-3)] if choice == "viscos" else given
        assert kinds_of(build(cfg[part], Imputer, *given))
    else:
        assert part == "lad" and build(cfg[part], LogDetEstimator)


@pytest.mark.parametrize(
    ("choice", "shape", "convolutional", "dense"),
    [
        ("iresnet", (1, 8, 8), 8, 0),
        ("iresnet", (1, 28, 28), 8, 0),
        ("iresnet_mnist", (1, 28, 28), 24, 4),  # 3 · 24 + 1 = 73 convolutions, as i-ResNet counts
        pytest.param("iresnet164", (3, 32, 32), 54, 0, marks=pytest.mark.slow),  # 3 · 54 + 2 = 164 layers
    ],
)
def test_flows(choice, shape, convolutional, dense):
    flow = build(settings("flow", choice), Flow, shape)
    branches = [layer.branch for layer in flow.layers if isinstance(layer, Residual)]
    assert [branch.flat for branch in branches] == [False] * convolutional + [True] * dense
    with torch.no_grad():
        y = torch.rand(2, *shape)
        flow.initialize(y)
        x, G = flow.linearize(y)
        assert x.shape == G.mv(y).shape == G.rmv(y).shape == y.shape and bool(x.isfinite().all())
    lipschitz = flow.lipschitz()
    assert len(lipschitz) == convolutional + dense and max(lipschitz) < 1


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_meaning_and_a_rule(command):
    page, cfg = outline(command), composed(command)
    named = {item.name for item in (*page.options, *page.parts)}
    assert cfg.keys() <= named, "each line needs its meaning as a comment"
    assert named - cfg.keys() <= {part.name for part in page.parts if part.default == "null" or overlays(part.name)}
    assert page.about and all(option.name in RULES for option in page.options)
    validate(command, cfg)


def test_every_file_is_reached():
    parts = {part.name for command in COMMANDS for part in outline(command).parts} | {"hydra"}
    reached = {f"{part}/{choice}" for part in parts for choice in choices(part)} | COMMANDS.keys()
    files = {str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.rglob("*.yaml")}
    assert files == reached
    assert all(meaning for part in parts for meaning in choices(part).values())


def flattened(name: str, node) -> list[str]:
    """The dotted keys of all values."""
    if not isinstance(node, dict):
        return [name]
    return [key for inner, value in node.items() for key in flattened(f"{name}.{inner}", value)]


def test_rules_are_about_settings_that_exist_and_every_setting_of_a_part_has_one():
    parts = {part.name for command in COMMANDS for part in outline(command).parts if not overlays(part.name)}
    held = {key for part in parts for choice in choices(part) for key in flattened(part, settings(part, choice))}
    assert RULES.keys() <= held | {option.name for command in COMMANDS for option in outline(command).options}
    assert {key for key in held - RULES.keys() if not key.endswith("._target_")} == set()


def test_top_level_files_only_compose():
    for command in COMMANDS:
        cfg = yaml.safe_load((FOLDER / f"{command}.yaml").read_text())
        nested = [key for key, value in cfg.items() if isinstance(value, dict)]
        assert not nested, "settings of a part belong in its own folder"


@pytest.mark.parametrize("key", sorted(RULES))
def test_every_rule_refuses_a_mapping(key):
    assert RULES[key]({"a": 1})


def test_a_whole_number_stands_for_a_number():
    cfg = composed("train", "missing=1", "learning_rate=1")
    validate("train", cfg)
    with pytest.raises(InputError, match=r"missing=1\.01"):
        validate("train", cfg | {"missing": 1.01})


FITTED = {("flow/glow", "start"), ("flow/iresnet", "start")}
"""Settings by which a layer is fitted to data before training, which a function in Python has none of."""
VARIANTS = {
    "flow/implicit": "flow/iresnet",
    "flow/iresnet164": "flow/iresnet",
    "flow/iresnet_mnist": "flow/iresnet",
    "imputer/diffputer_paper": "imputer/diffputer",
    "imputer/mcflow_paper": "imputer/mcflow",
    "imputer/misgan_paper": "imputer/misgan",
    "posterior/amortised_mixture": "posterior/amortised",
    "posterior/amortised_paper": "posterior/amortised",
}
"""Choices that are another by other settings, which are there to differ."""


def differing(said: dict) -> dict:
    """Settings of a description, and of those in it, whose values are not the defaults of what is named."""
    module, _, name = said["_target_"].rpartition(".")
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    found = {}
    for key, value in said.items():
        if key == "_target_" or (key in OF_TRAINING and key not in parameters):
            continue
        default = parameters[key].default
        if isinstance(value, dict):  # a part, which is the usual one where none is given
            found |= {f"{key}.{inner}": each for inner, each in differing(value).items()}
            found |= {} if default is None else {key: default}
        elif value == "???" or str(value).startswith("${"):
            found |= {} if default is inspect.Parameter.empty else {key: default}
        elif (list(default) if isinstance(default, tuple) else default) != value:
            found[key] = value
    return found


def test_python_and_the_command_line_have_the_same_defaults():
    files = sorted(path for path in FOLDER.glob("*/*.yaml") if "_target_: viscos." in path.read_text(encoding="utf-8"))
    said = {f"{path.parent.name}/{path.stem}": yaml.safe_load(path.read_text(encoding="utf-8")) for path in files}
    differ = {choice: differing(each) for choice, each in said.items()}
    for choice, usual in VARIANTS.items():
        assert differ.pop(choice).keys() - differ[usual].keys(), f"{choice} is {usual}"
        assert said[choice]["_target_"] == said[usual]["_target_"]
    found = {(choice, key): value for choice, each in differ.items() for key, value in each.items()}
    assert found.keys() == FITTED
    page = (Path(__file__).parents[1] / "docs" / "flows.md").read_text(encoding="utf-8")
    for (choice, key), value in found.items():
        assert f"`{choice.removeprefix('flow/')}(shape, {key}={json.dumps(value)})`" in page
