"""Imports point left: the parts of the package have one order, and each knows only the parts before it."""

from __future__ import annotations

import ast
from pathlib import Path

import viscos

FOLDER = Path(viscos.__path__[0])

ORDER = [
    "core",
    "linear",
    "roots",  # a flow inverts itself by a root finder
    "flows",
    "logdet",  # an estimator takes log|det G| from the flow
    "posteriors",
    "inference",
    "data",
    "imputers",
    "train",
    "runs",
    "metrics",
    "evaluate",
    "report",
    "commands",
    "sklearn",
    "cli",
    "__main__",
]

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


def test_imports_point_left():
    for path in FILES:
        name = part(path)
        if name == "__init__":
            continue
        assert name in ORDER, f"give {name} its place in ORDER"
        assert imports(path) <= set(ORDER[: ORDER.index(name) + 1]), path


def test_only_the_command_line_knows_hydra():
    for path in FILES:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        modules += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        known = {module.split(".")[0] for module in modules}
        assert part(path) == "cli" or not known & {"hydra", "omegaconf"}, path
