"""How far off the completions of a table are: some of its known cells are hidden in a second pass, and compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from viscos.commands.assemble.imputing import Imputing
from viscos.commands.lines import write_lines
from viscos.commands.outputs import CHECKED
from viscos.commands.results import Results, completed
from viscos.commands.tables import best
from viscos.core.rng import generator
from viscos.data.columns import Column
from viscos.metrics.rmse import known

NAME = "check"
"""Of the entry in a record."""
ROWS, FEWEST = 1000, 100
"""Rows that the second pass completes: no more than have holes, but up to these few, and never more than the first."""
_HOW = (
    "known cells of columns with holes, hidden at random beside these; numbers by their RMSE, categories by the share "
    "that is wrong, of the value in the completed table; where holes depend on what is in them, errors there may differ"
)


def second_pass(job: Imputing) -> Imputing | None:
    """The job on rows of whose known cells some are hidden too; None if that is not asked for, or there are none."""
    if job.check is None:
        return None
    groups = job.data.groups
    assert groups is not None  # vectors have them
    first = [groups.index(column) for column in range(1 + groups[-1])]
    seen = job.items.observed[:, first]
    hidden = hidden_cells(seen, job.check, generator(job.seed, NAME))
    rows = hidden.any(1).nonzero().flatten()
    if not len(rows):
        return None
    items, observed = job.items, job.items.observed[rows] & ~hidden[rows][:, list(groups)]
    chosen = replace(items, data=items.data.at(rows), known=items.known[rows], observed=observed)
    return replace(job, items=chosen, data=job.data.at(rows), check=None, proposals=job.proposals if job.refine else 0)


def hidden_cells(seen: Tensor, share: float, g: torch.Generator) -> Tensor:
    """Which known cells are to be hidden, of `seen` (N, columns), bool, true where a cell is known.

    Of each column with holes `share` of its known cells in the rows that are taken, one or more; a row keeps a cell.
    """
    holed = ~seen
    open = seen & holed.any(0)
    able = (open.any(1) & (seen.sum(1) > 1)).nonzero().flatten()
    most = min(ROWS, max(FEWEST, int(holed.any(1).sum())))
    taken = torch.zeros(len(seen), 1, dtype=torch.bool)
    taken[able[torch.randperm(len(able), generator=g)[:most]]] = True
    open &= taken
    count = open.sum(0)
    wanted = torch.minimum((share * count).round().clamp(min=1).long(), count)
    place = torch.rand(seen.shape, generator=g).masked_fill(~open, 2.0).argsort(0).argsort(0)
    hidden = open & (place < wanted)
    return hidden & (seen & ~hidden).any(1, keepdim=True)


def measured(job: Imputing, checked: Imputing, done: Results) -> dict[str, Any]:
    """How far off the second pass `checked` was in each column, in the column's own units; plain."""
    found, scheme = completed(checked, done), job.saved.scheme
    one, cells = best(scheme, found.mean.double(), found.draws.double()), found.known & ~found.observed
    columns: dict[str, dict[str, Any]] = {}
    for place, column in enumerate(scheme.columns):
        if not bool((there := cells[:, place]).any()):
            continue
        truth, guess = found.values[there, place].double(), one[there, place]
        used = found.values[found.observed[:, place], place].double()
        solved = ~guess.isnan()
        columns[column.name] = {
            "cells": len(truth),
            "failed": int((~solved).sum()),
            "measure": "wrong" if column.categories else "rmse",
            "unit": "days" if column.format else None,
            "error": known(_error(column, guess[solved], truth[solved])),
            "of_constant": known(_error(column, _constant(column, used).expand(len(truth)), truth)),
        }
    seconds = done.fit_seconds + done.draw_seconds
    about = {"share": job.check, "rows": len(checked.data), "cells": int(cells.sum()), "seconds": round(seconds, 2)}
    return {NAME: about | {"how": _HOW, "columns": columns}}


def save(job: Imputing, record: dict[str, Any]) -> str:
    """Writes what was measured of each column to a file beside the completed table; returns its name."""
    header = ("column", "cells", "failed", "measure", "unit", "error", "of_constant")
    signs = job.items.signs

    def cells(name: str, each: dict[str, Any]) -> list[object]:
        row = [each[key] for key in header[1:]]
        return [name, *("" if v is None else signs.number(v) if isinstance(v, float) else v for v in row)]

    lines = (cells(name, each) for name, each in record[NAME]["columns"].items())
    write_lines(job.run_dir / CHECKED, header, lines, signs)
    return CHECKED


def _error(column: Column, guess: Tensor, truth: Tensor) -> float:
    if column.categories:
        return float((guess != truth).double().mean())
    return float((guess - truth).square().mean().sqrt())


def _constant(column: Column, used: Tensor) -> Tensor:
    """What needs no model: the mean of the cells that are used, of categories the most frequent one."""
    if not column.categories:
        return used.mean()
    return used.mode().values if len(used) else torch.tensor(torch.nan)
