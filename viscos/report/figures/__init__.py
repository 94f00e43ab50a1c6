"""Figures 2 to 5 of the paper, drawn from completions, and densities; one small function each. They need matplotlib."""

from viscos.report.figures.comparison import comparison
from viscos.report.figures.completed import Completed, load
from viscos.report.figures.density import density
from viscos.report.figures.digits import digits
from viscos.report.figures.implicit import implicit
from viscos.report.figures.page import save, save_png
from viscos.report.figures.samples import samples

__all__ = ["Completed", "comparison", "density", "digits", "implicit", "load", "samples", "save", "save_png"]
