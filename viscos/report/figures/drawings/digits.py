"""Figure 2: digits, the same with their holes, and completed."""

from __future__ import annotations

from matplotlib.figure import Figure

from viscos.report.figures.completed import Completed
from viscos.report.figures.page import panels, shown, square
from viscos.report.figures.source import Source

NUMBER = 2
RECIPE = "viscos impute checkpoint=<training on MNIST at missing=0.9> posterior=amortised items=64"


def draw(source: Source) -> Figure:
    """Draws it from a run of `viscos impute`."""
    return digits(source.completed())


def digits(done: Completed) -> Figure:
    """Up to 64 items in three panels; completed is one draw of each."""
    return panels(
        [
            [
                ("(a) original", square(shown(done.truth))),
                ("(b) masked", square(shown(done.truth, done.observed))),
                ("(c) completed", square(shown(done.draws[0]))),
            ]
        ]
    )
