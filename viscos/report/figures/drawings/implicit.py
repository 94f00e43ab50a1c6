"""Figure 5: incomplete digits, and below them completed by an implicit flow."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

from viscos.report.figures.completed import Completed
from viscos.report.figures.page import panels, shown
from viscos.report.grid import tile

ITEMS = 10


def implicit(done: Completed) -> Figure:
    """Up to ten items side by side."""
    rows = [shown(done.truth, done.observed)[:ITEMS], shown(done.draws[0])[:ITEMS]]
    return panels([[("", tile(torch.stack(rows)))]])
