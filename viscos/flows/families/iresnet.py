"""Invertible residual networks, for images and for vectors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from viscos.core.errors import InputError
from viscos.core.typed import typed
from viscos.flows.bijection import Bijection
from viscos.flows.families.stack import whole
from viscos.flows.flow import Flow
from viscos.flows.layers.activations import ACTIVATIONS
from viscos.flows.layers.affine import Affine
from viscos.flows.layers.branch import Branch, conv_branch, dense_branch
from viscos.flows.layers.residual import Residual
from viscos.flows.layers.reversed import Reversed
from viscos.flows.layers.series import Series
from viscos.flows.layers.squeeze import Squeeze
from viscos.flows.layers.start import first_layers


def iresnet(
    shape: int | Sequence[int],
    *,
    blocks: int | Sequence[int] = (8,),
    channels: int | Sequence[int] = 32,
    fully_connected: int = 0,
    start: str = "none",
    activation: str = "lipswish",
    coefficient: float = 0.9,
    series: Series | None = None,
    first_squeeze: bool = True,
    implicit: bool = False,
) -> Flow:
    """An iResNet (Behrmann et al., 2019) with the estimators of residual flows (Chen et al., 2019).

    For images `shape` is (C, H, W): `blocks[s]` residual blocks (3-1-3 convolutions with `channels` in between, each
    followed by ActNorm) at each scale (a plain number: one scale), a squeeze between scales (and before the first one
    with `first_squeeze`), all undone at the end; then `fully_connected` dense residual layers. For vectors `shape` is
    (d,) and every block is dense.
    `start` is the first layer (see `viscos.flows.layers.start`). `coefficient` bounds the norm of every linear map.
    With `implicit` every second block is turned round, which makes an implicit flow (Lu et al., 2021; the paper's
    appendix D): its Lipschitz constant has no bound, at the price of a fixed-point iteration for each reversed block.
    """
    shape, blocks, series = whole(shape, "shape"), whole(blocks, "flow.blocks"), series or Series()
    _check(shape, blocks, channels, activation, coefficient, first_squeeze)
    widths = [channels] * len(blocks) if isinstance(channels, int) else list(channels)
    layers = first_layers(start, shape)
    count_blocks = itertools.count()

    def block(branch: Branch) -> Bijection:
        residual = Residual(branch, series)
        return Reversed(residual) if implicit and next(count_blocks) % 2 else residual

    first, size, squeezes = True, shape, 0
    for scale, (count, width) in enumerate(zip(blocks, widths, strict=True)):
        if len(shape) == 3 and (scale > 0 or first_squeeze):
            layers.append(Squeeze())
            size, squeezes = (4 * size[0], size[1] // 2, size[2] // 2), squeezes + 1
        for _ in range(count):
            if len(shape) == 3:
                branch = conv_branch(size[0], width, (size[1], size[2]), activation, coefficient, first)
            else:
                branch = dense_branch(shape[0], width, activation, coefficient, first)
            layers += [block(branch), Affine(size, per_channel=len(shape) == 3)]
            first = False
    layers += [Squeeze(undo=True) for _ in range(squeezes)]
    for _ in range(fully_connected):
        layers += [block(dense_branch(math.prod(shape), widths[-1], activation, coefficient)), Affine(shape)]
    return Flow(layers, shape)


def _check(
    shape: tuple[int, ...],
    blocks: Sequence[int],
    channels: int | Sequence[int],
    activation: str,
    coefficient: float,
    first_squeeze: bool,
) -> None:
    if len(shape) not in (1, 3):
        raise InputError(f"an iResNet takes vectors (d,) or images (C, H, W), got shape {shape}")
    if activation not in ACTIVATIONS:
        raise InputError(f"flow.activation is {activation!r}; choose one of {', '.join(ACTIVATIONS)}")
    if not 0 < coefficient < 1:
        raise InputError(
            f"flow.coefficient is {coefficient}; it must lie between 0 and 1 for the flow to be invertible"
        )
    if not isinstance(channels, int) and len(channels) != len(blocks):
        raise InputError(
            f"flow.channels has {len(channels)} entries and flow.blocks {len(blocks)}; give one for each scale"
        )
    factor = 2 ** (len(blocks) - 1 + int(first_squeeze))
    if len(shape) == 3 and (shape[1] % factor or shape[2] % factor):
        raise InputError(
            f"images of {shape[1]} × {shape[2]} cannot be squeezed {factor.bit_length() - 1} times; "
            f"take {_fitting(shape, blocks, channels, first_squeeze)}, or sizes divisible by {factor}"
        )


def _fitting(shape: Sequence[int], blocks: Sequence[int], channels: int | Sequence[int], first_squeeze: bool) -> str:
    """The settings nearest to those that were given with which the images can be squeezed."""
    times = next(n for n in range(len(blocks) + 1) if shape[1] % 2 ** (n + 1) or shape[2] % 2 ** (n + 1))
    scales = times + 1 - int(first_squeeze and times > 0)
    words = ["flow.first_squeeze=false"] if first_squeeze and not times else []
    if scales < len(blocks):
        words.append(typed("flow.blocks", list(blocks[:scales])))
        words += [] if isinstance(channels, int) else [typed("flow.channels", list(channels[:scales]))]
    return " ".join(words)
