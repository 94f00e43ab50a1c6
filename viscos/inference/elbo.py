"""The bound of the paper's equation 7, its gradient (Algorithm 2), and its value."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.rng import Generators
from viscos.core.solution import per_item
from viscos.flows.flow import Flow
from viscos.inference.completion import Completion, log_evidence_term
from viscos.inference.completion import complete as completed
from viscos.inference.draws import repeat, repeated
from viscos.linear import GMRES, LinearSolver
from viscos.logdet import Auto, BlockSolver, LogDetEstimator
from viscos.posteriors import LatentDistribution
from viscos.roots import RootFinder, auto, implicit

WRITTEN = 32  # entries up to which the log-determinants of a log-weight are written out, instead of estimated


@dataclass(frozen=True)
class GradientEstimate:
    """What one estimate of the bound's gradient is made of. K draws of B items stand in one axis of K·B."""

    surrogate: Tensor
    """(K·B,): its gradient is, in expectation, that of the bound; its value is not. Zero for items that failed."""
    y: Tensor
    """The completions (K·B, …), with the gradient of an implicit function."""
    x: Tensor
    """Their latents (K·B, …), differentiable; zero for items that failed."""
    completion: Completion
    block: BlockSolver
    """Counts the products of the adjoint solves too, once the gradient has been taken."""

    @property
    def ok(self) -> Tensor:
        """True where the completion and the probes were solved (K·B,), bool."""
        return self.completion.solution.converged & self.block.ok

    def scalars(self) -> dict[str, float]:
        """What the solves cost, and how they ended; after the backward pass, which solves too."""
        solution = self.completion.solution
        solved = solution.residual[solution.converged]
        return {
            "evaluations": float(solution.evaluations.mean()),
            "residual": float(solved.max()) if len(solved) else float("nan"),
            "fallback": float(solution.fallback.double().mean()),
            "failed": float((~self.ok).double().mean()),
            "products": float(self.block.products.mean()),
        }


@dataclass(frozen=True)
class _Draws:
    """What a step knows of its draws, K draws of B items in one axis, before it asks for a gradient."""

    flow: Flow
    completion: Completion
    x_hidden: Tensor
    """(K·B, …)."""
    log_q: Tensor
    """(K·B,)."""
    counts: Tensor | None
    """What each draw counts (K, B); None for 1."""


@dataclass(frozen=True)
class Objective:
    """L = E_q[ log p₀(x^H) − log q(x^H) + log p₀(x^O) − log|det J^OO| ] ≤ log p(y^O)."""

    solver: RootFinder = field(default_factory=auto)
    """Solves the restricted equation."""
    lad: LogDetEstimator = field(default_factory=Auto)
    """Gives the gradient of log|det J^OO|."""
    linear_solver: LinearSolver = field(default_factory=GMRES)
    """Solves with (G^HH)ᵀ for adjoints and probes."""
    path_gradient: bool = True
    """Leave the score of q out of the gradient: no bias, and no variance where q is exact."""

    # The bound is the mean over ε of w at x^H = μ + L ε, where μ and L come from the parameters θ of q, and
    #
    #     w = log p₀(x^H) − log q(x^H; θ) + ℓ(y; φ),    ℓ = log p₀(x^O) − log|det J^OO|,    x^O = g^O(y; φ),
    #
    # with φ the parameters of the flow. Five things make the gradient of one draw:
    #
    # 1. An implicit layer. y^O is given, and y^H moves with x^H and φ so that g^H(y^H; y^O, φ) = x^H stays true:
    #
    #        G^HH dy^H = dx^H − (∂g^H/∂φ) dφ.
    #
    #    So with a = ∂ℓ/∂y^H and (G^HH)ᵀ λ = a,
    #
    #        dℓ = λᵀ dx^H + (∂ℓ/∂φ − λᵀ ∂g^H/∂φ) dφ,
    #
    #    and one transposed solve serves the posterior and the flow (`_attach`; `implicit` has the rule).
    #
    # 2. A surrogate for log|det J^OO|, whose value is not known: its gradient by y^H and φ is right in expectation over
    #    the probes, which do not depend on ε (`lad`). The x that comes with it carries log p₀(x^O).
    #
    # 3. A path gradient. log q depends on θ through x^H and directly. The direct part, the score, has mean zero, and
    #    where q is exact w is log p(y^O) for every x^H, so that without the score the gradient by θ is zero for every
    #    draw, but for the noise of the probes ("sticking the landing", `LatentDistribution.log_prob_path`).
    #
    # 4. Stand-ins. An item whose solve failed has no y^H, and ∂g/∂φ at what the solver left may be NaN, of which a
    #    weight of zero makes NaN again. Its row is computed at a solved item, then given the weight of zero; an item
    #    whose probes failed has the weight of zero too (`stand_ins`, `BlockSolver.ok`). That a row's numbers are not
    #    finite shows only once they are there: all is then computed anew, with a stand-in for it.
    #
    # 5. Components. The draws of a mixture are not differentiable in its weights π, so each component is drawn from in
    #    turn, L = Σ_c π_c E_c[w], and ∂L/∂π_c = E_c[w] takes the value of w, which the surrogate does not have
    #    (`LatentDistribution.reparametrised`, `_counted`).
    def step(
        self,
        flow: Flow,
        batch: Incomplete,
        q: LatentDistribution,
        noise: Tensor,
        generator: Generators,
    ) -> GradientEstimate:
        """The surrogate for the draws that `noise` (K, B, …) gives; `generator` is for the probes.

        An item of which nothing is observed is a sample of the flow itself, whatever q is, and teaches it nothing.
        """
        x_hidden, counts = q.reparametrised(noise)
        log_q = q.log_prob_path(noise, x_hidden) if self.path_gradient else q.log_prob(x_hidden)
        empty = batch.empty
        x_hidden = torch.where(per_item(empty, batch.values), noise, x_hidden).flatten(0, 1)
        prior = flow.base_log_prob(x_hidden, repeat(batch.hidden, len(noise)))
        log_q = torch.where(empty, prior.view(log_q.shape), log_q).flatten()
        completion = self.complete(flow, batch, q, x_hidden.detach())
        draws = _Draws(repeated(flow, len(batch), len(noise)), completion, x_hidden, log_q, counts)
        solved, again = completion.solution.converged, generator.clone_state()
        estimate, sane = self._estimate(draws, solved, generator)
        while bool((solved & ~sane).any()):  # each turn takes a draw out, and leaves the others' probes what they were
            solved = solved & sane
            estimate, sane = self._estimate(draws, solved, again.clone_state())
        return estimate

    def _estimate(self, draws: _Draws, solved: Tensor, generator: Generators) -> tuple[GradientEstimate, Tensor]:
        """The estimate from the draws that are `solved` (K·B,), and which rows had finite numbers (K·B,), bool."""
        completion, counts, rows = draws.completion, draws.counts, stand_ins(solved)
        flow, log_q = draws.flow.select(rows), draws.log_q[rows]
        point, latent, hidden = completion.y[rows], draws.x_hidden[rows], completion.hidden[rows]
        _, G = flow.linearize(point)
        block = BlockSolver(G, hidden, completion.preconditioner.select(rows), self.linear_solver, flow.deep)
        if not bool(solved.any()):
            block.ok &= solved
            zero = (draws.x_hidden * 0).flatten(1).sum(1)
            return GradientEstimate(zero, completion.y, torch.zeros_like(latent), completion, block), ~solved
        y = self._attach(flow, point, latent, hidden, solved, block)
        x, log_det = self.lad.surrogate(flow, y, block, generator)
        block.ok &= solved
        value = flow.base_log_prob(latent, hidden) + flow.base_log_prob(x, ~hidden) - log_q - log_det
        sane = value.isfinite() & x.isfinite().flatten(1).all(1)
        surrogate = torch.where(block.ok, value, 0)
        if counts is not None:
            with torch.no_grad():
                rest = log_evidence_term(flow, point, hidden, generator, WRITTEN)
                weight = flow.base_log_prob(latent, hidden) - log_q + rest
                weight = torch.where(block.ok & weight.isfinite(), weight, float("nan"))
            surrogate = _counted(surrogate, counts, weight)
        keep = per_item(solved, y)
        y, x = torch.where(keep, y, completion.y), torch.where(keep, x, 0)
        return GradientEstimate(surrogate, y, x, completion, block), sane

    def complete(self, flow: Flow, batch: Incomplete, q: LatentDistribution, x_hidden: Tensor) -> Completion:
        """The completions of K·B latents, draws in the outer axis."""
        draws = len(x_hidden) // len(batch)
        guess = None if q.start is None else repeat(q.start, draws)
        y, hidden = repeat(batch.filled(), draws), repeat(batch.hidden, draws)
        return completed(repeated(flow, len(batch), draws), y, hidden, x_hidden, self.solver, guess)

    def _attach(
        self, flow: Flow, y: Tensor, x_hidden: Tensor, hidden: Tensor, solved: Tensor, block: BlockSolver
    ) -> Tensor:
        """The completion, differentiable in x^H and in the flow's parameters."""
        if not bool(hidden.any()):
            return y
        residual = torch.where(hidden, flow.to_latent(y) - x_hidden, 0)
        keep = per_item(solved, residual)
        return implicit(y, residual, lambda a: block.transposed(torch.where(keep, a, 0)))

    @torch.no_grad()
    def log_weight(
        self,
        flow: Flow,
        batch: Incomplete,
        q: LatentDistribution,
        noise: Tensor,
        generator: Generators,
        exact_below: int | None = None,
    ) -> Tensor:
        """log p(y) − log q(y^H), both densities over data, of each draw (K, B).

        NaN where the solve failed, or where it ended at a singular Jacobian. `lower_bound` makes the bound of them. For
        `exact_below` see `log_evidence_term`.
        """
        drawn = self.drawn(flow, batch, q, noise)
        flow, completion = repeated(flow, len(batch), len(noise)), drawn.completion
        return drawn.weight(log_evidence_term(flow, completion.y, completion.hidden, generator, exact_below))

    @torch.no_grad()
    def drawn(self, flow: Flow, batch: Incomplete, q: LatentDistribution, noise: Tensor) -> Drawn:
        """The completions of the draws of q that standard normal `noise` (K, B, …) makes."""
        x = torch.where(per_item(batch.empty, batch.values), noise, q.sample(noise)).flatten(0, 1)
        completion = self.complete(flow, batch, q, x)
        prior = flow.base_log_prob(x, completion.hidden).view(noise.shape[:2])
        return Drawn(completion, prior - q.log_prob_of_noise(noise), batch.empty)


@dataclass(frozen=True)
class Drawn:
    """K draws of q for each of B items, completed."""

    completion: Completion
    """Of the K·B draws, draws in the outer axis."""
    ratio: Tensor
    """log p₀(x^H) − log q(x^H) (K, B)."""
    empty: Tensor
    """Which items have nothing observed (B,), bool: they are samples of the flow itself, as they are for `impute`."""

    def weight(self, rest: Tensor) -> Tensor:
        """log w (K, B) from the `log_evidence_term` of the completions (K·B,): 0 for samples of the flow itself.

        NaN where the solve failed, or ended at a singular Jacobian.
        """
        weight = torch.where(self.empty, 0, self.ratio + rest.view_as(self.ratio))
        solved = self.completion.solution.converged.view_as(weight)
        return torch.where(solved & weight.isfinite(), weight, float("nan"))


def lower_bound(weight: Tensor) -> Tensor:
    """The bound of log p(y^O) in nats (B,) from what `Objective.log_weight` gives (K, B), NaN where a draw failed.

    Let S be the set of latents x^H that the solver completes, each by one y^H, and w their log-weights. Different x^H
    have different y^H, so over S the weights integrate a part of p(y^O, y^H), however many solutions there may be:
    E_q[1_S exp w] ≤ p(y^O). By Jensen's inequality within S

        log p(y^O) ≥ log q(S) + E_q[w | S],

    which is estimated by the mean over the draws that were solved, plus the logarithm of their share: a failed draw
    counts as one of weight zero. The mean alone is no bound where draws fail. −∞ where none was solved.
    """
    solved = ~weight.isnan()
    share = solved.to(weight.dtype).mean(0)
    return torch.where(share > 0, weight.nanmean(0), 0) + share.log()


def _counted(surrogate: Tensor, counts: Tensor, value: Tensor) -> Tensor:
    """The surrogate (K·B,) of draws that count as much as `counts` (K, B) says, of log-weights `value` (K·B,).

    NaN where a draw failed. What the draws of an item count adds up to a constant, so that its mean log-weight can be
    taken off without a bias; that is what a failed draw is taken for.
    """
    value = value.view_as(counts)
    above = (value - value.nanmean(0)).nan_to_num(0)
    moved = (counts - counts.detach()) * above
    return counts.detach().flatten() * surrogate + moved.flatten()


def stand_ins(solved: Tensor) -> Tensor:
    """Each item's own number if it was solved, else that of a solved one (B,).

    A failed item may give NaN at its point, and 0 · NaN in the gradient of shared parameters; a solved one takes its
    place in the computation, with a weight of zero.
    """
    rows = torch.arange(len(solved), device=solved.device)
    return torch.where(solved, rows, solved.to(torch.uint8).argmax()) if bool(solved.any()) else rows
