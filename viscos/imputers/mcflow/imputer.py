"""MCFlow's algorithm."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam

from viscos.core.batch import Incomplete
from viscos.core.labels import Kind
from viscos.core.rng import generator, item_noise
from viscos.data.incomplete import epoch_order
from viscos.imputers.learned import LearnedImputer, check_counts, check_positive, descend, seeded
from viscos.imputers.mcflow.filling import from_marginals, from_nearest, is_image, quantiles
from viscos.imputers.mcflow.networks import Stage, latent_network

_CLIP = 100.0
"""Largest norm of a gradient; longer ones are scaled down."""


class MCFlowImputer(LearnedImputer):
    """Completes by MCFlow (Richardson et al., 2020, algorithm 1); one completion each, no draw.

    A flow G⁻¹ is taught −log p(ỹ) of filled rows ỹ, and a network h, with the flow held, the objective

        `weight` · ‖(G(h(x)) − y)^O‖² − log p(G(h(x))),    x = G⁻¹(ỹ),

    its errors being those of pixels, or shares of the range of a column. After epochs f, 2f, 4f, … with f = `first`,
    the holes are filled by G(h(x))^H and a fresh flow is begun. They are filled first by the nearest observed pixel, or
    in vectors by a draw of the column's observed marginal. An item that comes later goes through all fillings in their
    order, by the networks that made them.

    Published: 500 epochs of batches of 64, f = 2, a weight of 64 (errors summed over a batch, beside a mean of
    likelihoods), rates of 1e-4, six couplings, networks of the width of an item.
    """

    name, label = "mcflow", "MCFlow"
    mean = Kind("mcflow", "MCFlow")

    def __init__(
        self,
        epochs: int = 128,
        batch_size: int = 256,
        learning_rate: float = 1e-3,
        first: int = 16,
        weight: float = 64.0,
        couplings: int = 6,
        width: int | None = None,
    ) -> None:
        super().__init__()
        check_counts("mcflow", epochs=epochs, batch_size=batch_size, first=first, couplings=couplings, width=width or 1)
        check_positive("mcflow", learning_rate=learning_rate, weight=weight)
        self.epochs, self.batch_size, self.learning_rate = epochs, batch_size, learning_rate
        self.first, self.weight, self.couplings, self.width = first, weight, couplings, width
        self.stages = list[Stage]()
        self.table = torch.empty(0)
        self.filled: Tensor | None = None
        self.teachers = dict[str, Adam]()

    def steps(self, items: int) -> int:
        return self.epochs * self._per_epoch(items)

    def _per_epoch(self, items: int) -> int:
        return -(-items // self.batch_size)

    def begin(self, rows: Tensor, observed: Tensor) -> None:
        d = rows.shape[1]
        self.stages, self.table = [], quantiles(rows, observed)
        u = torch.rand(rows.shape, generator=generator(self.seed, self.name, "first"))
        self.filled = self._first(rows, observed, u.to(rows))
        self._begin_stage(d, latent_network(d, self.width or d))

    def _begin_stage(self, d: int, h: nn.Module) -> None:
        """Adds a fresh flow, with a network h that goes on."""
        stage = Stage(d, self.couplings, self.width or d, h).to(self.device)
        self.stages.append(stage)
        self.teachers["flow"] = Adam(stage.flow.parameters(), self.learning_rate)
        if len(self.stages) == 1:
            self.teachers["h"] = Adam(stage.likelier.parameters(), self.learning_rate)

    def advance(self, rows: Tensor, observed: Tensor) -> dict[str, float]:
        assert self.filled is not None
        epoch, within = divmod(self.step, self._per_epoch(len(rows)))
        if within == 0 and refilled_after(epoch, self.first):
            self._refill(observed, epoch)
        order = epoch_order(len(rows), self.seed, epoch)
        index = order[within * self.batch_size : (within + 1) * self.batch_size].to(rows.device)
        stage, y = self.stages[-1], self.filled[index]
        nll = float(descend(self.teachers["flow"], -stage.flow.log_prob(y).mean(), _CLIP))
        return {"nll": nll, "h": float(descend(self.teachers["h"], self._objective(stage, y, observed[index]), _CLIP))}

    def _objective(self, stage: Stage, y: Tensor, observed: Tensor) -> Tensor:
        """What h makes small, of filled rows y (B, d)."""
        moved = stage(y)
        error = torch.where(observed, (moved - y) * self._unit(), 0).square().sum(1)
        return (self.weight * error - stage.flow.log_prob(moved)).mean()

    def _unit(self) -> Tensor:
        """What a standard deviation is on a scale of [0, 1] (d,)."""
        assert self.rows is not None
        if len(self.rows.shape) == 3:
            return self.rows.deviation.to(self.table)
        spread = self.table[-1] - self.table[0]
        return torch.where(spread > 0, 1 / spread, 1)

    def _refill(self, observed: Tensor, epoch: int) -> None:
        assert self.filled is not None
        stage = self.stages[-1]
        self.filled = refilled(stage, self.filled, observed)
        self.stages[-1] = copy.deepcopy(stage)  # as it was when it filled them; the network itself goes on
        with seeded(self.seed, self.name, epoch):
            self._begin_stage(observed.shape[1], stage.likelier)

    def _first(self, rows: Tensor, observed: Tensor, u: Tensor) -> Tensor:
        """The first filling of rows (B, d), with u (B, d) in [0, 1] for what no neighbour tells."""
        assert self.rows is not None
        fill = from_marginals(self.table, u)
        if is_image(self.rows.shape):
            near = from_nearest(self.rows.leave(rows), observed.view(-1, *self.rows.shape))
            near = self.rows.standardise(near)
            fill = torch.where(near.isnan(), fill, near)
        return torch.where(observed, rows, fill)

    def end(self) -> None:
        self.filled, self.teachers = None, {}

    def complete(self, rows: Tensor, batch: Incomplete, draws: int, seed: int, purpose: str) -> Tensor:
        noise = item_noise(seed, batch.index, 1, rows.shape[1:], rows, purpose=purpose)[0]
        observed = batch.observed.flatten(1)
        filled = self._first(rows, observed, torch.special.ndtr(noise))
        for stage in self.stages:
            filled = refilled(stage, filled, observed)
        return filled[None]

    def evaluations(self) -> int:
        """Each stage has three: the flow, its inverse and h."""
        return 3 * len(self.stages)

    def parts(self) -> dict[str, Any]:
        parts = {"table": self.table, "stages": [stage.state_dict() for stage in self.stages]}
        if self.filled is not None:
            parts |= {"filled": self.filled, "teachers": {k: each.state_dict() for k, each in self.teachers.items()}}
        return parts

    def take(self, parts: dict[str, Any], d: int) -> None:
        self.stages, self.table, self.filled = [], parts["table"].to(self.device), None
        for weights in parts["stages"]:
            with seeded(0):
                self._begin_stage(d, latent_network(d, self.width or d))
            self.stages[-1].load_state_dict(weights)
        self.end()
        if "filled" in parts:
            self.filled = parts["filled"].to(self.device)
            for key, module in (("flow", self.stages[-1].flow), ("h", self.stages[-1].likelier)):
                self.teachers[key] = Adam(module.parameters(), self.learning_rate)
                self.teachers[key].load_state_dict(parts["teachers"][key])


@torch.no_grad()
def refilled(stage: Stage, filled: Tensor, observed: Tensor) -> Tensor:
    """Filled rows (B, d) with the stage's values in the holes."""
    return torch.where(observed, filled, stage(filled))


def refilled_after(epoch: int, first: int) -> bool:
    """Whether the holes are filled anew after so many epochs: `first`, 2 · `first`, 4 · `first`, …"""
    times, rest = divmod(epoch, first)
    return rest == 0 and times > 0 and times & (times - 1) == 0
