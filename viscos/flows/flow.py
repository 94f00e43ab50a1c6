"""What a flow is: a bijection between data and a latent that is standard normal."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.precision import tensor_of
from viscos.core.rng import Generators, RowGenerator, fresh_probes, usual_probes
from viscos.core.solution import Solution, Status, item_max
from viscos.flows.bijection import Bijection, is_inverse, root
from viscos.flows.chain import Chain
from viscos.roots import RootFinder


class Flow(Chain):
    """A chain of bijections from data to a standard normal latent, for items of a fixed `shape` if that is given.

    A latent has the shape of its datum. g is `to_latent`, f is `to_data`, as in the paper.

    Example:
        >>> flow = Flow([Affine((3,))], (3,))
        >>> flow.log_prob(torch.zeros(1, 3)).shape
        torch.Size([1])
    """

    dense_below = 1024
    """Largest number of entries of an item whose Jacobian may be written out for the value of a bound."""
    can_denoise = False
    """Whether `denoised` does anything."""
    passes = 1
    """Passes of a network in one evaluation of g."""
    trained_by_matching = False
    """Whether complete data train it by `matching_loss`: its log-determinant then costs too much for every step."""

    def __init__(self, layers: Iterable[Bijection], shape: Iterable[int] | None = None) -> None:
        super().__init__(layers)
        self.shape = None if shape is None else torch.Size(shape)
        if flows := [layer for layer in self.layers if isinstance(layer, Flow)]:
            self.dense_below = min(flow.dense_below for flow in flows)
            self.passes = sum(flow.passes for flow in flows)
            self.can_denoise = flows[0] is self.layers[0] and flows[0].can_denoise

    def to_latent(self, y: Tensor) -> Tensor:
        """x = g(y) (B, …)."""
        self.fits(y)
        x: Tensor = self(y)
        return x

    @torch.no_grad()
    def to_data(self, x: Tensor, solver: RootFinder | None = None) -> Solution:
        """y = f(x) by `inverse`, or with a `solver` the root of g(y) = x, with a verdict on each item.

        `residual` is max |g(y) − x| at the end, evaluated once more without being counted; where it is above 1e-4
        (1e-8 in double) times max(1, |x|), an item whose layers all converged is `STALLED` all the same.
        """
        self.fits(x)
        if solver is not None:
            return root(self, x, solver)
        found = self.inverse(x)
        residual = item_max(self(found.value) - x)
        off = found.converged & ~is_inverse(residual, x)
        return replace(found, status=torch.where(off, int(Status.STALLED), found.status), residual=residual)

    def log_prob(self, y: Tensor, generator: Generators | None = None) -> Tensor:
        """log p(y) in nats (B,): the paper's equation 1.

        Where log|det G| has no closed form and an item more entries than are written out (`Bijection.exact_below`), it
        is an estimate, with probes from `generator`. Without one they are the same for every item and at every call:
        what an item has does not depend on its company, and a mean over items has the error of one. Its gradient has
        probes of its own then, new at every call, from torch's generator: parameters that go up a gradient by the same
        probes again and again make these probes' estimate larger, and not the likelihood.
        """
        self.check(y)
        if generator is None and torch.is_grad_enabled() and self.estimates(y):
            return self._with_fresh_gradient(y)
        x, ladj = self.forward_and_ladj(y, generator or _alike(y))
        return self.base_log_prob(x) + ladj

    def _with_fresh_gradient(self, y: Tensor) -> Tensor:
        with torch.no_grad():
            value = self.forward_and_ladj(y, _alike(y))[1]
        x, surrogate = self.forward_and_ladj_surrogate(y, fresh_probes())
        return self.base_log_prob(x) + value + surrogate - surrogate.detach()

    def base_log_prob(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """log p₀ of the entries of x in `mask` (all of them by default) (B,)."""
        each = -0.5 * (x.square() + math.log(2 * math.pi))
        return (each if mask is None else torch.where(mask, each, 0)).flatten(1).sum(1)

    def matching_loss(self, y: Tensor, generator: Generators, weights: Tensor | None = None) -> Tensor:
        """What training on complete data (B, …) makes small instead of −log p (B,), for `trained_by_matching`.

        Entries count by `weights` (B, …), none negative, or all alike: weights whose mean over all data is one leave
        the size of the loss.
        """
        raise NotImplementedError(f"{type(self).__name__} is not trained by matching")

    def denoised(self, y: Tensor, noise: float) -> Tensor:
        """The items y (B, …) without the noise of training, of a standard deviation of `noise`, as far as g knows."""
        first = self.layers[0] if self.can_denoise else None
        return first.denoised(y, noise) if isinstance(first, Flow) else y

    def cleaned(self, y: Tensor, hidden: Tensor, noise: float) -> Tensor:
        """Completions y (B, …) with the noise of training taken off their `hidden` entries alone, as `denoised` does.

        They stay as they are where there was none, or the flow cannot.
        """
        return torch.where(hidden, self.denoised(y, noise), y) if noise > 0 and self.can_denoise else y

    def select(self, index: Tensor) -> Flow:
        """The flow as it acts on the items at `index` of a batch that it was made for; most flows are for any item."""
        picked = super().select(index)
        assert isinstance(picked, Flow)
        return picked

    def check(self, y: Tensor) -> None:
        """Refuses data as `fits` does, and a wrapped model that is no bijection there."""
        self.fits(y)
        if len(y) and self.unexamined():
            like = tensor_of(self)
            self.examine(y[:4] if like is None else y[:4].to(like.device))

    def fits(self, y: Tensor) -> None:
        """Refuses what is no tensor, or of the wrong shape or dtype, with `InputError`."""
        if not isinstance(y, Tensor):
            raise InputError(f"a flow takes tensors, got {type(y).__name__}; give torch.as_tensor(y)")
        if self.shape is not None and y.shape == self.shape:
            raise InputError(f"this is one item of shape {tuple(y.shape)}, without a batch axis; give y[None]")
        if self.shape is not None and y.shape[1:] != self.shape:
            raise InputError(f"this flow takes items of shape {tuple(self.shape)}, got {tuple(y.shape[1:])}")
        if not y.is_floating_point():
            raise InputError(f"data must be floating point, got {y.dtype}; convert with .float()")
        like = tensor_of(self)
        if like is not None and like.dtype != y.dtype:
            raise InputError(f"data are {y.dtype}, the flow is {like.dtype}; convert one of them")

    def autocast(self, dtype: torch.dtype | None) -> None:
        """Lets the differentiable passes through residual branches run in `dtype`; None: in that of the data.

        Solves, products with Jacobians, log-determinants and norms stay in that of the data, and so does all that is
        evaluated without a gradient: a solve to a residual of 1e-3 cannot be had from numbers with three digits. Raises
        `InputError` for a flow without such branches, or of so few entries that its Jacobian is written out.
        """
        assert self.shape is not None
        large = [leaf for leaf in self.leaves() if self.shape.numel() > leaf.exact_below]
        branches = [branch for leaf in large for branch in leaf.branches()]
        if dtype is not None and not branches:
            raise InputError("a lower precision is for large residual branches, which this flow has not; precision=32")
        for branch in branches:
            branch.autocast = dtype

    def lipschitz(self) -> list[float]:
        """A certified bound of each residual branch's Lipschitz constant; the flow is invertible if all are < 1."""
        return [branch.lipschitz() for branch in self.branches()]


def _alike(y: Tensor) -> Generators:
    """The usual probes, the same for each item of y (B, …)."""
    return RowGenerator(usual_probes(), 1, torch.zeros(len(y), dtype=torch.long))
