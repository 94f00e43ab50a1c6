"""Layers of one kind behind a first one."""

from __future__ import annotations

from collections.abc import Sequence

from viscos.core.errors import InputError
from viscos.flows.bijection import Bijection
from viscos.flows.flow import Flow
from viscos.flows.layers.start import first_layers


def whole(value: int | Sequence[int], name: str) -> tuple[int, ...]:
    """Whole numbers of 0 or more, one or several; a plain one stands for a list of one.

    Raises `InputError`, with the setting's `name`, for anything else.
    """
    numbers = (value,) if isinstance(value, int) else tuple(value) if isinstance(value, Sequence) else (value,)
    if not numbers or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers):
        raise InputError(f"{name} is {value!r}; give a whole number, or a list of them, such as [4, 4]")
    return numbers


def stack(layers: Sequence[Bijection], shape: tuple[int, ...], start: str) -> Flow:
    """The layers behind a first one."""
    if not layers:
        raise InputError("a flow needs at least one layer; give flow.layers of 1 or more")
    return Flow([*first_layers(start, shape), *layers], shape)
