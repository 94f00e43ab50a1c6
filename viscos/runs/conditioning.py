"""What a run knows, beside its flow, of observations to be conditioned on: units, columns, and where q begins."""

from __future__ import annotations

import datetime
import difflib
import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from viscos.core.batch import incomplete
from viscos.core.errors import InputError
from viscos.core.precision import tensor_of
from viscos.data.columns import Column, Scheme
from viscos.data.images import check_unit_range
from viscos.data.scaling import Scaling
from viscos.data.sources.sheet import text_of
from viscos.flows import Flow
from viscos.inference.condition import condition
from viscos.inference.conditional import Conditional
from viscos.inference.terms import Values, as_tensor, taken
from viscos.linear.gaussian import Gaussian
from viscos.posteriors import PerItem, Posterior


def condition_run(
    flow: Flow,
    network: Posterior | None,
    gaussian: Gaussian | None,
    scaling: Scaling | None,
    y: Values,
    observed: Values | None,
    posterior: str | Posterior,
    **settings: Any,
) -> Conditional:
    """`viscos.condition` of a run's flow, see `viscos.runs.trained.Trained.condition`."""
    of_run = posterior in ("network", "amortised")  # the latter is what the command line calls it
    if of_run and network is None:
        raise InputError("this run has no inference network; take posterior='householder', and fit it")
    if of_run or posterior == "auto":
        posterior = network or "householder"
    if scaling is not None:
        y, observed = _entries(y, scaling.scheme), _known(observed, scaling.scheme)
        settings["scaling"] = (scaling.center, scaling.scale)
    shape = flow.shape or ()
    if len(shape) == 3:
        _check_range(y, observed, len(shape))
    if isinstance(posterior, Posterior):
        made = condition(flow, y, observed, posterior=posterior, **settings)
    else:  # one for each item, which begins where the network has it, or at the Gaussian's completion
        begins = network if settings["partition"] == "same" else None
        guess = _guess(flow, gaussian, y, observed, settings.get("scaling")) if begins is None and gaussian else None
        made = condition(flow, y, observed, posterior=posterior, guess=guess, **settings)
        if begins is not None and isinstance(made.posterior, PerItem):
            with torch.no_grad():
                made.posterior.begin(begins(made.batch, made.flow))
    if scaling is not None:
        made.terms = replace(made.terms, columns=scaling.columns)
    return made


def _entries(y: Values, scheme: Scheme) -> Values:
    """The entries (B, d) of the run's columns, in its order, of a data frame or of numbers, one a column (B, columns).

    Anything else holds entries.
    """
    if not hasattr(y, "columns"):
        return _encoded(y, scheme)
    own = _by_name(y, scheme)
    numbers = [_numbers(column, list(own[name])) for name, column in zip(own.columns, scheme.columns, strict=True)]
    return scheme.encode(torch.from_numpy(np.stack(numbers, 1))).numpy()


def _by_name(frame: Any, scheme: Scheme) -> Any:
    """The run's columns of a data frame, in its order."""
    there = [str(name) for name in frame.columns]
    for name in scheme.names:
        if name not in there:
            near = difflib.get_close_matches(name, there, 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"the table has no column {name!r}, it has {', '.join(there)}{meant}")
        if there.count(name) > 1:
            raise InputError(f"the table has {there.count(name)} columns {name!r}; leave one")
    return frame[[frame.columns[there.index(name)] for name in scheme.names]]


def _encoded(y: Values, scheme: Scheme) -> Values:
    values = as_tensor(y, "y")
    if values.dim() < 2:
        wanted = f"(B, {len(scheme.columns)}), one number a column"
        raise InputError(
            f"rows of a table have shape {tuple(values.shape)}; give {wanted}, with an axis of rows: y[None]"
        )
    if values.shape[-1] not in (len(scheme.columns), len(scheme.entries)):
        raise InputError(
            f"rows of a table have {values.shape[-1]} numbers each; this run has {len(scheme.columns)} columns: "
            f"{', '.join(scheme.names)}"
        )
    plain = len(scheme.columns) == len(scheme.entries) and not any(column.log for column in scheme.columns)
    if plain or values.shape[-1] != len(scheme.columns):
        return y
    encoded = scheme.encode(values.double().cpu())
    return encoded.to(y) if isinstance(y, torch.Tensor) else encoded.numpy()


def _known(observed: Values | None, scheme: Scheme) -> Values | None:
    """What is observed of the entries (…, d), of a mask of them or of the columns (…, columns)."""
    if observed is None:
        return None
    if hasattr(observed, "columns"):
        observed = _by_name(observed, scheme).to_numpy()
    mask = as_tensor(observed, "observed")
    if len(scheme.columns) == len(scheme.entries) or mask.shape[-1:] != (len(scheme.columns),):
        return observed
    return mask[..., list(scheme.groups)]


def _numbers(column: Column, cells: list[Any]) -> np.ndarray:
    """Cells of a data frame (B,) as numbers of a column, NaN in holes."""
    hole = np.array([_missing(cell) for cell in cells], dtype=bool)
    if column.categories or column.format:
        ways = [_WORDLESS if empty else _written(column, cell) for cell, empty in zip(cells, hole, strict=True)]
        read = [column.numbers(np.array([way[k] for way in ways], dtype=object)) for k in range(len(_WORDLESS))]
        found = functools.reduce(lambda a, b: np.where(np.isnan(a), b, a), read)
    else:
        known = [math.nan if empty else cell for cell, empty in zip(cells, hole, strict=True)]
        found = as_tensor(known, f"column {column.name!r}").double().numpy()
    if (strange := np.isnan(found) & ~hole).any():
        cell = cells[int(strange.argmax())]
        what = f"is no date like {column.format}" if column.format else "the run did not see in training"
        raise InputError(f"column {column.name!r} holds {cell!r}, which {what}")
    return np.where(hole, math.nan, found)


_WORDLESS = ("", "", "")


def _missing(cell: Any) -> bool:
    """Whether a cell holds no value: None, NaN, and pandas' NaT and NA, which neither equals a thing nor differs."""
    try:
        return cell is None or bool(cell != cell)
    except TypeError:
        return True


def _written(column: Column, cell: Any) -> tuple[str, str, str]:
    """A category or a date as cells of the tables that a run may have been trained on have it.

    Truth values are `true` in Parquet, `True` in a CSV that pandas wrote, and 1 in one of numbers; a fraction may have
    been written to all its digits, or to twelve.
    """
    plain = cell.item() if isinstance(cell, np.generic) else cell
    if column.format and isinstance(plain, datetime.date) and getattr(plain, "tzinfo", None) is None:
        return (column.date(plain),) * 3
    return text_of(plain), str(cell), f"{plain:.12g}" if isinstance(plain, (int, float)) else ""


def _check_range(y: Values, observed: Values | None, dims: int) -> None:
    values = as_tensor(y, "y")
    if not values.is_floating_point():  # a 1 is almost black among bytes, and white among truth values
        remedy = "divide by 255" if values.dtype == torch.uint8 else "convert them, as by y.float()"
        raise InputError(f"images are of floating point values in [0, 1], and these are {values.dtype}; {remedy}")
    mask = ~values.isnan() if observed is None else as_tensor(observed, "observed").to(values.device)
    fits = values.dim() == dims + 1 and mask.dtype == torch.bool and mask.shape in (values.shape, values.shape[1:])
    if fits:  # else it is refused for that
        check_unit_range(values, mask.expand(values.shape) & ~values.isnan())


def _guess(
    flow: Flow, gaussian: Gaussian, y: Values, observed: Values | None, scaling: tuple[Values, Values] | None
) -> Values:
    """The Gaussian's completion, in the caller's terms."""
    values, terms = taken(y, observed, tensor_of(flow), scaling)
    flow.check(values)
    at = incomplete(values, terms.observed).to("cpu")
    return terms.values(gaussian.conditional(at.filled(), at.observed).to(values))
