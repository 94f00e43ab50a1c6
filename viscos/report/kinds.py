"""What kinds of completions records have numbers of, and what they are called."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from viscos.core import labels as known

_ONE = ", one draw"
REAL = {known.TRUTH: "the complete test images"}
NO_RIVALS = {known.TRUTH, "gaussian_complete_mean", "gaussian_complete_draw"}
"""Kinds that know what is hidden: the best to hope for."""
LABELS = {kind.key: kind.label for kind in known.KINDS}
"""Of the imputers of this package, by the key of each kind in a record."""
OF_FLOW = tuple(kind.key for kind in known.OF_FLOW)
"""Kinds whose numbers are of the flow that is measured."""
UNFITTED = known.UNFITTED_DRAW.key
"""Of completions that a fit began with; trainings have none."""
DRAWS = (known.DRAW.key, known.GAUSSIAN_DRAW.key)


def labels(records: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The label of each kind that `records` may have numbers of: of this package's imputers, then of any others."""
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
