"""A user's own images, from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from viscos.data.datasets import Images, check_unit_range
from viscos.errors import InputError

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")


def read_images(path: str | Path, shape: tuple[int, ...], limit: int | None = None) -> tuple[Images, Tensor]:
    """Images of `shape` (C, H, W), zero in their holes, and where they are known (bool, N, C, H, W).

    From an array file, a picture, or a folder of pictures in the order of their names; the first `limit` of them.

    `.npy`, or `.npz` with one array or the key `values`: (N, C, H, W), (N, H, W), or one image; floats in [0, 1], where
    NaN marks a hole, or uint8. In a picture with transparency, fully transparent pixels are holes. Raises `InputError`
    for a file that cannot be read or does not fit.
    """
    path = Path(path).expanduser()
    suffix = path.suffix.lower()
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix.lower() in PICTURES)[:limit]
        if not files:
            raise InputError(f"the folder {str(path)!r} has no pictures ({', '.join(PICTURES)})")
        values = torch.cat([_fit(_picture(p, shape), shape, p) for p in files])
    elif not path.is_file():
        raise InputError(f"there is no file {str(path)!r}")
    elif suffix in PICTURES:
        values = _fit(_picture(path, shape), shape, path)
    elif suffix in (".npy", ".npz"):
        values = _fit(_array(path), shape, path)[:limit]
    else:
        raise InputError(f"{str(path)!r} is not .npy, .npz, a picture or a folder of pictures")
    if not len(values):
        raise InputError(f"{str(path)!r} holds no images")
    known = ~values.isnan()
    check_unit_range(values, known)
    return Images(path.stem, torch.where(known, values, 0), None, 0), known


def _fit(values: Tensor, shape: tuple[int, ...], path: Path) -> Tensor:
    """(N, C, H, W)."""
    if values.dim() == 3 and shape[0] == 1:
        values = values.unsqueeze(1)
    elif values.dim() < 4:
        values = values.reshape(1, *([1] * (3 - values.dim())), *values.shape)
    if values.dim() != 4 or tuple(values.shape[1:]) != shape:
        raise InputError(
            f"{path} holds images of shape {tuple(values.shape[1:])}, the flow takes {shape} (channels, height, width)"
        )
    return values


def _array(path: Path) -> Tensor:
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.lib.npyio.NpzFile):
                names = loaded.files
                key = "values" if "values" in names else names[0] if len(names) == 1 else None
                if key is None:
                    raise InputError(f"{path} holds the arrays {', '.join(names)}; name the images `values`")
                loaded = loaded[key]
    except InputError:
        raise
    except Exception as error:  # a damaged file fails in many ways
        raise InputError(f"{path} cannot be read as an array file: {error}") from error
    if loaded.dtype == np.uint8:
        return torch.from_numpy(loaded.astype(np.float32) / 255)
    if not np.issubdtype(loaded.dtype, np.floating):
        raise InputError(f"{path} holds {loaded.dtype}; give floats in [0, 1] or uint8")
    return torch.from_numpy(loaded.astype(np.float32))


def _picture(path: Path, shape: tuple[int, ...]) -> Tensor:
    """(1, C, H, W), with NaN where the picture is fully transparent."""
    try:
        with Image.open(path) as picture:
            picture.load()
            mode, rgba = picture.mode, picture.convert("RGBA")
    except Exception as error:  # each format fails in ways of its own on a damaged file
        raise InputError(f"{path} cannot be read as a picture: {error}") from error
    if mode[0] in "IF":  # PIL cuts these off at 255 instead of scaling them
        raise InputError(f"{path} has more than 8 bits a channel; save it with 8, or as .npy with floats in [0, 1]")
    plain = np.asarray(rgba.convert("L" if shape[0] == 1 else "RGB"), dtype=np.float32) / 255
    values = torch.from_numpy(plain if plain.ndim == 3 else plain[..., None]).permute(2, 0, 1)
    hole = torch.from_numpy(np.array(rgba)[..., 3]) == 0
    return values.masked_fill(hole, float("nan"))[None]
