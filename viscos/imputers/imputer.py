"""The interface of everything that completes items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.core.labels import Kind
from viscos.data.incomplete import IncompleteData
from viscos.flows.flow import Flow
from viscos.inference import Completions

Progress = Callable[[int, int, dict[str, float]], None]
"""Gets the steps that are done, how many there are, and measurements. What it raises ends a fit between two steps."""


def quiet(done: int, total: int, scalars: dict[str, float]) -> None:
    """Shows nothing."""


class Imputer:
    """Completes items with holes. A subclass says what it is called, once, for records, terminals and tables alike."""

    name: str
    """By which it is chosen."""
    label: str
    """For readers."""
    mean: Kind | None = None
    """Its mean, or its only completion; None where there is none to be measured."""
    draw: Kind | None = None
    """One of its draws; None where it has one completion alone."""
    flow: bool = False
    """Whether its numbers are of the flow that is measured, and stand with it in a table."""
    fit_seconds: float | None = None
    """What its fit took, where that was noted."""
    passes: int = 1
    """Passes of a network in one of the evaluations that its verdicts count, for comparisons at equal cost."""
    gradients: bool = False
    """Whether it takes a gradient through each of them, which costs about one more."""

    def fit(self, data: IncompleteData, seed: int = 0, progress: Progress = quiet) -> Imputer:
        """Learns from the observed entries of training data; returns itself.

        It begins anew, unless `load_state` gave what a fit had learnt before `progress` ended it: then it goes on.
        """
        return self

    def state(self) -> dict[str, Any]:
        """What `fit` has learnt, and what it needs to go on, as tensors and plain containers: for a checkpoint.

        It must be whole whenever `fit` calls its `progress`.
        """
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave, of an imputer that was made alike; {}: nothing is learnt yet."""

    def about(self) -> dict[str, Any]:
        """What a record of its completions says of it beside its name; plain."""
        return {}

    def to(self, device: torch.device | str) -> Imputer:
        """Learns and computes on `device`, if it computes by networks; returns itself."""
        return self

    def impute(self, batch: Incomplete, draws: int = 1, seed: int = 0, purpose: str = "item") -> Completions:
        """`draws` independent completions of each item, with noise keyed by (seed, purpose, item, draw).

        One that does not draw returns its only completion. Raises `InputError` before `fit`, or for items of another
        shape.
        """
        raise NotImplementedError

    def best_mean(self, batch: Incomplete, draws: int, seed: int = 0) -> Completions:
        """Completions at the price of `draws`, whose mean is as good as can be: antithetic pairs where there are such.

        By default ⌈draws/2⌉ independent ones, as many as a flow's pairs hold.
        """
        return self.impute(batch, (draws + 1) // 2, seed)


class OnFlow(Imputer):
    """Completes by a flow that is trained already, without its posterior: what is compared on the very same flow.

    `noise` is the standard deviation of that of training, which is taken off draws where the flow can.
    """

    flow = True

    def __init__(self, of: Flow, noise: float = 0.0) -> None:
        self.of, self.noise = of, noise


def kinds_of(imputer: Imputer | type[Imputer]) -> tuple[Kind, ...]:
    """The ways in which an imputer completes an item."""
    return tuple(kind for kind in (imputer.mean, imputer.draw) if kind is not None)


def check_apart(imputers: Sequence[Imputer | type[Imputer]]) -> None:
    """Raises `InputError` if two of the imputers have one name: their numbers would be taken for those of one."""
    known: dict[str, Imputer | type[Imputer]] = {}
    for imputer in imputers:
        keys = (kind.key for kind in kinds_of(imputer))
        for name in (f"called {imputer.name}", *keys):  # a key may be the name of another imputer, as `mean` is
            if known.setdefault(name, imputer) is not imputer:
                raise InputError(
                    f"two imputers are called {imputer.name!r}, and would be measured as one; leave one out, measure "
                    "them apart, or give a file of completions another name"
                )


def observed_error(y: Tensor, batch: Incomplete) -> Tensor:
    """How far draws (K, B, …) are from what is observed, before that is put in its place: an RMSE for each item (B,).

    Over observed entries that are finite in a draw; 0 where nothing is observed, NaN where no draw is finite there.
    """
    counted = batch.observed & y.isfinite()
    squares = torch.where(counted, y - batch.values, 0).square().flatten(2).sum((0, 2))
    count, nothing = counted.flatten(2).sum((0, 2)), batch.empty
    return torch.where((count > 0) | nothing, (squares / count.clamp_min(1)).sqrt(), torch.nan)
