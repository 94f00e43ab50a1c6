"""Bijections one after another."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from viscos.core.rng import Generators, usual_probes
from viscos.core.solution import Solution
from viscos.flows.bijection import Bijection, Contraction
from viscos.flows.skeleton import AffineSkeleton
from viscos.linear import LinearOperator, Product
from viscos.roots.links import Link, Links


class Chain(Bijection):
    """g = gₗ ∘ … ∘ g₁: `layers` in the direction data → latent, which may be chains themselves."""

    def __init__(self, layers: Iterable[Bijection]) -> None:
        super().__init__()
        layers = list(layers)
        self.layers = nn.ModuleList(layers)
        self.near_affine = all(layer.near_affine for layer in layers)
        self.deep = self.deep or any(layer.deep for layer in layers)
        self.network_layers = sum(layer.network_layers for layer in layers)

    def forward(self, y: Tensor) -> Tensor:
        for layer in self.layers:
            y = layer(y)
        return y

    @torch.no_grad()
    def inverse(self, x: Tensor) -> Solution:
        """y = f(x), layer by layer; each counts its share of an evaluation of the network.

        An item's verdict is the worst of those of the layers, and so is its residual.
        """
        networks = max(1, self.network_layers)
        status, evaluations = torch.zeros(len(x), dtype=torch.long, device=x.device), x.new_zeros(len(x))
        residual, fallback = evaluations, torch.zeros_like(status, dtype=torch.bool)
        for layer in reversed(self.layers):
            assert isinstance(layer, Bijection)
            found = layer.inverse(x)
            x = found.value
            status, residual = torch.maximum(status, found.status), torch.maximum(residual, found.residual)
            evaluations = evaluations + found.evaluations * (max(1, layer.network_layers) / networks)
            fallback = fallback | found.fallback
        return Solution(x, status, residual, evaluations, fallback)

    def tangent(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            y, v = layer.tangent(y, v)
        return y, v

    @torch.no_grad()
    def linearize(self, y: Tensor) -> tuple[Tensor, LinearOperator]:
        shape, parts = y.shape, []
        for layer in self.layers:
            y, part = layer.linearize(y)
            parts.append(part)
        return y, Product(parts, shape)

    def forward_and_ladj(self, y: Tensor, generator: Generators | None = None) -> tuple[Tensor, Tensor]:
        generator, total = generator or usual_probes(), y.new_zeros(len(y))
        for layer in self.layers:
            y, ladj = layer.forward_and_ladj(y, generator)
            total = total + ladj
        return y, total

    def forward_and_ladj_surrogate(self, y: Tensor, generator: Generators | None = None) -> tuple[Tensor, Tensor]:
        generator, total = generator or usual_probes(), y.new_zeros(len(y))
        for layer in self.layers:
            y, ladj = layer.forward_and_ladj_surrogate(y, generator)
            total = total + ladj
        return y, total

    def skeleton_after(self, below: AffineSkeleton) -> AffineSkeleton:
        for layer in self.layers:
            below = layer.skeleton_after(below)
        return below

    @torch.no_grad()
    def links(self, y: Tensor) -> Links | None:
        """A link for each leaf; one behind squeezes acts on squeezed states, in the data's shape all the same."""
        links = self._links(y)
        return Links(links) if len(links) > 1 else None

    def _links(self, y: Tensor) -> list[Link]:
        links, permutations = list[Link](), list[Bijection]()
        for leaf in self.leaves():
            if leaf.permutes:
                permutations.append(leaf)
            else:
                links.append(_link(leaf, tuple(permutations), y.new_ones(1, *y.shape[1:])))
        return links if _undone(permutations, y) else []

    def estimates(self, y: Tensor) -> bool:
        return any(leaf.estimates(y) for leaf in self.leaves())

    def leaves(self) -> list[Bijection]:
        return [leaf for layer in self.layers for leaf in layer.leaves()]

    def branches(self) -> list[Contraction]:
        return [branch for layer in self.layers for branch in layer.branches()]

    def select(self, index: Tensor) -> Bijection:
        chosen = [layer.select(index) for layer in self.layers]
        if all(one is layer for one, layer in zip(chosen, self.layers, strict=True)):
            return self
        picked = copy.copy(self)
        picked._modules = self._modules | {"layers": nn.ModuleList(chosen)}
        return picked

    @torch.no_grad()
    def initialize(self, y: Tensor) -> Tensor:
        """Sets the data-dependent layers from a batch of complete data (B, …); returns g of it."""
        for layer in self.layers:
            y = layer.initialize(y)
        return y

    @torch.no_grad()
    def renormalize(self, iterations: int = 1) -> None:
        """Restores the constraints of every layer; call it after each step of an optimiser."""
        for layer in self.layers:
            layer.renormalize(iterations)

    def unexamined(self) -> bool:
        return any(layer.unexamined() for layer in self.layers)

    @torch.no_grad()
    def examine(self, y: Tensor) -> None:
        """Each layer at the data that it gets."""
        for layer in self.layers:
            if not self.unexamined():
                return
            if layer.unexamined():
                layer.examine(y)
            y = layer(y)


def _undone(permutations: Sequence[Bijection], y: Tensor) -> bool:
    """Whether permutations of the entries of items like y (B, …) leave each where it was."""
    places = torch.arange(y.shape[1:].numel(), dtype=torch.float64, device=y.device).view(1, *y.shape[1:])
    z = places
    for permutation in permutations:
        z = permutation(z)
    return torch.equal(z, places)


def _link(leaf: Bijection, permutations: tuple[Bijection, ...], ones: Tensor) -> Link:
    """The leaf as a map between states of the data's shape, behind what permutes their entries before it."""

    def moved(z: Tensor) -> Tensor:
        for permutation in permutations:
            z = permutation(z)
        return z

    def back(z: Tensor) -> Tensor:
        for permutation in reversed(permutations):
            z = permutation.inverse(z).value
        return z

    near = leaf.skeleton_after(AffineSkeleton(moved(ones), moved(torch.zeros_like(ones)), moved=len(permutations)))
    near = replace(near, scale=back(near.scale), shift=back(near.shift))
    return Link(lambda z: back(leaf(moved(z))), None if near.trivial else near)
