"""Adds the Python reference to the pages: one for each package of viscos, from its docstrings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

PACKAGE = Path(__file__).parents[1] / "viscos"


def subjects() -> list[str]:
    """The packages and modules that stand at the top of viscos."""
    packages = [path.parent.name for path in PACKAGE.glob("*/__init__.py") if path.parent.name != "configs"]
    modules = [path.stem for path in PACKAGE.glob("[!_]*.py")]
    return sorted(packages + modules)


def on_config(config: Any) -> Any:
    """Appends the pages to the navigation."""
    pages = [{f"viscos.{name}": f"reference/{name}.md"} for name in subjects()]
    config.nav.append({"Python reference": [{"viscos": "reference/viscos.md"}, *pages]})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Makes the pages."""
    top = "# viscos\n\n::: viscos\n    options:\n      show_submodules: false\n      members: false\n"
    files.append(File.generated(config, "reference/viscos.md", content=top))
    for name in subjects():
        text = f"# viscos.{name}\n\n::: viscos.{name}\n"
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files
