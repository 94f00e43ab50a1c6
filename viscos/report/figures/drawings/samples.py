"""Figure 4: several completions of each item, drawn from one posterior."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

from viscos.report.figures.completed import Completed
from viscos.report.figures.page import panels, shown
from viscos.report.figures.source import Source
from viscos.report.grid import tile

NUMBER = 4
RECIPE = "viscos impute checkpoint=<training on MNIST> mask=center8 posterior=householder steps=500 draws=16"
ITEMS, DRAWS = 6, 8


def draw(source: Source) -> Figure:
    """Draws it from a run of `viscos impute`."""
    return samples(source.completed())


def samples(done: Completed) -> Figure:
    """A row an item: masked, then its draws."""
    n = min(ITEMS, len(done.truth))
    columns = [shown(done.truth[:n], done.observed[:n]), *(shown(draw[:n]) for draw in done.draws[:DRAWS])]
    return panels([[("", tile(torch.stack(columns, 1)))]])
