"""What imputers that learn networks from incomplete rows have in common: standard units, seeds, checks and progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.core.rng import generator
from viscos.core.solution import Solution, Status
from viscos.data.incomplete import IncompleteData
from viscos.imputers.imputer import Imputer
from viscos.inference import Completions
from viscos.linear.gaussian import observed_mean

_LEAST = 0.05
"""Least deviation by which pixels are divided: in most data sets some hardly ever vary."""
_FARTHEST = 10.0
"""Deviations from the mean beyond which networks see no difference."""

Progress = Callable[[int, dict[str, float]], None]
"""Is told the number of steps done, and figures."""


@dataclass(frozen=True)
class Rows:
    """Items (B, …) as rows (B, d), each entry less its mean, over its deviation, both of observed training entries.

    An entry with one observed value alone, or none, is divided by 1.
    """

    shape: torch.Size
    """Of an item."""
    mean: Tensor
    """(d,)."""
    deviation: Tensor
    """(d,), positive."""

    @classmethod
    def of(cls, data: IncompleteData) -> Rows:
        """Raises `InputError` if nothing is observed."""
        values, observed = data.values.flatten(1).double(), data.observed.flatten(1)
        mean = observed_mean(data.values, data.observed)
        low, high = torch.where(observed, values, torch.inf).amin(0), torch.where(observed, values, -torch.inf).amax(0)
        squares = torch.where(observed, values - mean, 0).square().sum(0) / observed.sum(0).clamp_min(1)
        deviation = torch.where(low < high, squares.sqrt(), 1)
        if len(data.shape) == 3:
            deviation = deviation.clamp_min(_LEAST)
        return cls(torch.Size(data.shape), mean.float(), deviation.float())

    def enter(self, batch: Incomplete | IncompleteData) -> Tensor:
        """The rows (B, d), with zero in the holes: the mean."""
        return torch.where(batch.observed.flatten(1), self.standardise(batch.values), 0)

    def standardise(self, values: Tensor) -> Tensor:
        """The rows (B, d) of values (B, *shape); NaN stays where it is."""
        rows = (values.flatten(1) - self.mean.to(values)) / self.deviation.to(values)
        return rows.clamp(-_FARTHEST, _FARTHEST)

    def leave(self, rows: Tensor) -> Tensor:
        """The items (…, *shape) of rows (…, d); images are clamped to [0, 1]."""
        values = rows * self.deviation.to(rows) + self.mean.to(rows)
        values = values.clamp(0, 1) if len(self.shape) == 3 else values
        return values.unflatten(-1, self.shape)


class LearnedImputer(Imputer):
    """Completes items by what it learned from incomplete rows; a subclass writes `learn` and `complete`.

    `progress` is told of the steps of a fit, of which there are `steps` in all once it has begun.
    """

    progress: Progress = staticmethod(lambda done, figures: None)
    steps = 0

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rows: Rows | None = None

    def learn(self, rows: Tensor, observed: Tensor) -> None:
        """Learns from rows (N, d), zero where `observed` (N, d) is false."""
        raise NotImplementedError

    def complete(self, rows: Tensor, batch: Incomplete, draws: int, seed: int, purpose: str) -> Tensor:
        """Rows (K, B, d) whose hidden entries are those of a completion, of rows (B, d) with zero in the holes."""
        raise NotImplementedError

    def fit(self, data: IncompleteData) -> LearnedImputer:
        """Learns from the observed entries of `data`.

        Raises `InputError` for no data, or when what it learns leaves the range of the numbers.
        """
        self.rows = Rows.of(data)
        with seeded(self.seed, self.name):
            self.learn(self.rows.enter(data), data.observed.flatten(1))
        return self

    @torch.no_grad()
    def impute(self, batch: Incomplete, draws: int = 1, seed: int = 0, purpose: str = "item") -> Completions:
        if self.rows is None:
            raise InputError(f"the {self.label} imputer has seen no data; call fit first")
        if batch.values.shape[1:] != self.rows.shape:
            seen = tuple(batch.values.shape[1:])
            raise InputError(f"items have shape {seen}; this imputer was fitted to {tuple(self.rows.shape)}")
        at = batch.to("cpu")
        found = self.rows.leave(self.complete(self.rows.enter(at), at, draws, seed, purpose))
        completed = torch.where(batch.observed, batch.values, found.to(batch.values))
        solved = Solution.exact(completed.flatten(0, 1))
        whole = completed.isfinite().flatten(2).all(2).flatten()
        status = torch.where(whole, solved.status, int(Status.NON_FINITE))
        return Completions(completed, None, replace(solved, status=status))

    def best_mean(self, batch: Incomplete, draws: int, seed: int = 0) -> Completions:
        return self.impute(batch, draws, seed)  # there are no antithetic twins

    def told(self, step: int, figures: dict[str, Tensor]) -> None:
        """Reports step number `step`; raises `InputError` where a figure is no number."""
        plain = {key: float(value) for key, value in figures.items()}
        if not all(torch.isfinite(torch.tensor(value)) for value in plain.values()):
            raise InputError(f"{self.name} diverged at step {step} of its fit; lower its learning_rate")
        self.progress(step, plain)


@contextmanager
def seeded(seed: int, *key: int | str) -> Iterator[None]:
    """Initial parameters that depend on (seed, key) alone; torch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, *key).initial_seed())
        yield
