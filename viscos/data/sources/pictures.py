"""Picture files, with one clear line for one that cannot be used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from viscos.core.errors import InputError

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
"""Suffixes of the files that count as pictures."""

MODES = {1: "L", 3: "RGB"}
"""What PIL calls pictures of so many channels."""


def read_picture(path: Path, channels: int, size: int | None = None) -> Tensor:
    """One picture (C, H, W), float32 in [0, 1], grey (1 channel) or in colour (3); NaN where it is fully transparent.

    With `size`, the largest square in its middle, resized to `size` × `size`. Raises `InputError` for a file that
    cannot be read, or has more than 8 bits a channel.
    """
    try:
        with Image.open(path) as file:
            file.load()
    except Exception as error:  # each format fails in ways of its own on a damaged file
        raise InputError(f"{path} cannot be read as a picture: {' '.join(str(error).split())}") from error
    if file.mode[0] in "IF":  # PIL cuts these off at 255 instead of scaling them
        raise InputError(f"{path} has more than 8 bits a channel; save it with 8, or as .npy with floats in [0, 1]")
    picture = file.convert("RGBA" if file.has_transparency_data else "RGB")
    if size is not None:
        picture = _square(picture, size)
    plain = np.array(picture.convert(MODES[channels]), dtype=np.float32) / 255
    values = torch.from_numpy(plain.reshape(*plain.shape[:2], channels)).permute(2, 0, 1)
    if picture.mode == "RGB":
        return values
    hole = torch.from_numpy(np.array(picture.getchannel("A"))) == 0
    return values.masked_fill(hole, float("nan"))


def _square(picture: Image.Image, size: int) -> Image.Image:
    side = min(picture.size)
    left, top = ((length - side) // 2 for length in picture.size)
    box = (left, top, left + side, top + side)
    return picture.resize((size, size), Image.Resampling.BICUBIC, box=box)
