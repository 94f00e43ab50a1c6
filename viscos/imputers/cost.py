"""What completions cost, for comparisons at equal cost."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from viscos.imputers.imputer import Imputer
from viscos.inference import Completions


class Cost:
    """What the completions of an imputer called `name` took, batch by batch.

    `passes` of a network are in one evaluation, and `gradients` says whether it takes one through each of them.
    """

    def __init__(self, name: str, passes: int = 1, gradients: bool = False, fit_seconds: float | None = None) -> None:
        self.name, self.passes, self.gradients, self.fit_seconds = name, passes, gradients, fit_seconds
        self.seconds, self.evaluations, self.items, self.draws = 0.0, 0.0, 0, 0
        self.notes: dict[str, list[Tensor]] = {}

    @classmethod
    def of(cls, imputer: Imputer) -> Cost:
        """That of an imputer, so far nothing."""
        return cls(imputer.name, imputer.passes, imputer.gradients, imputer.fit_seconds)

    def add(self, done: Completions, seconds: float) -> None:
        """Adds the completions of a batch, which took `seconds`."""
        self.evaluations += float(done.solution.evaluations.double().sum())
        self.seconds += seconds
        self.draws = len(done.draws)
        self.items += done.draws.shape[1]
        for name, each in (done.notes or {}).items():
            self.notes.setdefault(name, []).append(each.double().cpu())

    def record(self) -> dict[str, Any]:
        """Means over the items, of all draws of an item together; plain.

        Of a note, over the items that have one: None where none has, and `<name>_unknown` counts the others.
        """
        items = max(1, self.items)
        record: dict[str, Any] = {
            "network_passes_an_item": self.evaluations * self.passes / items,
            "with_gradients": self.gradients,
            "seconds_an_item": self.seconds / items,
            "draws": self.draws,
        }
        if self.fit_seconds is not None:
            record["fit_seconds"] = round(self.fit_seconds, 2)
        for name, each in self.notes.items():
            record |= averaged(name, torch.cat(each))
        return record


def averaged(name: str, each: Tensor) -> dict[str, Any]:
    """The mean of the numbers (n,) that are finite, None if none is, under `name`; and how many are not, if any."""
    finite = each[each.isfinite()].double()
    unknown = {f"{name}_unknown": len(each) - len(finite)} if len(finite) < len(each) else {}
    return {name: float(finite.mean()) if len(finite) else None} | unknown
