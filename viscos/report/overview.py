"""A grid of pictures of any sizes, with a label to each row and a name above each column."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

CELL = 224
"""Pixels of the longer side of a picture in the grid."""
_GAP, _TEXT, _MARGIN = 6, 16, 130


def labelled(rows: Sequence[tuple[str, Sequence[Image.Image]]], names: Sequence[str]) -> Image.Image:
    """A picture of `rows`, each of a label and a picture for each of `names`.

    Large pictures are made smaller; small ones larger, each of their pixels a square.
    """
    font = ImageFont.load_default(_TEXT)
    cells = [(label, [_fitted(picture) for picture in pictures]) for label, pictures in rows]
    widths = [max(pictures[k].width for _, pictures in cells) for k in range(len(names))]
    heights = [max(picture.height for picture in pictures) for _, pictures in cells]
    head = _TEXT + 2 * _GAP
    size = _MARGIN + sum(widths) + _GAP * (len(names) + 1), head + sum(heights) + _GAP * len(rows)
    canvas = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(canvas)
    left = _MARGIN
    for name, width in zip(names, widths, strict=True):
        draw.text((left, _GAP), _cut(name, font, width), "black", font)
        left += width + _GAP
    top = head
    for (label, pictures), height in zip(cells, heights, strict=True):
        draw.multiline_text((_GAP, top + _GAP), label, "black", font)
        left = _MARGIN
        for picture, width in zip(pictures, widths, strict=True):
            canvas.paste(picture, (left, top))
            left += width + _GAP
        top += height + _GAP
    return canvas


def _fitted(picture: Image.Image) -> Image.Image:
    """The picture with a longer side of `CELL`, or as near to it as whole pixels allow; on white where transparent."""
    longest = max(picture.size)
    factor = CELL // longest if longest <= CELL else CELL / longest
    way = Image.Resampling.NEAREST if longest <= CELL else Image.Resampling.LANCZOS
    width, height = (max(1, round(length * factor)) for length in picture.size)
    flat = picture.convert("RGBA") if "A" in picture.getbands() else picture.convert("RGB")
    small = flat.resize((width, height), way)
    if small.mode == "RGB":
        return small
    white = Image.new("RGBA", small.size, "white")
    white.alpha_composite(small)
    return white.convert("RGB")


def _cut(name: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """The name, or its end where it is wider than its column."""
    if font.getlength(name) <= width:
        return name
    while name and font.getlength(f"…{name}") > width:
        name = name[1:]
    return f"…{name}"
