"""scikit-learn's imputers, which see items as rows of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.data.incomplete import IncompleteData
from viscos.imputers.imputer import Imputer, Progress, quiet
from viscos.inference import Completions


class ColumnwiseImputer(Imputer):
    """Completes items by an imputer of scikit-learn, fitted to `rows` training items; one completion each.

    These are spread evenly over all, whose order may mean something. An entry that no training item observes gets zero,
    as scikit-learn has it for empty columns. Its state is the items that it was fitted to, and the fit, which draws
    nothing that is not seeded, is made again from them when it is needed: what scikit-learn keeps can be read back by
    running what a file says alone.
    """

    def __init__(self, rows: int = 10_000) -> None:
        if rows < 1:
            raise InputError(f"{self.name}: rows is {rows}; give the number of training items to fit to, 1 or more")
        self.rows = rows
        self.items: Tensor | None = None
        """Those that it is fitted to (n, …), NaN where hidden."""
        self.fitted: Any = None

    def estimator(self) -> Any:
        """A fresh imputer of scikit-learn."""
        raise NotImplementedError

    def fit(self, data: IncompleteData, seed: int = 0, progress: Progress = quiet) -> ColumnwiseImputer:
        some = torch.linspace(0, len(data) - 1, min(len(data), self.rows)).round().long()
        self.load_state({"items": data.values[some]})
        self._fit()
        return self

    def state(self) -> dict[str, Any]:
        return {} if self.items is None else {"items": self.items}

    def load_state(self, state: dict[str, Any]) -> None:
        self.items, self.fitted = state.get("items"), None

    def _fit(self) -> None:
        assert self.items is not None
        self.fitted = self.estimator().fit(_table(self.items))

    def impute(self, batch: Incomplete, draws: int = 1, seed: int = 0, purpose: str = "item") -> Completions:
        if self.items is None:
            raise InputError(f"the {self.label} imputer has seen no data; call fit first")
        if batch.values.shape[1:] != self.items.shape[1:]:
            seen, wanted = tuple(batch.values.shape[1:]), tuple(self.items.shape[1:])
            raise InputError(f"items have shape {seen}; this imputer was fitted to {wanted}")
        if self.fitted is None:
            self._fit()
        # With a row that is observed: scikit-learn's chains do not begin for a table in which nothing is.
        rows = np.concatenate([_table(batch.values), np.zeros((1, self.items.shape[1:].numel()))])
        found = torch.from_numpy(np.ascontiguousarray(self.fitted.transform(rows)[:-1]))
        completed = batch.filled(found.view(batch.values.shape).to(batch.values))
        return Completions.exact(completed[None], completed)


def _table(values: Tensor) -> np.ndarray:
    """Items (n, …) as rows of float64 with NaN in the holes."""
    return values.flatten(1).double().cpu().numpy()
