"""Values of log|det| of operators, without gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from viscos.core.rng import Generators, of_rows, rademacher
from viscos.core.solution import item_dot
from viscos.linear.operator import Block, LinearOperator, dense
from viscos.linear.principal import by_size, longest

_STEPS = 24  # of Lanczos, each two products
_ROUNDING = 10
"""What counts as zero beside a number, in units of its rounding."""
_MEMORY = 2**25
"""Numbers of the matrices that are written out together."""


@torch.no_grad()
def exact_value(operator: LinearOperator, like: Tensor) -> Tensor:
    """log|det A| (B,) by writing the matrices out: d products an item."""
    return _log_abs_det(like, operator.size**2, lambda rows: dense(operator.select(rows), like[rows]))


def _log_abs_det(like: Tensor, numbers: int, matrices: Callable[[Tensor], Tensor]) -> Tensor:
    """log|det| (B,) of the `matrices` of the items at rows (n,), some at a time; an item takes so many `numbers`."""
    found = []
    for rows in torch.arange(len(like), device=like.device).split(max(1, _MEMORY // max(1, numbers))):
        # One matrix at a time: the batched factorisation of large matrices fails in some threaded builds of MKL.
        found += [torch.linalg.slogdet(A.double())[1] for A in matrices(rows)]
    return torch.stack(found).to(like.dtype) if found else like.new_zeros(0)


@torch.no_grad()
def lanczos_value(
    operator: LinearOperator,
    like: Tensor,
    generator: Generators,
    mask: Tensor | None = None,
    steps: int = _STEPS,
    probes: int = 1,
) -> Tensor:
    """An estimate of log|det A| = ½ tr log(AᵀA) (B,) by stochastic Lanczos quadrature (Ubaru, Chen and Saad, 2017).

    Probes live on `mask` (B, …), outside of which A must be the identity, as in a `Block`. The error has a random part
    that shrinks with `probes` and one that shrinks exponentially with `steps`.

    −∞ where a Ritz value is zero but for rounding: A has a singular value below each, so it is then singular in its
    precision, with a condition number of 1e6 or more in single precision. The converse does not hold. A probe sees
    nothing of a null space that it is orthogonal to, and among many singular values that are close to zero, `steps`
    steps may not come to the last one: the value is then finite, if low.
    """
    total = like.new_zeros(len(like))
    for _ in range(probes):
        v = rademacher(like, generator, mask)
        total += 0.5 * _quadrature(operator, v, steps) / probes
    return total


def _quadrature(operator: LinearOperator, v: Tensor, steps: int) -> Tensor:
    """vᵀ log(AᵀA) v (B,)."""
    values, weights, sane = _ritz(operator, v, steps)
    log = 2 * values.clamp_min(torch.finfo(values.dtype).tiny).log()
    total = torch.where(weights > 0, weights * log, 0).sum(1).to(v.dtype) * item_dot(v, v)
    least, largest = _extremes(values, weights)
    total = torch.where(least > _ROUNDING * torch.finfo(v.dtype).eps * largest, total, -float("inf"))
    return torch.where(sane, torch.where(item_dot(v, v) > 0, total, 0), float("nan"))


def _extremes(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest of Ritz values (B, n) that carry a weight (B, n): not those of decoupled rows (B,)."""
    reached = weights > 1e-30
    return torch.where(reached, values, float("inf")).amin(1), torch.where(reached, values, 0).amax(1)


def _ritz(operator: LinearOperator, v: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Singular values of A as the space of v and AᵀA knows them (B, n), their weights in v (B, n), and what is sane.

    By the bidiagonalisation of Golub and Kahan (1965), with full reorthogonalisation: A V = U B, so BᵀB is what Lanczos
    makes of AᵀA, at the same products. But the singular values of B go down to the rounding of A, where the eigenvalues
    of a computed BᵀB end at its root. Sane (B,), bool, are items of which every number is finite.
    """
    size = item_dot(v, v).sqrt()
    V, U = [_unit(v.flatten(1), size)], list[Tensor]()
    alphas, betas = [], [size]  # the first says only whether there is anything
    for k in range(min(steps, v.shape[1:].numel())):
        if k:
            w = operator.rmv(U[-1].view_as(v)).flatten(1)
            scale, w = w.norm(dim=1), _without(V, w)
            betas.append(_zeroed(w.norm(dim=1), scale))
            V.append(_unit(w, betas[-1]))
        u = operator.mv(V[-1].view_as(v)).flatten(1)
        scale, u = u.norm(dim=1), _without(U, u)
        alphas.append(_zeroed(u.norm(dim=1), scale))
        U.append(_unit(u, alphas[-1]))
    diagonal, off = torch.stack(alphas, 1).double(), torch.stack(betas, 1).double()
    sane = torch.isfinite(diagonal).all(1) & torch.isfinite(off).all(1)
    # Where β is zero the space is exhausted: all behind is decoupled, and gets no weight.
    diagonal, off = (torch.where(sane[:, None] & (off > 0), part, fill) for part, fill in ((diagonal, 1), (off, 0)))
    _, values, vectors = torch.linalg.svd(torch.diag_embed(diagonal) + torch.diag_embed(off[:, 1:], 1))
    return values, vectors[:, :, 0].square(), sane


def _without(basis: list[Tensor], w: Tensor) -> Tensor:
    """w (B, d) without what lies in the span of orthonormal vectors."""
    if basis:
        Q = torch.stack(basis, 1)
        for _ in range(2):
            w = w - (Q.mT @ (Q @ w.unsqueeze(-1))).squeeze(-1)
    return w


def _zeroed(length: Tensor, scale: Tensor) -> Tensor:
    """Lengths (B,) of what was left of vectors that were `scale` long; 0 where that is but rounding."""
    return torch.where(length <= _ROUNDING * torch.finfo(length.dtype).eps * scale, 0, length)  # and NaN stays


def _unit(w: Tensor, length: Tensor) -> Tensor:
    """w (B, d) over its length (B,); zero where that is."""
    return torch.where(length[:, None] > 0, w / torch.where(length > 0, length, 1)[:, None], 0)


@torch.no_grad()
def log_abs_det_block(
    operator: LinearOperator,
    hidden: Tensor,
    like: Tensor,
    generator: Generators,
    exact_below: int = 1024,
    steps: int = _STEPS,
) -> Tensor:
    """log|det A^HH| (B,): exactly for items of up to `exact_below` hidden entries, else by Lanczos quadrature."""

    def few(rows: Tensor) -> Tensor:
        return exact_block_value(operator.select(rows), hidden[rows], like[rows])

    def many(rows: Tensor) -> Tensor:
        block = Block(operator.select(rows), hidden[rows])
        return lanczos_value(block, like[rows], of_rows(generator, len(like), rows), hidden[rows], steps)

    return by_size(hidden, exact_below, few, many)


@torch.no_grad()
def exact_block_value(operator: LinearOperator, hidden: Tensor, like: Tensor) -> Tensor:
    """log|det A^HH| (B,) by writing the blocks out: as many products as the item with the most in H has entries there.

    Items with fewer are filled up with rows of the identity.
    """

    def blocks(rows: Tensor) -> Tensor:
        return padded_blocks(operator.select(rows), hidden[rows], like[rows])

    return _log_abs_det(like, operator.size * longest(hidden.flatten(1)), blocks)


@torch.no_grad()
def hidden_columns(operator: LinearOperator, hidden: Tensor, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The columns of A that belong to H (B, d, h), their flat coordinates (B, h), and which are real (B, h), bool.

    h is that of the item with the most; the columns that fill up the others are zero.
    """
    flat = hidden.flatten(1)
    places = flat.byte().argsort(dim=1, descending=True, stable=True)[:, : longest(flat)]
    inside = flat.gather(1, places)
    columns = like.new_zeros(len(flat), flat.shape[1], places.shape[1])
    for k in range(places.shape[1]):
        one = like.new_zeros(flat.shape).scatter(1, places[:, k : k + 1], inside[:, k : k + 1].to(like.dtype))
        columns[:, :, k] = operator.mv(one.view_as(like)).flatten(1)
    return columns, places, inside


@torch.no_grad()
def padded_blocks(operator: LinearOperator, hidden: Tensor, like: Tensor) -> Tensor:
    """The blocks A^HH written out (B, h, h), filled up with rows of the identity."""
    return block_of(*hidden_columns(operator, hidden, like))


def block_of(columns: Tensor, places: Tensor, inside: Tensor) -> Tensor:
    """The blocks (B, h, h) in what `hidden_columns` gives."""
    rows = columns.gather(1, places.unsqueeze(2).expand(-1, -1, columns.shape[2]))
    return filled_up(rows, inside)


def filled_up(matrices: Tensor, mask: Tensor) -> Tensor:
    """The blocks on `mask` (B, d) of matrices (B, d, d), of one size for all: the rest is that of the identity."""
    return torch.where(mask[:, :, None] & mask[:, None, :], matrices, torch.diag_embed((~mask).to(matrices.dtype)))


@torch.no_grad()
def condition_estimate(operator: LinearOperator, hidden: Tensor, like: Tensor, exact_below: int = 64) -> Tensor:
    """The condition number of A^HH (B,) up to `exact_below` hidden entries; beyond them, by Lanczos, a lower bound."""
    return by_size(
        hidden,
        exact_below,
        lambda rows: _condition(operator.select(rows), hidden[rows], like[rows]),
        lambda rows: _condition_below(operator.select(rows), hidden[rows], like[rows]),
    )


def _condition(operator: LinearOperator, hidden: Tensor, like: Tensor) -> Tensor:
    blocks = padded_blocks(operator, hidden, like).double()
    finite = torch.isfinite(blocks).flatten(1).all(1)
    # The identity that fills a block up gets a size between its smallest and its largest singular value.
    H = hidden.flatten(1).sum(1)
    filled = torch.arange(blocks.shape[1], device=blocks.device) >= H[:, None]
    real = ~filled[:, :, None] & ~filled[:, None, :]
    own = torch.where(real, torch.nan_to_num(blocks), 0)
    size = own.square().sum((1, 2)) / H.clamp_min(1)
    values = torch.linalg.svdvals(own + torch.diag_embed(filled * size.sqrt()[:, None]))
    found = values.amax(1) / values.amin(1) if values.shape[1] else values.new_ones(len(values))
    found = torch.where(finite & ~found.isnan(), found, float("inf"))
    return torch.where(H == 0, 1, found).to(like.dtype)


def _condition_below(operator: LinearOperator, hidden: Tensor, like: Tensor) -> Tensor:
    """A lower bound."""
    v = rademacher(like[:1], torch.Generator().manual_seed(0)) * hidden  # the same signs for every item
    values, weights, sane = _ritz(Block(operator, hidden), v, _STEPS)
    least, largest = _extremes(values, weights)
    least = least.clamp_min(torch.finfo(values.dtype).tiny)
    return torch.where(sane, largest / least, float("inf")).to(like.dtype)
