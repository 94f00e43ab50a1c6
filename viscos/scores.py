"""What a tally gets of completions by a flow, and of those that need none."""

from __future__ import annotations

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.rng import item_noise
from viscos.inference import Completions
from viscos.linear.gaussian import Gaussian
from viscos.linear.principal import longest
from viscos.metrics.calibration import HALVES, first_of_pairs
from viscos.metrics.tally import Tally

_PASS = 16
"""Cost of reading an entry of a matrix (d, d) once more, in multiplications of a factorisation; measured on MNIST."""


def add_completions(tally: Tally, done: Completions, hidden: Tensor, rows: Tensor) -> None:
    """Adds the mean, the first draw, and the scores of the independent ones of draws in antithetic pairs.

    Of the test items `rows` (B,), where `hidden` (bool, B, …) says that an entry was not used and the truth is known.
    """
    ok = done.ok.cpu()
    tally.update("mean", done.mean().cpu(), hidden, rows, ok.any(0))
    tally.update("draw", done.draws[0].cpu(), hidden, rows, ok[0])
    tally.update_draws("draw", first_of_pairs(done.draws).cpu(), hidden, rows, first_of_pairs(ok), HALVES)


def add_gaussian(
    tally: Tally, gaussian: Gaussian, batch: Incomplete, hidden: Tensor, seed: int, done: Completions
) -> None:
    """Adds the mean, one draw and the scores of the Gaussian conditional, of as many independent draws as of `done`.

    `batch` must be on the CPU; `hidden` as in `add_completions`.
    """
    draws = gaussian_draws(gaussian, batch, seed, len(first_of_pairs(done.draws)))
    tally.update("gaussian_mean", gaussian.conditional(batch.values, batch.observed), hidden, batch.index)
    tally.update("gaussian_draw", draws[0], hidden, batch.index)
    tally.update_draws("gaussian_draw", draws, hidden, batch.index)


def gaussian_draws(gaussian: Gaussian, batch: Incomplete, seed: int, draws: int) -> Tensor:
    """Independent draws (draws, B, …) of the Gaussian conditional of each item, by noise keyed by (seed, item, draw).

    Raises `InputError` as `Gaussian.conditional` does.
    """
    values, observed = batch.values, batch.observed
    noise = item_noise(seed, batch.index, draws, values.shape[1:], values)
    known = observed.flatten(1)
    block = min(longest(known), longest(~known))
    if (draws - 1) * block**3 <= _PASS * known.shape[1] ** 2:
        return torch.stack([gaussian.conditional_sample(values, observed, each) for each in noise])
    parts = []
    for item in range(len(values)):  # the draws of one item share a mask, and so one factor of its block
        y, there = (part[item : item + 1].expand(draws, *values.shape[1:]) for part in (values, observed))
        parts.append(gaussian.conditional_sample(y, there, noise[:, item]))
    return torch.stack(parts, 1)
