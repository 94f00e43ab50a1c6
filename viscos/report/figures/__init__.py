"""Figures 2 to 5 of the paper, drawn from completions, and densities; a module each in `drawings`.

A drawing has `draw(source) -> Figure`; RECIPE, the command that makes the run it is drawn from; NUMBER, if the paper
has it; and OTHER, if another method's completions can stand beside. All need matplotlib.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from viscos.report.figures import drawings
from viscos.report.figures.completed import Completed, load
from viscos.report.figures.drawings.density import density
from viscos.report.figures.page import save, save_png
from viscos.report.figures.source import Source

__all__ = ["Completed", "Source", "density", "drawing", "load", "save", "save_png"]


def drawing(name: str) -> ModuleType:
    """The drawing of a name or a number; raises `KeyError` if there is none."""
    names = [found.name for found in pkgutil.iter_modules(drawings.__path__)]
    modules = {each: importlib.import_module(f"{drawings.__name__}.{each}") for each in names}
    numbered = {str(module.NUMBER): module for module in modules.values() if hasattr(module, "NUMBER")}
    return (modules | numbered)[name]
