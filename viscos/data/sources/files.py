"""A user's own images, to be completed: an array file, a picture, or many of them."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.folders import files_under
from viscos.core.typed import typed
from viscos.data.images import Images, check_unit_range
from viscos.data.pictures import PICTURES, Picture, open_picture, pictures_under, unread
from viscos.data.sources.array import IMAGES, as_unit, find, read_arrays
from viscos.data.sources.table import TABLES
from viscos.data.windows import Size, Window, covering

MaskOf = Callable[[str, Path, Size], Tensor | None]
"""What is observed (H, W), bool, of the picture of a name, path and size; None where masks are of what a model sees."""


@dataclass(frozen=True)
class Framed:
    """A picture, and the windows through which a model sees it: an item each."""

    name: str
    """Its path below what was given, without the ending."""
    path: Path
    size: Size
    """Height and width."""
    hidden: float
    """The share of its pixels that lie in its hole."""
    first: int
    """The number of its first item."""
    windows: tuple[Window, ...]
    """None if it has no hole."""
    mask: Tensor | None
    """What its mask says is observed (H, W), bool, if it has one of its own size."""
    extra: Tensor | None = None
    """What masks of the windows hide (n, h, w), bool, if there are any."""

    @property
    def items(self) -> range:
        """The numbers of its items."""
        return range(self.first, self.first + len(self.windows))

    def open(self) -> tuple[Picture, Tensor]:
        """The picture, and its hole (H, W), bool: where it is transparent, and what its mask hides."""
        picture = open_picture(self.path)
        return picture, picture.hole if self.mask is None else picture.hole | ~self.mask


@dataclass(frozen=True)
class Found:
    """Images in a user's files, as a model takes them."""

    data: Images
    """Zero in their holes."""
    known: Tensor
    """Where they are known (N, C, H, W), bool."""
    names: tuple[str, ...]
    """What each is called (N)."""
    observed: Tensor
    """What of it is used, by masks of whole pictures (N, C, H, W), bool."""
    unmasked: Tensor
    """The items that no such mask was for (N,), bool."""
    pictures: tuple[Framed, ...] = ()
    """The pictures that they are windows of, if they are."""
    notes: tuple[str, ...] = ()
    """Lines on what was read otherwise than it stands there."""


def read_items(
    path: str | Path,
    shape: tuple[int, ...],
    limit: int | None = None,
    how: str = "tiles",
    mask: MaskOf | None = None,
) -> Found:
    """Images of `shape` (C, H, W): from an array file, a picture, a folder of pictures or a pattern; at most `limit`.

    `.npy`, or `.npz` with one array or one of the names in `IMAGES`: (N, C, H, W), (N, H, W, C), (N, H, W), or one
    image; floats in [0, 1], where NaN marks a hole, or uint8; `names` in an `.npz` are those of the images. In a
    picture with transparency, fully transparent pixels are holes, and so is what `mask` hides. Pictures of another size
    are seen through windows (`viscos.data.windows.covering`), `how` says which. Raises `InputError` for a file that
    cannot be read or does not fit.
    """
    path = Path(path).expanduser()
    if (files := _pictures(path)) is not None:
        found = _framed(path, files[:limit], shape, how, mask)
        beside = files_under(path) if path.is_dir() else map(Path, glob.glob(str(path), recursive=True))
        return replace(found, notes=(*unread(beside), *found.notes))
    arrays = read_arrays(path)
    values = _fit(as_unit(arrays[find(arrays, IMAGES, path)], path), shape, path)[:limit]
    if not len(values):
        raise InputError(f"{str(path)!r} holds no images")
    named = np.atleast_1d(arrays.get("names", np.arange(0)))
    names = named[: len(values)] if len(named) >= len(values) else np.arange(len(values))
    return _found(path, values, tuple(map(str, names)))


def _found(path: Path, values: Tensor, names: tuple[str, ...]) -> Found:
    known = ~values.isnan()
    check_unit_range(values, known)
    images = Images(path.stem, torch.where(known, values, 0), None, 0)
    return Found(images, known, names, known, torch.ones(len(values), dtype=torch.bool))


def _pictures(path: Path) -> list[Path] | None:
    """The pictures that a path stands for; None for an array file."""
    endings = ", ".join(PICTURES)
    if path.is_dir():
        if not (files := pictures_under(path)):
            raise InputError(f"the folder {str(path)!r} has no pictures ({endings})")
        return files
    if not path.is_file():
        if not glob.has_magic(str(path)):
            raise InputError(f"there is no file {str(path)!r}")
        matched = [Path(found) for found in sorted(glob.glob(str(path), recursive=True))]
        files = [file for file in matched if file.suffix.lower() in PICTURES and file.is_file()]
        if not files:
            raise InputError(f"{str(path)!r} matches no picture ({endings}); it matches {len(matched)} files")
        return files
    if path.suffix.lower() in PICTURES:
        return [path]
    if path.suffix.lower() not in (".npy", ".npz"):
        table = path.suffix.lower() in TABLES
        remedy = "; this run is of images: a table wants a run of `viscos train dataset=table`" if table else ""
        raise InputError(f"{str(path)!r} is not .npy, .npz, a picture or a folder of pictures{remedy}")
    return None


def _framed(path: Path, files: list[Path], shape: tuple[int, ...], how: str, mask: MaskOf | None) -> Found:
    model: Size = (shape[1], shape[2])
    in_colour = 0
    frames, values, observed, unmasked, notes = (
        list[Framed](),
        list[Tensor](),
        list[Tensor](),
        list[bool](),
        list[str](),
    )
    for name, file in zip(_names(files), files, strict=True):
        picture = open_picture(file)
        given = None if mask is None else mask(name, file, picture.size)
        hole = picture.hole if given is None else picture.hole | ~given
        windows = _windows(picture, hole, model, how, awaits=mask is not None and given is None)
        share = float(hole.double().mean())
        frames.append(Framed(name, file, picture.size, share, len(values), tuple(windows), given))
        for window in windows:
            seen = picture.seen(shape[0], model, window, hole)
            truth = seen if given is None else picture.seen(shape[0], model, window, picture.hole)
            observed.append(~seen.isnan())
            values.append(torch.where(observed[-1], seen, truth))
            unmasked.append(given is None)
        notes += picture.notes
        in_colour += picture.image.mode.startswith("RGB") and bool(hole.any())
    if in_colour and shape[0] == 1:
        notes.append(f"pictures in colour: {in_colour}; the model is of grey ones, so their holes are filled with grey")
    empty = torch.empty(0, *shape)
    names = tuple(_item_name(frame, k) for frame in frames for k in range(len(frame.windows)))
    found = _found(path, torch.stack(values) if values else empty, names)
    return replace(
        found,
        observed=torch.stack(observed) if values else empty.bool(),
        unmasked=torch.tensor(unmasked, dtype=torch.bool),
        pictures=tuple(frames),
        notes=tuple(notes),
    )


def _windows(picture: Picture, hole: Tensor, model: Size, how: str, *, awaits: bool) -> list[Window]:
    """Those that cover the hole; the one in the middle, if there is none and a mask of what is seen is yet to come."""
    if picture.size == model:
        return [Window.whole(model)]
    if how == "tiles" and (picture.size[0] < model[0] or picture.size[1] < model[1]):
        (h, w), (height, width) = picture.size, model
        raise InputError(
            f"{picture.path} is {w} × {h}, the flow takes {width} × {height}; {typed('window', 'crop')} resizes it"
        )
    if awaits and not bool(hole.any()):
        return [Window.middle(picture.size, model)]
    return covering(hole, model, how)


def _item_name(frame: Framed, k: int) -> str:
    return f"{frame.name}#{k}" if len(frame.windows) > 1 else frame.name


def _names(files: list[Path]) -> list[str]:
    """Their paths below the folder that they share, without the ending unless two would be called alike."""
    base = os.path.commonpath([file.parent for file in files])
    inner = [file.relative_to(base) for file in files]
    bare = [file.with_suffix("").as_posix() for file in inner]
    count = Counter(bare)
    return [name if count[name] == 1 else file.as_posix() for name, file in zip(bare, inner, strict=True)]


def _fit(values: Tensor, shape: tuple[int, ...], path: Path) -> Tensor:
    """(N, C, H, W)."""
    last = (*shape[1:], shape[0])
    if values.dim() in (3, 4) and tuple(values.shape[-3:]) == last != shape:
        values = values.movedim(-1, -3)
    if values.dim() == 3 and tuple(values.shape) != shape and shape[0] == 1:
        values = values.unsqueeze(1)
    elif values.dim() < 4:
        values = values.reshape(1, *([1] * (3 - values.dim())), *values.shape)
    if values.dim() != 4 or tuple(values.shape[1:]) != shape:
        raise InputError(
            f"{path} holds images of shape {tuple(values.shape[1:])}, the flow takes {shape} (channels, height, width)"
        )
    return values
