"""A continuous flow as a chain of links, whose steps are evaluated together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from viscos.core.solution import per_item
from viscos.flows.families.continuous.steps import IntegratorStep
from viscos.roots.links import Links

_TOGETHER = 100_000
"""Entries of states that one call takes on a processor, whose caches hold no more: 128 pictures of 28 × 28. A GPU takes
all of them at once."""


@dataclass(frozen=True)
class StepLinks(Links):
    """The first layers, and the steps of an integrator."""

    steps: Sequence[IntegratorStep] = ()

    def values(self, states: Tensor) -> Tensor:
        first = len(self.each) - len(self.steps)
        before = [link.value(z) for link, z in zip(self.each, states[:, :first].unbind(1), strict=False)]
        rows = max(1, _TOGETHER // states[0, first:].numel()) if states.device.type == "cpu" else len(states)
        together = torch.cat([self._together(part) for part in states[:, first:].split(rows)])
        return torch.cat([torch.stack(before, 1), together], 1) if before else together

    def _together(self, states: Tensor) -> Tensor:
        """All steps at once, each from a state of its own (B, K, …): one call of the network for each stage.

        A step from θ over s is one from 0 over 1 of the field s F(z, θ + s t).
        """
        z, batch, network = states.flatten(0, 1), len(states), self.steps[0].network
        start = z.new_tensor([step.start for step in self.steps]).repeat(batch)
        size = z.new_tensor([step.end - step.start for step in self.steps]).repeat(batch)

        def velocity(z: Tensor, t: float) -> Tensor:
            return per_item(size, z) * network(z, 2 / math.pi * (start + size * t))

        return (z + self.steps[0].method.increment(velocity, z, 0.0, 1.0)).view_as(states)

    def start(self, y: Tensor, x: Tensor, hidden: Tensor) -> Tensor:
        """Through the first layers, then along z = y cos θ + x sin θ on H, and along z = y cos θ on O."""
        path = [y]
        for link in self.each[: len(self.each) - len(self.steps)]:
            path.append(link.value(path[-1]))
        angles = [step.end for step in self.steps]
        z, toward = path[-1], torch.where(hidden, x, 0)
        return torch.stack([*path, *(z * math.cos(a) + toward * math.sin(a) for a in angles)], 1)
