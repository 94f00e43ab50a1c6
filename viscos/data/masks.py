"""Which entries are observed: makers of masks.

Everywhere a mask is bool and named `observed`: true where a value is known. A maker is called with the shape of one
item, the number of items, a seed and the split, and gives `observed` (n, *shape).
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.rng import generator
from viscos.core.solution import per_item
from viscos.data.mask_files import ENDINGS, read_mask
from viscos.data.pictures import PICTURES

Shape = tuple[int, ...]

SIDES = ("right", "left", "top", "bottom")
HOLES = ("black", "white")
"""What of a mask file is hidden."""


class Mask:
    """A maker of masks."""

    def __call__(self, shape: Shape, n: int, seed: int, split: str) -> Tensor:
        """`observed` (n, *shape), bool, the same for the same arguments."""
        raise NotImplementedError


@dataclass(frozen=True)
class RandomMask(Mask):
    """Each entry hidden with probability `missing`, independently; the channels of a pixel share its fate.

    The first items are the same whatever `n` is. Raises `InputError` unless 0 <= missing <= 1.
    """

    missing: float

    def __post_init__(self) -> None:
        if self.missing is None or not 0 <= self.missing <= 1:
            raise InputError(f"missing is {self.missing}; give the share of hidden entries, from 0 to 1")

    def __call__(self, shape: Shape, n: int, seed: int, split: str) -> Tensor:
        """`observed` (n, *shape); `shape` is (C, H, W), or any other shape without channels."""
        drawn = (1, *shape[1:]) if len(shape) == 3 else shape
        uniform = torch.rand((n, *drawn), generator=generator(seed, "mask", split))
        # rand lies in [0, 1): nothing is hidden at 0, everything at 1.
        return (uniform >= self.missing).expand(n, *shape).contiguous()


@dataclass(frozen=True)
class CenterMask(Mask):
    """A centred square of `size` x `size` pixels is hidden (a hair up and left where it cannot be exact)."""

    size: int = 8

    def __call__(self, shape: Shape, n: int, seed: int, split: str) -> Tensor:
        """`observed` (n, *shape). Raises `InputError` if the square does not fit."""
        height, width = _plane(shape, "a centre mask")
        if not 1 <= self.size <= min(height, width):
            raise InputError(
                f"centre size {self.size} does not fit images of {height}x{width}; give 1 to {min(height, width)}"
            )
        top, left = (height - self.size) // 2, (width - self.size) // 2
        observed = torch.ones((n, *shape), dtype=torch.bool)
        observed[..., top : top + self.size, left : left + self.size] = False
        return observed


@dataclass(frozen=True)
class HalfMask(Mask):
    """One half of the image is hidden: "right", "left", "top" or "bottom". The middle of an odd size stays observed."""

    side: str = "right"

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise InputError(f"side is {self.side!r}; choose {', '.join(SIDES)}")

    def __call__(self, shape: Shape, n: int, seed: int, split: str) -> Tensor:
        """`observed` (n, *shape)."""
        height, width = _plane(shape, "a half mask")
        hidden = {
            "right": (slice(None), slice(width - width // 2, width)),
            "left": (slice(None), slice(0, width // 2)),
            "top": (slice(0, height // 2), slice(None)),
            "bottom": (slice(height - height // 2, height), slice(None)),
        }[self.side]
        observed = torch.ones((n, *shape), dtype=torch.bool)
        observed[(..., *hidden)] = False
        return observed


@dataclass(frozen=True)
class ColumnsMask(Mask):
    """The same entries of each vector are hidden: `columns`, their numbers from 0."""

    columns: Sequence[int]

    def __call__(self, shape: Shape, n: int, seed: int, split: str) -> Tensor:
        """`observed` (n, d). Raises `InputError` for images, or a column that is not there."""
        if len(shape) != 1:
            raise InputError(
                f"a mask of columns needs vectors, got items of shape {shape}; use a random mask for images"
            )
        for column in self.columns:
            if not isinstance(column, int) or not 0 <= column < shape[0]:
                raise InputError(f"there is no column {column!r} to hide; give numbers from 0 to {shape[0] - 1}")
        observed = torch.ones((n, *shape), dtype=torch.bool)
        observed[:, list(self.columns)] = False
        return observed


@dataclass(frozen=True)
class FileMask(Mask):
    """A mask from a file: a picture, .npy, .npz (one array, an array `observed`, or one of `save_masks`) or .pt.

    Black is hidden, or what `hole` says: 0 or false in an array, which holds nothing but 0 and 1; in a picture the
    darker of its two colours, or what is transparent, where anything is. With `threshold`, other values are compared
    with it. The shape is that of an item, (H, W) for images of any number of channels, or (n, *item) for a mask of each
    item; of a user's own pictures also that of the picture, or a folder with a mask of the same name for each.
    """

    path: str | Path
    hole: str = "black"
    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.hole not in HOLES:
            raise InputError(f"hole is {self.hole!r}; choose {', '.join(HOLES)}")
        if self.threshold is not None and not 0 < self.threshold <= 1:
            raise InputError(f"threshold is {self.threshold}; give a lightness above 0, 1 at most")

    def __call__(self, shape: Shape, n: int, seed: int, split: str) -> Tensor:
        """`observed` (n, *shape). Raises `InputError` if the file is not such a mask or does not fit."""
        path = Path(self.path).expanduser()
        observed = read_mask(path, self.hole, self.threshold)
        seen = tuple(observed.shape)
        if seen == shape or (len(shape) == 3 and seen == shape[1:]):
            return observed.expand(n, *shape).contiguous()
        if seen[1:] == shape and len(seen) == len(shape) + 1:
            if seen[0] != n:
                raise InputError(
                    f"mask file {path} holds {seen[0]} masks, and there are {n} {split} items; give one for all, or "
                    "one each: in a training, which has two kinds of items, leave the values out of the data instead"
                )
            return observed.contiguous()
        plane = f"{shape[1:]}, " if len(shape) == 3 else ""
        raise InputError(
            f"mask file {path} has shape {seen}; items of shape {shape} want {plane}{shape} or {(n, *shape)}"
        )

    def of_picture(self, name: str, picture: Path, size: tuple[int, int], item: Shape) -> Tensor | None:
        """What is observed of a picture of `size` (height, width): (H, W), bool.

        None if the mask is one of the items (C, h, w) that a model sees. Raises `InputError` if it is neither.
        """
        path = Path(self.path).expanduser()
        if each := path.is_dir():
            path = _of_name(path, name)
        observed = read_mask(path, self.hole, self.threshold)
        if tuple(observed.shape) == size and (each or size != item[1:]):
            return observed
        if not each and observed.shape[-2:] == item[1:]:
            return None
        raise InputError(
            f"{_sides(observed.shape[-2:])}, the mask {path}, does not fit {_sides(size)}, the picture {picture}; give "
            "a mask of the picture's size"
        )


def _of_name(folder: Path, name: str) -> Path:
    """The mask in a folder that has the name of a picture, whatever their endings."""
    bare = Path(name).with_suffix("") if Path(name).suffix.lower() in PICTURES else Path(name)
    for wanted in (folder / name, folder / bare):
        beside = sorted(wanted.parent.glob(f"{glob.escape(wanted.name)}.*"))
        found = [path for path in beside if path.stem == wanted.name and path.suffix.lower() in ENDINGS]
        if wanted.is_file() or len(found) == 1:
            return wanted if wanted.is_file() else found[0]
        if found:
            names = " and ".join(path.name for path in found)
            raise InputError(f"the folder {str(folder)!r} has {names}; leave one mask for each picture")
    raise InputError(f"the folder {str(folder)!r} has no mask called {bare.as_posix()!r}; give one for each picture")


def _sides(size: Sequence[int]) -> str:
    """Width and height, as pictures are spoken of."""
    return " × ".join(map(str, reversed(size)))


def any_masks(shape: Shape, n: int, g: torch.Generator) -> Tensor:
    """`observed` (n, *shape) of every kind: what a network is taught under that is to serve whatever is asked of it.

    Half of the masks hide each entry with a probability of their own, uniform in [0, 1] (the channels of a pixel share
    its fate). Of images the rest hide a rectangle of any size and place or, one in four, all outside of it; of vectors,
    single entries or, one in four, all but one.
    """
    rate = torch.rand(n, *[1] * len(shape), generator=g)
    drawn = (1, *shape[1:]) if len(shape) == 3 else shape
    observed = (torch.rand((n, *drawn), generator=g) >= rate).expand(n, *shape).clone()
    rest = torch.arange(n // 2, n)
    part = _rectangles(shape, len(rest), g) if len(shape) == 3 else _single(shape, len(rest), g)
    observed[rest] = torch.where(per_item(rest % 4 == 3, part), part, ~part)
    return observed


def _rectangles(shape: Shape, n: int, g: torch.Generator) -> Tensor:
    """True inside a rectangle (n, *shape); a quarter of them reach over the whole height or width."""
    inside = torch.ones(n, *shape, dtype=torch.bool)
    whole = torch.rand(n, generator=g)
    for axis, size in enumerate(shape[1:]):
        length = torch.randint(1, size + 1, (n,), generator=g)
        length = torch.where((whole >= axis / 8) & (whole < (axis + 1) / 8), size, length)
        first = (torch.rand(n, generator=g) * (size - length + 1)).long()
        at = torch.arange(size)
        along = (at >= first[:, None]) & (at < (first + length)[:, None])
        inside &= along.view(n, 1, size, 1) if axis == 0 else along.view(n, 1, 1, size)
    return inside


def _single(shape: Shape, n: int, g: torch.Generator) -> Tensor:
    """True at one entry (n, *shape)."""
    size = torch.Size(shape).numel()
    chosen = torch.randint(0, size, (n,), generator=g)
    return (torch.arange(size) == chosen[:, None]).view(n, *shape)


def _plane(shape: Shape, what: str) -> tuple[int, int]:
    if len(shape) not in (2, 3):
        raise InputError(
            f"{what} needs images, got items of shape {shape}; use mask=random or mask=columns for vectors"
        )
    return shape[-2], shape[-1]
