"""Draws of q and their importance weights, with reproducible random numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.precision import full_precision
from viscos.core.rng import ItemGenerators, item_noise
from viscos.flows.flow import Flow
from viscos.inference.draws import repeat, repeated
from viscos.inference.elbo import Objective
from viscos.inference.imputation import Completions, impute
from viscos.linear import log_abs_det_block
from viscos.posteriors import Posterior

_PROBES = {"judge": -2, "bound": -5, "density": -6}
"""Keys of probes that are an item's own, beside those of the steps of a fit: no number depends on its company."""


class Approximation:
    """q(x^H | y^O), for a flow and a batch of observations."""

    def __init__(
        self,
        flow: Flow,
        batch: Incomplete,
        posterior: Posterior,
        objective: Objective,
        seed: int = 0,
        noise: float = 0.0,
    ) -> None:
        self.flow, self.batch, self.posterior, self.objective = flow, batch, posterior, objective
        self.seed, self.noise = seed, noise

    def epsilon(self, draws: int, purpose: str, first: int = 0) -> Tensor:
        """Standard normal noise (K, B, …), keyed by (seed, purpose, item, draw), from draw `first` on."""
        like = self.batch.values
        return item_noise(self.seed, self.batch.index, draws, like.shape[1:], like, first, purpose)

    @full_precision()
    @torch.inference_mode(False)
    def completed(self, draws: int, purpose: str, first: int = 0, *, antithetic: bool = False) -> Completions:
        """Draws of each item, see `viscos.inference.impute`."""
        return impute(
            self.flow,
            self.posterior,
            self.batch,
            self.objective.solver,
            draws=draws,
            seed=self.seed,
            first=first,
            antithetic=antithetic,
            purpose=purpose,
            noise=self.noise,
        )

    @full_precision()
    @torch.inference_mode(False)
    @torch.no_grad()
    def log_weight(self, draws: int, purpose: str, exact_below: int | None = None) -> Tensor:
        """The log-weights of draws (K, B), see `Objective.log_weight`, whose noise is the same at every call.

        `purpose` is `judge` or `bound`.
        """
        q, noise = self.posterior(self.batch, self.flow), self.epsilon(draws, purpose)
        probes = ItemGenerators(self.seed, self.batch.index, draws, _PROBES[purpose])
        return self.objective.log_weight(self.flow, self.batch, q, noise, probes, exact_below)

    @full_precision()
    @torch.inference_mode(False)
    @torch.no_grad()
    def log_density(self, y: Tensor) -> Tensor:
        """log q(y^H | y^O) of completions y (K, B, …), of which only H matters: log q(x^H) + log|det G^HH| (K, B).

        With y^O given, x^H = g^H(y^H; y^O) has the Jacobian G^HH. An item with everything missing has the flow's own
        density, of which its draws are.
        """
        shape, like = y.shape, self.batch.values
        flow, hidden = repeated(self.flow, len(like), len(y)), repeat(self.batch.hidden, len(y))
        x, G = flow.linearize(torch.where(hidden, y.flatten(0, 1), repeat(self.batch.filled(), len(y))))
        probes = ItemGenerators(self.seed, self.batch.index, len(y), _PROBES["density"])
        block = log_abs_det_block(G, hidden, x, probes, flow.dense_below).view(shape[:2])
        log_q = self.posterior(self.batch, self.flow).log_prob(x.view(shape))
        return block + torch.where(self.batch.empty, flow.base_log_prob(x, hidden).view(shape[:2]), log_q)
