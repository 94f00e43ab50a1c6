"""Imports point left: the parts of the package have one order, and each knows only the parts before it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

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


def imported(path: Path) -> set[str]:
    """The names that a file imports, anywhere in it, in full."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= set(names)
    return found


def imports(path: Path) -> set[str]:
    """The parts of viscos that a file imports."""
    return {name.split(".")[1] for name in imported(path) if name.startswith("viscos.")}


def test_imports_point_left():
    for path in FILES:
        name = part(path)
        if name == "__init__":
            continue
        assert name in ORDER, f"give {name} its place in ORDER"
        assert imports(path) <= set(ORDER[: ORDER.index(name) + 1]), path


FOLDERS = sorted({path.parent for path in FILES})


def inside(folder: Path, name: str) -> str | None:
    """The module of `folder`, or the folder in it, that an imported name (viscos.…) belongs to, if any does."""
    here = ("viscos", *folder.relative_to(FOLDER).parts)
    parts = tuple(name.split("."))
    if parts[: len(here)] != here or len(parts) == len(here):
        return None
    first = parts[len(here)]
    return first if (folder / first).is_dir() or (folder / f"{first}.py").is_file() else None


def within(folder: Path) -> dict[str, set[str]]:
    """For each module of a folder, and each folder in it as one, which of the others it imports.

    `__init__`, which gathers what users want from above and below, is left out.
    """
    found: dict[str, set[str]] = {}
    for path in FILES:
        if folder not in path.parents or path == folder / "__init__.py":
            continue
        own = path.relative_to(folder).parts[0].removesuffix(".py")
        others = {inside(folder, name) for name in imported(path)}
        found.setdefault(own, set()).update(other for other in others if other not in (own, None))
    return found


def cycle(imports: dict[str, set[str]], folders: set[str]) -> list[str] | None:
    """A cycle through one of the folders, if there is one."""
    for start in sorted(folders & imports.keys()):
        reached, left = set[str](), list(imports[start])
        while left:
            name = left.pop()
            if name not in reached:
                reached.add(name)
                left += imports.get(name, ())
        if start in reached:
            return [start, *sorted(name for name in reached if start in imports.get(name, ()))]
    return None


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: ".".join(folder.relative_to(FOLDER.parent).parts))
def test_a_folder_and_what_it_imports_make_no_cycle(folder):
    """A folder stands above a module beside it or below it: what it imports never imports it, by whatever way."""
    assert cycle(within(folder), {path.name for path in folder.iterdir() if path.is_dir()}) is None


def test_cycles_are_found():
    assert cycle({"sources": {"columns"}, "columns": {"scaling"}, "scaling": {"sources"}}, {"sources"}) == [
        "sources",
        "scaling",
    ]
    assert cycle({"sources": {"columns"}, "table": {"sources"}, "columns": set()}, {"sources"}) is None
    assert cycle({"a": {"b"}, "b": {"a"}, "sources": {"a"}}, {"sources"}) is None  # modules of one folder


def test_only_the_command_line_knows_hydra():
    for path in FILES:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        modules += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        known = {module.split(".")[0] for module in modules}
        assert part(path) == "cli" or not known & {"hydra", "omegaconf"}, path
