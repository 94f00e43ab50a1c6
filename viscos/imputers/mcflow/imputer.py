"""MCFlow's algorithm."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.core.rng import item_noise
from viscos.data.incomplete import epoch_order
from viscos.imputers.imputer import Kind
from viscos.imputers.learned import LearnedImputer
from viscos.imputers.mcflow.filling import from_marginals, from_nearest, is_image, quantiles
from viscos.imputers.mcflow.networks import Stage, latent_network


_CLIP = 100.0
"""Largest norm of a gradient; longer ones are scaled down."""


class MCFlowImputer(LearnedImputer):
    """Completes by MCFlow (Richardson et al., 2020, algorithm 1); one completion each, no draw.

    A flow G⁻¹ is taught −log p(ỹ) of filled rows ỹ, and a network h, with the flow held, the objective

        ‖(G(h(x)) − y)^O‖² · `weight` − log p(G(h(x))),    x = G⁻¹(ỹ).

    After epochs 2, 4, 8, … the holes are filled by G(h(x))^H, `passes` times over, and a fresh flow is begun. Holes are
    filled first by the nearest observed pixel, or in vectors by a draw of the column's observed marginal. An item that
    comes later goes through all fillings in their order, by the networks that made them.

    Published: `epochs=500`, `weight=64`, `passes=1`, rates of 1e-4, six couplings and networks of the width of an item.
    """

    name, label = "mcflow", "MCFlow"
    mean = Kind("mcflow", "MCFlow")

    def __init__(
        self,
        epochs: int = 32,
        batch_size: int = 64,
        learning_rate: float = 1e-3,
        weight: float = 8.0,
        first: int = 2,
        passes: int = 1,
        couplings: int = 6,
        width: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        if min(epochs, batch_size, first, passes, couplings) < 1 or not learning_rate > 0 or not weight > 0:
            raise InputError(
                f"mcflow: epochs is {epochs}, batch_size {batch_size}, first {first}, passes {passes}, couplings "
                f"{couplings}, learning_rate {learning_rate}, weight {weight}; give 1 or more of each, and positive numbers"
            )
        self.epochs, self.batch_size, self.learning_rate = epochs, batch_size, learning_rate
        self.weight, self.first, self.passes, self.couplings, self.width = weight, first, passes, couplings, width
        self.stages = list[Stage]()
        self.table = torch.empty(0)

    def learn(self, rows: Tensor, observed: Tensor) -> None:
        (n, d), width = rows.shape, self.width or rows.shape[1]
        self.stages, self.table = [], quantiles(rows, observed)
        filled = self._first(rows, observed, torch.rand(rows.shape))
        h = latent_network(d, width)
        teach_h = torch.optim.Adam(h.parameters(), self.learning_rate)
        stage, teach_flow = self._fresh(d, width, h)
        per_epoch = -(-n // self.batch_size)
        self.steps = self.epochs * per_epoch
        for epoch in range(self.epochs):
            for k, index in enumerate(epoch_order(n, self.seed, epoch).split(self.batch_size)):
                y = filled[index]
                figures = {"nll": _descend(teach_flow, -stage.flow.log_prob(y).mean())}
                figures["mapped"] = _descend(teach_h, self._objective(stage, y, observed[index]))
                self.told(epoch * per_epoch + k + 1, figures)
            if refilled_after(epoch + 1, self.first) and epoch + 1 < self.epochs:
                self.stages.append(copy.deepcopy(stage))
                filled = self._moved(stage, filled, observed)
                stage, teach_flow = self._fresh(d, width, h)
        self.stages.append(stage)

    def _fresh(self, d: int, width: int, h: nn.Module) -> tuple[Stage, Optimizer]:
        stage = Stage(d, self.couplings, width, h)
        return stage, torch.optim.Adam(stage.flow.parameters(), self.learning_rate)

    def _objective(self, stage: Stage, y: Tensor, observed: Tensor) -> Tensor:
        """What h makes small, of filled rows y (B, d)."""
        moved = stage(y)
        error = torch.where(observed, moved - y, 0).square().sum(1)
        return (self.weight * error - stage.flow.log_prob(moved)).mean()

    @torch.no_grad()
    def _moved(self, stage: Stage, filled: Tensor, observed: Tensor) -> Tensor:
        """The next filling of rows (B, d)."""
        for _ in range(self.passes):
            filled = torch.where(observed, filled, stage(filled))
        return filled

    def _first(self, rows: Tensor, observed: Tensor, u: Tensor) -> Tensor:
        """The first filling of rows (B, d), with u (B, d) in [0, 1] for what no neighbour tells."""
        assert self.rows is not None
        fill = from_marginals(self.table, u)
        if is_image(self.rows.shape):
            near = from_nearest(self.rows.leave(rows), observed.view(-1, *self.rows.shape))
            near = self.rows.standardise(near)
            fill = torch.where(near.isnan(), fill, near)
        return torch.where(observed, rows, fill)

    def complete(self, rows: Tensor, batch: Incomplete, draws: int, seed: int, purpose: str) -> Tensor:
        noise = item_noise(seed, batch.index, 1, rows.shape[1:], rows, purpose=purpose)[0]
        observed = batch.observed.flatten(1)
        filled = self._first(rows, observed, torch.special.ndtr(noise))
        for stage in self.stages:
            filled = self._moved(stage, filled, observed)
        return filled[None]


def refilled_after(epoch: int, first: int) -> bool:
    """Whether the holes are filled anew after so many epochs: `first`, 2 · `first`, 4 · `first`, …"""
    times, rest = divmod(epoch, first)
    return rest == 0 and times & (times - 1) == 0 and times > 0


def _descend(optimizer: Optimizer, loss: Tensor) -> Tensor:
    """A step of the parameters of `optimizer` alone; returns the loss."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        p.grad = gradient
    torch.nn.utils.clip_grad_norm_(parameters, _CLIP)
    optimizer.step()
    return loss.detach()
