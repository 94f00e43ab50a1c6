"""How far off the completions of a table are: some of its known cells are hidden in a second pass, and compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from viscos.commands.assemble.imputing import Imputing
from viscos.commands.assemble.saved import rows_now
from viscos.commands.completing.outputs import CHECKED
from viscos.commands.completing.results import Results, completed
from viscos.commands.completing.tables import best
from viscos.commands.lines import write_lines
from viscos.core.rng import generator
from viscos.data.columns import Column
from viscos.data.rows import fingerprints
from viscos.data.vectors import Vectors
from viscos.metrics.rmse import known

NAME = "check"
"""Of the entry in a record."""
ROWS, FEWEST = 1000, 100
"""Rows that the second pass completes: no more than have holes, but up to these few, and never more than the first.

Where there are so few that training did not have, they are chosen among all.
"""
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
    seen, fresh = job.items.observed[:, first], ~_trained_on(job)
    able = fresh if int(fresh.sum()) >= FEWEST else torch.ones_like(fresh)
    hidden = hidden_cells(seen, job.check, generator(job.seed, NAME), able)
    rows = hidden.any(1).nonzero().flatten()
    if not len(rows):
        return None
    items, observed = job.items, job.items.observed[rows] & ~hidden[rows][:, list(groups)]
    numbers = None if items.numbers is None else items.numbers[rows]
    chosen = replace(items, data=items.data.at(rows), known=items.known[rows], observed=observed, numbers=numbers)
    return replace(job, items=chosen, data=job.data.at(rows), check=None, proposals=job.proposals if job.refine else 0)


def hidden_cells(seen: Tensor, share: float, g: torch.Generator, able: Tensor | None = None) -> Tensor:
    """Which known cells are to be hidden, of `seen` (N, columns), bool, true where a cell is known.

    They are in the rows `able` (N,), bool, or in any. Of each column with holes `share` of its known cells there, one
    or more, or those of them that lie in as many rows as may be completed once more; a row keeps a cell.
    """
    holed = ~seen
    open = seen & holed.any(0)
    if able is not None:
        open &= able[:, None]
    count = open.sum(0)
    wanted = torch.minimum((share * count).round().clamp(min=1).long(), count)
    place = torch.rand(seen.shape, generator=g).masked_fill(~open, 2.0).argsort(0).argsort(0)
    hidden = open & (place < wanted)
    hidden &= (seen & ~hidden).any(1, keepdim=True)
    rows = hidden.any(1).nonzero().flatten()
    most = min(ROWS, max(FEWEST, int(holed.any(1).sum())))
    hidden[rows[torch.randperm(len(rows), generator=g)[most:]]] = False
    return hidden


def measured(job: Imputing, checked: Imputing, done: Results) -> dict[str, Any]:
    """How far off the second pass `checked` was in each column, in the column's own units; plain."""
    found, scheme = completed(checked, done), job.saved.scheme
    one, cells = best(scheme, found.mean.double(), found.draws.double()), found.known & ~found.observed
    columns, used = dict[str, dict[str, Any]](), _cells(job)
    for place, column in enumerate(scheme.columns):
        if not bool((there := cells[:, place]).any()):
            continue
        truth, guess = found.values[there, place].double(), one[there, place]
        solved, constant = ~guess.isnan(), _constant(column, used[:, place], truth)
        columns[column.name] = {
            "cells": len(truth),
            "failed": int((~solved).sum()),
            "measure": "wrong" if column.categories else "rmse",
            "unit": "days" if column.format else None,
            "error": known(_error(column, guess[solved], truth[solved])),
            "of_constant": known(_error(column, constant.expand(len(truth))[solved], truth[solved])),
        }
    about = {
        "share": job.check,
        "rows": len(checked.data),
        "trained_on": int(_trained_on(checked).sum()),
        "cells": int(cells.sum()),
        "seconds": round(done.fit_seconds + done.draw_seconds + done.weigh_seconds, 2),
    }
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
        return float(torch.where(guess.isnan(), guess, (guess != truth).double()).mean())
    return float((guess - truth).square().mean().sqrt())


def _trained_on(job: Imputing) -> Tensor:
    """Which rows are among those that the run, or an imputer in its place, was trained on (N,), bool."""
    data, saved, imputer = job.items.data, job.saved, job.imputer
    if saved.scaling is None or saved.rows is None or not isinstance(data, Vectors):
        return torch.zeros(len(data), dtype=torch.bool)
    anew = imputer is not None and imputer is not getattr(saved, "imputer", None) and imputer.fit_seconds is not None
    now = rows_now(saved) if anew else None  # the table may have changed since the run was trained
    return torch.isin(fingerprints(saved.scaling.aligned(data)), saved.rows if now is None else now)


def _cells(job: Imputing) -> Tensor:
    """The cells of a job that are used (N, columns), NaN elsewhere."""
    values, observed, scaling = job.items.data.values, job.items.observed, job.saved.scaling
    if scaling is not None:
        values, observed = scaling.scheme.decode(values), scaling.known(observed)
    return torch.where(observed, values.double(), torch.nan)


def _constant(column: Column, used: Tensor, hidden: Tensor) -> Tensor:
    """What needs no model: the mean of the cells that are used but for those that are hidden, or the most frequent."""
    used = used[~used.isnan()]
    if not column.categories:
        return (used.sum() - hidden.sum()) / (len(used) - len(hidden))
    if len(used) == len(hidden):
        return torch.tensor(torch.nan, dtype=torch.float64)
    many = len(column.levels)
    return (used.long().bincount(minlength=many) - hidden.long().bincount(minlength=many)).argmax().double()
