"""What a command shows of its results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from viscos.inference import Completions
from viscos.metrics.tally import TRUTH
from viscos.report.grid import completion_grid, save_png

_ROWS = (
    ("mean", "posterior mean"),
    ("draw", "one draw"),
    ("first_iteration_draw", "one draw before fitting"),
    ("mean_imputation", "mean imputation"),
    ("gaussian_mean", "Gaussian conditional mean"),
    ("gaussian_draw", "Gaussian conditional draw"),
    (TRUTH, "the test images themselves"),
)


def save_grid(
    path: Path, truth: Tensor, observed: Tensor, done: Completions, items: int = 16, draws: int = 4
) -> Tensor:
    """Writes originals, masked images, draws and means as a PNG; returns the picture (3, H, W).

    `truth` is NaN where not even the original is known.
    """
    n = min(items, done.draws.shape[1])
    # Antithetic draws come in pairs; every second one shows independent draws.
    shown = done.draws[::2][:draws, :n].cpu() if len(done.draws) > 1 else done.draws[:, :n].cpu()
    grid = completion_grid(truth[:n], observed[:n], shown, done.mean()[:n].cpu())
    save_png(path, grid)
    return grid


def summary(record: dict[str, Any]) -> str:
    """The main figures of a record, a line each."""
    lines = _completions(record)
    if reason := _why_no_fid(record):
        lines.append(f"FID                         none: {reason}")
    if record.get("accuracy"):
        lines.append(f"accuracy                    {record['accuracy']['value']:.4f}, of the classifier trained along")
    if record.get("bound"):
        bound = record["bound"]
        lines.append(f"bound                       {bound['mean']:.1f} nats an item ({bound['items']} items)")
    if record.get("bits_per_dim"):
        lines.append(f"bits per dimension          {record['bits_per_dim']['value']:.3f}")
    if record.get("solver"):
        s = record["solver"]
        lines.append(
            f"solver                      {s['evaluations']:.1f} evaluations a solve, "
            f"{100 * s['fallback']:.2g} % needed the fallback, {100 * s['failed']:.2g} % failed"
        )
    return "\n".join(lines)


def _completions(record: dict[str, Any]) -> list[str]:
    """A table of what was measured of each kind of completion."""
    rmse, fid, accuracy = record.get("rmse", {}), _judged(record, "fid"), _judged(record, "accuracy_complete")
    columns = {
        "pooled": {kind: _number(row["pooled"]) for kind, row in rmse.items()},
        "mean ± std of images": {kind: _spread(row) for kind, row in rmse.items()},
        f"FID of {record.get('items')}": fid,
        "accuracy": accuracy,
    }
    columns = {name: cells for name, cells in columns.items() if any(cells.values())}
    lines = [f"{'':28}" + "".join(f"{name:>{_width(name, cells)}}" for name, cells in columns.items())]
    for kind, label in _ROWS:
        if any(cells.get(kind) for cells in columns.values()):
            shown = "".join(f"{cells.get(kind, ''):>{_width(name, cells)}}" for name, cells in columns.items())
            lines.append(f"  {label:<26}{shown}".rstrip())
    about = "; FID and accuracy by a network trained on complete images" if any((fid | accuracy).values()) else ""
    return [f"RMSE on hidden pixels, in [0, 1]{about}:", *lines] if len(lines) > 1 else []


def _judged(record: dict[str, Any], metric: str) -> dict[str, str]:
    rows = record.get(metric, {})
    return {} if "reason" in rows else {kind: _number(row["value"]) for kind, row in rows.items()}


def _why_no_fid(record: dict[str, Any]) -> str | None:
    """The reason of the record, or of its first kind of completion."""
    fid = record.get("fid", {})
    return fid.get("reason") or fid.get("mean", {}).get("reason")


def _width(name: str, cells: dict[str, str]) -> int:
    return 3 + max(map(len, (name, *cells.values())))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _spread(row: dict[str, Any]) -> str:
    mean, std = _number(row["per_image_mean"]), _number(row["per_image_std"])
    return f"{mean} ± {std}" if std else mean
