"""What a bijection is: a map between data and latents that knows its derivatives, its log-determinant and its inverse.

Names follow the paper: y data, x latent, g: y → x is `forward`, f = g⁻¹: x → y is `inverse`, G = ∂g/∂y.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from viscos.core.rng import Generators, rademacher, usual_probes
from viscos.core.solution import Solution, item_max, per_item
from viscos.flows.probing import pairing
from viscos.flows.skeleton import AffineSkeleton, estimated_skeleton
from viscos.linear import Jacobian, LinearOperator, lanczos_value
from viscos.roots import LatentEquation, RootFinder, anderson
from viscos.roots.links import Links, Skeleton

_PROBE = 1e-3  # relative residual of a probe's solve, far below the noise of one probe
WRONG = 0.05
"""Relative residual of a probe's solve above which the item counts as failed."""


class Contraction(Protocol):
    """The branch of a residual layer: a map whose Lipschitz constant is to stay below one."""

    autocast: torch.dtype | None
    """What its differentiable passes run in; None: the dtype of the data."""

    def lipschitz(self) -> float:
        """A certified bound of its Lipschitz constant."""
        ...


class Bijection(nn.Module):
    """Base class of all bijections; a flow is made of them.

    A subclass writes `forward`, in the direction data → latent; everything else has a general, slower form here, which
    a subclass overrides where it knows better: value and product with the Jacobian in one differentiable pass
    (`tangent`), products at one point (`linearize`), log-determinant (`forward_and_ladj` for its value,
    `forward_and_ladj_surrogate` for its gradient) and inverse. All tensors have a leading batch axis. A bijection whose
    log-determinant has a closed form is a `ClosedForm`.
    """

    exact_below = 16
    """Up to so many entries an item the log-determinant is that of the Jacobian written out."""
    near_affine = False
    """Whether it is affine but for contractions, so that `skeleton` is known at no cost, and a good preconditioner."""
    permutes = False
    """Whether it does nothing but permute the entries of an item."""
    deep = False
    """Whether it is so deep that equations, and their adjoints, are solved over the states between its layers."""
    network_layers = 0
    """How many layers of it count evaluations of a network in their inverse."""

    def forward(self, y: Tensor) -> Tensor:
        """x = g(y) (B, …), differentiable."""
        raise NotImplementedError(f"{type(self).__name__} must define forward(y) -> x")

    @torch.no_grad()
    def inverse(self, x: Tensor) -> Solution:
        """y = f(x) (B, …), with a verdict on each item: by default the root of g(y) = x, to 2e-6 (1e-11 in double)."""
        return root(self, x, anderson(inverse_tolerance(x), budget=100))

    def tangent(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """g(y) and G(y) v (B, …), both differentiable in y and in the parameters."""
        x, t = torch.func.jvp(self.forward, (y,), (v,))  # type: ignore[misc]
        return x, t

    @torch.no_grad()
    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]:
        """g(y) (B, …) and G(y) as an operator; neither carries a graph."""
        jacobian = Jacobian(self.forward, y)
        return jacobian.value, jacobian

    def forward_and_ladj(self, y: Tensor, generator: Generators | None = None) -> tuple[Tensor, Tensor]:
        """g(y) (B, …) and log|det G(y)|, or an estimate of it (B,), both differentiable; an estimate only once.

        `generator` is for the probes of an estimate; without one they are the same at every call. NaN where a gradient
        is asked for and its probes could not be solved.
        """
        if y.shape[1:].numel() <= self.exact_below:
            return self._written_out(y)
        generator = generator or usual_probes()
        x, G = self.linearize(y.detach())
        twin = generator.clone_state()  # the same probes for the gradient, and the same value with and without one
        value = self.estimate(G, y.detach(), generator)
        if not torch.is_grad_enabled():
            return x, value
        x, surrogate = self.forward_and_ladj_surrogate(y, twin)  # lends the value its gradient
        return x, value + surrogate - surrogate.detach()

    def forward_and_ladj_surrogate(self, y: Tensor, generator: Generators | None = None) -> tuple[Tensor, Tensor]:
        """g(y) (B, …) and a number for each item whose *gradient* is, in expectation, that of log|det G(y)| (B,).

        The number is NaN where the probes could not be solved; those then have a gradient of zero.
        """
        if y.shape[1:].numel() <= self.exact_below:
            return self._written_out(y)
        _, G = self.linearize(y.detach())
        pairs = list(self.probes(G, y.detach(), generator or usual_probes()))
        total, x = y.new_zeros(len(y)), y
        for v, u in pairs:
            x, t = self.tangent(y, v)
            known = u.isfinite().flatten(1).all(1)
            part = pairing(torch.where(per_item(known, u), u, 0), t)  # 0 · NaN would reach shared parameters
            total = total + torch.where(known, part, float("nan")) / len(pairs)
        return x, total

    def estimate(self, G: LinearOperator, like: Tensor, generator: Generators) -> Tensor:
        """An estimate of log|det G| at one point (B,), without a gradient: by Lanczos quadrature."""
        return lanczos_value(G, like, generator)

    def probes(self, G: LinearOperator, like: Tensor, generator: Generators) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs (v, u) such that E[uᵀ (∇G) v] = ∇ log|det G|: a random v, and u = G⁻ᵀ v, NaN where it is not known."""
        v = rademacher(like, generator)
        u = G.inverse(_PROBE).rmv(v)
        error = (G.rmv(u) - v).flatten(1).norm(dim=1)
        right = error <= WRONG * v.flatten(1).norm(dim=1)  # false for NaN too
        yield v, torch.where(per_item(right, u), u, float("nan"))

    def _written_out(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The value, and the dense Jacobian's log-determinant, differentiable."""
        x, G = written_out(self.tangent, y)
        return x, torch.linalg.slogdet(G)[1]

    @torch.no_grad()
    def skeleton(self, y: Tensor) -> Skeleton:
        """An affine map close to g, for starts and preconditioners: g without its contractions, where that is affine.

        Else g linearised at `y` (B, …), or its diagonal alone.
        """
        if not self.near_affine:
            return estimated_skeleton(self, y)
        ones = y.new_ones(1, *y.shape[1:])
        return self.skeleton_after(AffineSkeleton(ones, torch.zeros_like(ones)))

    def skeleton_after(self, below: AffineSkeleton) -> AffineSkeleton:
        """Composes the affine skeleton `below` with this bijection's own; residual branches count as the identity."""
        return below

    def links(self, y: Tensor) -> Links | None:
        """g for items like y (B, …) as maps between states that a solver may know too; None if it is of one piece."""
        return None

    def estimates(self, y: Tensor) -> bool:
        """Whether the log-determinant at items like y (B, …) is an estimate."""
        return y.shape[1:].numel() > self.exact_below

    def leaves(self) -> list[Bijection]:
        """The bijections that it is a chain of, themselves no chains: in the order data → latent."""
        return [self]

    def branches(self) -> Sequence[Contraction]:
        """The contractions in it, whose Lipschitz constants must stay below one."""
        return []

    def select(self, index: Tensor) -> Bijection:
        """The bijection as it acts on the items at `index` of a batch that it was made for; most are for any item."""
        return self

    def initialize(self, y: Tensor) -> Tensor:
        """Sets what depends on data from a first batch (B, …) of complete data; returns g of it."""
        return self(y)

    def renormalize(self, iterations: int = 1) -> None:
        """Restores constraints after an optimiser's step."""

    def unexamined(self) -> bool:
        """Whether `examine` is to be called on the first batch, as it is for models of other libraries."""
        return False

    def examine(self, y: Tensor) -> None:
        """Finds out at y (B, …) whether it is what it was taken for; raises `InputError` where it is not."""


class ClosedForm(Bijection):
    """A bijection whose log-determinant has a closed form.

    A subclass writes `forward_and_ladj`, and `forward` where the value alone is cheaper.

    Example:
        >>> class Scale(ClosedForm):
        ...     def forward_and_ladj(self, y, generator=None):
        ...         return 2 * y, y.new_full((len(y),), y.shape[1:].numel() * math.log(2))
        >>> Flow([Scale()]).log_prob(torch.zeros(1, 3)).shape
        torch.Size([1])
    """

    def estimates(self, y: Tensor) -> bool:
        return False

    def forward(self, y: Tensor) -> Tensor:
        return self.forward_and_ladj(y)[0]

    def forward_and_ladj(self, y: Tensor, generator: Generators | None = None) -> tuple[Tensor, Tensor]:
        raise NotImplementedError(f"{type(self).__name__} must define forward_and_ladj(y) -> (x, log|det G|)")

    def forward_and_ladj_surrogate(self, y: Tensor, generator: Generators | None = None) -> tuple[Tensor, Tensor]:
        return self.forward_and_ladj(y, generator)


def inverse_tolerance(x: Tensor) -> float:
    """The residual up to which a bijection's own inverse is solved, by the precision of x."""
    return 1e-11 if x.dtype == torch.float64 else 2e-6


def verified_tolerance(x: Tensor) -> float:
    """The residual up to which what somebody else took for the inverse of x counts as that, for |x| up to one."""
    return 1e-8 if x.dtype == torch.float64 else 1e-4


def is_inverse(residual: Tensor, x: Tensor) -> Tensor:
    """Where max |g(y) − x| (B,) lets y pass for the inverse of x (B, …): up to 1e-4 (1e-8 in double) times max(1, |x|).

    False where it is NaN.
    """
    return residual <= verified_tolerance(x) * item_max(x).clamp_min(1)


@torch.no_grad()
def root(bijection: Bijection, x: Tensor, solver: RootFinder, start: Tensor | None = None) -> Solution:
    """y with g(y) = x (B, …) by `solver`, from `start` (B, …) or, for want of one, from where the skeleton has it."""
    hidden = torch.ones_like(x, dtype=torch.bool)
    equation = LatentEquation.build(bijection, torch.zeros_like(x), hidden, x)
    return solver.solve(equation, equation.start() if start is None else start)


def written_out(tangent: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], y: Tensor) -> tuple[Tensor, Tensor]:
    """The value at y (B, …) and the dense Jacobian (B, d, d), both differentiable, of a map known by its `tangent`.

    `tangent` gets each item d times in a row, with the d directions of the basis.
    """
    batch, d = len(y), y.shape[1:].numel()
    basis = torch.eye(d, dtype=y.dtype, device=y.device).view(d, *y.shape[1:]).repeat(batch, *[1] * (y.dim() - 1))
    x, columns = tangent(y.repeat_interleave(d, 0), basis)
    return x.view(batch, d, *y.shape[1:])[:, 0], columns.reshape(batch, d, d).mT
