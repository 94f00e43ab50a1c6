"""A Gaussian near p(x^H | y^O), before anything is fitted: where g is affine, its mean is exact."""

from __future__ import annotations

import torch
from torch import Tensor

from viscos.core.rng import Generators, of_rows, rademacher
from viscos.core.solution import item_dot, per_item
from viscos.flows.flow import Flow
from viscos.flows.skeleton import inverse_or_pseudo
from viscos.linear import CG, GMRES, Block, LinearOperator, block_of, hidden_columns
from viscos.linear.principal import by_size
from viscos.posteriors.gaussian import DiagonalGaussian

_STEPS = 8
_HALVINGS = 5
_EXACT = 64  # hidden entries up to which the curvature is written out
_PROBES = 8  # for its diagonal beyond that


@torch.no_grad()
def laplace(
    flow: Flow, y: Tensor, hidden: Tensor, preconditioner: LinearOperator, generator: Generators
) -> DiagonalGaussian:
    """A diagonal Gaussian over x^H around the completion with the likeliest latent, from a completion y (B, …).

    Up to log-determinants, −log p(y) is ½|g(y)|², which Gauss–Newton steps over y^H make small: products with G and its
    transpose, and no solve of the restricted equation. Along x^H the latent x^O moves by M = G^OH (G^HH)⁻¹, so the
    curvature of ½|x|² is I + MᵀM; the scales are the inverse roots of its diagonal, those of the diagonal Gaussian that
    is nearest in the divergence that a fit makes small. `preconditioner` is close to (G^HH)⁻¹.
    """
    x, G = flow.linearize(y)
    size = item_dot(x, x)
    moving = torch.ones_like(size, dtype=torch.bool)  # each item stops by itself, whatever the others do
    for _ in range(_STEPS):
        square = _Square(G, hidden)
        found = CG(tolerance=1e-3, budget=40)(square, -_on(hidden, G.rmv(x)), _Square(preconditioner.T, hidden))
        before = size
        y, x, size = _shorter(flow, y, x, size, torch.nan_to_num(found.value), moving)
        _, G = flow.linearize(y)
        moving = moving & (size < 0.999 * before)
        if not bool(moving.any()):
            break
    curvature = _curvature(G, hidden, x, preconditioner, generator)
    return DiagonalGaussian(_on(hidden, x), hidden, -0.5 * torch.log1p(curvature))


def _shorter(
    flow: Flow, y: Tensor, x: Tensor, size: Tensor, step: Tensor, pending: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """y + s · step with the largest s in 1, ½, ¼, … for which |g|² is less than `size` (B,), its latent, and |g|².

    Items that are not `pending` (B,) stay where they are.
    """
    scale = torch.ones_like(size)
    best, latent, least = y, x, size
    for _ in range(_HALVINGS):
        trial = y + per_item(scale, y) * step
        value = flow.to_latent(trial)
        length = item_dot(value, value)
        better = pending & (length < size)
        keep = per_item(better, y)
        best, latent = torch.where(keep, trial, best), torch.where(keep, value, latent)
        least, pending = torch.where(better, length, least), pending & ~better
        if not bool(pending.any()):
            break
        scale = scale / 2
    return best, latent, least


def _curvature(
    G: LinearOperator, hidden: Tensor, like: Tensor, preconditioner: LinearOperator, generator: Generators
) -> Tensor:
    """The diagonal of MᵀM (B, …), zero on O: exactly for items of up to 64 hidden entries, else estimated."""

    def few(rows: Tensor) -> Tensor:
        return _written_out(G.select(rows), hidden[rows], like[rows])

    def many(rows: Tensor) -> Tensor:
        own = of_rows(generator, len(like), rows)
        return _probed(G.select(rows), hidden[rows], like[rows], preconditioner.select(rows), own)

    return by_size(hidden, _EXACT, few, many)


def _written_out(G: LinearOperator, hidden: Tensor, like: Tensor) -> Tensor:
    columns, places, inside = hidden_columns(G, hidden, like)
    outside = columns * (~hidden.flatten(1)).unsqueeze(2)
    M = outside @ inverse_or_pseudo(block_of(columns, places, inside))
    diagonal = torch.where(inside, M.square().sum(1), 0)
    return torch.zeros_like(like).flatten(1).scatter(1, places, diagonal).view_as(like)


def _probed(
    G: LinearOperator, hidden: Tensor, like: Tensor, preconditioner: LinearOperator, generator: Generators
) -> Tensor:
    """E[(Mᵀv)²] over signs v on O, where E[v vᵀ] = I."""
    total, block = torch.zeros_like(like), Block(G, hidden).T
    for _ in range(_PROBES):
        v = rademacher(like, generator, ~hidden)
        found = GMRES(tolerance=3e-2)(block, _on(hidden, G.rmv(v)), preconditioner.T)
        total += _on(hidden, found.value).square() / _PROBES
    return total


class _Square(LinearOperator):
    """P AᵀA P + (I − P), with P the projection on `mask`."""

    def __init__(self, base: LinearOperator, mask: Tensor) -> None:
        self.base, self.mask, self.shape = base, mask, base.shape

    def mv(self, v: Tensor) -> Tensor:
        return torch.where(self.mask, self.base.rmv(self.base.mv(_on(self.mask, v))), v)

    def rmv(self, u: Tensor) -> Tensor:
        return self.mv(u)

    def select(self, index: Tensor) -> LinearOperator:
        return _Square(self.base.select(index), self.mask[index])


def _on(mask: Tensor, v: Tensor) -> Tensor:
    return torch.where(mask, v, 0)
