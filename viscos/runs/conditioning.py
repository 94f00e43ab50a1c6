"""What a run knows, beside its flow, of observations to be conditioned on: units, columns, and where q begins."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from viscos.core.batch import incomplete
from viscos.core.errors import InputError
from viscos.data.images import check_unit_range
from viscos.data.scaling import Scaling
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
    if posterior == "network" and network is None:
        raise InputError("this run has no inference network; take posterior='householder', and fit it")
    if posterior in ("auto", "network"):
        posterior = network or "householder"
    if scaling is not None:
        y = _columns(y, scaling.columns)
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


def _columns(y: Values, columns: Sequence[str]) -> Values:
    """The columns of the run's table, in its order, if `y` is a data frame."""
    if not hasattr(y, "columns"):
        return y
    there = [str(name) for name in y.columns]
    for name in columns:
        if name not in there:
            near = difflib.get_close_matches(name, there, 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"the table has no column {name!r}, it has {', '.join(there)}{meant}")
    return y.iloc[:, [there.index(name) for name in columns]] if hasattr(y, "iloc") else y[list(columns)]


def _check_range(y: Values, observed: Values | None, dims: int) -> None:
    values = as_tensor(y, "y")
    mask = ~values.isnan() if observed is None else as_tensor(observed, "observed").to(values.device)
    fits = values.dim() == dims + 1 and mask.dtype == torch.bool and mask.shape in (values.shape, values.shape[1:])
    if fits:  # else it is refused for that
        check_unit_range(values, mask.expand(values.shape) & ~values.isnan())


def _guess(
    flow: Flow, gaussian: Gaussian, y: Values, observed: Values | None, scaling: tuple[Values, Values] | None
) -> Values:
    """The Gaussian's completion, in the caller's terms."""
    values, terms = taken(y, observed, next(flow.parameters(), None), scaling)
    flow.check(values)
    at = incomplete(values, terms.observed).to("cpu")
    return terms.values(gaussian.conditional(at.filled(), at.observed).to(values))
