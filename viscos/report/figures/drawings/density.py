"""Density: a flow's over the plane, and the conditional along a line of it."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from viscos import runs
from viscos.core.errors import InputError
from viscos.report.density import Plane, Slice, conditional_density, first_slice
from viscos.report.figures.completed import load
from viscos.report.figures.source import Source

RECIPE = "viscos impute checkpoint=<training on moons> mask=columns mask.columns=[1] items=1 draws=1000"
_LINE = 2001  # places of the quadrature


def draw(source: Source) -> Figure:
    """Draws it from a run of `viscos train`; or of `viscos impute`, with an item of one hidden coordinate beside it."""
    if not (source.run / runs.COMPLETIONS).is_file():
        return density(source.plane())
    arrays = load(source.run / runs.COMPLETIONS, ("values", "truth", "observed", "draws"))
    plane = source.plane()  # refuses items of other than two entries
    values, truth, draws = (plane.encode(arrays[name]) for name in ("values", "truth", "draws"))
    cut = first_slice(values, truth, arrays["observed"], draws)
    if cut is None:
        raise InputError(f"in {source.run} no item with one hidden coordinate was completed; make it by `{RECIPE}`")
    return density(plane, cut)


def density(plane: Plane, cut: Slice | None = None) -> Figure:
    """The density with test points; beside it, of the item `cut`, its draws and the exact conditional."""
    figure = Figure((6.6 if cut else 3.6, 3.0), layout="constrained")
    axes = figure.subplots(1, 2 if cut else 1, squeeze=False)[0]
    first, second, values = plane.grid()
    axes[0].pcolormesh(first.numpy(), second.numpy(), values.numpy(), shading="gouraud", rasterized=True)
    axes[0].scatter(*plane.points.T.numpy(), s=2, c="white", alpha=0.5, linewidths=0)
    axes[0].set_xlabel(plane.names[0])
    axes[0].set_ylabel(plane.names[1])
    axes[0].set_title("density of the flow, test points", fontsize=8)
    if cut:
        line = axes[0].axhline if cut.hidden == 0 else axes[0].axvline
        line(cut.known, color="tab:red", linewidth=1)
        _conditional(axes[1], plane, cut)
    return figure


def _conditional(axis: Axes, plane: Plane, cut: Slice) -> None:
    grid = plane.span(cut.hidden, _LINE, 0.3, cut.draws)
    exact = conditional_density(plane.log_prob, cut.known, cut.hidden, grid)
    bins = max(10, min(60, len(cut.draws) // 8))
    left_out = f" ({cut.failed} of {cut.failed + len(cut.draws)} failed, left out)" if cut.failed else ""
    label = f"draws of the posterior{left_out}"
    axis.hist(cut.draws.numpy(), bins=bins, density=True, color="tab:blue", alpha=0.4, label=label)
    axis.plot(grid.numpy(), exact.numpy(), color="tab:red", linewidth=1, label="exact conditional")
    if cut.truth == cut.truth:
        axis.axvline(cut.truth, color="black", linewidth=0.8, linestyle=":", label="true value")
    axis.set_xlabel(plane.names[cut.hidden])
    axis.set_title(f"item {cut.item}, given {plane.names[1 - cut.hidden]} = {cut.known:.4g}", fontsize=8)
    axis.legend(fontsize=6, frameon=False)
