"""A picture of calibration: ranks of the truth, and coverage, of test items and of the flow's own samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

_PERCENT = (50, 90, 95)
_DPI = 100


def calibration_lines(record: dict[str, Any]) -> list[str]:
    """A record's coverage, CRPS and ranks, a line each; none of a record without."""
    lines = []
    for name, found in panels(record):
        if "crps" not in found:
            continue
        each = [found[f"coverage_{p}"] for p in _PERCENT]
        covered = ", ".join(f"{100 * one['value']:.1f}" for one in each)
        of = ", ".join(f"{100 * one['nominal']:.0f}" for one in each)  # few draws have no interval of 95 %
        p_value = found["chi_square"]["p_value"]
        ranks = "too few items for a test of ranks" if p_value is None else f"uniform ranks: p = {p_value:.2g}"
        lines.append(
            f"  {name}: {covered} % in the central {of} %; CRPS {found['crps']['value']:.4g}; {ranks} "
            f"({found['items']} items, {found['draws']} draws)"
        )
    return ["calibration of independent draws, on hidden entries:", *lines] if lines else []


def panels(record: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """What there is of calibration: a label, and a record, for each imputer and for the flow's own samples."""
    labels = record.get("labels", {})
    found = [
        (labels.get(kind, kind).removesuffix(", one draw"), each)
        for kind, each in record.get("calibration", {}).items()
    ]
    if "simulated" in record:
        found.append(("viscos on the flow's own samples", record["simulated"]))
    return found


def save_calibration(path: Path, record: dict[str, Any]) -> Tensor | None:
    """Writes the picture as a PNG, and returns it (3, H, W); None where there is nothing to show, or no matplotlib.

    Above, how many entries have each rank, over the mean, with the range in which nine of ten bins of as many
    independent items would be; below, coverage against the interval's own share.
    """
    shown = [(name, found) for name, found in panels(record) if "ranks" in found]
    if not shown:
        return None
    try:
        from matplotlib.figure import Figure

        from viscos.report.figures.page import save_png
    except ModuleNotFoundError as error:
        print(f"no {path.name}: pictures of calibration need {error.name}: pip install 'viscos[figures]'")
        return None
    figure = Figure((2.6 * len(shown), 4.4), layout="constrained")
    for (name, found), (above, below) in zip(shown, figure.subplots(2, len(shown), squeeze=False).T, strict=True):
        _histogram(above, np.array(found["ranks"]), found["items"])
        above.set_title(name, fontsize=7)
        nominal = [found[f"coverage_{p}"]["nominal"] for p in _PERCENT]
        below.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
        below.errorbar(
            nominal,
            [found[f"coverage_{p}"]["value"] for p in _PERCENT],
            [2 * (found[f"coverage_{p}"]["standard_error"] or 0) for p in _PERCENT],
            fmt="o",
            markersize=3,
        )
        below.set(xlabel="share of the central interval", ylabel="covered", xlim=(0, 1), ylim=(0, 1.02))
    save_png(figure, path, _DPI)
    return torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1) / 255


def _histogram(axis: Any, counts: np.ndarray, items: int) -> None:
    bins = max(n for n in range(1, 21) if len(counts) % n == 0)
    share = counts.reshape(bins, -1).sum(1) * bins / counts.sum()
    spread = 1.645 * np.sqrt((bins - 1) / max(items, 1))
    axis.axhspan(max(0, 1 - spread), 1 + spread, color="0.9")
    axis.bar((np.arange(bins) + 0.5) / bins, share, 0.9 / bins)
    axis.set(xlabel="rank of the truth", ylabel="entries, over the mean", xlim=(0, 1))
