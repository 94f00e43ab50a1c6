"""`viscos figure`: figures of the paper from the completions of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from viscos.errors import InputError

_RECIPES = {
    "digits": "viscos impute checkpoint=<training at missing=0.9> posterior=amortised items=64",
    "comparison": "viscos impute checkpoint=<training> mask=center8 posterior=householder steps=500 items=16",
    "samples": "viscos impute checkpoint=<training> mask=center8 posterior=householder steps=500 draws=16",
    "implicit": "viscos impute checkpoint=<training of an implicit flow> missing=0.9 lad=clade items=10",
}
"""The figures in their order, from 2 on, and how to make the run that each is drawn from."""


def run(cfg: dict[str, Any]) -> list[Path]:
    """Draws a figure into the run folder; returns its files."""
    name, number = _which(str(cfg["name"]))
    if cfg["run"] is None:
        raise InputError(f"figure {number} needs run=<folder>; make it by `{_RECIPES[name]}`")
    if cfg["other"] is not None and name != "comparison":
        raise InputError(f"other={cfg['other']} is for figure 3; leave it out")
    try:
        from viscos.report import figures
    except ModuleNotFoundError as error:
        raise InputError(f"figures need {error.name}: pip install 'viscos[figures]'") from error
    done = figures.Completed.read(cfg["run"])
    if name == "comparison":
        figure = figures.comparison(done, None if cfg["other"] is None else _other(cfg["other"]))
    else:
        figure = getattr(figures, name)(done)
    files = figures.save(figure, Path(cfg["run_dir"], f"figure_{number}_{name}"))
    print("\n".join(map(str, files)))
    return files


def _which(name: str) -> tuple[str, int]:
    names = list(_RECIPES)
    return (names[int(name) - 2], int(name)) if name.isdigit() else (name, names.index(name) + 2)


def _other(path: str) -> tuple[str, Tensor]:
    """The other method's name, by that of its file or folder, and its first draws."""
    from viscos.report.figures.completed import FILE, load

    given = Path(path).expanduser()
    return given.stem, load(given / FILE if given.is_dir() else given, ("draws",))["draws"][0]
