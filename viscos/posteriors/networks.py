"""Networks from images to features of the same size (B, `width`, H, W), or of vectors (B, `width`), for inference."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn


class Plain(nn.Module):
    """3×3 SAME convolutions with ReLU in between, as in the paper, whose network has a fifth on top of these four."""

    def __init__(self, c_in: int, channels: Sequence[int] = (4, 8, 16, 32)) -> None:
        super().__init__()
        self.width = channels[-1]
        widths = [c_in, *channels]
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in itertools.pairwise(widths))

    def forward(self, z: Tensor) -> Tensor:
        """(B, c_in, H, W) -> (B, width, H, W)."""
        for layer in self.layers:
            z = F.relu(layer(z))
        return z


class MLP(nn.Module):
    """A fully connected network for vectors: one layer in, and three residual ones with normalised inputs."""

    def __init__(self, d_in: int, width: int = 128) -> None:
        super().__init__()
        self.width = width
        self.enter = nn.Linear(d_in, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, z: Tensor) -> Tensor:
        """(B, d_in) -> (B, width)."""
        z = F.silu(self.enter(z))
        for norm, layer in zip(self.norms, self.layers, strict=True):
            z = z + F.silu(layer(norm(z)))
        return z


class UNet(nn.Module):
    """Two convolutions at each of three scales, and back up with skip sums (Ronneberger, Fischer and Brox, 2015)."""

    def __init__(self, c_in: int, width: int = 32) -> None:
        super().__init__()
        self.width = width
        widths = [width, 2 * width, 4 * width]
        self.enter = nn.Conv2d(c_in, width, 3, padding=1)
        self.refine = nn.ModuleList(nn.Conv2d(w, w, 3, padding=1) for w in widths)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, stride=2) for a, b in itertools.pairwise(widths))
        self.narrow = nn.ModuleList(nn.Conv2d(b, a, 1) for a, b in itertools.pairwise(widths))
        self.merge = nn.ModuleList(nn.Conv2d(w, w, 3, padding=1) for w in widths[:-1])

    def forward(self, z: Tensor) -> Tensor:
        """(B, c_in, H, W) -> (B, width, H, W), for any H and W."""
        z, skips = F.silu(self.enter(z)), []
        for k, refine in enumerate(self.refine):
            z = F.silu(refine(F.silu(self.down[k - 1](z)) if k else z))
            skips.append(z)
        for k in reversed(range(len(self.merge))):
            wide = F.interpolate(self.narrow[k](z), size=skips[k].shape[2:])
            z = F.silu(self.merge[k](skips[k] + wide))
        return z
