"""The interface of everything that completes items."""

from __future__ import annotations

from dataclasses import dataclass

from viscos.core.batch import Incomplete
from viscos.data.incomplete import IncompleteData
from viscos.inference import Completions


@dataclass(frozen=True)
class Kind:
    """One way of reading a completion of an item off what an imputer gives: its mean, or a draw."""

    key: str
    """In records."""
    label: str
    """For readers."""


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
    """Whether its figures are of the flow that is measured, and stand with it in a table."""

    def fit(self, data: IncompleteData) -> Imputer:
        """Learns from the observed entries of training data; returns itself."""
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


def kinds_of(imputer: Imputer | type[Imputer]) -> tuple[Kind, ...]:
    """The ways in which an imputer completes an item."""
    return tuple(kind for kind in (imputer.mean, imputer.draw) if kind is not None)
