"""Images from a folder of a user's pictures."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.data.images import Images
from viscos.data.items import SPLITS, held_out
from viscos.data.sources.pictures import PICTURES, read_picture


def folder(split: str, *, path: str | Path, channels: int = 3, size: int | None = None) -> Images:
    """All pictures under a folder, in colour (3 channels) or grey (1), in the order of their paths.

    Its sub-folders `train` and `test` are the splits where both are there; else its pictures are split as `held_out`
    says. Where every picture lies in a sub-folder, and there are two or more of them, these are the classes, numbered
    by name. All pictures have one size, or `size` crops each to its middle square and resizes it to `size` × `size`.
    Raises `InputError` for a folder without pictures, and names a picture that cannot be read or does not fit.
    """
    path = Path(path).expanduser()
    if not path.is_dir():
        raise InputError(f"there is no folder {str(path)!r}")
    if all((path / name).is_dir() for name in SPLITS):
        parts = {name: _pictures(path / name) for name in SPLITS}
    else:
        every = _pictures(path)
        if len(every) < 2:
            raise InputError(f"{path} has one picture; a training and a test split need at least 2")
        parts = {name: [every[k] for k in held_out(len(every), name).tolist()] for name in SPLITS}
    classes = _classes([kind for part in parts.values() for _, kind in part])
    labels = torch.tensor([classes[kind] for _, kind in parts[split]]) if classes else None
    return Images(path.resolve().name, _read([file for file, _ in parts[split]], channels, size), labels, len(classes))


def _pictures(base: Path) -> list[tuple[Path, str | None]]:
    """Every picture under `base`, and the sub-folder of `base` that it lies in, if it is in one."""
    files = sorted(file for file in base.rglob("*") if file.suffix.lower() in PICTURES and file.is_file())
    if not files:
        raise InputError(f"the folder {str(base)!r} has no pictures ({', '.join(PICTURES)})")
    inner = [file.relative_to(base).parts for file in files]
    return [(file, parts[0] if len(parts) > 1 else None) for file, parts in zip(files, inner, strict=True)]


def _classes(kinds: list[str | None]) -> dict[str | None, int]:
    """The number of each class, if every picture has one and they differ."""
    names = sorted({kind for kind in kinds if kind is not None})
    return {name: k for k, name in enumerate(names)} if None not in kinds and len(names) > 1 else {}


def _read(files: list[Path], channels: int, size: int | None) -> Tensor:
    """The pictures (N, C, H, W)."""
    first = read_picture(files[0], channels, size)
    values = torch.empty(len(files), *first.shape)
    for k, file in enumerate(files):
        picture = read_picture(file, channels, size)
        if picture.shape != first.shape:
            (_, h, w), (_, height, width) = picture.shape, first.shape
            raise InputError(
                f"{file} is {w} × {h} and {files[0]} {width} × {height}; give pictures of one size, or crop and resize "
                "them with dataset.size=32"
            )
        if bool(picture.isnan().any()):
            raise InputError(f"{file} has transparent pixels; a data set is of complete images, so fill them first")
        values[k] = picture
    return values
