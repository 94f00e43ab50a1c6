"""Layers of one kind behind a first one."""

from __future__ import annotations

from collections.abc import Sequence

from viscos.core.errors import InputError
from viscos.flows.bijection import Bijection
from viscos.flows.flow import Flow
from viscos.flows.layers.start import first_layers


def stack(layers: Sequence[Bijection], shape: Sequence[int], start: str) -> Flow:
    """The layers behind a first one."""
    if not layers:
        raise InputError("a flow needs at least one layer; give flow.layers of 1 or more")
    return Flow([*first_layers(start, tuple(shape)), *layers], shape)
