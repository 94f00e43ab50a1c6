"""Rectangles of a picture, through which a model of small images sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

WINDOWS = ("crop", "near", "tiles")
"""How a picture of another size than the model's is seen: in its largest window, resized; in one about its hole,
resized; or at its own resolution."""
_ABOUT = 2
"""How many times as long as the hole a window about it is."""
Size = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """A rectangle of a picture, in its pixels."""

    left: int
    top: int
    width: int
    height: int

    @classmethod
    def whole(cls, picture: Size) -> Window:
        """All of a picture (height, width)."""
        return cls(0, 0, picture[1], picture[0])

    @classmethod
    def middle(cls, picture: Size, model: Size) -> Window:
        """The largest window in the middle of a picture that has the proportions of `model`, both (height, width)."""
        height, width = largest(picture, model)
        return cls((picture[1] - width) // 2, (picture[0] - height) // 2, width, height)

    @property
    def size(self) -> Size:
        """Height and width."""
        return self.height, self.width

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom, as PIL wants them."""
        return self.left, self.top, self.left + self.width, self.top + self.height

    @property
    def rows(self) -> slice:
        """Its rows of the picture."""
        return slice(self.top, self.top + self.height)

    @property
    def columns(self) -> slice:
        """Its columns of the picture."""
        return slice(self.left, self.left + self.width)


def largest(picture: Size, model: Size) -> Size:
    """Height and width of the largest window of a picture with the proportions of `model`."""
    scale = min(picture[0] / model[0], picture[1] / model[1])
    height, width = (max(1, round(length * scale)) for length in model)
    return min(height, picture[0]), min(width, picture[1])


def covering(hole: Tensor, model: Size, how: str) -> list[Window]:
    """Windows that cover the hole (H, W), bool, of a picture; those with no part of the hole in them are left out.

    `crop`: the largest that have the proportions of `model`, one where it is enough and as near to the middle as it
    may be. `near`: one with the hole in its middle, twice as long and not smaller than `model`, or the largest where
    the picture has no room for that. `tiles`: windows of the size of `model`, side by side, the hole in their middle.
    Where the picture is too small for so many, neighbours overlap.
    """
    picture: Size = (hole.shape[0], hole.shape[1])
    spans = [hole.any(1 - axis).nonzero().flatten() for axis in (0, 1)]
    if not len(spans[0]):
        return []
    size = model if how == "tiles" else largest(picture, model)
    if how == "near":
        rows, columns = (int(span[-1] - span[0]) + 1 for span in spans)
        scale = max(1.0, _ABOUT * rows / model[0], _ABOUT * columns / model[1])
        size = min(size[0], round(model[0] * scale)), min(size[1], round(model[1] * scale))
    tops, lefts = (
        _places(int(span[0]), int(span[-1]) + 1, length, side, centred=how != "crop")
        for span, length, side in zip(spans, picture, size, strict=True)
    )
    windows = [Window(left, top, size[1], size[0]) for top in tops for left in lefts]
    return [window for window in windows if bool(hole[window.rows, window.columns].any())]


def _places(low: int, high: int, length: int, side: int, *, centred: bool) -> list[int]:
    """Where intervals of `side` begin that cover [low, high) within [0, length), as few as may be."""
    count = math.ceil((high - low) / side)
    span = count * side
    if span > length:
        return torch.linspace(0, length - side, count).round().int().tolist()
    middle = (low + high) / 2 if centred else length / 2
    begin = min(max(math.floor(middle - span / 2), 0, high - span), low, length - span)
    return [begin + k * side for k in range(count)]
