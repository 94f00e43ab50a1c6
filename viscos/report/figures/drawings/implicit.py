"""Figure 5: incomplete digits, and below them completed by an implicit flow."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

from viscos.core.errors import InputError
from viscos.flows import Reversed
from viscos.report.figures.completed import Completed
from viscos.report.figures.page import panels, shown
from viscos.report.figures.source import Source
from viscos.report.grid import tile

NUMBER = 5
RECIPE = "viscos impute checkpoint=<training of flow=implicit> missing=0.9 lad=clade items=10"
ITEMS = 10


def draw(source: Source) -> Figure:
    """Draws it from a run of `viscos impute` with an implicit flow; `InputError` for any other flow."""
    if not any(isinstance(layer, Reversed) for layer in source.flow().modules()):
        raise InputError(
            f"figure {NUMBER} is of an implicit flow, and that of {source.run} is none; train flow=implicit"
        )
    return implicit(source.completed())


def implicit(done: Completed) -> Figure:
    """Up to ten items side by side."""
    rows = [shown(done.truth, done.observed)[:ITEMS], shown(done.draws[0])[:ITEMS]]
    return panels([[("", tile(torch.stack(rows)))]])
