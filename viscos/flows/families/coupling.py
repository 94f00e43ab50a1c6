"""Flows of affine couplings: RealNVP (Dinh et al., 2017) and Glow (Kingma and Dhariwal, 2018).

A coupling flow has no structure that ties latent coordinate i to data coordinate i, so it is conditioned with another
partition of its latent: `partition=maxvol` (see `viscos.inference.partition`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.typed import typed
from viscos.flows.bijection import Bijection
from viscos.flows.families.stack import whole
from viscos.flows.flow import Flow
from viscos.flows.layers.affine import Affine
from viscos.flows.layers.coupling import Coupling
from viscos.flows.layers.mix import Mix
from viscos.flows.layers.squeeze import Squeeze
from viscos.flows.layers.start import first_layers


def realnvp(
    shape: int | Sequence[int], *, blocks: int | Sequence[int] = (6, 6), channels: int = 64, start: str = "standardise"
) -> Flow:
    """Affine couplings in turn on the two halves of an item, each behind ActNorm; the data's shape from end to end.

    For images (C, H, W) `blocks` couplings at each scale (a plain number: one scale): on checkerboards at the first
    one, on halves of the channels after each squeeze. For vectors (d,) on even and odd entries at the first scale, and
    on the first and the second half at the others. `channels` is the width of the conditioners, `start` the first layer
    (see `viscos.flows.layers.start`).
    """

    def layers(size: tuple[int, ...], scale: int, k: int) -> list[Bijection]:
        mask = _halves(size) if scale else _checkerboard(size)
        return [Affine(size, per_channel=len(size) == 3), Coupling(1 - mask if k % 2 else mask, channels)]

    return _scales(shape, blocks, start, layers, squeeze_first=False)


def glow(
    shape: int | Sequence[int], *, blocks: int | Sequence[int] = (8,), channels: int = 64, start: str = "none"
) -> Flow:
    """Steps of Glow: ActNorm, an invertible 1×1 convolution, a coupling on half of the channels.

    For images a squeeze stands before each scale of `blocks` steps. No part of the latent is split off, and the
    squeezes are undone at the end, so that a latent has the shape of its datum. For vectors the convolution mixes all
    entries.
    """

    def layers(size: tuple[int, ...], scale: int, k: int) -> list[Bijection]:
        return [Affine(size, per_channel=len(size) == 3), Mix(size[0]), Coupling(_halves(size), channels)]

    return _scales(shape, blocks, start, layers, squeeze_first=True)


Block = Callable[[tuple[int, ...], int, int], list[Bijection]]
"""The layers of a block, from the size of what it acts on, its scale and its number there."""


def _scales(
    shape: int | Sequence[int], blocks: int | Sequence[int], start: str, layers: Block, squeeze_first: bool
) -> Flow:
    """Blocks at each scale, with squeezes between them, all undone at the end."""
    shape, blocks = whole(shape, "shape"), whole(blocks, "flow.blocks")
    size = shape
    if len(size) not in (1, 3) or (len(size) == 1 and size[0] < 2):
        raise InputError(f"a coupling flow takes vectors of 2 entries or more, or images (C, H, W), got shape {size}")
    made, squeezes = first_layers(start, size), 0
    for scale, count in enumerate(blocks):
        if len(size) == 3 and (scale or squeeze_first):
            if size[1] % 2 or size[2] % 2:
                fewer = typed("flow.blocks", list(blocks[:scale]) or [blocks[0]])
                raise InputError(
                    f"images of {shape[1]} × {shape[2]} cannot be squeezed {squeezes + 1} times; take "
                    + (fewer if scale else f"flow=realnvp {fewer}, which does not squeeze first")
                )
            made.append(Squeeze())
            size, squeezes = (4 * size[0], size[1] // 2, size[2] // 2), squeezes + 1
        for k in range(count):
            made += layers(size, scale, k)
    return Flow([*made, *[Squeeze(undo=True) for _ in range(squeezes)]], shape)


def _checkerboard(size: tuple[int, ...]) -> Tensor:
    """One where the coordinates have an even sum (…); of the entries of a vector, the even ones."""
    grid = torch.arange(size[-1])[None] + torch.arange(size[-2] if len(size) == 3 else 1)[:, None]
    board = ((grid + 1) % 2).float()
    return board.expand(size) if len(size) == 3 else board[0]


def _halves(size: tuple[int, ...]) -> Tensor:
    """One on the first half of the channels (…)."""
    first = torch.arange(size[0]) < size[0] // 2
    return first.float().view(-1, *[1] * (len(size) - 1)).expand(size)
