"""Draws of one hidden coordinate of two beside the exact conditional: distances, a table and a picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from viscos.report.density import Plane, conditional_density

_LINE = 4001  # places of the quadrature
_BINS = 80


def conditionals(plane: Plane, values: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Places (2, n) along either axis, and the exact conditionals at those of the hidden one (N, n).

    They are of items (N, 2) with one hidden coordinate each, `hidden` (N,), by quadrature of the density along the
    line.
    """
    grids = torch.stack([plane.span(axis, _LINE, 0.3) for axis in (0, 1)])
    lines = zip(values, hidden.tolist(), strict=True)
    return grids, torch.stack(
        [conditional_density(plane.log_prob, float(item[1 - h]), h, grids[h]) for item, h in lines]
    )


def distances(grids: Tensor, exact: Tensor, hidden: Tensor, draws: Tensor) -> Tensor:
    """The Wasserstein-1 distance of draws (K, N) of each hidden coordinate to its exact conditional (N,).

    NaN draws failed and are left out; an item of which all failed has NaN.
    """
    from scipy.stats import wasserstein_distance

    found = []
    for own, density, h in zip(draws.T, exact, hidden.tolist(), strict=True):
        solved = own[own.isfinite()].numpy()
        found.append(
            wasserstein_distance(solved, grids[h].numpy(), None, density.numpy()) if len(solved) else float("nan")
        )
    return torch.tensor(found, dtype=torch.float64)


def exact_draws(grids: Tensor, exact: Tensor, hidden: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """Draws (K, N) of the conditionals themselves: the least distance that so many can have."""
    columns = []
    for density, h in zip(exact, hidden.tolist(), strict=True):
        below = torch.cumulative_trapezoid(density, grids[h].double())
        uniform = torch.rand(draws, generator=generator, dtype=torch.float64) * below[-1]
        columns.append(np.interp(uniform.numpy(), np.concatenate([[0.0], below.numpy()]), grids[h].numpy()))
    return torch.from_numpy(np.stack(columns, 1))


def shown(grid: Tensor, density: Tensor) -> dict[str, Any]:
    """A conditional as a record keeps it: the edges of its histograms, and the mean density within each bin; plain."""
    heavy = (density > 1e-3 * density.max()).nonzero().flatten()
    low, high = float(grid[heavy[0]]), float(grid[heavy[-1]])
    edges = np.linspace(low - 0.2 * (high - low), high + 0.2 * (high - low), _BINS + 1)
    below = np.concatenate([[0.0], torch.cumulative_trapezoid(density, grid.double()).numpy()])
    inside = np.diff(np.interp(edges, grid.numpy(), below)) / np.diff(edges)
    return {"from": float(edges[0]), "to": float(edges[-1]), "density": [round(v, 4) for v in inside.tolist()]}


def histogram(draws: Tensor, panel: dict[str, Any]) -> list[float]:
    """The density of draws (K,) within the bins of a panel; those that failed are left out."""
    solved = draws[draws.isfinite()].numpy()
    counts, edges = np.histogram(solved, _BINS, (panel["from"], panel["to"]))
    return [round(v, 4) for v in (counts / max(1, len(solved)) / np.diff(edges)).tolist()]


def table(record: dict[str, Any]) -> str:
    """The distances of a record, in Markdown: a row a method, a column a data set."""
    sets = record["datasets"]
    lines = [f"| | {' | '.join(sets)} |", "| --- " * (len(sets) + 1) + "|"]
    for name in next(iter(sets.values()))["methods"]:
        cells = [_cell(each["methods"].get(name)) for each in sets.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return "—"
    failed = f" ({100 * found['failed']:.1f} % failed)" if found["failed"] >= 5e-4 else ""
    error = "" if found["error"] is None else f" ± {found['error']:.3f}"
    return f"{found['distance']:.3f}{error}{failed}"


def picture(record: dict[str, Any]) -> Figure:
    """A row a data set, a column a method: draws of one item, as a histogram, and its exact conditional, as a line."""
    sets = record["datasets"]
    names = list(next(iter(sets.values()))["methods"])
    figure = Figure((1.35 * len(names), 1.25 * len(sets)), layout="constrained")
    axes = figure.subplots(len(sets), len(names), squeeze=False)
    for row, (dataset, found) in zip(axes, sets.items(), strict=True):
        for axis, name in zip(row, names, strict=True):
            _panel(axis, found["shown"], found["methods"].get(name))
        row[0].set_ylabel(dataset, fontsize=8)
    for axis, name in zip(axes[0], names, strict=True):
        axis.set_title(name, fontsize=7)
    return figure


def _panel(axis: Axes, panel: dict[str, Any], found: dict[str, Any] | None) -> None:
    edges = np.linspace(panel["from"], panel["to"], _BINS + 1)
    middle = (edges[:-1] + edges[1:]) / 2
    if found is not None:
        axis.stairs(found["histogram"], edges, fill=True, color="tab:blue", alpha=0.45)
    axis.plot(middle, panel["density"], color="tab:red", linewidth=0.9)
    axis.set_ylim(0, 1.8 * max(panel["density"]))
    axis.set_xticks([])
    axis.set_yticks([])
