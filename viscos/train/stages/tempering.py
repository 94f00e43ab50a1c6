"""How wide draws should be, by observed entries that are hidden from the posterior for the occasion."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.rng import generator
from viscos.core.solution import per_item
from viscos.inference import Completions
from viscos.posteriors.holdout import hold_out
from viscos.train.stages.drawing import Drawing
from viscos.train.trainer import Report

DRAWS = 2
"""Of each item. Of right draws any number is as wide as it is off, so it is better to have more items."""
_SHARE = 0.5
"""Of the way, in logarithms, from the width that was taught to the one at which draws spread as they err: a latent that
is widened spreads its completion where it should not, too. Of 64 training digits of MNIST, four draws each, the energy
score at a temperature of 1.1 was lower than at 1 by 0.009 ± 0.013 (80 % missing) and 0.038 ± 0.024 (90 %), and at 1.2
higher by 0.012 ± 0.015 and 0.025 ± 0.031; the mean of infinitely many draws is as good at 1.1 as at 1, worse at 1.2."""
_LEAST, _MOST = 0.5, 2.0  # temperatures
CELLS = 20
"""Held-out entries below which a batch says nothing: of so many independent ones in each of four batches, right draws
end at temperatures from 0.83 to 1.13 nine times of ten; of 12, from 0.80 to 1.19; and entries of an item are not
independent."""


class Tempering(Drawing):
    """Corrects the temperature of the posterior, by the items that are held back where there are any."""

    @torch.no_grad()
    def step(self, within: int) -> Report:
        """One batch, some of whose observed entries are hidden."""
        trainer = self.trainer
        network = trainer.model.posterior
        assert network is not None and network.tempers
        rows, g = self._part(self.items, within), generator(self.plan.seed, "tempering", trainer.step)
        batch = self.data.batch(rows).to(trainer.devices.device)  # where its draws are, which are compared with it
        sparser = hold_out(batch, network.held_out, g, self.data.groups)
        done = self._impute(sparser, g.initial_seed(), draws=DRAWS)
        ratio = spread_over_skill(done, batch, sparser)
        measured = trainer.measured if within else 0
        temperature = corrected(float(network.temperature), ratio, measured)
        row = [temperature, float(measured + says_something(ratio))]
        temperature, count = trainer.devices.gather_rows(row)[0]  # the same in all processes
        network.set_temperature(temperature)
        trainer.measured = int(count)
        return self._solved(done, rows, {"spread_over_skill": ratio, "temperature": float(network.temperature)})

    def _taken(self) -> Tensor:
        return super()._taken() if self.trainer.validation is None else self.trainer.held_back


def spread_over_skill(done: Completions, batch: Incomplete, sparser: Incomplete) -> float:
    """The draws' deviation over the error that the mean of infinitely many would have, at what was held out.

    Both are root mean squares, over the entries that `batch` observes and `sparser` hides of the items whose K draws
    were all solved; 1 for draws of the truth's own law (Fortin et al., 2014). The mean of K draws has s²/K more of a
    squared error than that of all, which is taken off: so the ratio is proportional to the deviation of q, but for
    how nonlinear the flow is. An item that is left with nothing observed is completed without q, and says nothing of
    it. `done` are two independent draws of `sparser` or more. NaN if nothing can be said, as by fewer than `CELLS`
    entries.
    """
    draws = done.draws
    held = batch.observed & sparser.hidden & per_item(done.ok.all(0) & ~sparser.empty, batch.observed)
    if int(held.sum()) < CELLS:
        return math.nan
    at, truth = draws[:, held].double(), batch.values[held].double()
    wide = float(at.var(0).sum())
    off = float((at.mean(0) - truth).square().sum()) - wide / len(at)
    return math.sqrt(wide / off) if off > 0 else math.nan


def says_something(ratio: float) -> bool:
    """Whether a ratio of spread to skill is one: it is no number, or 0, where it cannot be known."""
    return math.isfinite(ratio) and ratio > 0


def corrected(temperature: float, ratio: float, measured: int) -> float:
    """The temperature τ after one more ratio of spread to skill at the present one, which is number `measured`, from 0.

    A ratio that is proportional to τ is 1 at τ / ratio. The temperature goes half of the way there, or to the geometric
    mean of such aims of the batches so far. A ratio that is 0 or no number says nothing, and is not one of `measured`.
    """
    if not says_something(ratio):
        return temperature
    gain, aim = 1 / (measured + 1), (temperature / ratio) ** _SHARE
    return min(max(temperature ** (1 - gain) * aim**gain, _LEAST), _MOST)
