"""Picture files, with one clear line for one that cannot be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.folders import files_under
from viscos.data.windows import Window

PICTURES = (".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".webp", ".tif", ".tiff", ".gif")
"""Suffixes of the files that count as pictures."""
_OTHERS = (".heic", ".heif", ".avif", ".jxl", ".jp2", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".svg", ".psd")

MODES = {1: "L", 3: "RGB"}
"""What PIL calls pictures of so many channels."""
_TRACE = 1e-6
"""Share of a pixel's area below which a hole in it is rounding."""


@dataclass(frozen=True)
class Picture:
    """A picture as it is looked at: turned upright as its EXIF orientation says, its first frame."""

    path: Path
    image: Image.Image
    """In the mode L, LA, RGB or RGBA."""
    notes: tuple[str, ...]
    """Lines on what was not taken as it stands in the file."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.image.height, self.image.width

    @property
    def hole(self) -> Tensor:
        """The pixels that are wholly transparent (H, W), bool."""
        if "A" not in self.image.getbands():
            return torch.zeros(self.size, dtype=torch.bool)
        return torch.from_numpy(np.array(self.image.getchannel("A"))) == 0

    def seen(self, channels: int, size: tuple[int, int], window: Window, hole: Tensor) -> Tensor:
        """The window, resized to `size` (h, w), as (C, h, w), float32 in [0, 1].

        NaN where any part of a pixel lies in `hole` (H, W), bool, of which no colour is taken over.
        """
        colours, box = self.image.convert("RGB" if "RGB" in self.image.mode else "L"), window.box
        holed = bool(hole[window.rows, window.columns].any())
        if holed:
            colours.putalpha(Image.fromarray((~hole).numpy().astype(np.uint8) * np.uint8(255)))
        if window.size == size:
            colours = colours.crop(box)
        else:  # PIL weighs colours by their opacity
            colours = colours.resize((size[1], size[0]), Image.Resampling.BICUBIC, box=box)
        plain = np.array(colours.convert(MODES[channels]), dtype=np.float32) / 255
        values = torch.from_numpy(plain.reshape(*plain.shape[:2], channels)).permute(2, 0, 1)
        return values.masked_fill(_touched(hole, size, window), float("nan")) if holed else values


def open_picture(path: Path) -> Picture:
    """Reads a picture; raises `InputError` for a file that cannot be read, or has more than 8 bits a channel."""
    try:
        with Image.open(path) as file:
            frames = getattr(file, "n_frames", 1)
            # PIL reads colours of 16 bits as 8; `BGR;16` are 16 bits a pixel.
            deep = any(";16" in str(tile[3]).replace("BGR;16", "") for tile in file.tile)
            file.load()
            upright = ImageOps.exif_transpose(file)
    except Exception as error:  # each format fails in ways of its own on a damaged file
        raise InputError(f"{path} cannot be read as a picture: {' '.join(str(error).split())}") from error
    if deep or upright.mode[0] in "IF":  # PIL cuts these off at 255 instead of scaling them
        raise InputError(f"{path} has more than 8 bits a channel; save it with 8, or as .npy with floats in [0, 1]")
    grey = upright.mode in ("1", "L", "LA", "La")
    mode = ("L" if grey else "RGB") + ("A" if upright.has_transparency_data else "")
    image, notes = upright.convert(mode), []
    if upright.mode not in (mode, "P", "PA"):
        image.info.pop("icc_profile", None)  # of other colours than these
    if frames > 1:
        notes.append(f"{path} has {frames} frames, of which the first is taken")
    if mode[-1] == "A":
        alpha = np.array(image.getchannel("A"))
        if partly := int(((alpha > 0) & (alpha < 255)).sum()):
            notes.append(f"{path} has {partly} pixels that are partly transparent, and count as known")
    return Picture(path, image, tuple(notes))


def read_picture(path: Path, channels: int, size: int | None = None) -> Tensor:
    """One picture (C, H, W), float32 in [0, 1], grey (1 channel) or in colour (3); NaN where it is fully transparent.

    With `size`, the largest square in its middle, resized to `size` × `size`; NaN where a pixel is transparent in part
    of its area. Raises `InputError` as `open_picture` does.
    """
    picture = open_picture(path)
    if size is None:
        return picture.seen(channels, picture.size, Window.whole(picture.size), picture.hole)
    return picture.seen(channels, (size, size), Window.middle(picture.size, (size, size)), picture.hole)


def pictures_under(folder: Path) -> list[Path]:
    """Every picture in a folder and its sub-folders, by path."""
    return sorted(file for file in files_under(folder) if _is_picture(file))


def unread(files: Iterable[Path]) -> tuple[str, ...]:
    """A line on pictures among files that are of no format that is read, if there are any."""
    kinds = Counter(file.suffix.lower() for file in files if file.suffix.lower() in _OTHERS and file.is_file())
    if not kinds:
        return ()
    many, which = kinds.total(), ", ".join(sorted(kinds))
    return (f"left out: {many} picture{'s' * (many > 1)} of formats that are not read ({which}); save them as PNG",)


def _is_picture(file: Path) -> bool:
    return file.suffix.lower() in PICTURES and file.is_file()


def _touched(hole: Tensor, size: tuple[int, int], window: Window) -> Tensor:
    """The pixels of a window resized to `size` that lie in the hole in part (h, w), bool."""
    if window.size == size:
        return hole[window.rows, window.columns]
    area = Image.fromarray(hole.numpy().astype(np.float32))
    shares = area.resize((size[1], size[0]), Image.Resampling.BOX, box=window.box)
    return torch.from_numpy(np.array(shares)) > _TRACE
