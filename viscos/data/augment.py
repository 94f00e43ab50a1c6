"""Training images moved about, their masks with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError

KINDS = ("flip", "shift")


def augment(batch: Incomplete, kinds: Sequence[str], g: torch.Generator, *, holes: bool = True) -> Incomplete:
    """The images (B, C, H, W) as if they had been taken a little differently; masks move along, labels stay.

    `flip` turns every second image, on average, left to right. `shift` moves an image by up to an eighth of its side
    (one pixel at least) in both directions. What comes in over the border was not seen and is hidden; without `holes`,
    where nothing can be hidden, the border's own values are repeated there. Raises `InputError` for vectors.
    """
    if kinds and batch.values.dim() != 4:
        raise InputError(f"augment={','.join(kinds)} moves images about, and these are vectors; take augment=none")
    if "flip" in kinds:
        batch = _flipped(batch, g)
    if "shift" in kinds:
        batch = _shifted(batch, g, holes)
    return batch


def _flipped(batch: Incomplete, g: torch.Generator) -> Incomplete:
    turn = torch.rand(len(batch), 1, 1, 1, generator=g) < 0.5
    values = torch.where(turn, batch.values.flip(-1), batch.values)
    return replace(batch, values=values, observed=torch.where(turn, batch.observed.flip(-1), batch.observed))


def _shifted(batch: Incomplete, g: torch.Generator, holes: bool) -> Incomplete:
    (rows, seen_rows), (columns, seen_columns) = (_sources(len(batch), n, g) for n in batch.values.shape[-2:])
    items = torch.arange(len(batch)).view(-1, 1, 1, 1)
    channels = torch.arange(batch.values.shape[1]).view(1, -1, 1, 1)
    where = items, channels, rows[:, None, :, None], columns[:, None, None, :]
    values, observed = batch.values[where], batch.observed[where]
    if holes:
        observed = observed & seen_rows[:, None, :, None] & seen_columns[:, None, None, :]
        values = values.masked_fill(~observed, float("nan"))
    return replace(batch, values=values, observed=observed)


def _sources(items: int, n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """The position that each of `n` positions of each item is taken from, and whether that lies in the image."""
    far = max(1, n // 8)
    wanted = torch.arange(n) + torch.randint(-far, far + 1, (items, 1), generator=g)
    source = wanted.clamp(0, n - 1)
    return source, source == wanted
