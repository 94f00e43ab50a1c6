"""Completes an observation given x^H: solves the restricted equation, and prepares what its gradient needs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from viscos.core.rng import Generators
from viscos.core.solution import Solution, per_item
from viscos.flows.flow import Flow
from viscos.linear import LinearOperator, exact_value, log_abs_det_block
from viscos.roots import LatentEquation, RootFinder


@dataclass(frozen=True)
class Completion:
    """Data whose observed entries are given and whose hidden latents are wanted."""

    y: Tensor
    """The completion (B, …): observed entries bit for bit; finite everywhere, also where the solve failed."""
    hidden: Tensor
    """The mask of H (B, …)."""
    solution: Solution
    """The verdict on each item."""
    preconditioner: LinearOperator
    """Close to (G^HH)⁻¹."""


@torch.no_grad()
def complete(
    flow: Flow, y: Tensor, hidden: Tensor, x: Tensor, solver: RootFinder, start: Tensor | None = None
) -> Completion:
    """Finds y^H with g^H(y^H; y^O) = x^H, for y (B, …) of which only O matters, and x (B, …) of which only H matters.

    `start` is a guess of the completion (B, …); by default the flow's affine skeleton makes one. Where the iterates
    left the numbers, the holes are zero and the item is marked as failed: it cannot harm the rest of the batch.
    """
    equation = LatentEquation.build(flow, y, hidden, x, guess=start)
    solution = equation.judged(solver.solve(equation, equation.start()), solver.tolerance)
    value = torch.where(per_item(torch.isfinite(solution.residual), y), solution.value, 0)
    return Completion(equation.complete(value), hidden, solution, equation.preconditioner)


@torch.no_grad()
def log_evidence_term(
    flow: Flow, y: Tensor, hidden: Tensor, generator: Generators, exact_below: int | None = None
) -> Tensor:
    """log p₀(x^O) + log|det G| − log|det G^HH| (B,), without a gradient: what the bound adds to log p₀(x^H) − log q.

    log|det G| is exact up to the flow's `dense_below` entries an item (or `exact_below`, if that is less) and
    log|det G^HH| up to as many hidden ones, which costs as many products; else by the flow's own estimate and Lanczos
    quadrature.
    """
    exact_below = flow.dense_below if exact_below is None else min(exact_below, flow.dense_below)
    x, G = flow.linearize(y)
    if y.shape[1:].numel() <= exact_below:
        ladj = exact_value(G, y)
    else:
        ladj = flow.forward_and_ladj(y, None if isinstance(generator, torch.Generator) else generator)[1]
    block = log_abs_det_block(G, hidden, y, generator, exact_below)
    return flow.base_log_prob(x, ~hidden) + ladj - block
