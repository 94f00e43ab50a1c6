"""Figure 3: completions before and after the posterior was fitted, and those of another method."""

from __future__ import annotations

from matplotlib.figure import Figure
from torch import Tensor

from viscos.core.errors import InputError
from viscos.report.figures.completed import Completed
from viscos.report.figures.page import panels, shown, square
from viscos.report.figures.source import Source

NUMBER = 3
RECIPE = "viscos impute checkpoint=<training on MNIST> mask=center8 posterior=householder steps=500 items=16"
OTHER = True
"""Whether another method's completions can stand beside."""
MOST = 4
"""Items along a side of a panel."""


def draw(source: Source) -> Figure:
    """Draws it from a run of `viscos impute` that fitted a posterior."""
    done = source.completed()
    return comparison(done, source.others(done))


def comparison(done: Completed, other: tuple[str, Tensor] | None = None) -> Figure:
    """Originals, and `other`: a method's name and its completions (N, C, H, W); below, the first draw and the last.

    Without `other`, the masked items stand in its place. Raises `InputError` if nothing was fitted or shapes differ.
    """
    if done.first is None:
        raise InputError("in this run no posterior was fitted, so there is no first iteration; take steps above 0")
    if other is not None and other[1].shape != done.truth.shape:
        shapes = f"{tuple(other[1].shape)}, the run's have {tuple(done.truth.shape)}"
        raise InputError(f"the other method's completions have shape {shapes}; give those of the same items")
    beside = ("masked", shown(done.truth, done.observed)) if other is None else (other[0], shown(other[1]))
    parts = [
        [("original", shown(done.truth)), beside],
        [("viscos, first iteration", shown(done.first)), ("viscos, final iteration", shown(done.draws[0]))],
    ]
    return panels([[(title, square(images, MOST)) for title, images in row] for row in parts], width=4.0)
