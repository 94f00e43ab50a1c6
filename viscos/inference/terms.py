"""The caller's terms: tensors or arrays, of any precision, in units of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from viscos.core.batch import mask_of
from viscos.core.errors import InputError

Values = Any
"""What a caller gives: a tensor, or anything that numpy makes an array of numbers, such as a data frame."""
Returned = Tensor | np.ndarray
"""What a caller gets: a tensor where the observation was one; otherwise a numpy array."""


@dataclass(frozen=True)
class Terms:
    """How the caller gave the observation, and so gets everything back; the model sees (value − center) / scale."""

    given: Tensor
    """The observation as it was given (B, …); anything where hidden."""
    observed: Tensor
    """(B, …), bool."""
    array: bool = False
    """Whether it was no tensor."""
    center: Tensor | None = None
    """Of each entry (…), float64; None where the model has the caller's units."""
    scale: Tensor | None = None
    """Of each entry (…), float64, positive."""
    columns: tuple[str, ...] = ()
    """Names of the entries, for readers."""

    def values(self, v: Tensor) -> Returned:
        """Values of the model (…, B, …) as the caller has them: observed entries bit for bit."""
        if self.center is not None and self.scale is not None:
            v = v.double() * self.scale.to(v.device) + self.center.to(v.device)
        return self.plain(torch.where(self.observed, self.given, v.to(self.given)))

    def spreads(self, v: Tensor) -> Returned:
        """Differences between values of the model (…, B, …), such as deviations."""
        if self.scale is not None:
            v = v.double() * self.scale.to(v.device)
        return self.plain(v.to(self.given))

    def log_density(self, v: Tensor, mask: Tensor) -> Returned:
        """Log-densities (…, B) over the entries that `mask` (B, …) marks."""
        return self.plain(self.of_units(v, mask))

    def of_units(self, v: Tensor, mask: Tensor) -> Tensor:
        """The same as tensors, whatever the caller gave."""
        if self.scale is None:
            return v
        return v.double() - torch.where(mask, self.scale.to(v.device).log(), 0).flatten(1).sum(1)

    def inside(self, y: Values, like: Tensor) -> Tensor:
        """Completions of the caller's (…, B, …) as the model takes them, in dtype and on the device of `like`."""
        return _standardised(as_tensor(y, "y"), self.center, self.scale).to(like)

    def plain(self, v: Tensor) -> Returned:
        """Numbers without a unit."""
        return v.detach().cpu().numpy() if self.array else v


def taken(
    y: Values, observed: Values | None, like: Tensor | None, scaling: tuple[Values, Values] | None = None
) -> tuple[Tensor, Terms]:
    """An observation for the model (B, …), and the caller's terms.

    `y` is a tensor, or anything that numpy makes an array of numbers; `observed` bool, or None: hidden is what is NaN.
    What is no tensor, or has a `scaling` (center, scale), goes over to dtype and device of `like`, the flow's.
    Raises `InputError` for what holds no numbers, and for a mask that is none of these items'.
    """
    array, given = not isinstance(y, Tensor), as_tensor(y, "y").detach()  # no result has a gradient in the observation
    if (array or scaling is not None) and not given.is_floating_point():
        given = given.double()  # completions of whole numbers are none
    mask = ~given.isnan() if observed is None else as_tensor(observed, "observed").to(given.device)
    center, scale = (None, None) if scaling is None else _moments(scaling, given)
    values = _standardised(given, center, scale)
    if like is not None and (array or scaling is not None):
        values, mask = values.to(like), mask.to(like.device)
    refused = values, Terms(given, mask, array)  # as any observation is, by `incomplete`
    if mask.dtype != torch.bool or given.dim() < 2:
        return refused
    try:
        whole = mask_of(mask, given.shape)
    except InputError:
        return refused
    if isinstance(y, np.ma.MaskedArray):  # what it masks is hidden, whatever else is said
        whole &= ~given.isnan()
    return values, Terms(given.clone().to(whole.device), whole, array, center, scale)


def as_tensor(value: Values, name: str) -> Tensor:
    """A tensor of numbers, or of truth values; raises `InputError` for anything else."""
    if isinstance(value, Tensor):
        return value
    try:
        array = _unmasked(value) if isinstance(value, np.ma.MaskedArray) else np.asarray(value)
        if array.dtype == object and hasattr(value, "to_numpy"):  # columns of pandas that may lack values
            array = value.to_numpy(dtype=float, na_value=np.nan)
        if array.dtype == object and value is not None:
            array = array.astype(float)
        if array.dtype.kind == "c":
            raise TypeError("complex numbers")
        if array.dtype.kind == "f" and array.itemsize > 8:
            array = array.astype(np.float64)  # torch has no longer ones
        return torch.from_numpy(np.array(array, order="C").astype(array.dtype.newbyteorder("="), copy=False))
    except (TypeError, ValueError) as error:
        strange = next((cell for cell in np.asarray(value, dtype=object).flat if not _is_number(cell)), None)
        of = "" if strange is None else f" that holds {strange!r}"
        raise InputError(f"{name} must be a tensor or an array of numbers, got {type(value).__name__}{of}") from error


def _unmasked(value: np.ma.MaskedArray[Any, Any]) -> np.ndarray:
    """Its numbers, or truth values: what it masks holds no number, and is not said to be observed."""
    holes = np.ma.getmaskarray(value)
    return value.data & ~holes if value.dtype.kind == "b" else np.where(holes, np.nan, value.data)


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return not isinstance(cell, str)


def _moments(scaling: tuple[Values, Values], given: Tensor) -> tuple[Tensor, Tensor]:
    if not isinstance(scaling, (tuple, list)) or len(scaling) != 2:
        raise InputError(f"scaling is {scaling!r}; give (center, scale)")
    center, scale = scaling
    return _moment(center, "center", given), _moment(scale, "scale", given)


def _moment(value: Any, name: str, given: Tensor) -> Tensor:
    moment = as_tensor(value, f"the scaling's {name}").double().to(given.device, copy=True)
    whole = bool(moment.isfinite().all()) and (name == "center" or bool((moment > 0).all()))
    wanted = f"give {'finite' if name == 'center' else 'positive'} numbers, one an entry, {tuple(given.shape[1:])}"
    if moment.shape not in (given.shape[1:], ()):
        raise InputError(f"the scaling's {name} has shape {tuple(moment.shape)}; {wanted}")
    if not whole:
        odd = moment[~((moment > (-math.inf if name == "center" else 0)) & (moment < math.inf))]
        raise InputError(f"the scaling's {name} holds {float(odd[0]):g}; {wanted}")
    return moment.expand(given.shape[1:])


def _standardised(v: Tensor, center: Tensor | None, scale: Tensor | None) -> Tensor:
    return v if center is None or scale is None else (v.double() - center.to(v.device)) / scale.to(v.device)
