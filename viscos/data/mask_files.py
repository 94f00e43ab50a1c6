"""Masks as saved artefacts, and the files that masks of a user's own may be in.

A mask is bool and named `observed`: true where a value is known.
"""

from __future__ import annotations

import hashlib
import math
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from viscos.core import atomic
from viscos.core.errors import InputError
from viscos.data.pictures import PICTURES, open_picture

ENDINGS = (".npy", ".npz", ".pt", *PICTURES)
"""Of mask files."""
_OPAQUE = 255


def mask_hash(observed: Tensor) -> str:
    """Sixteen hexadecimal digits that tell masks apart: BLAKE2b of the shape and packed bits of `observed` (bool)."""
    return _hash(_check_bool(observed).shape, _pack(observed))


def save_masks(path: str | Path, observed: Tensor) -> Path:
    """Saves `observed` (bool, any shape), eight entries a byte, with its hash; whole or not at all."""
    shape, bits = _check_bool(observed).shape, _pack(observed)

    def writer(temporary: Path) -> None:
        with open(temporary, "wb") as file:  # np.savez adds an ending to a bare name, not to an open file
            np.savez_compressed(
                file, bits=bits, shape=np.array(shape, dtype=np.int64), hash=np.array(_hash(shape, bits))
            )

    return atomic.write(path, writer)


def load_masks(path: str | Path) -> Tensor:
    """`observed` (bool) as `save_masks` saved it. Raises `InputError` for a damaged file or another kind."""
    arrays = _arrays(Path(path))
    if set(arrays) != {"bits", "shape", "hash"}:
        raise InputError(
            f"{path} holds {sorted(arrays)}, not saved masks; write them with save_masks, or read it with FileMask"
        )
    return _unpack(arrays, Path(path))


def _check_bool(observed: Tensor) -> Tensor:
    if observed.dtype != torch.bool:
        raise InputError(
            f"observed must be bool (true where a value is known), got {observed.dtype}; convert with .bool()"
        )
    return observed


def _pack(observed: Tensor) -> np.ndarray:
    return np.packbits(observed.cpu().numpy().reshape(-1))


def _hash(shape: tuple[int, ...], bits: np.ndarray) -> str:
    digest = hashlib.blake2b(repr(tuple(shape)).encode(), digest_size=8)
    digest.update(bits.tobytes())
    return digest.hexdigest()


def _unpack(arrays: dict[str, np.ndarray], path: Path) -> Tensor:
    bits, shape = arrays["bits"], tuple(int(size) for size in arrays["shape"].reshape(-1))
    count = math.prod(shape)
    damaged = InputError(f"saved masks {path} are damaged: their hash does not fit; make them again")
    if bits.dtype != np.uint8 or min(shape, default=0) < 0 or bits.size != -(-count // 8):
        raise damaged
    if str(arrays["hash"]) != _hash(shape, bits):
        raise damaged
    return torch.from_numpy(np.unpackbits(bits, count=count).astype(bool).reshape(shape))


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as held:
            return {key: held[key] for key in held.files}
    except FileNotFoundError as error:
        raise InputError(f"there is no mask file {path}; check the path") from error
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} cannot be read as .npz without pickled objects; save the mask again") from error


def read_mask(path: str | Path, hole: str = "black", threshold: float | None = None) -> Tensor:
    """The mask in a file (bool, any shape), of the kinds that `viscos.data.masks.FileMask` takes.

    Black is 0 or false in an array, and in a picture the darker of its two colours; one with transparent pixels is
    black there and white elsewhere. With `threshold`, from 0 to 1, white is what is as light as that, or lighter.
    Raises `InputError` if there is no mask that can be read, or, without a threshold, one of other values than two.
    """
    path = Path(path)
    held = _read(path)
    white = _white_pixels(held, path, threshold) if isinstance(held, Image.Image) else _white(held, path, threshold)
    return ~white if hole == "white" else white


def _read(path: Path) -> Tensor | Image.Image:
    """The array in a mask file, of any type and shape, or the picture, upright."""
    readers: dict[str, Callable[[Path], Tensor | Image.Image]] = {".npy": _read_npy, ".npz": _read_npz, ".pt": _read_pt}
    readers |= dict.fromkeys(PICTURES, lambda path: open_picture(path).image)
    if path.is_dir():
        raise InputError(
            f"{path} is a folder; a mask for each picture is for `viscos impute`: in training, make hidden pixels "
            "transparent"
        )
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"mask file {path} has the ending {path.suffix!r}; give {', '.join(ENDINGS)}")
    if not path.is_file():
        raise InputError(f"there is no mask file {path}; check the path")
    try:
        return readers[path.suffix.lower()](path)
    except InputError:
        raise
    except Exception as error:  # each format fails in ways of its own on a damaged file
        message = f"mask file {path} cannot be read ({type(error).__name__}); save it again, as a plain array or tensor"
        raise InputError(message) from error


def _read_npy(path: Path) -> Tensor:
    return torch.from_numpy(np.load(path, allow_pickle=False))


def _read_npz(path: Path) -> Tensor:
    arrays = _arrays(path)
    if set(arrays) == {"bits", "shape", "hash"}:
        return _unpack(arrays, path)
    if "observed" not in arrays and len(arrays) != 1:
        raise InputError(f"mask file {path} holds {sorted(arrays)}; keep one array, or name it 'observed'")
    return torch.from_numpy(arrays.get("observed", next(iter(arrays.values()))))


def _read_pt(path: Path) -> Tensor:
    held = torch.load(path, weights_only=True, map_location="cpu")
    if isinstance(held, dict):
        held = held.get("observed")
    if not isinstance(held, Tensor):
        raise InputError(
            f"mask file {path} holds no tensor; save the mask itself, or a dictionary with it as 'observed'"
        )
    return held


def _white(mask: Tensor, path: Path, threshold: float | None) -> Tensor:
    """An array as bool: all it holds is 0 and 1, or it is compared with the threshold."""
    if mask.dtype == torch.bool:
        return mask
    if threshold is not None and not bool(mask.isnan().any()):
        return _lightness(mask, path) >= threshold
    strange = mask[(mask != 0) & (mask != 1)]
    if strange.numel():
        more = f" and {strange.numel() - 1} more such values" if strange.numel() > 1 else ""
        raise InputError(
            f"mask file {path} holds {strange[0].item()}{more}; give bool, or 1 for white and 0 for black, or say "
            "from where on it is white: mask.threshold=0.5"
        )
    return mask != 0


_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""Types that torch cannot compare by size."""


def _lightness(mask: Tensor, path: Path) -> Tensor:
    """An array of other values than two, from 0 to 1: grey levels of bytes, unless all they hold is 0 and 1."""
    light = mask / 255 if mask.dtype == torch.uint8 and bool((mask > 1).any()) else mask
    light = light.double() if light.dtype in _UNSIGNED else light
    outside = light[(light < 0) | (light > 1)]
    if outside.numel():
        raise InputError(
            f"mask file {path} holds {outside[0].item()}, and mask.threshold is for values from 0 to 1, or uint8"
        )
    return light


def _white_pixels(picture: Image.Image, path: Path, threshold: float | None) -> Tensor:
    """A picture (H, W) as bool: by its transparency if any pixel is transparent, else by its colours."""
    pixels = torch.from_numpy(np.array(picture)).int()
    pixels = pixels.unsqueeze(-1) if pixels.dim() == 2 else pixels
    alpha = pixels[..., -1] if pixels.shape[-1] in (2, 4) else None
    if alpha is not None and bool((alpha < 255).any()):
        return _two(alpha, alpha, path, threshold, "degrees of transparency")
    colours = pixels[..., : 1 if pixels.shape[-1] <= 2 else 3]
    code = (colours * torch.tensor([1, 256, 65536])[: colours.shape[-1]]).sum(-1)
    return _two(code, colours.double().mean(-1), path, threshold, "colours")


def _two(code: Tensor, light: Tensor, path: Path, threshold: float | None, what: str) -> Tensor:
    """White is the lighter of two codes, or the only one unless it is 0; or what is as light as the threshold."""
    if threshold is not None:
        return light >= threshold * _OPAQUE
    kinds, count = code.unique(return_counts=True)
    if len(kinds) > 2:
        other = int(count.sum() - count.topk(2).values.sum())
        raise InputError(
            f"mask file {path} has {len(kinds)} {what}, {other} pixels beside the two commonest; a mask has two: "
            "say from which lightness on it is white, mask.threshold=0.5"
        )
    if len(kinds) == 1:
        return code != 0
    first = code == kinds[0]
    return first if float(light[first][0]) > float(light[~first][0]) else ~first
