"""What a flow is: a bijection between data and latent, with a standard normal latent.

Names follow the paper: y data, x latent, f: x → y is `to_data`, g = f⁻¹: y → x is `to_latent`, G = ∂g/∂y.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from viscos.core.errors import InputError
from viscos.core.rng import Generators
from viscos.core.solution import Solution
from viscos.flows.skeleton import Skeleton, estimated_skeleton
from viscos.linear import Chain, Jacobian, LinearOperator
from viscos.roots import LatentEquation, RootFinder, anderson
from viscos.roots.links import Links


class Flow(nn.Module):
    """Base class of all flows.

    A subclass writes one method, `to_latent_and_ladj`; everything else has a general, slower form here, which a
    subclass overrides where it knows better. All tensors have a leading batch axis, and a latent has the shape of its
    datum.

    Example:
        >>> class Scale(Flow):
        ...     def to_latent_and_ladj(self, y):
        ...         return 2 * y, y.new_full((len(y),), y[0].numel() * math.log(2))
        >>> Scale().log_prob(torch.zeros(1, 3)).shape
        torch.Size([1])
    """

    shape: torch.Size | None = None
    """Shape of an item, if the flow has a fixed one."""
    dense_below = 1024
    """Largest number of entries of an item whose Jacobian may be written out for the value of a bound."""
    dear = False
    """Whether the flow is so deep that it is solved, and its adjoints are, over the states between its layers."""
    plain = False
    """Whether `skeleton` is known in closed form, and costs nothing."""
    denoises = False
    """Whether `denoised` does anything."""
    matches = False
    """Whether complete data train it by `matching_loss`; its log-determinant is then too dear for every step."""

    def to_latent_and_ladj(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """x = g(y) (B, …) and log|det G(y)| (B,), both differentiable."""
        raise NotImplementedError(f"{type(self).__name__} must define to_latent_and_ladj(y) -> (x, log|det G|)")

    def to_latent(self, y: Tensor) -> Tensor:
        """x = g(y) (B, …)."""
        return self.to_latent_and_ladj(y)[0]

    def to_latent_and_ladj_surrogate(self, y: Tensor, generator: Generators | None = None) -> tuple[Tensor, Tensor]:
        """x = g(y) and a number for each item whose *gradient* is, in expectation, that of log|det G(y)| (B,)."""
        return self.to_latent_and_ladj(y)

    def to_latent_and_tangent(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """x = g(y) and G(y) v (B, …), both differentiable in y and in the parameters."""
        x, tangent = torch.func.jvp(self.to_latent, (y,), (v,))  # type: ignore[misc]
        return x, tangent

    @torch.no_grad()
    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]:
        """x = g(y) (B, …) and G(y) as an operator; neither carries a graph."""
        jacobian = Jacobian(self.to_latent, y)
        return jacobian.value, FlowJacobian([jacobian], y.shape)

    @torch.no_grad()
    def to_data(self, x: Tensor, solver: RootFinder | None = None) -> Solution:
        """y = f(x), with a verdict on each item: the root of g(y) = x, to 1e-5 (1e-9 in double)."""
        solver = solver or anderson(tolerance=1e-9 if x.dtype == torch.float64 else 1e-5, budget=100)
        hidden = torch.ones_like(x, dtype=torch.bool)
        equation = LatentEquation.build(self, torch.zeros_like(x), hidden, x)
        return solver.solve(equation, equation.start())

    def skeleton(self, y: Tensor) -> Skeleton:
        """An affine map close to g, for starts and preconditioners; here g linearised at `y`, or its diagonal alone."""
        return estimated_skeleton(self, y)

    def denoised(self, y: Tensor, noise: float) -> Tensor:
        """The items y (B, …) without the noise of training, of a standard deviation of `noise`, as far as g knows."""
        return y

    def links(self, y: Tensor) -> Links | None:
        """g for items like y (B, …) as maps between states that a solver may know too; None if it is of one piece."""
        return None

    def log_prob(self, y: Tensor) -> Tensor:
        """log p(y) in nats (B,): the paper's equation 1."""
        self.check(y)
        x, ladj = self.to_latent_and_ladj(y)
        return self.base_log_prob(x) + ladj

    def matching_loss(self, y: Tensor, generator: Generators) -> Tensor:
        """What training on complete data (B, …) makes small instead of −log p (B,), where `matches` is set."""
        raise NotImplementedError(f"{type(self).__name__} is not trained by matching")

    def base_log_prob(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """log p₀ of the entries of x in `mask` (all of them by default) (B,)."""
        each = -0.5 * (x.square() + math.log(2 * math.pi))
        return (each if mask is None else torch.where(mask, each, 0)).flatten(1).sum(1)

    def select(self, index: Tensor) -> Flow:
        """The flow as it acts on the items at `index` of a batch that it was made for; most flows are for any item."""
        return self

    def check(self, y: Tensor) -> None:
        """Refuses data of the wrong shape or dtype with `InputError`."""
        if self.shape is not None and y.shape[1:] != self.shape:
            raise InputError(f"this flow takes items of shape {tuple(self.shape)}, got {tuple(y.shape[1:])}")
        if not y.is_floating_point():
            raise InputError(f"data must be floating point, got {y.dtype}; convert with .float()")
        parameter = next(self.parameters(), None)
        if parameter is not None and parameter.dtype != y.dtype:
            raise InputError(f"data are {y.dtype}, the flow is {parameter.dtype}; convert one of them")


def written_out(tangent: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], y: Tensor) -> tuple[Tensor, Tensor]:
    """The value at y (B, …) and the dense Jacobian (B, d, d), both differentiable, of a map known by its `tangent`.

    `tangent` gets each item d times in a row, with the d directions of the basis.
    """
    batch, d = len(y), y[0].numel()
    basis = torch.eye(d, dtype=y.dtype, device=y.device).view(d, *y.shape[1:]).repeat(batch, *[1] * (y.dim() - 1))
    x, columns = tangent(y.repeat_interleave(d, 0), basis)
    return x.view(batch, d, *y.shape[1:])[:, 0], columns.reshape(batch, d, d).mT


class FlowJacobian(Chain):
    """G as the product of its layers' Jacobians, which can be inverted layer by layer."""

    def inverse(self, tolerance: float | None = None) -> LinearOperator:
        """J = G⁻¹: each layer inverted in its own way, last layer first, to a relative residual of `tolerance`."""
        parts = [part.inverse(tolerance) for part in reversed(self.parts)]
        return Chain(parts, self.shape)

    def select(self, index: Tensor) -> LinearOperator:
        return FlowJacobian([part.select(index) for part in self.parts], (len(index), *self.shape[1:]))
