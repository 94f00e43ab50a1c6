"""Linear maps with a bounded Lipschitz constant.

The norm of a convolution is that of the operator at its true spatial size with its true padding, found by power
iteration; that is not the norm of the reshaped kernel. What is *certified* is another number, an upper bound: small
maps are written out and decomposed; else, a zero-padded convolution is a compression of the circular convolution on a
larger torus, whose norm the Fourier transform gives exactly (Sedghi, Gupta and Long, 2019).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_DENSE_BELOW = 512  # up to this many entries a convolution's norm is certified by writing its matrix out


class Bounded(nn.Module):
    """A linear map with bias whose norm is held at or below `bound`.

    The weight that acts is W · min(1, bound/σ(W)). The power iteration's vector is a buffer that moves only in
    `renormalize`, so evaluating twice gives the same output. Away from gradients the weight that acts is kept until
    W or the vector changes.
    """

    u: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, in_shape: tuple[int, ...], bound: float) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.in_shape, self.bound = in_shape, bound
        start = torch.randn(1, *in_shape, generator=torch.Generator().manual_seed(0))
        self.register_buffer("u", start / start.norm())
        self._kept: tuple[Tensor, Tensor, Tensor] | None = None
        self.renormalize(20)

    def product(self, z: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The map with an explicit weight (B, …)."""
        raise NotImplementedError

    def product_transposed(self, u: Tensor, weight: Tensor) -> Tensor:
        """The transpose with an explicit weight (B, …)."""
        raise NotImplementedError

    def certified_norm(self) -> float:
        """An upper bound of the norm of the map that acts."""
        raise NotImplementedError

    def sigma(self) -> Tensor:
        """The norm of W as the power iteration knows it, differentiable in W (a number)."""
        return self.product(self.u, self.weight).norm()

    def effective(self) -> Tensor:
        """The weight that acts."""
        if torch.is_grad_enabled() and self.weight.requires_grad:
            return self._scaled()
        # Compared by value: neither a version counter nor an address sees what a fused optimiser or `.data` does.
        if self._kept is None or not (_same(self._kept[0], self.weight) and _same(self._kept[1], self.u)):
            with torch.inference_mode(False):  # what is kept may serve where a gradient is taken
                self._kept = (self.weight.detach().clone(), self.u.clone(), self._scaled().detach())
        return self._kept[2]

    def _scaled(self) -> Tensor:
        # min(1, bound/σ), written so that its gradient exists where W = 0.
        return self.weight * (self.bound / self.sigma().clamp_min(self.bound))

    def forward(self, z: Tensor) -> Tensor:
        return self.product(z, self.effective(), self.bias)

    @torch.no_grad()
    def renormalize(self, iterations: int = 1) -> None:
        """Power iterations on WᵀW."""
        u = self.u
        for _ in range(iterations):
            u = self.product_transposed(self.product(u, self.weight), self.weight)
            u = u / u.norm().clamp_min(torch.finfo(u.dtype).tiny)
        if bool(torch.isfinite(u).all()) and float(u.norm()) > 0.5:
            self.u.copy_(u)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


class Convolution:
    """A convolution of stride one with SAME zero padding, with an explicit weight."""

    def product(self, z: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        # Channels last, in which convolutions with few channels are about twice as fast on a CPU.
        z, weight = (t.contiguous(memory_format=torch.channels_last) for t in (z, weight))
        return F.conv2d(z, weight, bias, padding=weight.shape[-1] // 2)

    def product_transposed(self, u: Tensor, weight: Tensor) -> Tensor:
        # A convolution with the flipped kernel is the transpose, and on a CPU faster than conv_transpose2d.
        return self.product(u, weight.transpose(0, 1).flip(2, 3))


class Dense:
    """A dense map on flattened items, with an explicit weight."""

    def product(self, z: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(z, weight, bias)

    def product_transposed(self, u: Tensor, weight: Tensor) -> Tensor:
        return u @ weight


class BoundedConv2d(Convolution, Bounded):
    """A convolution of stride one with SAME zero padding."""

    def __init__(self, c_in: int, c_out: int, kernel: int, size: tuple[int, int], bound: float) -> None:
        conv = nn.Conv2d(c_in, c_out, kernel)
        assert conv.bias is not None
        Bounded.__init__(self, conv.weight.detach(), conv.bias.detach(), (c_in, *size), bound)

    @torch.no_grad()
    def certified_norm(self) -> float:
        kernel = self.effective().double()
        if kernel.shape[-1] == 1:  # the same map at every pixel
            return float(torch.linalg.matrix_norm(kernel[:, :, 0, 0], ord=2))
        d = torch.Size(self.in_shape).numel()
        if d <= _DENSE_BELOW:
            columns = self.product(
                torch.eye(d, dtype=kernel.dtype, device=kernel.device).view(d, *self.in_shape), kernel
            )
            return float(torch.linalg.matrix_norm(columns.flatten(1), ord=2))
        torus = [n + kernel.shape[-1] - 1 for n in self.in_shape[1:]]
        frequencies = torch.fft.rfft2(kernel, s=torus).permute(2, 3, 0, 1)
        return float(torch.linalg.matrix_norm(frequencies, ord=2).max())


class BoundedLinear(Dense, Bounded):
    """A dense map on flattened items."""

    def __init__(self, d_in: int, d_out: int, bound: float) -> None:
        linear = nn.Linear(d_in, d_out)
        Bounded.__init__(self, linear.weight.detach(), linear.bias.detach(), (d_in,), bound)

    @torch.no_grad()
    def certified_norm(self) -> float:
        return float(torch.linalg.matrix_norm(self.effective().double(), ord=2))
