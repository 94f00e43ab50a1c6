"""Figures 2 to 5 of the paper, drawn from completions; one small function each. They need matplotlib."""

from viscos.report.figures.comparison import comparison
from viscos.report.figures.completed import Completed
from viscos.report.figures.digits import digits
from viscos.report.figures.implicit import implicit
from viscos.report.figures.page import save
from viscos.report.figures.samples import samples

__all__ = ["Completed", "comparison", "digits", "implicit", "samples", "save"]
