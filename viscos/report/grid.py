"""Pictures of completions (one column an item; original, masked, some draws, their mean), of draws and of samples."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from viscos.core import atomic
from viscos.core.errors import InputError

HIDDEN = (0.52, 0.44, 0.60)
"""Colour of hidden pixels, RGB: a muted violet, which no grey image holds."""
FAILED = (0.75, 0.25, 0.20)
"""Colour of values that are not finite in a completion, RGB: a failed item is seen at once."""
GAP = 2
"""Pixels between images, white."""
SMALLEST = 56
"""Height and width in pixels up to which tiny images are enlarged."""


def completion_grid(truth: Tensor, observed: Tensor, draws: Tensor, mean: Tensor, columns: int = 16) -> Tensor:
    """One picture (3, H', W'), float in [0, 1], of the first `columns` of N items.

    Rows: `truth` (N, C, H, W) in [0, 1] (NaN is shown as hidden); the same with the entries hidden that `observed`
    (bool, the same shape) says; each of `draws` (K, N, C, H, W); `mean` (N, C, H, W). Completions are clamped.
    Raises `InputError` if shapes or dtypes do not fit or images have neither 1 nor 3 channels.
    """
    _check(truth, observed, draws, mean, columns)
    truth, observed, draws, mean = (t.detach().cpu() for t in (truth, observed, draws, mean))
    shown = observed[:columns].expand(-1, 3, -1, -1)
    original = paint(truth[:columns], HIDDEN)
    masked = torch.where(shown, original, _colour(HIDDEN))
    rows = [original, masked, *(paint(draw[:columns], FAILED) for draw in draws), paint(mean[:columns], FAILED)]
    return tile(torch.stack([enlarge(row) for row in rows]))


def draws_grid(truth: Tensor, observed: Tensor, draws: Tensor, columns: int = 8) -> Tensor:
    """One picture (3, H', W') of one item, in rows of `columns`: the original, the same masked, each of its draws.

    `truth` (C, H, W), NaN where not even it is known, `observed` (bool, the same shape) and `draws` (K, C, H, W) as in
    `completion_grid`.
    """
    _check(truth[None], observed[None], draws[:, None], truth[None], columns)
    truth, observed, draws = (t.detach().cpu() for t in (truth, observed, draws))
    original = paint(truth[None], HIDDEN)
    masked = torch.where(observed[None].expand(-1, 3, -1, -1), original, _colour(HIDDEN))
    return _wrap(torch.cat([original, masked, paint(draws, FAILED)]), columns)


def image_grid(images: Tensor, columns: int = 8) -> Tensor:
    """One picture (3, H', W') of `images` (N, 1 or 3, H, W) in rows of `columns`; values are clamped to [0, 1]."""
    return _wrap(paint(images.detach().cpu(), FAILED), columns)


def save_png(path: str | Path, grid: Tensor) -> Path:
    """Saves `grid` (3, H, W), float in [0, 1], as a PNG file, whole or not at all."""
    from PIL import Image

    if Path(path).suffix.lower() != ".png":
        raise InputError(f"the picture's path is {path}; give one that ends in .png")
    if grid.dim() != 3 or len(grid) != 3 or not grid.is_floating_point():
        raise InputError(f"the picture is {grid.dtype} of shape {tuple(grid.shape)}; give float (3, H, W) in [0, 1]")
    pixels = (
        grid.detach().cpu().nan_to_num(0.0).clamp(0, 1).mul(255).round().byte().permute(1, 2, 0).contiguous().numpy()
    )
    return atomic.write(path, lambda temporary: Image.fromarray(pixels).save(temporary, format="PNG"))


def _check(truth: Tensor, observed: Tensor, draws: Tensor, mean: Tensor, columns: int) -> None:
    if truth.dim() != 4 or truth.shape[1] not in (1, 3) or not len(truth):
        raise InputError(
            f"images have shape {tuple(truth.shape)}; give (N, C, H, W) with at least one item and 1 or 3 channels"
        )
    if observed.shape != truth.shape or observed.dtype != torch.bool:
        raise InputError(
            f"observed is {observed.dtype} of shape {tuple(observed.shape)}; give bool {tuple(truth.shape)}"
        )
    if mean.shape != truth.shape or draws.shape[1:] != truth.shape:
        shapes = f"draws {tuple(draws.shape)}, mean {tuple(mean.shape)}"
        raise InputError(
            f"completions have shapes {shapes}; give (K, N, C, H, W) and (N, C, H, W), images {tuple(truth.shape)}"
        )
    if columns < 1:
        raise InputError(f"columns is {columns}; give at least 1")


def _colour(rgb: tuple[float, float, float]) -> Tensor:
    return torch.tensor(rgb)[:, None, None]


def paint(images: Tensor, broken: tuple[float, float, float]) -> Tensor:
    """Images (N, 1 or 3, H, W) as RGB in [0, 1], values that are not finite in the colour `broken`."""
    rgb = images.float().expand(-1, 3, -1, -1)
    return torch.where(rgb.isfinite(), rgb.clamp(0, 1), _colour(broken))


def enlarge(images: Tensor) -> Tensor:
    """Tiny images by an integer factor, each pixel a square."""
    factor = max(1, SMALLEST // max(images.shape[-2:]))
    return functional.interpolate(images, scale_factor=factor, mode="nearest") if factor > 1 else images


def _wrap(cells: Tensor, columns: int) -> Tensor:
    """Cells (N, 3, h, w) in rows of `columns`, the last one filled up with white."""
    cells = enlarge(cells)
    columns = min(columns, len(cells))
    blank = cells.new_ones(-len(cells) % columns, *cells.shape[1:])
    return tile(torch.cat([cells, blank]).unflatten(0, (-1, columns)))


def tile(cells: Tensor) -> Tensor:
    """Cells (R, N, 3, h, w) in R rows and N columns, with gaps between and around them."""
    rows, columns, _, height, width = cells.shape
    canvas = torch.ones(3, rows * (height + GAP) + GAP, columns * (width + GAP) + GAP)
    for r in range(rows):
        for c in range(columns):
            top, left = GAP + r * (height + GAP), GAP + c * (width + GAP)
            canvas[:, top : top + height, left : left + width] = cells[r, c]
    return canvas
