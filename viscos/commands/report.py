"""What a command shows of its results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from viscos.inference import Completions
from viscos.report.completions import completions_table, why_no_fid
from viscos.report.grid import completion_grid, save_png


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
    lines = completions_table(record)
    if reason := why_no_fid(record):
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
