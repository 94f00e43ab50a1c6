"""The method of this project: draws of a flow's own conditional distribution, by a posterior that is there already."""

from __future__ import annotations

from viscos.core import labels
from viscos.core.batch import Incomplete
from viscos.core.labels import Kind
from viscos.flows.flow import Flow
from viscos.imputers.imputer import Imputer
from viscos.inference import Completions, impute
from viscos.posteriors import Posterior
from viscos.roots import RootFinder


class ViscosImputer(Imputer):
    """Completes items by a flow and q(x^H | y^O), both trained; `noise` is taken off draws where the flow can."""

    name, label = "viscos", "viscos"
    mean: Kind | None = labels.MEAN
    draw = labels.DRAW
    flow = True

    def __init__(self, flow: Flow, posterior: Posterior, solver: RootFinder, noise: float = 0.0) -> None:
        self.of, self.posterior, self.solver, self.noise = flow, posterior, solver, noise
        self.passes = flow.passes

    def impute(self, batch: Incomplete, draws: int = 1, seed: int = 0, purpose: str = "item") -> Completions:
        return self._impute(batch, draws, seed, purpose, antithetic=False)

    def best_mean(self, batch: Incomplete, draws: int, seed: int = 0) -> Completions:
        return self._impute(batch, draws, seed, "item", antithetic=True)

    def _impute(self, batch: Incomplete, draws: int, seed: int, purpose: str, antithetic: bool) -> Completions:
        return impute(
            self.of,
            self.posterior,
            batch,
            self.solver,
            draws=draws,
            seed=seed,
            antithetic=antithetic,
            purpose=purpose,
            noise=self.noise,
        )


class UnfittedImputer(ViscosImputer):
    """The same before a posterior is fitted to each item: what `viscos impute` begins with."""

    name, label = "unfitted", "viscos before fitting"
    mean = None
    draw = labels.UNFITTED_DRAW
