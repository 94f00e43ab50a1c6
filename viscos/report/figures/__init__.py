"""Figures 2 to 5 of the paper, drawn from completions, and densities; one small function each. They need matplotlib."""

from viscos.report.figures.completed import Completed, load
from viscos.report.figures.drawings.comparison import comparison
from viscos.report.figures.drawings.density import density
from viscos.report.figures.drawings.digits import digits
from viscos.report.figures.drawings.implicit import implicit
from viscos.report.figures.drawings.samples import samples
from viscos.report.figures.page import save, save_png

__all__ = ["Completed", "comparison", "density", "digits", "implicit", "load", "samples", "save", "save_png"]
