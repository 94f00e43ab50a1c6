"""A split of a data set, whatever its items are: what images and vectors have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from viscos.core.errors import InputError

SPLITS = ("train", "test")
HELD_OUT = 0.1
"""Share of the items that are for testing, where a data set has no split of its own."""


@dataclass(frozen=True)
class Units:
    """What errors and densities are measured in."""

    error: str
    """Of errors, in words."""
    values: str
    """What the values are that a density is over, in words."""
    clamped: bool = False
    """Whether values lie in [0, 1], and completions are clamped to it before they are measured."""
    columns: tuple[str, ...] = ()
    """Names of the entries whose errors are reported one by one."""
    scales: tuple[float, ...] = ()
    """For each of `columns`, its own units in one unit of `error`."""


PIXELS = Units("pixel values in [0, 1]", "values in [0, 1]", clamped=True)
OWN = Units("the data's own units", "values in the data's own units")


@dataclass(frozen=True)
class Data:
    """One split of a data set. Raises `InputError` if a field is not as a subclass says."""

    name: str
    values: Tensor
    """**y** (N, …)."""
    labels: Tensor | None
    """Class of each item (N,), int64, if there is one."""
    classes: int
    """Number of classes; 0 without labels."""
    units: Units = OWN
    notes: tuple[str, ...] = ()
    """Lines on what was found in reading them, for whoever is to know."""

    def __post_init__(self) -> None:
        if self.labels is not None and (self.labels.dtype != torch.int64 or len(self.labels) != len(self.values)):
            seen = f"{self.labels.dtype} of shape {tuple(self.labels.shape)}"
            raise InputError(
                f"labels of {self.name!r} are {seen}; give one int64 for each of {len(self.values)} {self.kind}"
            )

    def at(self, rows: Tensor | slice) -> Self:
        """The items at `rows`, int64 or bool (n,), or a slice, of which the values are a view."""
        return replace(self, values=self.values[rows], labels=None if self.labels is None else self.labels[rows])

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one item."""
        return tuple(self.values.shape[1:])

    @property
    def known(self) -> Tensor:
        """The entries that the data themselves have a value of (N, …), bool."""
        return ~self.values.isnan()

    @property
    def groups(self) -> tuple[int, ...] | None:
        """The number of the group of each entry, whose entries are known together; None: each by itself."""
        return None

    @property
    def kind(self) -> str:
        """What its items are, in a word."""
        return "items"


def split_rows(count: int, split: str) -> Tensor:
    """Which of `count` items belong to `split`: always the same, a share of `HELD_OUT` to test.

    In no order, so that the first of them are like all others where the items are sorted, as by class.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    tested = max(1, round(HELD_OUT * count))
    return order[:tested] if split == "test" else order[tested:]
