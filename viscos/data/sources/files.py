"""A user's own images, from files."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.data.images import Images, check_unit_range
from viscos.data.sources.array import IMAGES, as_unit, find, read_arrays
from viscos.data.sources.pictures import PICTURES, read_picture


def read_images(path: str | Path, shape: tuple[int, ...], limit: int | None = None) -> tuple[Images, Tensor]:
    """Images of `shape` (C, H, W), zero in their holes, and where they are known (bool, N, C, H, W).

    From an array file, a picture, or a folder of pictures in the order of their names; the first `limit` of them.

    `.npy`, or `.npz` with one array or one of the names in `IMAGES`: (N, C, H, W), (N, H, W, C), (N, H, W), or one
    image; floats in [0, 1], where NaN marks a hole, or uint8. In a picture with transparency, fully transparent pixels
    are holes. Raises `InputError` for a file that cannot be read or does not fit.
    """
    path = Path(path).expanduser()
    suffix = path.suffix.lower()
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix.lower() in PICTURES)[:limit]
        if not files:
            raise InputError(f"the folder {str(path)!r} has no pictures ({', '.join(PICTURES)})")
        values = torch.cat([_fit(read_picture(p, shape[0]), shape, p) for p in files])
    elif not path.is_file():
        raise InputError(f"there is no file {str(path)!r}")
    elif suffix in PICTURES:
        values = _fit(read_picture(path, shape[0]), shape, path)
    elif suffix in (".npy", ".npz"):
        arrays = read_arrays(path)
        values = _fit(as_unit(arrays[find(arrays, IMAGES, path)], path), shape, path)[:limit]
    else:
        raise InputError(f"{str(path)!r} is not .npy, .npz, a picture or a folder of pictures")
    if not len(values):
        raise InputError(f"{str(path)!r} holds no images")
    known = ~values.isnan()
    check_unit_range(values, known)
    return Images(path.stem, torch.where(known, values, 0), None, 0), known


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
