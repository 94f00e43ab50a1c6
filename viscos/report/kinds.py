"""What kinds of completions records have figures of, and what they are called."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from viscos.imputers import STANDARD, kinds_of
from viscos.metrics import TRUTH

_ONE = ", one draw"
REAL = {TRUTH: "the complete test images"}
LABELS = {kind.key: kind.label for imputer in STANDARD for kind in kinds_of(imputer)}
"""Of the imputers of this package, by the key of each kind in a record."""
OF_FLOW = tuple(kind.key for imputer in STANDARD if imputer.flow for kind in kinds_of(imputer))
"""Kinds whose figures are of the flow that is measured."""
UNFITTED = "first_iteration_draw"
"""Of completions that a fit began with; trainings have none."""
DRAWS = tuple(imputer.draw.key for imputer in STANDARD if imputer.draw is not None and imputer.draw.key != UNFITTED)


def labels(records: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The label of each kind that `records` may have figures of: of this package's imputers, then of any others."""
    found = dict(LABELS)
    for record in records:
        found |= {key: label for key, label in record.get("labels", {}).items() if key not in found}
    return found


def drawn(label: str) -> bool:
    """Whether a label is that of a draw."""
    return label.endswith(_ONE)


def of_draws(label: str) -> str:
    """The label of all draws together, from that of one draw."""
    return label.replace(_ONE, ", draws")
