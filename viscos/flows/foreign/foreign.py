"""Flows that were trained with another library, as flows of viscos."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from viscos.core.errors import InputError
from viscos.core.solution import Solution, Status, item_max
from viscos.flows.bijection import Flow, written_out
from viscos.flows.foreign.examine import examine, sampled
from viscos.flows.foreign.libraries import Source, location_and_scale, source_of
from viscos.roots import LatentEquation, RootFinder, anderson


def wrap(
    model: Any,
    shape: Sequence[int] | None = None,
    *,
    base: Any = None,
    to_data: Callable[[Tensor], Tensor] | None = None,
    check: bool = True,
) -> Flow:
    """A flow of normflows, nflows or zuko, or a function, as a flow of viscos.

    `model` is a `normflows.NormalizingFlow`, an `nflows.flows.Flow`, a `zuko.flows.Flow`, or a callable
    `to_latent(y) -> (x, log|det ∂x/∂y|)` for y (B, …); with it may come its inverse `to_data(x) -> y`, and `base`, the
    distribution of its x: (location, scale), or an object with `log_prob`; standard normal by default. `shape` is that
    of an item, where the model does not know it. A base that is a diagonal Gaussian is standardised; any other is
    refused, and so are flows that need a context or a class, or whose latent has another shape than the data.

    The model is held, put into evaluation mode, and never changed. With `check`, it is compared with automatic
    differentiation: on samples of its own, or on the first data that it gets. Raises `InputError`, which says what is
    wrong with it.

    Example:
        >>> flow = wrap(lambda y: (2 * y, y.new_full((len(y),), 3 * math.log(2))), shape=(3,), to_data=lambda x: x / 2)
        >>> flow.log_prob(torch.zeros(1, 3)).shape
        torch.Size([1])
    """
    wanted = None if shape is None else torch.Size(shape)
    flow = model if isinstance(model, Flow) else Foreign(source_of(model, to_data, base))
    if flow.shape is not None and wanted is not None and flow.shape != wanted:
        raise InputError(f"the model is for items of shape {tuple(flow.shape)}, and shape={tuple(wanted)} was given")
    flow.shape = flow.shape or wanted
    if isinstance(flow, Foreign):
        flow.unexamined = check
        if check and flow.shape is not None:
            flow.examine(sampled(flow, flow.shape))
    return flow


class Foreign(Flow):
    """A flow of another library. Made by `wrap`."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source
        self.shape = source.shape()
        self.held = nn.ModuleList(source.modules())
        self.unexamined = True
        """Whether the first data shall be used to examine the model."""
        self.exact = False
        """Whether log|det G| comes from the dense Jacobian, as the library's own is random or not differentiable."""
        self.eval()

    def train(self, mode: bool = True) -> Foreign:
        """Stays in evaluation mode: a batch norm or a dropout of the model must not change while it is conditioned."""
        return super().train(False)

    def to_latent(self, y: Tensor) -> Tensor:
        # Cloned, as some layers set requires_grad on what they get.
        z = self._whole(self._ask(self.source.latent, y.clone(), "data"), y, "latent")
        return self._standardise(z)[0]

    def to_latent_and_ladj(self, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.exact:
            return self._exact_ladj(y)
        z, ladj = self._ask(self.source.evaluate, y.clone(), "data")
        if not isinstance(ladj, Tensor) or ladj.shape != (len(y),):
            seen = f"shape {tuple(ladj.shape)}" if isinstance(ladj, Tensor) else f"a {type(ladj).__name__}"
            raise InputError(f"log|det| of {self.source.name} is of {seen}; it must be one number an item, ({len(y)},)")
        x, log_scale = self._standardise(self._whole(z, y, "latent"))
        ladj = ladj.to(y.dtype) - log_scale
        return x, ladj if torch.is_grad_enabled() else ladj.detach()

    def to_latent_and_tangent(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        # By reverse mode twice: forward mode stops at custom functions and at layers that call requires_grad_.
        with torch.enable_grad():
            point = y if y.requires_grad else y.detach().requires_grad_()
            x = self.to_latent(point)
            u = torch.zeros_like(x, requires_grad=True)
            (pullback,) = torch.autograd.grad(x, point, u, create_graph=True)
            (tangent,) = torch.autograd.grad(pullback, u, v, create_graph=True)
        return (x, tangent) if torch.is_grad_enabled() else (x.detach(), tangent.detach())

    @torch.no_grad()
    def to_data(self, x: Tensor, solver: RootFinder | None = None) -> Solution:
        """y = f(x), by the library's inverse where it has one, with a verdict on each item.

        `residual` is max |g(y) − x|. Where it is above 1e-4 (1e-8 in double) times max(1, |x|), a root finder goes on
        from the library's answer; `fallback` marks these items. With a `solver`, the root of g(y) = x by it.
        """
        if solver is not None or not self.source.invertible:
            return super().to_data(x, solver)
        y = self.inverse(x)
        residual = item_max(self.to_latent(y) - x)
        limit = (1e-8 if x.dtype == torch.float64 else 1e-4) * item_max(x).clamp_min(1)
        status = torch.where(residual <= limit, int(Status.CONVERGED), int(Status.STALLED))
        status = torch.where(residual.isfinite(), status, int(Status.NON_FINITE))
        return self._polished(Solution(y, status, residual, x.new_ones(len(x))), x)

    def _polished(self, found: Solution, x: Tensor) -> Solution:
        """`found`, and where it is not good enough, what a root finder makes of it."""
        left = (found.status == Status.STALLED).nonzero().flatten()
        if not len(left):
            return found
        solver = anderson(tolerance=1e-8 if x.dtype == torch.float64 else 1e-4, budget=100)
        hidden, wanted = torch.ones_like(x[left], dtype=torch.bool), x[left]
        equation = LatentEquation.build(self, torch.zeros_like(wanted), hidden, wanted)
        again = solver.solve(equation, found.value[left])
        mixed = replace(found, fallback=torch.zeros_like(found.fallback).index_fill(0, left, True))
        for name in ("value", "status", "residual"):
            getattr(mixed, name)[left] = getattr(again, name)
        mixed.evaluations[left] += again.evaluations
        return mixed

    def inverse(self, x: Tensor) -> Tensor:
        """The library's own f (B, …), unverified."""
        location, scale = self._base(x)
        z = location + scale * x
        return self._whole(self._ask(self.source.to_data, z, "latents"), x, "datum").detach()

    def check(self, y: Tensor) -> None:
        super().check(y)
        if self.unexamined and len(y):
            self.examine(y[:4].to(self.like().device))

    def examine(self, y: Tensor | None) -> None:
        """Compares the model with automatic differentiation on y (B, …); on later data if there is none yet."""
        if y is None:
            return
        self.unexamined = False  # examining calls what calls `check`
        finding = examine(self, y)
        self.unexamined, self.exact = finding.nothing_finite, finding.exact

    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of the model."""
        tensors = [*self.parameters(), *self.buffers()]
        return next((t for t in tensors if t.is_floating_point()), torch.empty(0))

    def _base(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Location and scale of the base, of a shape that fits `like` (B, …)."""
        try:
            pair = location_and_scale(self.source.base())
            location, scale = (torch.as_tensor(part, dtype=like.dtype, device=like.device) for part in pair)
            fits = torch.broadcast_shapes(location.shape, scale.shape, like.shape) == like.shape
        except (NotImplementedError, AttributeError, RuntimeError):
            fits = False
        if not fits:
            kind = type(self.source.base()).__name__
            raise InputError(
                f"the base of {self.source.name}, a {kind}, is not a diagonal Gaussian of the shape of an item "
                f"{tuple(like.shape[1:])}; viscos needs a latent that is normal, with any location and scale"
            )
        return location, scale

    def _standardise(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """x = (z − location) / scale (B, …), and the sum of log scale (B,)."""
        location, scale = self._base(z)
        return (z - location) / scale, scale.log().expand_as(z).flatten(1).sum(1)

    def _exact_ladj(self, y: Tensor) -> tuple[Tensor, Tensor]:
        x, G = written_out(self.to_latent_and_tangent, y)
        return x, torch.linalg.slogdet(G)[1]

    def _ask(self, function: Callable[[Tensor], Any], v: Tensor, what: str) -> Any:
        """The library's answer; what it raises becomes one line."""
        try:
            return function(v)
        except (InputError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise InputError(
                f"{self.source.name} raised {type(error).__name__} for {what} of shape {tuple(v.shape)}: "
                f"{_one_line(error)}{self.source.hint}"
            ) from error

    def _whole(self, value: Any, like: Tensor, what: str) -> Tensor:
        """`value` if it is a tensor of the shape and dtype of `like`."""
        if not isinstance(value, Tensor):
            raise InputError(f"the {what} of {self.source.name} is a {type(value).__name__}; it must be one tensor")
        if value.shape != like.shape:
            raise InputError(
                f"the {what} of {self.source.name} has shape {tuple(value.shape)} where {tuple(like.shape)} was given; "
                "latent and data must have the same shape"
            )
        if value.dtype != like.dtype:
            raise InputError(
                f"the {what} of {self.source.name} is {value.dtype} where {like.dtype} was given; convert the model"
            )
        return value if torch.is_grad_enabled() else value.detach()


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:200] + "…"
