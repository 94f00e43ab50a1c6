"""A multiple of the identity plus a matrix of low rank."""

from __future__ import annotations

import torch
from torch import Tensor

from viscos.linear.operator import LinearOperator


class LowRank(LinearOperator):
    """c I + U Vᵀ on tensors of `shape` (B, …), with c (B,) and U, V (B, d, m); inverted by Woodbury's identity."""

    def __init__(self, c: Tensor, U: Tensor, V: Tensor, shape: torch.Size) -> None:
        self.c, self.U, self.V, self.shape = c, U, V, torch.Size(shape)

    def mv(self, v: Tensor) -> Tensor:
        flat = v.flatten(1)
        return (self.c[:, None] * flat + _times(self.U, self.V, flat)).reshape(v.shape)

    def rmv(self, u: Tensor) -> Tensor:
        flat = u.flatten(1)
        return (self.c[:, None] * flat + _times(self.V, self.U, flat)).reshape(u.shape)

    def log_abs_det(self) -> Tensor:
        """log|det| (B,), differentiable: that of c I times that of the small matrix I + Vᵀ U / c."""
        return self.size * self.c.abs().log() + torch.linalg.slogdet(self._core() / self.c[:, None, None])[1]

    def inverse(self, tolerance: float | None = None) -> LinearOperator:
        """(I − U (c I + Vᵀ U)⁻¹ Vᵀ) / c."""
        U = -torch.linalg.solve(self._core(), self.U, left=False) / self.c[:, None, None]
        return LowRank(1 / self.c, U, self.V, self.shape)

    def _core(self) -> Tensor:
        eye = torch.eye(self.U.shape[2], dtype=self.U.dtype, device=self.U.device)
        return self.c[:, None, None] * eye + self.V.mT @ self.U

    def select(self, index: Tensor) -> LinearOperator:
        return LowRank(self.c[index], self.U[index], self.V[index], torch.Size((len(index), *self.shape[1:])))


def _times(U: Tensor, V: Tensor, v: Tensor) -> Tensor:
    """U Vᵀ v (B, d)."""
    return (U @ (V.mT @ v.unsqueeze(-1))).squeeze(-1)
