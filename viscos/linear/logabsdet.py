"""Values of log|det| of operators, without gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from viscos.linear.operator import Block, LinearOperator, dense
from viscos.linear.principal import longest
from viscos.rng import Generators, rademacher
from viscos.solution import item_dot


@torch.no_grad()
def exact_value(operator: LinearOperator, like: Tensor) -> Tensor:
    """log|det A| (B,) by writing the matrices out: d products an item."""
    # One matrix at a time: the batched factorisation of large matrices fails in some threaded builds of MKL.
    return torch.stack([torch.linalg.slogdet(A.double())[1] for A in dense(operator, like)]).to(like.dtype)


@torch.no_grad()
def lanczos_value(
    operator: LinearOperator,
    like: Tensor,
    generator: Generators,
    mask: Tensor | None = None,
    steps: int = 24,
    probes: int = 1,
) -> Tensor:
    """An estimate of log|det A| = ½ tr log(AᵀA) (B,) by stochastic Lanczos quadrature (Ubaru, Chen and Saad, 2017).

    Probes live on `mask` (B, …), outside of which A must be the identity, as in a `Block`. The error has a random part
    that shrinks with `probes` and one that shrinks exponentially with `steps`.
    """
    total = like.new_zeros(len(like))
    for _ in range(probes):
        v = rademacher(like, generator, mask)
        total += 0.5 * _quadrature(operator, v, steps) / probes
    return total


def _quadrature(operator: LinearOperator, v: Tensor, steps: int) -> Tensor:
    """vᵀ log(AᵀA) v (B,) by Lanczos with full reorthogonalisation."""
    size = item_dot(v, v).sqrt()
    tiny = 10 * torch.finfo(v.dtype).eps
    basis = [(v.flatten(1) / size.clamp_min(tiny)[:, None])]
    alphas, betas = [], []
    for _ in range(min(steps, v[0].numel())):
        w = operator.rmv(operator.mv(basis[-1].view_as(v))).flatten(1)
        alphas.append((w * basis[-1]).sum(1))
        Q, scale = torch.stack(basis, 1), w.norm(dim=1)
        for _ in range(2):
            w = w - (Q.mT @ (Q @ w.unsqueeze(-1))).squeeze(-1)
        beta = w.norm(dim=1)
        beta = torch.where(beta > tiny * scale, beta, 0)  # the space is exhausted: the rest of T is decoupled
        betas.append(beta)
        basis.append(torch.where(beta[:, None] > 0, w / beta.clamp_min(tiny)[:, None], 0))
    diagonal = torch.stack(alphas, 1)
    sane = torch.isfinite(diagonal).all(1)
    off = torch.stack(betas, 1)[:, :-1]
    diagonal = torch.where(diagonal > 0, diagonal, 1)  # decoupled rows, which get no weight
    T = torch.diag_embed(diagonal) + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    values, vectors = torch.linalg.eigh(T.double())
    weights = vectors[:, 0].square()
    log = values.clamp_min(torch.finfo(values.dtype).tiny).log()
    total = torch.where(weights > 0, weights * log, 0).sum(1).to(v.dtype) * size.square()
    return torch.where(sane, total, float("nan"))


@torch.no_grad()
def log_abs_det_block(
    operator: LinearOperator,
    hidden: Tensor,
    like: Tensor,
    generator: torch.Generator,
    exact_below: int = 1024,
    steps: int = 24,
    probes: int = 1,
) -> Tensor:
    """log|det A^HH| (B,): exactly up to `exact_below` hidden entries an item, else by Lanczos quadrature."""
    if longest(hidden.flatten(1)) <= exact_below:
        return exact_block_value(operator, hidden, like)
    return lanczos_value(Block(operator, hidden), like, generator, hidden, steps, probes)


@torch.no_grad()
def exact_block_value(operator: LinearOperator, hidden: Tensor, like: Tensor) -> Tensor:
    """log|det A^HH| (B,) by writing the blocks out: as many products as the item with the most in H has entries there.

    Items with fewer are filled up with rows of the identity.
    """
    flat = hidden.flatten(1)
    index = flat.byte().argsort(dim=1, descending=True, stable=True)[:, : longest(flat)]
    inside = flat.gather(1, index)
    blocks = torch.diag_embed((~inside).to(like.dtype))
    for k in range(index.shape[1]):
        one = like.new_zeros(flat.shape).scatter(1, index[:, k : k + 1], inside[:, k : k + 1].to(like.dtype))
        column = operator.mv(one.view_as(like)).flatten(1).gather(1, index)
        blocks[:, :, k] += torch.where(inside & inside[:, k : k + 1], column, 0)
    # One matrix at a time, as in `exact_value`.
    return torch.stack([torch.linalg.slogdet(A.double())[1] for A in blocks]).to(like.dtype)
