"""What a reader of a record should not overlook, a line each."""

from __future__ import annotations

import math
from typing import Any

from viscos.core.counts import percent

MARGIN = 0.01
"""Share by which a number must be behind another's to be worth a line: a flow at its start is the Gaussian itself."""
_SOLVE = ("viscos", "shares", "unfitted")
"""Imputers whose draws are solved for."""
FAILED = 0.02
"""Share of failed solves above which the numbers are of a selection."""


FEW = 16
"""Draws below which the noise of their mean counts, and the mean is not judged unless that noise is known."""


def verdicts(record: dict[str, Any]) -> list[str]:
    """A line on a flow that is ahead of the Gaussian; lines on completions that are behind those that need no flow, and
    on many failed solves.
    """
    fits = record.get("command") == "impute"
    fitted = bool(record.get("fit", {}).get("steps"))
    longer = "train with more max_steps or epochs"
    fit = "fit longer (steps=…)" if fitted else "fit a posterior to each item (steps=200)"
    remedy = f"{fit}, {longer}" if fits else longer
    mean, gaussian, naive = (_rmse(record, kind) for kind in ("mean", "gaussian_mean", "mean_imputation"))
    skill, noted = _without_noise(record, mean)
    lines = []
    apart = _chance(record, "mean", "gaussian_mean")
    if _behind(skill, gaussian, apart):
        lines.append(
            f"the posterior mean (RMSE {mean:.4f}{noted}) is behind the Gaussian's conditional mean ({gaussian:.4f}): "
            f"{remedy}, or use the Gaussian"
        )
    if _behind(skill, naive, _chance(record, "mean", "mean_imputation")):
        lines.append(
            f"the posterior mean (RMSE {mean:.4f}{noted}) is behind mean imputation ({naive:.4f}): this model is of no "
            "use yet"
        )
    rows = [record.get("energy", {}).get(kind, {}) for kind in ("draw", "gaussian_draw")]
    draw, other = (row.get("value") for row in rows)
    beside = rows[1].get("beside", {})  # of the same items, if it is the flow that it is compared with
    paired = beside.get("standard_error") if beside.get("kind") == "draw" else None
    chance = math.hypot(*(row.get("standard_error") or _unknown(row) for row in rows)) if paired is None else paired
    ahead = not lines and _behind(gaussian, mean, apart) and _behind(other, draw, chance)
    if _behind(draw, other, chance):
        lines.append(
            f"draws (energy score {draw:.4f}) are behind the Gaussian's ({other:.4f}): {remedy}, or use the Gaussian"
        )
    failed = record.get("solver", {}).get("failed") or 0.0
    if failed > FAILED:
        lines.append(_of_failures(record, failed, fits))
    lines = [f"warning: {line}" for line in lines]
    if ahead:
        errors, scores = f"{mean:.4f} against {gaussian:.4f}", f"{draw:.4f} against {other:.4f}"
        lines.insert(0, f"viscos is ahead of the Gaussian: RMSE of the mean {errors}, energy score of draws {scores}")
    return lines


def _of_failures(record: dict[str, Any], failed: float, fits: bool) -> str:
    """What failed, and what there is to be done about it."""
    imputer = record.get("imputer") or "viscos"
    imputer = imputer["name"] if isinstance(imputer, dict) else imputer
    if imputer in _SOLVE:
        ways = ["loosen solver.tolerance", "raise solver.budget"] + (["fit a posterior to each item (steps=…)"] * fits)
        said = f"{percent(failed)} of solves failed, and the numbers leave their draws out: "
        return f"{said}{', '.join(ways[:-1])} or {ways[-1]}"
    said = f"{percent(failed)} of the draws of {imputer} failed, and the numbers leave them out"
    never = ": their chains never moved; raise imputer.steps or imputer.sigma"
    return said + (never if imputer == "plmcmc" else ", as they are not finite")


def _rmse(record: dict[str, Any], kind: str) -> float | None:
    return record.get("rmse", {}).get(kind, {}).get("pooled")


def _without_noise(record: dict[str, Any], mean: float | None) -> tuple[float | None, str]:
    """The error that the mean would have of infinitely many draws, and a note of it; None where that is not known.

    The mean of K draws of variance s² has s²/K more squared error than the mean m of all: E = m² + s²/K. The record's
    spread over skill r is of k of them that are independent, (1 + 1/k) s² = r² (m² + s²/k), and both together give m².
    Draws in pairs ±ε have less noise than K others, which this errs by in favour of the flow. A mean of refined draws
    is that of all proposals, and is taken as it is.
    """
    if mean is None:
        return None, ""
    if "refine" in record.get("trust", {}):
        return mean, ""
    draws, row = record.get("draws") or 0, record.get("spread_skill", {}).get("draw", {})
    ratio, few = row.get("value"), row.get("draws")
    if ratio is None or not few or not draws:
        return (mean, "") if draws >= FEW else (None, "")
    below = 1 + 1 / few - ratio**2 * (1 / few - 1 / draws)
    variance = (ratio * mean) ** 2 / below if below > 0 else math.inf
    skill = math.sqrt(max(mean**2 - variance / draws, 0.0))
    return skill, f", {skill:.4f} without the noise of {draws} draws"


def _chance(record: dict[str, Any], *kinds: str) -> float:
    """The standard error of the difference of errors, as if independent: by those of the means over items."""
    errors = []
    for row in (record.get("rmse", {}).get(kind, {}) for kind in kinds):
        mean, std = (row.get(f"per_image_{name}", row.get(f"per_item_{name}")) for name in ("mean", "std"))
        known = mean and std is not None and row.get("items") and row.get("pooled") is not None
        errors.append(row["pooled"] * std / mean / math.sqrt(row["items"]) if known else _unknown(row))
    return math.hypot(*errors)


def _unknown(row: dict[str, Any]) -> float:
    """What chance makes of a number whose error is not said: of a single item anything."""
    return math.inf if row.get("items") == 1 else 0.0


def _behind(mine: float | None, other: float | None, chance: float = 0.0) -> bool:
    return mine is not None and other is not None and mine > other + max(MARGIN * other, chance)
