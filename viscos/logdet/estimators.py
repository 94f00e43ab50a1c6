"""Estimators of the gradient of log|det J^OO|.

Each gives a *surrogate*: a number for each item whose gradient is, in expectation, the wanted one. Only `Exact` gives a
surrogate whose value means anything; values are the business of `viscos.linear.logabsdet`.

With J = G⁻¹ and the Schur identity log|det J^OO| = log|det G^HH| − log|det G| (the paper's equation 3) there are two
ways to probe. Both are E[uᵀ (∇G) v] with u and v held fixed, so both cost one differentiable pass with a tangent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from viscos.core.counts import count
from viscos.core.rng import Generators, of_rows, rademacher
from viscos.core.solution import item_dot
from viscos.flows.bijection import WRONG, written_out
from viscos.flows.flow import Flow
from viscos.linear import filled_up
from viscos.logdet.block import BlockSolver


class LogDetEstimator(Protocol):
    """Anything that gives the gradient of log|det J^OO|."""

    def surrogate(self, flow: Flow, y: Tensor, block: BlockSolver, generator: Generators) -> tuple[Tensor, Tensor]:
        """x = g(y) (B, …) and the surrogate (B,), both differentiable in y (B, …) and in the flow's parameters."""
        ...


@dataclass(frozen=True)
class Exact:
    """The dense Jacobian and `slogdet`: for few entries, and for tests."""

    def surrogate(self, flow: Flow, y: Tensor, block: BlockSolver, generator: Generators) -> tuple[Tensor, Tensor]:
        """x and log|det J^OO| itself."""
        each = flow.select(torch.arange(len(y)).repeat_interleave(y.shape[1:].numel()))
        x, G = written_out(each.tangent, y)
        return x, torch.linalg.slogdet(filled_up(G, block.hidden.flatten(1)))[1] - torch.linalg.slogdet(G)[1]


@dataclass(frozen=True)
class _Probing:
    probes: int = 1

    def __post_init__(self) -> None:
        count(self.probes, "probes", 1)


@dataclass(frozen=True)
class CLADE(_Probing):
    """The corrected estimator: ∇ log|det G^HH| by probes on H, minus the flow's own ∇ log|det G| (equation 9).

    With a probe v on H and (G^HH)ᵀ u = v, ∇ log|det G^HH| = E[uᵀ (∇G) v].
    """

    def surrogate(self, flow: Flow, y: Tensor, block: BlockSolver, generator: Generators) -> tuple[Tensor, Tensor]:
        """x and the surrogate."""
        x, ladj = flow.forward_and_ladj_surrogate(y, generator)
        block.note(ladj.isfinite())  # the flow's own probes may fail, too
        total = -ladj
        for _ in range(self.probes):
            v = rademacher(y, generator, block.hidden)
            u = block.transposed(v)
            _, Gv = flow.tangent(y, v)
            total = total + item_dot(u, Gv) / self.probes
        return x, total


@dataclass(frozen=True)
class NLADE(_Probing):
    """The natural estimator: ∇ log|det J^OO| = −tr[(J^OO)⁻¹ m^OO(J (∇G) J)], by probes on O (equation 8).

    The paper's equation lacks the minus sign: ∇(G⁻¹) = −G⁻¹ (∇G) G⁻¹. For a probe v on O, with v padded by zeros,

        a = J v,   b = Jᵀ P_Oᵀ (J^OO)⁻ᵀ v,   ∇ log|det J^OO| = −E[bᵀ (∇G) a].

    No product with J is needed for b: it solves Gᵀ b = (·; 0) with b^O = v, so b^H = −(G^HH)⁻ᵀ (Gᵀ v)^H.
    """

    tolerance: float = 1e-3
    """Relative residual of the products with J, layer by layer; a probe need not be known better than its noise."""

    def surrogate(self, flow: Flow, y: Tensor, block: BlockSolver, generator: Generators) -> tuple[Tensor, Tensor]:
        """x and the surrogate."""
        total, x = y.new_zeros(len(y)), None
        J = block.G.inverse(self.tolerance)
        for _ in range(self.probes):
            v = rademacher(y, generator, ~block.hidden)
            with torch.no_grad():
                a, b = J.mv(v), v - block.transposed(block.G.rmv(v))
            x, Ga = flow.tangent(y, a)
            error = (Ga.detach() - v).flatten(1).norm(dim=1)
            block.note(error <= WRONG * v.flatten(1).norm(dim=1))  # false for NaN too
            total = total - item_dot(b, Ga) / self.probes
        assert x is not None  # as there is a probe
        return x, total


@dataclass(frozen=True)
class Auto(_Probing):
    """`Exact` for items of few entries, else `NLADE` or `CLADE`, by the smaller of O and H, of each item by itself.

    The generator moves on by one probe, whatever is chosen: what is drawn next for an item does not depend on which
    estimators its neighbours take.
    """

    exact_below: int = 16

    def surrogate(self, flow: Flow, y: Tensor, block: BlockSolver, generator: Generators) -> tuple[Tensor, Tensor]:
        """x and the surrogate."""
        if y.shape[1:].numel() <= self.exact_below:
            return Exact().surrogate(flow, y, block, generator)
        natural = self.natural(block.hidden)
        source = generator.clone_state()
        rademacher(y, generator)
        x, surrogate = torch.empty_like(y), y.new_empty(len(y))
        for estimator, chosen in ((NLADE(self.probes), natural), (CLADE(self.probes), ~natural)):
            rows = chosen.nonzero().flatten()
            if not len(rows):
                continue
            own = of_rows(source, len(y), rows)
            if len(rows) == len(y):
                return estimator.surrogate(flow, y, block, own)
            part = estimator.surrogate(flow.select(rows), y[rows], block.select(rows), own)
            x, surrogate = x.index_put((rows,), part[0]), surrogate.index_put((rows,), part[1])
        return x, surrogate

    @staticmethod
    def natural(hidden: Tensor) -> Tensor:
        """Which items of a batch with this mask of H (B, …) have the smaller side observed (B,), bool."""
        each = hidden.flatten(1)
        return 2 * each.sum(1) >= each.shape[1]
