"""What a matrix is, apart from how it is inverted: a batch of square matrices known by their products.

Operators act on tensors with the shape of the data (B, …), never flattened by hand and never indexed by a list of
coordinates: a restricted block of every item has one size for the whole batch (see `Block`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from viscos.core.solution import Solution


class LinearOperator:
    """A batch of square matrices A; `shape` is that of the tensors it acts on (B, …)."""

    shape: torch.Size

    def mv(self, v: Tensor) -> Tensor:
        """A v (B, …)."""
        raise NotImplementedError

    def rmv(self, u: Tensor) -> Tensor:
        """Aᵀ u (B, …)."""
        raise NotImplementedError

    def select(self, index: Tensor) -> LinearOperator:
        """The matrices of the items at `index`."""
        return _Selected(self, index)

    def inverse(self, tolerance: float | None = None) -> LinearOperator:
        """A⁻¹ as an operator, to a relative residual of `tolerance` (default 1e-5, in double 1e-10).

        By GMRES, unless the operator knows better.
        """
        from viscos.linear.gmres import GMRES  # a solver needs operators first

        def solve(A: LinearOperator, b: Tensor) -> Solution:
            return GMRES.tight(b, tolerance)(A, b)

        return Inverse(self, solve)

    @property
    def T(self) -> LinearOperator:
        """Aᵀ."""
        return Transpose(self)

    @property
    def size(self) -> int:
        """Rows of each matrix, d."""
        return self.shape[1:].numel()


class Transpose(LinearOperator):
    """Aᵀ."""

    def __init__(self, base: LinearOperator) -> None:
        self.base, self.shape = base, base.shape

    def mv(self, v: Tensor) -> Tensor:
        return self.base.rmv(v)

    def rmv(self, u: Tensor) -> Tensor:
        return self.base.mv(u)

    def select(self, index: Tensor) -> LinearOperator:
        return Transpose(self.base.select(index))


class _Selected(LinearOperator):
    """Some items of an operator that cannot drop the others: no saving, but right."""

    def __init__(self, base: LinearOperator, index: Tensor) -> None:
        self.base, self.index = base, index
        self.shape = torch.Size((len(index), *base.shape[1:]))

    def _through(self, product: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
        found, left = torch.empty_like(v), torch.ones_like(self.index, dtype=torch.bool)
        while bool(left.any()):  # once for each time that the same item is asked for
            full, rows = v.new_zeros(self.base.shape), left.nonzero().flatten()
            last = rows.new_full((len(full),), -1).index_copy(0, self.index[rows], rows)
            rows = last[last >= 0]
            full[self.index[rows]] = v[rows]
            found[rows] = product(full)[self.index[rows]]
            left[rows] = False
        return found

    def mv(self, v: Tensor) -> Tensor:
        return self._through(self.base.mv, v)

    def rmv(self, u: Tensor) -> Tensor:
        return self._through(self.base.rmv, u)

    def select(self, index: Tensor) -> LinearOperator:
        return _Selected(self.base, self.index[index])

    def inverse(self, tolerance: float | None = None) -> LinearOperator:
        return self.base.inverse(tolerance).select(self.index)


class Matrix(LinearOperator):
    """Dense matrices (B, d, d), acting on tensors of `shape` (default (B, d))."""

    def __init__(self, matrix: Tensor, shape: Sequence[int] | None = None) -> None:
        self.matrix = matrix
        self.shape = torch.Size(shape if shape is not None else matrix.shape[:2])

    def mv(self, v: Tensor) -> Tensor:
        return (self.matrix @ v.flatten(1).unsqueeze(-1)).view_as(v)

    def rmv(self, u: Tensor) -> Tensor:
        return (self.matrix.mT @ u.flatten(1).unsqueeze(-1)).view_as(u)

    def select(self, index: Tensor) -> LinearOperator:
        return Matrix(self.matrix[index], (len(index), *self.shape[1:]))


class SharedSymmetric(LinearOperator):
    """One symmetric matrix (d, d) for every item of tensors of `shape`, with its inverse where that is known."""

    def __init__(self, matrix: Tensor, shape: Sequence[int], inverted: Tensor | None = None) -> None:
        self.matrix, self.inverted, self.shape = matrix, inverted, torch.Size(shape)

    def mv(self, v: Tensor) -> Tensor:
        return (v.flatten(1) @ self.matrix).reshape(v.shape)

    def rmv(self, u: Tensor) -> Tensor:
        return self.mv(u)

    def inverse(self, tolerance: float | None = None) -> LinearOperator:
        """The known inverse, or an iterative one."""
        if self.inverted is None:
            return super().inverse(tolerance)
        return SharedSymmetric(self.inverted, self.shape, self.matrix)

    def select(self, index: Tensor) -> LinearOperator:
        return SharedSymmetric(self.matrix, (len(index), *self.shape[1:]), self.inverted)


class Diagonal(LinearOperator):
    """diag(s), with s (B, …) or one for all items (1, …)."""

    def __init__(self, scale: Tensor, batch: int | None = None) -> None:
        self.scale = scale
        self.shape = torch.Size((len(scale) if batch is None else batch, *scale.shape[1:]))

    def mv(self, v: Tensor) -> Tensor:
        return self.scale * v

    def rmv(self, u: Tensor) -> Tensor:
        return self.scale * u

    def inverse(self, tolerance: float | None = None) -> LinearOperator:
        """diag(1/s)."""
        return Diagonal(1 / self.scale, self.shape[0])

    def select(self, index: Tensor) -> LinearOperator:
        return Diagonal(self.scale if len(self.scale) == 1 else self.scale[index], len(index))


class IdentityPlus(LinearOperator):
    """I + A."""

    def __init__(self, part: LinearOperator) -> None:
        self.part, self.shape = part, part.shape

    def mv(self, v: Tensor) -> Tensor:
        return v + self.part.mv(v)

    def rmv(self, u: Tensor) -> Tensor:
        return u + self.part.rmv(u)

    def select(self, index: Tensor) -> LinearOperator:
        return type(self)(self.part.select(index))


class Jacobian(LinearOperator):
    """∂fn/∂y at y by automatic differentiation: the general, slow way; one graph serves all products."""

    def __init__(self, fn: Callable[[Tensor], Tensor], y: Tensor) -> None:
        self.shape = y.shape
        with torch.inference_mode(False), torch.enable_grad():
            self._y = _ordinary(y.detach()).requires_grad_()
            self._value = fn(self._y)
            # The product with the transpose is linear in u, so differentiating it by u gives the product itself.
            self._u = torch.zeros_like(self._value, requires_grad=True)
            (self._pullback,) = torch.autograd.grad(self._value, self._y, self._u, create_graph=True)
        self.value = self._value.detach()

    def mv(self, v: Tensor) -> Tensor:
        with torch.inference_mode(False):
            return torch.autograd.grad(self._pullback, self._u, _ordinary(v), retain_graph=True)[0]

    def rmv(self, u: Tensor) -> Tensor:
        with torch.inference_mode(False):
            return torch.autograd.grad(self._value, self._y, _ordinary(u), retain_graph=True)[0]


def _ordinary(v: Tensor) -> Tensor:
    """v, or a copy that may stand in a graph where it was made in inference mode."""
    return v.clone() if v.is_inference() else v


class Block(LinearOperator):
    """P A P + (I − P), with P the projection on `mask`: a restricted block, padded to one size for every item.

    Its determinant is that of the block A[mask, mask].
    """

    def __init__(self, base: LinearOperator, mask: Tensor) -> None:
        self.base, self.mask, self.shape = base, mask, base.shape

    def _pad(self, product: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
        return torch.where(self.mask, product(torch.where(self.mask, v, 0)), v)

    def mv(self, v: Tensor) -> Tensor:
        return self._pad(self.base.mv, v)

    def rmv(self, u: Tensor) -> Tensor:
        return self._pad(self.base.rmv, u)

    def select(self, index: Tensor) -> LinearOperator:
        return Block(self.base.select(index), self.mask[index])


class Product(LinearOperator):
    """The product of operators; the first acts first. A product among them is taken for its own parts."""

    def __init__(self, parts: Sequence[LinearOperator], shape: Sequence[int]) -> None:
        self.parts = list[LinearOperator]()
        for part in parts:
            self.parts += part.parts if isinstance(part, Product) else [part]
        self.shape = torch.Size(shape)

    def mv(self, v: Tensor) -> Tensor:
        for part in self.parts:
            v = part.mv(v)
        return v

    def rmv(self, u: Tensor) -> Tensor:
        for part in reversed(self.parts):
            u = part.rmv(u)
        return u

    def select(self, index: Tensor) -> LinearOperator:
        return Product([part.select(index) for part in self.parts], (len(index), *self.shape[1:]))

    def inverse(self, tolerance: float | None = None) -> LinearOperator:
        """A⁻¹: each part inverted in its own way, the last one first, to a relative residual of `tolerance`."""
        return Product([part.inverse(tolerance) for part in reversed(self.parts)], self.shape)


class Inverse(LinearOperator):
    """A⁻¹ by a linear solver: a solver bound to an operator is an operator again."""

    def __init__(self, base: LinearOperator, solve: Callable[[LinearOperator, Tensor], Solution]) -> None:
        self.base, self.solve, self.shape = base, solve, base.shape

    def mv(self, v: Tensor) -> Tensor:
        return self.solve(self.base, v).value

    def rmv(self, u: Tensor) -> Tensor:
        return self.solve(self.base.T, u).value

    def inverse(self, tolerance: float | None = None) -> LinearOperator:
        """A."""
        return self.base

    def select(self, index: Tensor) -> LinearOperator:
        return Inverse(self.base.select(index), self.solve)


class Groups(LinearOperator):
    """Operators for disjoint subsets of a batch, joined into one.

    `rows` are the batch indices of each part (n,), int64; together they cover the batch.
    """

    def __init__(self, rows: Sequence[Tensor], parts: Sequence[LinearOperator]) -> None:
        self.rows, self.parts = rows, parts
        self.shape = torch.Size((sum(map(len, rows)), *parts[0].shape[1:]))

    def mv(self, v: Tensor) -> Tensor:
        return self._joined([part.mv(v[rows]) for rows, part in zip(self.rows, self.parts, strict=True)])

    def rmv(self, u: Tensor) -> Tensor:
        return self._joined([part.rmv(u[rows]) for rows, part in zip(self.rows, self.parts, strict=True)])

    def _joined(self, found: list[Tensor]) -> Tensor:
        return torch.cat(found)[torch.cat(list(self.rows)).argsort()]

    def select(self, index: Tensor) -> LinearOperator:
        picked = []
        for rows, part in zip(self.rows, self.parts, strict=True):
            numbers = torch.arange(len(rows), device=rows.device)
            place = numbers.new_full((self.shape[0],), -1).index_copy(0, rows, numbers)
            inside = (place[index] >= 0).nonzero().flatten()
            if len(inside):
                picked.append((inside, part.select(place[index[inside]])))
        return grouped(picked) if picked else self.parts[0].select(index)


def grouped(parts: Sequence[tuple[Tensor, LinearOperator]]) -> LinearOperator:
    """Joins pairs of batch indices (n,) and their operator into one; a single pair covers the batch, and is that."""
    if len(parts) == 1:
        return parts[0][1]
    return Groups([rows for rows, _ in parts], [part for _, part in parts])


def dense(operator: LinearOperator, like: Tensor) -> Tensor:
    """The matrices written out (B, d, d), by d products, in the dtype and on the device of `like`."""
    d, shape = operator.size, operator.shape
    basis = torch.eye(d, dtype=like.dtype, device=like.device).view(d, 1, *shape[1:])
    return torch.stack([operator.mv(e.expand(shape)).flatten(1) for e in basis], dim=-1)
