"""Metropolis–Hastings in the latent of a trained flow: PL-MCMC."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.core.labels import Kind
from viscos.core.rng import ItemGenerators, item_noise
from viscos.core.solution import Solution, Status, per_item
from viscos.flows.flow import Flow
from viscos.imputers.imputer import OnFlow, observed_error
from viscos.inference import Completions
from viscos.inference.draws import repeat

_TOGETHER = 25
"""Steps whose random numbers are drawn at once."""


class PLMCMCImputer(OnFlow):
    """PL-MCMC (Cannella et al., 2020): a chain for each draw, whose state is a latent x, with data y = f(x).

    The observation is loosened, so that a walk in the latent can meet it: the target is, over data,

        π(y) = p(y^H, y^O = truth) N(y^O; truth, `sigma`² I),

    whose y^H has the law p(y^H | truth) for any `sigma`; and over latents π(f(x)) |det J(x)|, of which acceptance has
    the ratio. Each of `steps` proposes a fresh latent from the prior with probability `resample`, else moves the
    latent by normal steps of `scale`. A chain starts at a sample of the flow whose observed entries are put right.

    A draw is a chain's last state, with the observed entries themselves; one whose chain never moved has failed. The
    mean is that of the second halves of the others. The acceptance rate is of a chain's steps. The effective sample
    size, of an item's chains together, is the less of what means of batches within the chains say (Flegal and Jones,
    2010) and of what the chains' own means do, and R̂ is that of Gelman and Rubin (1992), 1 for chains that agree; both
    are medians over hidden entries, and NaN for one chain, which cannot tell whether it moved far enough.
    Where the flow estimates its log-determinant, each chain has probes of its own for all its steps: the target is that
    of a fixed estimate. The authors use 500 to 3000 steps and 5 chains.
    """

    name, label = "plmcmc", "PL-MCMC"
    mean = Kind("plmcmc_mean", "PL-MCMC, mean")
    draw = Kind("plmcmc_draw", "PL-MCMC, one draw")

    def __init__(
        self,
        of: Flow,
        steps: int = 500,
        sigma: float = 1e-3,
        scale: float = 0.01,
        resample: float = 0.5,
        noise: float = 0.0,
    ) -> None:
        super().__init__(of, noise)
        if steps < 2 or not sigma > 0 or not scale > 0 or not 0 <= resample <= 1:
            seen = f"{steps}, {sigma}, {scale} and {resample}"
            raise InputError(
                f"plmcmc: steps, sigma, scale and resample are {seen}; give 2 steps or more, a sigma and a scale above "
                "0, and a probability"
            )
        self.steps, self.sigma, self.scale, self.resample = steps, sigma, scale, resample
        self.passes = of.passes

    def best_mean(self, batch: Incomplete, draws: int, seed: int = 0) -> Completions:
        return self.impute(batch, draws, seed)  # a chain has no antithetic twin

    @torch.no_grad()
    def impute(self, batch: Incomplete, draws: int = 1, seed: int = 0, purpose: str = "item") -> Completions:
        shape, like = batch.values.shape[1:], batch.values
        target = _Target(self.of, batch, draws, self.sigma, seed)
        state = target.start(item_noise(seed, batch.index, draws, shape, like, purpose=purpose).flatten(0, 1))
        moments = _Moments(state.y, self.steps - self.steps // 2)
        accepted = torch.zeros_like(state.log_density)
        for step, (noise, uniforms) in enumerate(self._numbers(batch, draws, seed, purpose)):
            proposal, log_ratio = self._propose(state.x, noise, uniforms[:, 0])
            there = target.at(proposal)
            log_ratio = log_ratio + there.log_density - state.log_density
            moves = uniforms[:, 1].log() < log_ratio.nan_to_num(nan=-torch.inf)
            state = state.moved(there, moves)
            accepted += moves
            if step >= self.steps // 2:
                moments.add(state.y)
        return self._completions(batch, draws, state, accepted / self.steps, moments)

    def _numbers(self, batch: Incomplete, draws: int, seed: int, purpose: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Normal (K·B, …) and uniform (K·B, 2) numbers for each step, an item's own."""
        index, like = batch.index, batch.values
        for first in range(0, self.steps, _TOGETHER):
            count = min(_TOGETHER, self.steps - first)
            for_moves, for_choices = (
                item_noise(seed, index, draws, (count, *shape), like, purpose=f"{purpose} {what} {first}").flatten(0, 1)
                for what, shape in (("moves", like.shape[1:]), ("choices", (2,)))
            )
            for step in range(count):
                yield for_moves[:, step], torch.special.ndtr(for_choices[:, step])

    def _propose(self, x: Tensor, noise: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """A latent (K·B, …), and the log of how much likelier the way back is than the way there (K·B,)."""
        fresh = uniforms < self.resample
        proposal = torch.where(per_item(fresh, x), noise, x + self.scale * noise)
        prior = self.of.base_log_prob(x) - self.of.base_log_prob(proposal)
        return proposal, torch.where(fresh, prior, 0)  # a normal step is as likely as the one back

    def _completions(
        self, batch: Incomplete, draws: int, state: _State, rate: Tensor, moments: _Moments
    ) -> Completions:
        like, shape = batch.values, (draws, *batch.values.shape)
        y = self.of.cleaned(state.y, repeat(batch.hidden, draws), self.noise)
        completed = torch.where(batch.observed, like, y.view(shape))
        found = Solution.exact(completed.flatten(0, 1))
        still = (rate == 0) & batch.hidden.flatten(1).any(1).repeat(draws)
        status = torch.where(still, int(Status.STALLED), found.status)
        whole = completed.isfinite().flatten(2).all(2).flatten()
        status = torch.where(whole, status, int(Status.NON_FINITE))
        ok = per_item(status == Status.CONVERGED, state.y).view(*shape[:2], *[1] * (like.dim() - 1))
        completed = torch.where(ok | batch.observed, completed, torch.nan)
        notes = {
            "acceptance": rate.view(draws, -1).mean(0),
            "observed_error": observed_error(state.y.view(shape), batch),
            **moments.mixing(draws, batch.hidden),
        }
        mean = torch.where(ok, moments.mean.view(shape), 0).sum(0) / ok.sum(0)  # NaN where all chains failed
        expected = torch.where(batch.observed, like, mean)
        verdict = replace(found, status=status, evaluations=state.evaluations)
        return Completions(completed, None, verdict, expected=expected, notes=notes)


@dataclass(frozen=True)
class _State:
    """Where the chains are."""

    x: Tensor
    y: Tensor
    log_density: Tensor
    """log π(f(x)) + log|det J(x)|, but for a constant (K·B,); −∞ where f(x) was not found."""
    evaluations: Tensor
    """Of the flow, so far (K·B,)."""

    def moved(self, there: _State, moves: Tensor) -> _State:
        """The state after a step, `there` where the chain `moves` (K·B,)."""
        far = per_item(moves, self.x)
        return _State(
            torch.where(far, there.x, self.x),
            torch.where(far, there.y, self.y),
            torch.where(moves, there.log_density, self.log_density),
            self.evaluations + there.evaluations,
        )


class _Target:
    """The density over latents whose y^H are distributed as the flow's own conditional."""

    def __init__(self, flow: Flow, batch: Incomplete, draws: int, sigma: float, seed: int) -> None:
        self.flow, self.sigma, self.probes = flow, sigma, (seed, batch.index, draws, 0)
        self.truth, self.observed = (repeat(part, draws) for part in (batch.filled(), batch.observed))

    def at(self, x: Tensor) -> _State:
        """The state at latents x (K·B, …)."""
        found = self.flow.inverse(x)
        y = found.value
        _, ladj = self.flow.forward_and_ladj(y, ItemGenerators(*self.probes))
        spliced = torch.where(self.observed, self.truth, y)
        x_spliced, ladj_spliced = self.flow.forward_and_ladj(spliced, ItemGenerators(*self.probes))
        off = torch.where(self.observed, y - self.truth, 0).square().flatten(1).sum(1) / (2 * self.sigma**2)
        log_density = self.flow.base_log_prob(x_spliced) + ladj_spliced - off - ladj  # log|det J| is −log|det G|
        sane = found.converged & log_density.isfinite()
        return _State(x, y, torch.where(sane, log_density, -torch.inf), found.evaluations + 2)

    def start(self, x: Tensor) -> _State:
        """The state whose y^H are those of the latents x (K·B, …) and whose y^O are the truth."""
        found = self.flow.inverse(x)
        y = torch.where(self.observed, self.truth, found.value)
        begun = self.at(self.flow.to_latent(y))
        return replace(begun, evaluations=begun.evaluations + found.evaluations + 1)


class _Moments:
    """Means and variances of `steps` states of each chain, and of the means of batches of √`steps` of them."""

    def __init__(self, like: Tensor, steps: int) -> None:
        self.size = max(1, math.isqrt(steps))
        self.origin = like  # sums of squares of differences from a state of the chain lose fewer digits
        self.count, self.batches = 0, 0
        self.sums, self.squares, self.running, self.between = (torch.zeros_like(like) for _ in range(4))
        self.whole = torch.zeros_like(like)
        """The sum over the batches that are complete."""

    def add(self, y: Tensor) -> None:
        """A state (K·B, …)."""
        off = y - self.origin
        self.count += 1
        self.sums, self.squares, self.running = self.sums + off, self.squares + off.square(), self.running + off
        if self.count % self.size == 0:
            self.batches += 1
            self.whole = self.whole + self.running
            self.between = self.between + (self.running / self.size).square()
            self.running = torch.zeros_like(off)

    @property
    def mean(self) -> Tensor:
        """The mean of each chain (K·B, …)."""
        return self.origin + self.sums / self.count

    def mixing(self, draws: int, hidden: Tensor) -> dict[str, Tensor]:
        """Tells `effective_sample_size`, the independent draws that an item's chains are worth, and `r_hat` (B,).

        Medians over an item's `hidden` entries (B, …). With s² the variance of a chain's n states, W its mean over K
        chains, V the variance of their means, and v that of the means of a chain's batches of b:

            V⁺ = W (n − 1)/n + V,    R̂ = (V⁺/W)^½,    the lesser of K n W / (b v) and K V⁺/V.

        An entry in which no chain has moved is worth no draw.
        """
        n, b, m = self.count, self.size, self.batches
        within = (self.squares / n - (self.sums / n).square()).clamp_min(0) * (n / max(1, n - 1))
        batches = (self.between / m - (self.whole / (m * b)).square()).clamp_min(0) * (m / max(1, m - 1))
        within, batches = (part.view(draws, *hidden.shape).mean(0) for part in (within, batches))
        means = self.mean.view(draws, *hidden.shape)
        between = means.var(0) if draws > 1 else torch.full_like(means[0], torch.nan)
        tiny = torch.finfo(within.dtype).tiny
        pooled = within * (n - 1) / n + between
        size = torch.minimum(draws * n * within / (b * batches).clamp_min(tiny), draws * pooled / between)
        size = torch.where(within > 0, size.clamp_max(draws * n), 0)
        r_hat = torch.where(within > 0, pooled / within.clamp_min(tiny), torch.inf).sqrt()
        return {
            "effective_sample_size": self._median(size if draws > 1 else between, hidden, draws * n),
            "r_hat": self._median(r_hat, hidden, 1.0),
        }

    @staticmethod
    def _median(values: Tensor, hidden: Tensor, otherwise: float) -> Tensor:
        """That of an item's `hidden` entries (B,); `otherwise` where nothing is hidden."""
        median = values.masked_fill(~hidden, torch.nan).flatten(1).nanmedian(1).values
        return torch.where(hidden.flatten(1).any(1), median, otherwise)
