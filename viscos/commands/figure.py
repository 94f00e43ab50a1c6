"""`viscos figure`: figures of the paper from the completions of a run, and densities over the plane."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from viscos import runs
from viscos.commands.assemble.saved import dataset_of
from viscos.commands.report import plane
from viscos.core.errors import InputError
from viscos.report.density import Plane
from viscos.runs.trained import Trained, load


def run(cfg: dict[str, Any]) -> list[Path]:
    """Draws a figure into the run folder; returns its files."""
    figures = _figures()
    drawing = figures.drawing(str(cfg["name"]))
    name, number = drawing.__name__.rpartition(".")[2], getattr(drawing, "NUMBER", None)
    if cfg["run"] is None:
        raise InputError(f"figure {number or name} needs run=<folder>; make it by `{drawing.RECIPE}`")
    if cfg["other"] is not None and not getattr(drawing, "OTHER", False):
        raise InputError(f"other={cfg['other']} is for name=comparison; leave it out")
    folder = Path(cfg["run"]).expanduser()
    trained = cache(lambda: load(_checkpoint(folder)))
    other = None if cfg["other"] is None else Path(cfg["other"]).expanduser()
    source = figures.Source(folder, lambda: trained().model.flow, lambda: _plane(folder, trained()), other)
    stem = f"figure_{number}_{name}" if number else f"figure_{name}"
    files: list[Path] = figures.save(drawing.draw(source), Path(cfg["run_dir"], stem))
    print("\n".join(map(str, files)))
    return files


def _plane(run: Path, trained: Trained) -> Plane:
    if tuple(trained.state["shape"]) != (2,):
        shape = " × ".join(map(str, trained.state["shape"]))
        raise InputError(f"the flow of {run} is over items of {shape}; a density is drawn of two coordinates")
    test = trained.standardised(dataset_of(trained).load("test"))
    return plane(trained.model.flow, test, trained.scaling)


def _checkpoint(run: Path) -> Path:
    """What holds the flow of a run: itself, or what completions were made with."""
    if not (run / runs.COMPLETIONS).is_file():
        return run
    try:
        return Path(json.loads((run / runs.RECORD).read_text(encoding="utf-8"))["checkpoint"])
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{run} does not say which checkpoint it is of; give a run of `viscos impute`") from error


def _figures() -> ModuleType:
    try:
        from viscos.report import figures
    except ModuleNotFoundError as error:
        raise InputError(f"figures need {error.name}: pip install 'viscos[figures]'") from error
    return figures
