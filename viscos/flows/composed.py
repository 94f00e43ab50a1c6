"""A flow made of layers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from viscos.core.errors import InputError
from viscos.core.rng import Generators
from viscos.core.solution import Solution, Status, item_max
from viscos.flows.bijection import Flow, FlowJacobian
from viscos.flows.layer import Layer
from viscos.flows.skeleton import AffineSkeleton, Skeleton
from viscos.linear import LinearOperator
from viscos.roots import RootFinder
from viscos.roots.links import Link, Links


class Composed(Flow):
    """g = gₗ ∘ … ∘ g₁: layers in the direction data → latent, for items of a fixed `shape`."""

    def __init__(self, layers: Iterable[Layer], shape: Iterable[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.shape = torch.Size(shape)
        self.plain = all(layer.plain for layer in self.layers)

    def to_latent(self, y: Tensor) -> Tensor:
        for layer in self.layers:
            y = layer(y)
        return y

    def to_latent_and_ladj(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """x and log|det G|; of large residual layers an estimate, with the same probes at every call."""
        generator, total = torch.Generator().manual_seed(0), y.new_zeros(len(y))
        for layer in self.layers:
            y, ladj = layer.ladj(y, generator)
            total = total + ladj
        return y, total

    def to_latent_and_ladj_surrogate(self, y: Tensor, generator: Generators | None = None) -> tuple[Tensor, Tensor]:
        generator, total = generator or torch.Generator().manual_seed(0), y.new_zeros(len(y))
        for layer in self.layers:
            y, ladj = layer.ladj_surrogate(y, generator)
            total = total + ladj
        return y, total

    def to_latent_and_tangent(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            y, v = layer.tangent(y, v)
        return y, v

    @torch.no_grad()
    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]:
        shape, parts = y.shape, []
        for layer in self.layers:
            y, part = layer.linearize(y)
            parts.append(part)
        return y, FlowJacobian(parts, shape)

    @torch.no_grad()
    def to_data(self, x: Tensor, solver: RootFinder | None = None) -> Solution:
        """y = f(x), layer by layer; each counts its share of an evaluation of the network.

        `residual` is max |g(y) − x| at the end, evaluated once more without being counted; where it is above 1e-4
        (1e-8 in double) times max(1, |x|), an item whose layers all converged is `STALLED` all the same. With a
        `solver`, the root of g(y) = x instead.
        """
        if solver is not None:
            return super().to_data(x, solver)
        share = 1 / max(1, sum(bool(layer.evaluates) for layer in self.layers))
        wanted, status = x, torch.zeros(len(x), dtype=torch.long, device=x.device)
        evaluations = x.new_zeros(len(x))
        for layer in reversed(self.layers):
            found = layer.inverse(x)
            x = found.value
            status = torch.maximum(status, found.status)
            evaluations = evaluations + found.evaluations * share
        residual = item_max(self.to_latent(x) - wanted)
        limit = (1e-8 if x.dtype == torch.float64 else 1e-4) * item_max(wanted).clamp_min(1)
        off = (status == Status.CONVERGED) & ~(residual <= limit)
        return Solution(x, torch.where(off, int(Status.STALLED), status), residual, evaluations)

    @torch.no_grad()
    def skeleton(self, y: Tensor) -> Skeleton:
        """That of the layers; if one is more than a contraction, that of a flow of which nothing is known."""
        if not self.plain:
            return super().skeleton(y)
        assert self.shape is not None
        ones = y.new_ones(1, *self.shape)
        skeleton = AffineSkeleton(ones, torch.zeros_like(ones))
        for layer in self.layers:
            skeleton = layer.skeleton(skeleton)
        return skeleton

    @torch.no_grad()
    def links(self, y: Tensor) -> Links:
        """A link for each layer; one behind squeezes acts on squeezed states, in the data's shape all the same."""
        assert self.shape is not None
        links, squeezes = list[Link](), list[Layer]()
        for layer in self.layers:
            assert isinstance(layer, Layer)
            if layer.moves:
                squeezes.append(layer)
            else:
                links.append(self._link(layer, tuple(squeezes), y.new_ones(1, *self.shape)))
        return Links(links)

    def _link(self, layer: Layer, squeezes: tuple[Layer, ...], ones: Tensor) -> Link:
        def moved(z: Tensor) -> Tensor:
            for squeeze in squeezes:
                z = squeeze(z)
            return z

        def back(z: Tensor) -> Tensor:
            for squeeze in reversed(squeezes):
                z = squeeze.inverse(z).value
            return z

        near = layer.skeleton(AffineSkeleton(moved(ones), moved(torch.zeros_like(ones))))
        near = near if near.W is not None else AffineSkeleton(back(near.scale), back(near.shift))
        return Link(lambda z: back(layer(moved(z))), None if near.trivial else near)

    @torch.no_grad()
    def initialize(self, y: Tensor) -> None:
        """Sets the data-dependent layers from a batch of complete data (B, …)."""
        for layer in self.layers:
            y = layer.initialize(y)

    @torch.no_grad()
    def renormalize(self, iterations: int = 1) -> None:
        """Restores the constraints of every layer; call it after each step of an optimiser."""
        for layer in self.layers:
            layer.renormalize(iterations)

    def autocast(self, dtype: torch.dtype | None) -> None:
        """Lets the differentiable passes through residual branches run in `dtype`; None: in that of the data.

        Solves, products with Jacobians, log-determinants and norms stay in that of the data, and so does all that is
        evaluated without a gradient: a solve to a residual of 1e-3 cannot be had from numbers with three digits. Raises
        `InputError` for a flow without such branches, or of so few entries that its Jacobian is written out.
        """
        assert self.shape is not None
        large = [layer for layer in self.layers if self.shape.numel() > layer.exact_below]
        branches = [branch for layer in large for branch in layer.branches()]
        if dtype is not None and not branches:
            raise InputError("a lower precision is for large residual branches, which this flow has not; precision=32")
        for branch in branches:
            branch.autocast = dtype

    def lipschitz(self) -> list[float]:
        """A certified bound of each residual branch's Lipschitz constant; the flow is invertible if all are < 1."""
        return [branch.lipschitz() for layer in self.layers for branch in layer.branches()]
