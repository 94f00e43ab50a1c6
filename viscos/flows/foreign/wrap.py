"""Makes flows of viscos of those of other libraries."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.flows.bijection import Bijection
from viscos.flows.flow import Flow
from viscos.flows.foreign.examine import sampled
from viscos.flows.foreign.foreign import Foreign
from viscos.flows.foreign.libraries import source_of


def wrap(
    model: Any,
    shape: int | Sequence[int] | None = None,
    *,
    base: Any = None,
    to_data: Callable[[Tensor], Tensor] | None = None,
    check: bool = True,
) -> Flow:
    """A flow of normflows, nflows or zuko, or a function, as a flow of viscos, which may stand in a chain.

    `model` is a `normflows.NormalizingFlow`, an `nflows.flows.Flow`, a `zuko.flows.Flow`, or a callable
    `to_latent(y) -> (x, log|det ∂x/∂y|)` for y (B, …); with it may come its inverse `to_data(x) -> y`, and `base`, the
    distribution of its x: (location, scale), or an object with `log_prob`; standard normal by default. `shape` is that
    of an item, where the model does not know it. A base that is a diagonal Gaussian is standardised; any other is
    refused, and so are flows that need a context or a class, or whose latent has another shape than the data.

    The model is held, put into evaluation mode, and never changed. With `check`, it is compared with automatic
    differentiation: on samples of its own, or on the first data that it gets; a function in double precision if it
    takes no single. Raises `InputError`, which says what is wrong with it.

    Example:
        >>> flow = wrap(lambda y: (2 * y, y.new_full((len(y),), 3 * math.log(2))), shape=(3,), to_data=lambda x: x / 2)
        >>> flow.log_prob(torch.zeros(1, 3)).shape
        torch.Size([1])
    """
    wanted = None if shape is None else torch.Size((shape,) if isinstance(shape, int) else shape)
    flow = model if isinstance(model, Flow) else _flow(model, to_data, base)
    if flow.shape is not None and wanted is not None and flow.shape != wanted:
        raise InputError(f"the model is for items of shape {tuple(flow.shape)}, and shape={tuple(wanted)} was given")
    if flow is model and flow.shape is None and wanted is not None:
        flow = copy.copy(flow)  # which shares its layers
    flow.shape = flow.shape or wanted
    foreign = flow.layers[0] if len(flow.layers) == 1 else None
    if isinstance(foreign, Foreign):
        foreign.to_examine = check
        samples = sampled(foreign, flow.shape) if check and flow.shape is not None else None
        if samples is not None:
            foreign.examine(samples)
    return flow


def _flow(model: Any, to_data: Callable[..., Any] | None, base: Any) -> Flow:
    if isinstance(model, Bijection):
        return Flow([model])
    source = source_of(model, to_data, base)
    return Flow([Foreign(source)], source.shape())
