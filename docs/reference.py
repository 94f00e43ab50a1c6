"""Adds the Python reference to the pages: one for each package of viscos, from its docstrings."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

PACKAGE = Path(__file__).parents[1] / "viscos"


def subjects() -> list[str]:
    """The packages and modules that stand at the top of viscos."""
    packages = [path.parent.name for path in PACKAGE.glob("*/__init__.py") if path.parent.name != "configs"]
    modules = [path.stem for path in PACKAGE.glob("[!_]*.py")]
    return sorted(packages + modules)


def offered(name: str) -> dict[str, str]:
    """What a package lends from its modules (`import name as name`): each name, and where it stands."""
    path = PACKAGE / name / "__init__.py"
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {a.name: f"{node.module}.{a.name}" for node in imports for a in node.names if a.asname == a.name}


def of_the_top() -> dict[str, str]:
    """What viscos itself lends: its table of names and their homes."""
    for node in ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
            return {name: f"{home}.{name}" for name, home in ast.literal_eval(node.value).items() if name[0] != "_"}
    raise LookupError("viscos/__init__.py has no table _HOMES")


def page(name: str, lent: dict[str, str], **options: str) -> str:
    """The text of a page: what can be had from the package by its short name, then all of it."""
    links = ", ".join(f"[`{short}`][{home}]" for short, home in lent.items())
    settings = "".join(f"      {key}: {value}\n" for key, value in options.items())
    return (
        f"# {name}\n\n"
        + (f"From `{name}`: {links}.\n\n" if links else "")
        + f"::: {name}\n"
        + (f"    options:\n{settings}" if settings else "")
    )


def on_config(config: Any) -> Any:
    """Appends the pages to the navigation."""
    pages = [{f"viscos.{name}": f"reference/{name}.md"} for name in subjects()]
    config.nav.append({"Python reference": [{"viscos": "reference/viscos.md"}, *pages]})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Makes the pages."""
    texts = {"viscos": page("viscos", of_the_top(), show_submodules="false", members="false")}
    texts |= {name: page(f"viscos.{name}", offered(name)) for name in subjects()}
    for name, text in texts.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files
