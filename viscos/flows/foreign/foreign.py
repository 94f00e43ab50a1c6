"""The bijection of a flow that was trained with another library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from viscos.core.errors import InputError
from viscos.core.rng import Generators
from viscos.core.solution import Solution, Status, item_max
from viscos.flows.bijection import ClosedForm, is_inverse, root, verified_tolerance
from viscos.flows.foreign.examine import examine
from viscos.flows.foreign.source import Source, location_and_scale
from viscos.roots import anderson


class Foreign(ClosedForm):
    """A flow of another library as a bijection. Made by `wrap`."""

    network_layers = 1

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source
        self.held = nn.ModuleList(source.modules())
        self.to_examine = True
        """Whether the first data shall be used to examine the model."""
        self.exact = False
        """Whether log|det G| comes from the dense Jacobian, as the library's own is random or not differentiable."""
        self.eval()

    def train(self, mode: bool = True) -> Foreign:
        """Stays in evaluation mode: a batch norm or a dropout of the model must not change while it is conditioned."""
        return super().train(False)

    def forward(self, y: Tensor) -> Tensor:
        # Cloned, as some layers set requires_grad on what they get.
        z = self._whole(self._ask(self.source.latent, y.clone(), "data"), y, "latent")
        return self._standardise(z)[0]

    def forward_and_ladj(self, y: Tensor, generator: Generators | None = None) -> tuple[Tensor, Tensor]:
        if self.exact:
            return self._written_out(y)
        z, ladj = self._ask(self.source.evaluate, y.clone(), "data")
        if not isinstance(ladj, Tensor) or ladj.shape != (len(y),):
            seen = f"shape {tuple(ladj.shape)}" if isinstance(ladj, Tensor) else f"a {type(ladj).__name__}"
            raise InputError(f"log|det| of {self.source.name} is of {seen}; it must be one number an item, ({len(y)},)")
        x, log_scale = self._standardise(self._whole(z, y, "latent"))
        ladj = ladj.to(y.dtype) - log_scale
        return x, ladj if torch.is_grad_enabled() else ladj.detach()

    def tangent(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        # By reverse mode twice: forward mode stops at custom functions and at layers that call requires_grad_.
        with torch.enable_grad():
            point = y if y.requires_grad else y.detach().requires_grad_()
            x = self(point)
            u = torch.zeros_like(x, requires_grad=True)
            (pullback,) = torch.autograd.grad(x, point, u, create_graph=True)
            (tangent,) = torch.autograd.grad(pullback, u, v, create_graph=True)
        return (x, tangent) if torch.is_grad_enabled() else (x.detach(), tangent.detach())

    @torch.no_grad()
    def inverse(self, x: Tensor) -> Solution:
        """y = f(x), by the library's inverse where it has one, with a verdict on each item.

        `residual` is max |g(y) − x|. Where it is above 1e-4 (1e-8 in double) times max(1, |x|), a root finder goes on
        from the library's answer; `fallback` marks these items. Without an inverse of the library, the root of
        g(y) = x, to 1e-5 (1e-9 in double).
        """
        if not self.source.invertible:
            return root(self, x, anderson(tolerance=1e-9 if x.dtype == torch.float64 else 1e-5, budget=100))
        y = self.unverified_inverse(x)
        residual = item_max(self(y) - x)
        status = torch.where(is_inverse(residual, x), int(Status.CONVERGED), int(Status.STALLED))
        status = torch.where(residual.isfinite(), status, int(Status.NON_FINITE))
        return self._polished(Solution(y, status, residual, x.new_ones(len(x))), x)

    def _polished(self, found: Solution, x: Tensor) -> Solution:
        """`found`, and where it is not good enough, what a root finder makes of it."""
        solver = anderson(verified_tolerance(x), budget=100)
        stalled = found.status == Status.STALLED  # from what is no number there is nothing to go on from
        better = found.or_else(lambda rows: root(self, x[rows], solver, found.value[rows]), left=stalled)
        close = stalled & is_inverse(better.residual, x)  # the solver knows nothing of how large x is
        return replace(better, status=torch.where(close, int(Status.CONVERGED), better.status))

    def unverified_inverse(self, x: Tensor) -> Tensor:
        """The library's own f (B, …), unverified."""
        location, scale = self._base(x)
        z = location + scale * x
        return self._whole(self._ask(self.source.to_data, z, "latents"), x, "datum").detach()

    def unexamined(self) -> bool:
        return self.to_examine

    def examine(self, y: Tensor) -> None:
        """Compares the model with automatic differentiation on y (B, …)."""
        finding = examine(self, y)
        self.to_examine, self.exact = finding.nothing_finite, finding.exact

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
