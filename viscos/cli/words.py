"""Settings that are one of a few words, as the code that takes them says.

The words stand once, in a constant of the module that knows what they mean. Importing it would bring torch, for which
help, completion and refusals need not wait; so the constant is read from the module's source, as setuptools reads
`attr: package.__version__`.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib.resources import files
from typing import Any

from viscos.core import choices

Word = str | int

OWNERS = {
    "mask.side": "viscos.data.masks.SIDES",
    "mask.hole": "viscos.data.masks.HOLES",
    "window": "viscos.data.windows.WINDOWS",
    "flow.activation": "viscos.flows.layers.activations.ACTIVATIONS",
    "flow.start": "viscos.flows.layers.start.STARTS",
    "flow.method": "viscos.flows.families.continuous.runge_kutta.METHODS",
    "teach": "viscos.train.plan.TEACH",
    "teach_masks": "viscos.train.plan.MASKS",
    "schedule": "viscos.train.plan.SCHEDULES",
    "precision": "viscos.train.fabric.PRECISIONS",
    "dataset.augment": "viscos.data.augment.KINDS",
    "dataset.channels": "viscos.data.pictures.MODES",
    "verbosity": "viscos.core.progress.VERBOSITIES",
    "format": "viscos.report.formats.FORMATS",
    "classifier": "viscos.train.classifier.CLASSIFIERS",
    "partition": "viscos.inference.partition.PARTITIONS",
    "refine": "viscos.inference.refine.METHODS",
    "start": "viscos.commands.assemble.choice.STARTS",
}
"""Where the words of a setting stand: a tuple or list of them, or a dict with them as keys."""


@cache
def words(setting: str) -> tuple[Word, ...]:
    """The words that a setting can be."""
    if setting == "name":
        return (*(str(number) for number in figures().values() if number), *figures())
    if setting == "solvers":
        return choices.names("solver")
    return constant(OWNERS[setting])


def constant(path: str) -> tuple[Word, ...]:
    """The entries of a tuple or a list of a module, or the keys of a dict."""
    module, _, name = path.rpartition(".")
    value = _constants(module)[name]
    return tuple(map(_literal, value.keys)) if isinstance(value, ast.Dict) else tuple(ast.literal_eval(value))


def known(setting: str) -> tuple[Word, ...]:
    """The words that complete a setting; none for those that are anything else."""
    if setting == "device":
        return ("auto", "cpu", "cuda")
    return words(setting) if setting in OWNERS or setting == "name" else ()


@cache
def figures() -> dict[str, int | None]:
    """The figures that can be drawn, a module each, with their numbers in the paper; in that order."""
    folder = files("viscos.report.figures.drawings")
    found = [path.name.removesuffix(".py") for path in folder.iterdir() if path.name.endswith(".py")]
    numbers = {name: figure(name, "NUMBER") for name in sorted(found) if not name.startswith("_")}
    return dict(sorted(numbers.items(), key=lambda item: (item[1] is None, item[1])))


def figure(name: str, about: str) -> Any:
    """A constant of a figure's module, or None; `__doc__` is what it shows."""
    value = _constants(f"viscos.report.figures.drawings.{name}").get(about)
    return None if value is None else ast.literal_eval(value)


def _literal(key: Any) -> Word:
    word: Word = ast.literal_eval(key)
    return word


@cache
def _constants(module: str) -> dict[str, Any]:
    """What is assigned in a module, by name, as it is written; and its docstring."""
    package, _, name = module.partition(".")
    path = files(package).joinpath(*name.split(".")[:-1], name.split(".")[-1] + ".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: dict[str, Any] = {"__doc__": ast.Constant(ast.get_docstring(tree))}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node.value
    return found
