"""What a reader of a record should not overlook, a line each."""

from __future__ import annotations

import math
from typing import Any

MARGIN = 0.01
"""Share by which a figure must be behind another's to be worth a line: a flow at its start is the Gaussian itself."""
FAILED = 0.02
"""Share of failed solves above which the figures are of a selection."""


def warnings(record: dict[str, Any]) -> list[str]:
    """Where a completion is behind one that needs no flow, and where many solves failed."""
    remedy = "fit longer (steps=…), train longer" if record.get("command") == "impute" else "train longer"
    mean, gaussian, naive = (_rmse(record, kind) for kind in ("mean", "gaussian_mean", "mean_imputation"))
    lines = []
    if _behind(mean, gaussian):
        lines.append(
            f"the posterior mean (RMSE {mean:.4f}) is behind the Gaussian's conditional mean ({gaussian:.4f}): "
            f"{remedy}, or use the Gaussian"
        )
    if _behind(mean, naive):
        lines.append(
            f"the posterior mean (RMSE {mean:.4f}) is behind mean imputation ({naive:.4f}): this model is of no use yet"
        )
    scores = [record.get("energy", {}).get(kind, {}) for kind in ("draw", "gaussian_draw")]
    draw, other = (row.get("value") for row in scores)
    chance = math.hypot(*(row.get("standard_error") or 0.0 for row in scores))
    if _behind(draw, other, chance):
        lines.append(
            f"draws (energy score {draw:.4f}) are behind the Gaussian's ({other:.4f}): {remedy}, or use the Gaussian"
        )
    failed = record.get("solver", {}).get("failed") or 0.0
    if failed > FAILED:
        lines.append(
            f"{100 * failed:.2g} % of solves failed, and the figures leave their draws out: raise solver.budget, "
            "loosen solver.tolerance, or take solver=newton_krylov"
        )
    return [f"warning: {line}" for line in lines]


def _rmse(record: dict[str, Any], kind: str) -> float | None:
    return record.get("rmse", {}).get(kind, {}).get("pooled")


def _behind(mine: float | None, other: float | None, chance: float = 0.0) -> bool:
    return mine is not None and other is not None and mine > other + max(MARGIN * other, chance)
