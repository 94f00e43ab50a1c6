"""DiffPuter's algorithm."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.core.labels import Kind
from viscos.core.rng import generator, standard_normal
from viscos.imputers.diffputer.denoiser import SIGMA_DATA, SIGMA_LEAST, Denoiser, noise_levels
from viscos.imputers.learned import LearnedImputer, check_counts, check_positive, seeded

_CHUNK = 8192
"""Rows that are drawn at once."""
_AHEAD = 8
"""Calls for which a row's noise is drawn at once, since a call of its generator costs more than the numbers."""


class DiffPuterImputer(LearnedImputer):
    """Completes by expectation–maximisation with a diffusion model (Zhang et al., 2025, algorithms 1 and 2).

    In each of `rounds` a denoiser learns from filled rows (M-step), then every hole is filled by the mean of `samples`
    draws of a reverse process that is held to what is observed (E-step); the first filling is the mean. From a level σ
    to σ' < σ, an observed entry is y + σ' n, and a hidden one is drawn given z and D = D(z; σ) for the datum,

        z' = D + (σ'/σ)² (z − D) + σ' √(1 − σ'²/σ²) n,

    after which z = z' + √(σ² − σ'²) n is taken down again, `resamplings` times in all. The denoiser of a round goes on
    from the last one's, unless each is `fresh`.

    Published: five rounds, 50 levels from 80, ten resamplings, ten samples, fresh denoisers of width 1024, 10,000
    epochs of batches of 4096. There the rate falls where the loss stands still, here by a cosine, and the hidden
    entries' step is Heun's with a little noise.
    """

    name, label = "diffputer", "DiffPuter"
    mean = Kind("diffputer_mean", "DiffPuter, mean")
    draw = Kind("diffputer_draw", "DiffPuter, one draw")

    def __init__(
        self,
        rounds: int = 5,
        epochs: int = 100,
        batch_size: int = 256,
        learning_rate: float = 1e-3,
        width: int = 256,
        levels: int = 20,
        largest: float = 10.0,
        resamplings: int = 3,
        samples: int = 1,
        fresh: bool = False,
    ) -> None:
        super().__init__()
        check_counts("diffputer", rounds=rounds, epochs=epochs, batch_size=batch_size, width=width, levels=levels)
        check_counts("diffputer", resamplings=resamplings, samples=samples)
        check_positive("diffputer", learning_rate=learning_rate)
        if not largest > SIGMA_LEAST:
            raise InputError(f"diffputer: largest is {largest}; give a level of noise above {SIGMA_LEAST}")
        self.rounds, self.epochs, self.batch_size, self.learning_rate = rounds, epochs, batch_size, learning_rate
        self.width, self.sigmas, self.resamplings = width, noise_levels(levels, largest), resamplings
        self.samples, self.fresh = samples, fresh
        self.denoiser: Denoiser | None = None
        self.teacher: Adam | None = None
        self.filled = self.drawn = torch.empty(0)

    def steps(self, items: int) -> int:
        """Steps teach, and draw all training rows, which the last round does without."""
        return self.rounds * self._updates(items) + (self.rounds - 1) * self.samples

    def _updates(self, items: int) -> int:
        return self.epochs * -(-items // self.batch_size)

    def begin(self, rows: Tensor, observed: Tensor) -> None:
        self.filled, self.drawn = rows * SIGMA_DATA, torch.zeros_like(rows)
        self._begin_denoiser(rows.shape[1])

    def _begin_denoiser(self, d: int) -> None:
        self.denoiser = Denoiser(d, self.width).to(self.device)
        self.teacher = Adam(self.denoiser.parameters(), self.learning_rate)

    def advance(self, rows: Tensor, observed: Tensor) -> dict[str, float]:
        updates = self._updates(len(rows))
        k, within = divmod(self.step, updates + self.samples)
        if within == 0 and k > 0:
            self._begin_round(rows.shape[1], k)
        if within < updates:
            return {"round": k + 1, "loss": self._teach(within / updates)}
        self._draw(rows * SIGMA_DATA, observed)
        if within == updates + self.samples - 1:
            self.filled = torch.where(observed, rows * SIGMA_DATA, self.drawn / self.samples)
            self.drawn = torch.zeros_like(rows)
        return {"round": k + 1}

    def _begin_round(self, d: int, k: int) -> None:
        assert self.denoiser is not None
        if self.fresh:
            with seeded(self.seed, self.name, k):
                self._begin_denoiser(d)
        self.teacher = Adam(self.denoiser.parameters(), self.learning_rate)

    def _teach(self, done: float) -> float:
        """A step of the denoiser, of which a share `done` lies behind in this round."""
        assert self.denoiser is not None and self.teacher is not None
        random = generator(self.seed, self.name, "teach", self.step)
        count = min(self.batch_size, len(self.filled))
        index = torch.randperm(len(self.filled), generator=random)[:count].to(self.device)
        self.teacher.param_groups[0]["lr"] = self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))
        loss = self.denoiser.loss(self.filled[index], random)
        self.teacher.zero_grad()
        loss.backward()
        self.teacher.step()
        return float(loss.detach())

    @torch.no_grad()
    def _draw(self, known: Tensor, observed: Tensor) -> None:
        """Adds a draw of all rows."""
        random = generator(self.seed, self.name, "draw", self.step)
        parts = zip(known.split(_CHUNK), observed.split(_CHUNK), strict=True)
        self.drawn += torch.cat([self._reverse(*part, lambda like: standard_normal(like, random)) for part in parts])

    def _reverse(self, known: Tensor, observed: Tensor, noise: Callable[[Tensor], Tensor]) -> Tensor:
        """A draw (B, d) of rows of which the `observed` entries are `known`."""
        assert self.denoiser is not None
        z = self.sigmas[0] * noise(known)
        for here, there in itertools.pairwise(self.sigmas):
            for k in range(self.resamplings if there > 0 else 1):
                if k:
                    z = z + math.sqrt(here**2 - there**2) * noise(z)
                u, kept = self.denoiser(z, z.new_full((1,), here)), (there / here) ** 2
                down = u + kept * (z - u) + there * math.sqrt(1 - kept) * noise(z)
                z = torch.where(observed, known + there * noise(z), down)
        return z

    def complete(self, rows: Tensor, batch: Incomplete, draws: int, seed: int, purpose: str) -> Tensor:
        known, observed, items = rows * SIGMA_DATA, batch.observed.flatten(1), batch.index.tolist()
        size = max(1, _CHUNK // max(1, len(rows)))
        found = list[Tensor]()
        if not items:
            return known.expand(draws, *known.shape)
        for some in torch.arange(draws).split(size):
            own = [generator(seed, purpose, item, draw) for draw in some.tolist() for item in items]
            y, mask = (part.repeat(len(some), 1) for part in (known, observed))
            found.append(self._reverse(y, mask, _Streams(own)).unflatten(0, (len(some), -1)))
        return torch.cat(found) / SIGMA_DATA

    def end(self) -> None:
        self.teacher, self.filled, self.drawn = None, torch.empty(0), torch.empty(0)

    def evaluations(self) -> int:
        """The denoiser is asked so often from level to level."""
        return self.resamplings * (len(self.sigmas) - 2) + 1

    def parts(self) -> dict[str, Any]:
        assert self.denoiser is not None
        parts: dict[str, Any] = {"denoiser": self.denoiser.state_dict()}
        if self.teacher is not None:
            parts |= {"teacher": self.teacher.state_dict(), "filled": self.filled, "drawn": self.drawn}
        return parts

    def take(self, parts: dict[str, Any], d: int) -> None:
        with seeded(0):
            self._begin_denoiser(d)
        assert self.denoiser is not None and self.teacher is not None
        self.denoiser.load_state_dict(parts["denoiser"])
        if "teacher" not in parts:
            return self.end()
        self.teacher.load_state_dict(parts["teacher"])
        self.filled, self.drawn = parts["filled"].to(self.device), parts["drawn"].to(self.device)


class _Streams:
    """Standard normal rows (B, d), each row's from a generator of its own, a few calls ahead."""

    def __init__(self, own: list[torch.Generator]) -> None:
        self.own = own
        self.ahead = list[Tensor]()

    def __call__(self, like: Tensor) -> Tensor:
        if not self.ahead:
            size = (_AHEAD, like.shape[1])
            self.ahead = list(torch.stack([torch.randn(size, generator=random) for random in self.own], 1))
        return self.ahead.pop().to(like)
