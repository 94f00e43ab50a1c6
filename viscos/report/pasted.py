"""Pictures of their own size, completed: what a model drew in its windows of them, in the places of their holes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from viscos.data.pictures import Picture
from viscos.data.windows import Window


class Canvas:
    """A picture, and where in it its completions go: each window in its part of the hole, the first where two meet.

    `extra` (n, h, w), bool, is what masks of the windows hide beside the `hole` (H, W) of the picture, if they do.
    """

    def __init__(
        self, picture: Picture, hole: Tensor, windows: Sequence[Window], extra: Tensor | None, channels: int
    ) -> None:
        bands = picture.image.getbands()
        colour = channels == 3 or "R" in bands
        self.mode = ("RGB" if colour else "L") + ("A" if "A" in bands else "")
        self.picture, self.windows = picture, windows
        self._parts = list[Tensor]()
        free = torch.ones_like(hole)
        for k, window in enumerate(windows):
            place = window.rows, window.columns
            hidden = hole[place] if extra is None else hole[place] | _grown(extra[k], window)
            self._parts.append(hidden & free[place])
            free[place] &= ~hidden
        self.hole = ~free
        """What is completed (H, W), bool."""

    def completed(self, values: Tensor) -> Image.Image:
        """The picture with `values` (n, C, h, w), in [0, 1], in its hole; all else is as it was, bit for bit."""
        pixels = np.array(self.picture.image.convert(self.mode))
        pixels = pixels[..., None] if pixels.ndim == 2 else pixels
        colours = 3 if self.mode.startswith("RGB") else 1
        for window, part, each in zip(self.windows, self._parts, values, strict=True):
            drawn = _resized(each, window).clamp(0, 1).mul(255).round().byte().permute(1, 2, 0)
            inside, where = pixels[window.rows, window.columns], part.numpy()
            inside[where, :colours] = drawn.expand(-1, -1, colours).numpy()[where]
            inside[where, colours:] = 255
        if self.mode.endswith("A") and pixels[..., -1].min() == 255:
            pixels = pixels[..., :-1]
        return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)

    def spread(self, deviation: Tensor) -> Tensor:
        """The map (H, W) of `deviation` (n, C, h, w), the mean over its channels; zero outside of the hole."""
        whole = torch.zeros(self.hole.shape)
        for window, part, each in zip(self.windows, self._parts, deviation, strict=True):
            whole[window.rows, window.columns][part] = _resized(each.mean(0, keepdim=True), window)[0][part]
        return whole

    def holed(self, colour: tuple[int, int, int]) -> Image.Image:
        """The picture in RGBA with its hole in a colour."""
        pixels = np.array(self.picture.image.convert("RGBA"))
        pixels[self.hole.numpy()] = (*colour, 255)
        return Image.fromarray(pixels)


def _grown(mask: Tensor, window: Window) -> Tensor:
    """A mask (h, w), bool, at the size of a window."""
    picture = Image.fromarray(mask.numpy()).resize((window.width, window.height), Image.Resampling.NEAREST)
    return torch.from_numpy(np.array(picture))


def _resized(values: Tensor, window: Window) -> Tensor:
    """Values (C, h, w) at the size of a window (C, height, width)."""
    if tuple(values.shape[1:]) == window.size:
        return values
    size, way = (window.width, window.height), Image.Resampling.BICUBIC
    parts = [np.array(Image.fromarray(channel.float().numpy()).resize(size, way)) for channel in values]
    return torch.from_numpy(np.stack(parts))
