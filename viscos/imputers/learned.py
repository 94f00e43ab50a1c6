"""What imputers that learn networks from incomplete rows have in common: units, the loop of a fit, what is kept."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.core.rng import generator
from viscos.data.incomplete import IncompleteData
from viscos.imputers.imputer import Imputer, Progress, quiet
from viscos.inference import Completions
from viscos.linear.gaussian import observed_mean

_LEAST = 0.05
"""Least deviation by which pixels are divided: in most data sets some hardly ever vary."""
_FARTHEST = 10.0
"""Deviations from the mean beyond which networks see no difference."""


def descend(optimizer: Optimizer, loss: Tensor, clip: float | None = None) -> Tensor:
    """A step of the parameters of `optimizer` alone, by a gradient no longer than `clip`; the loss, without a graph."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        p.grad = gradient
    if clip is not None:
        nn.utils.clip_grad_norm_(parameters, clip)
    optimizer.step()
    return loss.detach()


@dataclass(frozen=True)
class Rows:
    """Items (B, …) as rows (B, d), each entry less its mean, over its deviation, both of observed training entries.

    An entry with one observed value alone, or none, is divided by 1.
    """

    shape: torch.Size
    """Of an item."""
    mean: Tensor
    """(d,), float64."""
    deviation: Tensor
    """(d,), float64, positive."""

    @classmethod
    def of(cls, data: IncompleteData) -> Rows:
        """Raises `InputError` if nothing is observed."""
        values, observed = data.values.flatten(1).double(), data.observed.flatten(1)
        mean = observed_mean(data.values, data.observed)
        low, high = (torch.where(observed, values, fill) for fill in (torch.inf, -torch.inf))
        squares = torch.where(observed, values - mean, 0).square().sum(0) / observed.sum(0).clamp_min(1)
        deviation = torch.where(low.amin(0) < high.amax(0), squares.sqrt(), 1)
        if len(data.shape) == 3:
            deviation = deviation.clamp_min(_LEAST)
        return cls(torch.Size(data.shape), mean, deviation)

    def enter(self, batch: Incomplete | IncompleteData) -> Tensor:
        """The rows (B, d), float32, with zero in the holes."""
        return torch.where(batch.observed.flatten(1), self.standardise(batch.values), 0)

    def standardise(self, values: Tensor) -> Tensor:
        """The rows (B, d) of values (B, …); NaN stays where it is."""
        rows = (values.flatten(1) - self.mean.to(values)) / self.deviation.to(values)  # in the values' own precision
        return rows.float().clamp(-_FARTHEST, _FARTHEST)

    def leave(self, rows: Tensor) -> Tensor:
        """The items (…, *shape), float64, of rows (…, d); images are clamped to [0, 1]."""
        values = (rows * self.deviation.to(rows.device) + self.mean.to(rows.device)).unflatten(-1, self.shape)
        return values.clamp(0, 1) if len(self.shape) == 3 else values


class LearnedImputer(Imputer):
    """Completes items by networks that learned from incomplete rows, step by step.

    A subclass says what it begins with, what a step is and how many there are, how it completes, and what of all that
    is kept. Random numbers of a fit are keyed by its seed and the number of the step, so that it goes on as if it had
    never ended.
    """

    def __init__(self) -> None:
        self.rows: Rows | None = None
        self.device = torch.device("cpu")
        self.seed = self.step = self.total = 0
        self._goes_on = False

    def steps(self, items: int) -> int:
        """Steps of a fit to so many items."""
        raise NotImplementedError

    def begin(self, rows: Tensor, observed: Tensor) -> None:
        """Makes what learns from rows (N, d), zero where `observed` (N, d) is false."""
        raise NotImplementedError

    def advance(self, rows: Tensor, observed: Tensor) -> dict[str, float]:
        """Makes step number `self.step`; returns its scalars."""
        raise NotImplementedError

    def end(self) -> None:
        """Lets go of what only a fit needs."""

    def complete(self, rows: Tensor, batch: Incomplete, draws: int, seed: int, purpose: str) -> Tensor:
        """Rows (K, B, d) whose hidden entries are those of completions of `rows` (B, d), with zero in the holes."""
        raise NotImplementedError

    def evaluations(self) -> int:
        """Passes of a network that a completion takes."""
        return 1

    def parts(self) -> dict[str, Any]:
        """What has been learnt, and while a fit lasts what it needs to go on, as tensors and plain containers."""
        raise NotImplementedError

    def take(self, parts: dict[str, Any], d: int) -> None:
        """Takes over what `parts` gave, for rows of d entries."""
        raise NotImplementedError

    def units(self, data: IncompleteData) -> Rows:
        """How items become rows."""
        return Rows.of(data)

    def fit(self, data: IncompleteData, seed: int = 0, progress: Progress = quiet) -> LearnedImputer:
        """Learns from the observed entries of `data`.

        Raises `InputError` if nothing is observed, or when what it learns leaves the range of the numbers.
        """
        going_on, self._goes_on = self._goes_on, False
        if not going_on:
            self.rows, self.seed, self.step, self.total = self.units(data), seed, 0, self.steps(len(data))
        assert self.rows is not None
        rows, observed = self.rows.enter(data).to(self.device), data.observed.flatten(1).to(self.device)
        if not going_on:
            with seeded(self.seed, self.name, "begin"):
                self.begin(rows, observed)
        while self.step < self.total:
            scalars = self.advance(rows, observed)
            self.step += 1
            if not all(map(math.isfinite, scalars.values())):
                raise InputError(f"{self.name} diverged at step {self.step} of its fit; lower its learning_rate")
            progress(self.step, self.total, scalars)
        self.end()
        return self

    def state(self) -> dict[str, Any]:
        if self.rows is None:
            return {}
        rows = {"shape": list(self.rows.shape), "mean": self.rows.mean, "deviation": self.rows.deviation}
        return {"rows": rows, "seed": self.seed, "step": self.step, "total": self.total, "parts": self.parts()}

    def load_state(self, state: dict[str, Any]) -> None:
        self._goes_on, self.rows = False, None
        if not state:
            return
        state = copy.deepcopy(state)  # optimisers keep tensors that they are given
        rows = state["rows"]
        self.rows = Rows(torch.Size(rows["shape"]), rows["mean"].cpu(), rows["deviation"].cpu())
        self.seed, self.step, self.total = state["seed"], state["step"], state["total"]
        self._goes_on = self.step < self.total
        self.take(state["parts"], len(self.rows.mean))

    def to(self, device: torch.device | str) -> LearnedImputer:
        """Before a fit, or before a state is loaded: networks are made on `device`."""
        self.device = torch.device(device)
        return self

    @torch.no_grad()
    def impute(self, batch: Incomplete, draws: int = 1, seed: int = 0, purpose: str = "item") -> Completions:
        if self.rows is None or self.step < self.total:
            raise InputError(f"the {self.label} imputer has not learnt from data to the end; call fit first")
        if batch.values.shape[1:] != self.rows.shape:
            seen = tuple(batch.values.shape[1:])
            raise InputError(f"items have shape {seen}; this imputer was fitted to {tuple(self.rows.shape)}")
        at = batch.to(self.device)
        rows = self.complete(self.rows.enter(at), at, draws, seed, purpose)
        return Completions.checked(self.rows.leave(rows).to(batch.values), batch, self.evaluations())

    def best_mean(self, batch: Incomplete, draws: int, seed: int = 0) -> Completions:
        return self.impute(batch, draws, seed)  # there are no antithetic twins


@contextmanager
def seeded(seed: int, *key: int | str) -> Iterator[None]:
    """Lets torch draw initial parameters that depend on (seed, key) alone; its own generator is left as it was."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(generator(seed, *key).initial_seed())
        yield


def check_counts(name: str, **counts: int | None) -> None:
    """Raises `InputError`, naming it, for a number below 1, or none."""
    for what, number in counts.items():
        if number is None or number < 1:
            raise InputError(f"{name}: {what} is {number}; give 1 or more")


def check_positive(name: str, **numbers: float) -> None:
    """Raises `InputError`, naming it, for a number that is not above 0."""
    for what, number in numbers.items():
        if not number > 0:
            raise InputError(f"{name}: {what} is {number}; give a number above 0")
