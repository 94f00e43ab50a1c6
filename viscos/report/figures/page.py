"""Panels of pictures on a page, at the width of a text column."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from torch import Tensor

from viscos.core import atomic
from viscos.report.grid import FAILED, HIDDEN, enlarge, paint, tile

WIDTH = 5.5
"""Inches; the text width of the usual conference style."""
DPI = 600
_TITLE = 0.22  # inches that a panel's title takes


def shown(images: Tensor, observed: Tensor | None = None) -> Tensor:
    """Images (N, C, H, W) in colour (N, 3, H, W), with what is not `observed` in the colour of hidden pixels."""
    if observed is None:
        return enlarge(paint(images, FAILED))
    return enlarge(paint(torch.where(observed, images, float("nan")), HIDDEN))


def square(images: Tensor, most: int = 8) -> Tensor:
    """The first images (N, 3, H, W) as a square of at most `most` × `most`, (3, H', W')."""
    side = min(most, math.isqrt(len(images)))
    return tile(images[: side * side].unflatten(0, (side, side)))


def panels(rows: list[list[tuple[str, Tensor]]], width: float = WIDTH) -> Figure:
    """A page of pictures (3, H, W), all of one size, each under its title; no title, no room for one."""
    columns, picture = len(rows[0]), rows[0][0][1]
    titled = any(title for row in rows for title, _ in row)
    height = width / columns * picture.shape[1] / picture.shape[2] + (_TITLE if titled else 0)
    layout = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02, wspace=0.02, hspace=0.02)
    figure = Figure((width, height * len(rows)), layout=layout)
    axes = figure.subplots(len(rows), columns, squeeze=False).flat
    for axis, (title, image) in zip(axes, [panel for row in rows for panel in row], strict=True):
        # "none" puts the pixels themselves into a PDF; "nearest" would resample them at the screen's resolution.
        axis.imshow(image.permute(1, 2, 0).numpy(), interpolation="none")
        axis.set_axis_off()
        if title:
            axis.set_title(title, fontsize=8, pad=3)
    return figure


def save(figure: Figure, path: Path) -> list[Path]:
    """Writes `path` with the endings .pdf and .png, the same bytes each time."""
    with matplotlib.rc_context({"pdf.fonttype": 42, "pdf.compression": 9}):
        return [
            atomic.write(path.with_suffix(".pdf"), lambda p: figure.savefig(p, metadata={"CreationDate": None})),
            save_png(figure, path.with_suffix(".png"), DPI),
        ]


def save_png(figure: Figure, path: Path, dpi: int = 200) -> Path:
    """Writes `path`, a PNG."""
    return atomic.write(path, lambda p: figure.savefig(p, dpi=dpi))
