"""Masks as saved artefacts, and the files that masks of a user's own may be in.

A mask is bool and named `observed`: true where a value is known.
"""

from __future__ import annotations

import hashlib
import math
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from viscos.core import atomic
from viscos.core.errors import InputError


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


def read_mask(path: str | Path) -> Tensor:
    """The mask in a file (bool, any shape), of the kinds that `viscos.data.masks.FileMask` takes.

    Raises `InputError` if there is none that can be read, or one of other values than two.
    """
    return _binary(_read(Path(path)), Path(path))


def _read(path: Path) -> Tensor:
    """The array in a mask file, of any type and shape."""
    readers = {".npy": _read_npy, ".npz": _read_npz, ".pt": _read_pt, ".png": _read_png}
    if path.suffix.lower() not in readers:
        raise InputError(f"mask file {path} has the ending {path.suffix!r}; give {', '.join(readers)}")
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


def _read_png(path: Path) -> Tensor:
    from PIL import Image

    with Image.open(path) as image:
        # Colour tables become colours, and transparency is dropped: it says nothing of black and white.
        flat = {"P": "RGB", "PA": "RGB", "RGBA": "RGB", "LA": "L"}.get(image.mode)
        pixels = np.array(image if flat is None else image.convert(flat))
    lit = pixels != 0
    return torch.from_numpy(lit.any(-1) if lit.ndim == 3 else lit)


def _binary(mask: Tensor, path: Path) -> Tensor:
    """`mask` as bool, if all it holds is 0 and 1."""
    if mask.dtype == torch.bool:
        return mask
    strange = mask[(mask != 0) & (mask != 1)]
    if strange.numel():
        raise InputError(f"mask file {path} holds {strange[0].item()}; give bool, or 1 for observed and 0 for hidden")
    return mask != 0
