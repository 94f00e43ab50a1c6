"""The first layers of a flow, set from the data before training."""

from __future__ import annotations

from viscos.core.errors import InputError
from viscos.flows.bijection import Bijection
from viscos.flows.layers.affine import Affine
from viscos.flows.layers.whitening import Whitening

STARTS = ("gaussian", "standardise", "none")


def first_layers(start: str, shape: tuple[int, ...]) -> list[Bijection]:
    """`gaussian`: whitening by a Gaussian fitted to observed entries; `standardise`: each entry by its observed mean
    and deviation; `none`: nothing. Raises `InputError` for another word."""
    if start not in STARTS:
        raise InputError(f"flow.start is {start!r}; choose {', '.join(STARTS[:-1])} or {STARTS[-1]}")
    if start == "none":
        return []
    return [Whitening(shape) if start == "gaussian" else Affine(shape, learn=False)]
