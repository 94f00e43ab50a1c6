"""Imports point left: each part of the package knows only the parts before it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import viscos

FOLDER = Path(viscos.__path__[0])

# Parts in one set may import each other, and what stands before them.
LAYERS = [
    {"errors", "version", "rng", "atomic", "batch", "solution", "iterate", "build"},
    {"linear"},
    {"gaussian", "gaussian_em", "gaussian_sums"},
    {"roots"},  # a flow inverts itself by a root finder
    {"flows"},
    {"logdet", "posteriors", "partition"},  # an estimator takes log|det G| from the flow
    {"inference", "baselines", "conditional"},
    {"classifier", "model", "trained", "train", "scores", "evaluate", "bench", "commands"},
    {"cli", "__main__"},
]
# Beside the layers: they import the first ones and each other, and commands and the command line import them.
BESIDE = {"data", "metrics", "report", "checkpoint", "runs"}
USE_BESIDE = LAYERS[-2] | LAYERS[-1]

FILES = sorted(path for path in FOLDER.rglob("*.py") if path.relative_to(FOLDER).parts[0] != "configs")


def part(path: Path) -> str:
    """The part of the package that a file belongs to."""
    return path.relative_to(FOLDER).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The parts of viscos that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("viscos.")}
    return found


def allowed(name: str) -> set[str]:
    """The parts that `name` may import."""
    if name in BESIDE:
        return LAYERS[0] | LAYERS[1] | LAYERS[2] | BESIDE
    level = next(number for number, layer in enumerate(LAYERS) if name in layer)
    return set().union(*LAYERS[: level + 1]) | (BESIDE if name in USE_BESIDE else set())


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(FOLDER)) for path in FILES])
def test_imports_point_left(path):
    name = part(path)
    if name == "__init__":
        return
    assert name in set().union(*LAYERS) | BESIDE, f"give {name} its place in LAYERS"
    assert imports(path) <= allowed(name)


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(FOLDER)) for path in FILES])
def test_only_the_command_line_knows_hydra(path):
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    assert part(path) == "cli" or not {module.split(".")[0] for module in modules} & {"hydra", "omegaconf"}
