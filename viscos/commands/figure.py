"""`viscos figure`: figures of the paper from the completions of a run, and densities over the plane."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from viscos.commands.assemble.saved import dataset_of
from viscos.commands.report import plane
from viscos.core.errors import InputError
from viscos.report.density import first_slice
from viscos.runs.trained import load

FILE = "completions.npz"

_RECIPES = {
    "digits": "viscos impute checkpoint=<training at missing=0.9> posterior=amortised items=64",
    "comparison": "viscos impute checkpoint=<training> mask=center8 posterior=householder steps=500 items=16",
    "samples": "viscos impute checkpoint=<training> mask=center8 posterior=householder steps=500 draws=16",
    "implicit": "viscos impute checkpoint=<training of an implicit flow> missing=0.9 lad=clade items=10",
}
"""The figures in their order, from 2 on, and how to make the run that each is drawn from."""
_DENSITY = "viscos impute checkpoint=<training on points in the plane> mask=columns mask.columns=[1] draws=1000 items=1"


def run(cfg: dict[str, Any]) -> list[Path]:
    """Draws a figure into the run folder; returns its files."""
    if cfg["name"] == "density":
        return _density(cfg)
    name, number = _which(str(cfg["name"]))
    if cfg["run"] is None:
        raise InputError(f"figure {number} needs run=<folder>; make it by `{_RECIPES[name]}`")
    if cfg["other"] is not None and name != "comparison":
        raise InputError(f"other={cfg['other']} is for figure 3; leave it out")
    figures = _figures()
    done = figures.Completed.read(cfg["run"])
    if name == "comparison":
        figure = figures.comparison(done, None if cfg["other"] is None else _other(cfg["other"]))
    else:
        figure = getattr(figures, name)(done)
    return _saved(figure, Path(cfg["run_dir"], f"figure_{number}_{name}"))


def _density(cfg: dict[str, Any]) -> list[Path]:
    """Of a training, the density; of completions, a conditional beside it."""
    if cfg["run"] is None:
        raise InputError(f"the density needs run=<folder>, of a training or of completions; make it by `{_DENSITY}`")
    if cfg["other"] is not None:
        raise InputError(f"other={cfg['other']} is for figure 3; leave it out")
    figures, run = _figures(), Path(cfg["run"]).expanduser()
    trained = load(_checkpoint(run))
    if tuple(trained.state["shape"]) != (2,):
        shape = " × ".join(map(str, trained.state["shape"]))
        raise InputError(f"the flow of {run} is over items of {shape}; a density is drawn of two coordinates")
    test = trained.standardised(dataset_of(trained).load("test"))
    cut = None
    if (run / FILE).is_file():
        arrays = figures.load(run / FILE, ("values", "truth", "observed", "draws"))
        cut = first_slice(*(arrays[key] for key in ("values", "truth", "observed", "draws")))
        if cut is None:
            raise InputError(f"in {run} no item with one hidden coordinate was completed; make it by `{_DENSITY}`")
    figure = figures.density(plane(trained.model.flow, test, trained.scaling), cut)
    return _saved(figure, Path(cfg["run_dir"], "figure_density"))


def _checkpoint(run: Path) -> str | Path:
    """What holds the flow of a run: itself, or what completions were made with."""
    if not (run / FILE).is_file():
        return run
    try:
        return str(json.loads((run / "metrics.json").read_text(encoding="utf-8"))["checkpoint"])
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{run} does not say which checkpoint it is of; give a run of `viscos impute`") from error


def _figures() -> ModuleType:
    try:
        from viscos.report import figures
    except ModuleNotFoundError as error:
        raise InputError(f"figures need {error.name}: pip install 'viscos[figures]'") from error
    return figures


def _saved(figure: Any, path: Path) -> list[Path]:
    files = _figures().save(figure, path)
    print("\n".join(map(str, files)))
    return files


def _which(name: str) -> tuple[str, int]:
    names = list(_RECIPES)
    return (names[int(name) - 2], int(name)) if name.isdigit() else (name, names.index(name) + 2)


def _other(path: str) -> tuple[str, Tensor]:
    """The other method's name, by that of its file or folder, and its first draws."""
    given = Path(path).expanduser()
    return given.stem, _figures().load(given / FILE if given.is_dir() else given, ("draws",))["draws"][0]
