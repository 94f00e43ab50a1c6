"""DiffPuter's algorithm."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.core.rng import ItemGenerators, generator, standard_normal
from viscos.imputers.diffputer.denoiser import SIGMA_DATA, Denoiser, noise_levels
from viscos.imputers.imputer import Kind
from viscos.imputers.learned import LearnedImputer


class DiffPuterImputer(LearnedImputer):
    """Completes by expectation–maximisation with a diffusion model (Zhang et al., 2025, algorithms 1 and 2).

    In each of `rounds` rounds a denoiser learns from filled rows (M-step), then every hole is filled by the mean of
    `samples` draws of a reverse process that is held to what is observed (E-step); the first filling is the mean. From
    σ to σ' < σ, an observed entry is y + σ' n and a hidden one the step back

        z' = D + (σ'/σ)² (z − D) + σ' √(1 − σ'²/σ²) n,    D = D(z; σ),

    after which z = z' + √(σ² − σ'²) n is taken back again, `resamplings` times in all (section 4.2). The denoiser of a
    round goes on from the last one's, unless each is `fresh`.

    Published: `rounds=5`, `steps=50` levels from `largest=80`, `resamplings=10`, `samples=10`, `fresh=true`, 10,000
    epochs of `batch_size=4096`, networks of `width=1024`; there the rate falls where the loss stands, here by a cosine.
    """

    name, label = "diffputer", "DiffPuter"
    mean = Kind("diffputer_mean", "DiffPuter, mean")
    draw = Kind("diffputer_draw", "DiffPuter, one draw")

    def __init__(
        self,
        rounds: int = 5,
        updates: int = 800,
        batch_size: int = 256,
        learning_rate: float = 1e-3,
        width: int = 256,
        steps: int = 20,
        largest: float = 10.0,
        resamplings: int = 3,
        samples: int = 1,
        fresh: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        counts = {"rounds": rounds, "updates": updates, "batch_size": batch_size, "width": width, "steps": steps}
        counts |= {"resamplings": resamplings, "samples": samples}
        for what, number in counts.items():
            if number < 1:
                raise InputError(f"diffputer: {what} is {number}; give 1 or more")
        if not learning_rate > 0 or not largest > 0.002:
            raise InputError(f"diffputer: learning_rate is {learning_rate}, largest {largest}; give positive numbers")
        self.rounds, self.updates, self.batch_size, self.learning_rate = rounds, updates, batch_size, learning_rate
        self.width, self.levels, self.resamplings = width, noise_levels(steps, largest), resamplings
        self.samples, self.fresh = samples, fresh
        self.denoiser: Denoiser | None = None

    def learn(self, rows: Tensor, observed: Tensor) -> None:
        filled, known = rows * SIGMA_DATA, rows * SIGMA_DATA
        self.steps = self.rounds * self.updates
        for k in range(self.rounds):
            if k == 0 or self.fresh:
                self.denoiser = Denoiser(rows.shape[1], self.width)
            self._maximise(filled, k)
            filled = self._expectation(known, observed, k)

    def _maximise(self, filled: Tensor, k: int) -> None:
        """Teaches the denoiser rows (N, d), in round number k."""
        assert self.denoiser is not None
        optimizer = torch.optim.Adam(self.denoiser.parameters(), self.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.updates)
        random = generator(self.seed, self.name, "maximise", k)
        for step in range(self.updates):
            index = torch.randint(len(filled), (min(self.batch_size, len(filled)),), generator=random)
            loss = self.denoiser.loss(filled[index], random)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            self.told(k * self.updates + step + 1, {"loss": loss.detach(), "round": torch.tensor(k + 1.0)})

    @torch.no_grad()
    def _expectation(self, known: Tensor, observed: Tensor, k: int) -> Tensor:
        """Rows (N, d) with the mean of draws in the holes."""
        random, total = generator(self.seed, self.name, "expect", k), torch.zeros_like(known)
        for _ in range(self.samples):
            parts = [
                self._reverse(y, mask, lambda like: standard_normal(like, random))
                for y, mask in zip(known.split(_CHUNK), observed.split(_CHUNK), strict=True)
            ]
            total += torch.cat(parts)
        return torch.where(observed, known, total / self.samples)

    def _reverse(self, known: Tensor, observed: Tensor, noise: Callable[[Tensor], Tensor]) -> Tensor:
        """A draw (B, d) of rows of which the `observed` entries are `known`."""
        assert self.denoiser is not None
        z = self.levels[0] * noise(known)
        for here, there in itertools.pairwise(self.levels):
            for k in range(self.resamplings if there > 0 else 1):
                if k:
                    z = z + math.sqrt(here**2 - there**2) * noise(z)
                u, kept = self.denoiser(z, z.new_full((1,), here)), (there / here) ** 2
                back = u + kept * (z - u) + there * math.sqrt(1 - kept) * noise(z)
                z = torch.where(observed, known + there * noise(z), back)
        return z

    def complete(self, rows: Tensor, batch: Incomplete, draws: int, seed: int, purpose: str) -> Tensor:
        keyed = generator(seed, purpose).initial_seed()
        found = []
        for first in range(0, draws, per := max(1, _CHUNK // max(1, len(rows)))):
            count = min(per, draws - first)
            own = ItemGenerators(keyed, batch.index, count, 0, first)
            known, observed = (part.repeat(count, 1) for part in (rows, batch.observed.flatten(1)))
            z = self._reverse(known * SIGMA_DATA, observed, lambda like: standard_normal(like, own))
            found.append(z.unflatten(0, (count, -1)))
        return torch.cat(found) / SIGMA_DATA


_CHUNK = 8192
"""Rows that are drawn at once."""
