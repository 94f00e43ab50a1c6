"""Columns of a table, each moved and scaled so that a model sees them all alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.data.items import Data, Units
from viscos.data.vectors import Vectors

_CONSTANT = 0.01
"""Scale of a constant column, as a share of its value: its completions stay that close to it, and nothing is divided
by zero."""
UNITS = Units(
    "standard deviations of each column's observed training values",
    "columns less their mean, over their standard deviation, both of observed training values",
)


@dataclass(frozen=True)
class Scaling:
    """x ↦ (x − center) / scale for each column, in float64: large numbers with small differences keep them."""

    columns: tuple[str, ...]
    center: Tensor
    """(d,), float64."""
    scale: Tensor
    """(d,), float64, positive."""
    constant: tuple[str, ...] = ()
    """Those of `columns` that have one observed value alone."""

    @classmethod
    def fit(cls, data: Vectors, observed: Tensor) -> Scaling:
        """Takes mean and standard deviation of the entries that `observed` (bool, N, d) marks, some in each column.

        Raises `InputError`, naming the column, where these overflow.
        """
        count, values = observed.sum(0), data.values.double()
        center = torch.where(observed, values, 0).sum(0) / count
        scale = (torch.where(observed, values - center, 0).square().sum(0) / count).sqrt()
        for place in (~(center.isfinite() & scale.isfinite())).nonzero().flatten().tolist():
            largest = float(torch.where(observed, values.abs(), 0)[:, place].max())
            raise InputError(
                f"{data.column(place)} holds values as large as {largest:.3g}, whose squares no number holds; "
                "divide the column by its largest value, or leave such cells empty"
            )
        # By the values themselves: the mean of equal numbers need not be that number, nor their deviation 0.
        low, high = (torch.where(observed, values, fill) for fill in (torch.inf, -torch.inf))
        constant = (low.amin(0) == high.amax(0)) | (scale == 0)
        size = torch.where(center == 0, 1.0, center.abs())
        names = tuple(name for name, same in zip(data.columns, constant.tolist(), strict=True) if same)
        return cls(data.columns, center, torch.where(constant, _CONSTANT * size, scale), names)

    @property
    def log_scale(self) -> float:
        """Σ log scale: a log-density per scaled unit, less this, is one in the columns' own units."""
        return float(self.scale.log().sum())

    def standardise(self, values: Tensor) -> Tensor:
        """Values (…, d) in the columns' own units as the model takes them, float32."""
        return ((values.double() - self.center) / self.scale).float()

    def restore(self, values: Tensor) -> Tensor:
        """Values (…, d) of the model in the columns' own units, float64."""
        return values.double().cpu() * self.scale + self.center

    def standardised(self, data: Vectors) -> Vectors:
        """The data as the model takes them, with what is needed to report errors in the columns' own units."""
        units = replace(UNITS, columns=self.columns, scales=tuple(self.scale.tolist()))
        return replace(data, values=self.standardise(data.values), units=units)

    def state(self) -> dict[str, Any]:
        """The scaling as plain containers and tensors."""
        columns, constant = list(self.columns), list(self.constant)
        return {"columns": columns, "center": self.center, "scale": self.scale, "constant": constant}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Scaling:
        """What `state` gave."""
        return cls(tuple(state["columns"]), state["center"].cpu(), state["scale"].cpu(), tuple(state["constant"]))


def fit_scaling(data: Data, observed: Tensor) -> Scaling | None:
    """The scaling of a table by its observed training entries; None for images, and for points in a space.

    Raises `InputError` for an entry of a vector that is observed nowhere.
    """
    if not isinstance(data, Vectors):
        return None
    never = ~observed.any(0)
    if bool(never.any()):
        empty = data.column(int(never.nonzero()[0]))
        raise InputError(f"nothing of {empty} is observed in the training data, so there is nothing to learn of it")
    return Scaling.fit(data, observed) if data.columns else None


def standardised(data: Data, scaling: Scaling | None) -> Data:
    """The data as the model takes them."""
    if not isinstance(data, Vectors):
        return data
    return replace(data, values=data.values.float()) if scaling is None else scaling.standardised(data)
