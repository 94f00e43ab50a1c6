"""Which entries are observed: makers of masks, and masks as saved artefacts.

Everywhere a mask is bool and named `observed`: true where a value is known. A maker is called with the shape of one
item, the number of items, a seed and the split, and gives `observed` (n, *shape).
"""

from __future__ import annotations

import hashlib
import math
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from viscos.core import atomic
from viscos.core.errors import InputError
from viscos.core.rng import generator

Shape = tuple[int, ...]

SIDES = ("right", "left", "top", "bottom")


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
    """A mask from a file: .npy, .npz (one array, an array `observed`, or one of `save_masks`), .pt or .png.

    Bool, or numbers that are all 0 or 1 (1 = observed); in a .png whatever is not black is observed. The shape is that
    of an item, (H, W) for images of any number of channels, or (n, *item) for a mask of each item.
    """

    path: str | Path

    def __call__(self, shape: Shape, n: int, seed: int, split: str) -> Tensor:
        """`observed` (n, *shape). Raises `InputError` if the file is not such a mask or does not fit."""
        path = Path(self.path)
        observed = _binary(_read(path), path)
        seen = tuple(observed.shape)
        if seen == shape or (len(shape) == 3 and seen == shape[1:]):
            return observed.expand(n, *shape).contiguous()
        if seen[1:] == shape and len(seen) == len(shape) + 1:
            if seen[0] != n:
                raise InputError(
                    f"mask file {path} holds {seen[0]} masks, {n} were asked for; give one each, or one for all"
                )
            return observed.contiguous()
        plane = f"{shape[1:]}, " if len(shape) == 3 else ""
        raise InputError(
            f"mask file {path} has shape {seen}; items of shape {shape} want {plane}{shape} or {(n, *shape)}"
        )


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
    turned = (rest % 4 == 3).view(-1, *[1] * len(shape))
    observed[rest] = torch.where(turned, part, ~part)
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


def _plane(shape: Shape, what: str) -> tuple[int, int]:
    if len(shape) not in (2, 3):
        raise InputError(
            f"{what} needs images, got items of shape {shape}; use mask=random or mask=columns for vectors"
        )
    return shape[-2], shape[-1]


def _check_bool(observed: Tensor) -> Tensor:
    if observed.dtype != torch.bool:
        raise InputError(
            f"observed must be bool (true where a value is known), got {observed.dtype}; convert with .bool()"
        )
    return observed


def _pack(observed: Tensor) -> np.ndarray:
    return np.packbits(observed.cpu().numpy().reshape(-1))


def _hash(shape: Shape, bits: np.ndarray) -> str:
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
