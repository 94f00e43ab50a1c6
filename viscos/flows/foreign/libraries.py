"""Flows as other libraries write them, told apart by what they look like: none of the libraries is imported.

A source is the library's own pair of directions, data y ↔ z with z distributed as the library's base; `Foreign` turns
z into the standard normal latent x.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from viscos.core.errors import InputError
from viscos.flows.foreign.source import Functions, Source, kind_of

_FIX = "wrap a module whose forward(y) fixes it and returns (x, log|det ∂x/∂y|)"


class Normflows(Source):
    """`normflows.NormalizingFlow`: a list of `flows` from z to y, each with `inverse`, and the base `q0`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.name = f"the normflows {type(model).__name__}"
        if isinstance(model.q0, (list, nn.ModuleList)):
            raise InputError(
                f"{self.name} is multiscale: its latents are a list of {len(model.q0)}; viscos needs one latent of the "
                f"data's shape, so {_join('them')}"
            )
        inverse: Any = getattr(model, "inverse_and_log_det", None)
        if getattr(model.q0, "num_classes", None) is not None or inverse is None:
            raise InputError(f"{self.name} is class-conditional (its base needs a class), or has no inverse; {_FIX}")
        if "context" in inspect.signature(inverse).parameters:
            raise InputError(f"{self.name} is conditional: it takes a context; {_FIX}")

    def evaluate(self, y: Tensor) -> tuple[Any, Any]:
        # Not by the model's own inverse_and_log_det, which sums in single precision whatever the data are.
        total: Any = y.new_zeros(len(y))  # some layers give one number for all items
        for flow in reversed(list(self.model.flows)):
            y, ladj = flow.inverse(y)
            total = total + ladj
        return y, total

    def to_data(self, z: Tensor) -> Any:
        return self.model.forward(z)

    def base(self) -> Any:
        return self.model.q0

    def shape(self) -> torch.Size | None:
        shape = getattr(self.model.q0, "shape", None)
        return torch.Size(shape) if isinstance(shape, (tuple, list)) else None


class Nflows(Source):
    """`nflows.flows.Flow`: `_transform` from y to z, and the base `_distribution`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.name = f"the nflows {type(model).__name__}"
        embedded = not isinstance(getattr(model, "_embedding_net", nn.Identity()), nn.Identity)
        # A conditional transform that gets no context leaves it out without a word.
        if embedded or any(hasattr(module, "context_layer") for module in model.modules()):
            raise InputError(f"{self.name} is conditional: it takes a context; {_FIX}")

    def evaluate(self, y: Tensor) -> tuple[Any, Any]:
        return self.model._transform(y)

    def to_data(self, z: Tensor) -> Any:
        return self.model._transform.inverse(z)[0]

    def base(self) -> Any:
        return self.model._distribution

    def shape(self) -> torch.Size | None:
        shape = getattr(self.model._distribution, "_shape", None)
        return torch.Size(shape) if isinstance(shape, (tuple, list)) else None


class Zuko(Source):
    """`zuko.flows.Flow`, or another module whose call gives a distribution with a `transform` from y to z and a `base`.

    The distribution is made anew for each evaluation, from the parameters as they are.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.name = f"the zuko {type(model).__name__}"
        self.hint = f"; if it takes a context, {_FIX}"
        made = self._distribution()
        if not hasattr(made, "transform") or not hasattr(made, "base"):
            raise InputError(
                f"calling the {type(model).__name__} gives a {type(made).__name__}, which is not a flow: it has no "
                "`transform` and `base`"
            )

    def _distribution(self) -> Any:
        try:
            return self.model()
        except Exception as error:
            raise InputError(
                f"{self.name}() raised {type(error).__name__}: {' '.join(str(error).split())}{self.hint}"
            ) from error

    def evaluate(self, y: Tensor) -> tuple[Any, Any]:
        transform = self._distribution().transform
        if hasattr(transform, "call_and_ladj"):
            z, ladj = transform.call_and_ladj(y)
        else:
            z = transform(y)
            ladj = transform.log_abs_det_jacobian(y, z)
        # An entrywise transform gives a number for each entry.
        return z, ladj.flatten(1).sum(1) if ladj.dim() > 1 else ladj

    def latent(self, y: Tensor) -> Any:
        return self._distribution().transform(y)

    def to_data(self, z: Tensor) -> Any:
        return self._distribution().transform.inv(z)

    def base(self) -> Any:
        return self._distribution().base

    def shape(self) -> torch.Size | None:
        shape = self._distribution().base.event_shape
        return shape if len(shape) else None


def source_of(model: Any, to_data: Callable[..., Any] | None, base: Any) -> Source:
    """The source that `model` looks like; raises `InputError` if it looks like none."""
    if isinstance(model, nn.Module):
        library = _library(model)
        if library is not None:
            if to_data is not None or base is not None:
                raise InputError(f"to_data and base are for functions; a {type(model).__name__} has its own")
            return library(model)
    if not callable(model) or isinstance(model, type):
        raise InputError(
            f"{kind_of(model)} is not a flow that viscos knows; give a normflows, nflows or zuko flow, or a function "
            "to_latent(y) -> (x, log|det ∂x/∂y|)"
        )
    return Functions(model, to_data, base)


def _library(model: nn.Module) -> Callable[[nn.Module], Source] | None:
    if hasattr(model, "q0") and hasattr(model, "flows"):
        return Normflows
    if hasattr(model, "_transform") and hasattr(model, "_distribution"):
        return Nflows
    if hasattr(model, "transform") and hasattr(model, "base"):
        return Zuko
    try:
        inspect.signature(model.forward).bind()
    except (TypeError, ValueError):
        return None
    return Zuko


def _join(what: str) -> str:
    return f"wrap a function that joins {what}, with the inverse as to_data"
