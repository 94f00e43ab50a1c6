"""Whether what was trained is a bijection."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from viscos.core.errors import InputError
from viscos.flows import Flow
from viscos.train.model import Model


def certified(model: Model) -> Model:
    """A model whose flow is certified to be invertible: `model`, or a copy after more power iterations.

    The copy is what a certificate may change, so that no training depends on how often one is asked for. Raises
    `InputError` for a flow that is not certified after many.
    """
    if max(model.flow.lipschitz(), default=0.0) < 1:
        return model
    found = copy.deepcopy(model)
    check_invertible(found.flow)
    return found


def check_invertible(flow: Flow, attempts: Sequence[int] = (5, 50, 200)) -> None:
    """Raises `InputError` for a flow that is not certified to be invertible after so many power iterations."""
    largest = max(flow.lipschitz(), default=0.0)
    for iterations in attempts:
        if largest < 1:
            return
        flow.renormalize(iterations)
        largest = max(flow.lipschitz(), default=0.0)
    if largest < 1:
        return
    raise InputError(
        f"a residual branch has a certified Lipschitz bound of {largest:.3f}, so the flow may not be "
        "invertible; lower flow.coefficient"
    )
