"""Numbers, as callers give them from Python and as readers see them."""

from __future__ import annotations

import operator
from typing import Any

from viscos.core.errors import InputError


def count(value: Any, name: str, least: int = 1) -> int:
    """`value` as a whole number, `least` or more; raises `InputError`, which names it, for anything else."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise InputError(f"{name} must be a whole number, {least} or more, got {value!r}")
    return number


def percent(share: float) -> str:
    """A share in per cent, to two digits."""
    return "100 %" if 0.995 <= share <= 1 else f"{100 * share:.2g} %"
