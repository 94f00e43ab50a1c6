"""The networks of MCFlow, and the gradient through the inverse of its flow."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from viscos.flows import Coupling, Flow
from viscos.roots.gradient import implicit


def coupling_flow(d: int, couplings: int, width: int) -> Flow:
    """Affine couplings on rows (d,), in pairs of a random half of the entries and of the rest."""
    layers = list[Coupling]()
    for _ in range((couplings + 1) // 2):
        half = torch.zeros(d)
        half[torch.randperm(d)[: max(1, d // 2)]] = 1
        layers += [Coupling(half, width), Coupling(1 - half, width)]
    return Flow(layers[:couplings], (d,))


class Stage(nn.Module):
    """A flow G⁻¹ and a network h from latents to likelier ones (MCFlow, section 3 there): y ↦ G(h(G⁻¹(y)))."""

    def __init__(self, d: int, couplings: int, width: int, likelier: nn.Module) -> None:
        super().__init__()
        self.flow, self.likelier = coupling_flow(d, couplings, width), likelier

    def forward(self, y: Tensor) -> Tensor:
        """Rows (B, d) that are likelier, with the gradient of h's parameters alone."""
        with torch.no_grad():
            x = self.flow.to_latent(y)
        moved: Tensor = self.likelier(x)
        return from_latent(self.flow, moved)


def from_latent(flow: Flow, x: Tensor) -> Tensor:
    """y = f(x) (B, d) with the gradient of x, and none of the flow's parameters: Gᵀ λ = ∂ℓ/∂y."""
    y = flow.inverse(x.detach()).value
    if not x.requires_grad:
        return y
    return implicit(y, -x, flow.linearize(y)[1].inverse().rmv)


def latent_network(d: int, width: int) -> nn.Sequential:
    """h: five linear layers (d,) → (d,) with LeakyReLU in between (MCFlow, section 4 there)."""
    widths = [d, *[width] * 4, d]
    layers = list[nn.Module]()
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.LeakyReLU()]
    return nn.Sequential(*layers[:-1])
