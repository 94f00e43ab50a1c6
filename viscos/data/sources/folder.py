"""Images from a folder of a user's pictures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.folders import files_under, hidden
from viscos.data.images import Images
from viscos.data.items import SPLITS, split_rows
from viscos.data.pictures import PICTURES, pictures_under, read_picture, unread

TESTS = ("test", "val", "valid", "validation")
"""Names of a sub-folder beside `train` that is the test split, in capitals or not: the first that is there."""
_SHOWN = 12
"""Classes that are named."""

Kind = str | None
"""The sub-folder that a picture lies in, if it lies in one."""


def folder(split: str, *, path: str | Path, channels: int = 3, size: int | None = None) -> Images:
    """All pictures under a folder, in colour (3 channels) or grey (1).

    A folder that holds one folder alone stands for that one; names that begin with a dot, and `__MACOSX`, are passed
    over. Sub-folders `train` and `test` (or one of `TESTS`) are the splits; else the pictures are split as `split_rows`
    says. Where every picture lies in a sub-folder, and there are two or more of them, these are the classes, numbered
    by name. All pictures have one size, or `size` crops each to its middle square and resizes it to `size` × `size`.
    What is transparent is a hole, NaN. Raises `InputError` for a folder without pictures, and names a picture that
    cannot be read or does not fit.
    """
    path = Path(path).expanduser()
    if not path.is_dir():
        raise InputError(f"there is no folder {str(path)!r}")
    base = _inner(path)
    splits = _splits(base)
    if splits:
        parts = {name: _pictures(each) for name, each in splits.items()}
    else:
        every = _pictures(base)
        if len(every) < 2:
            raise InputError(f"{base} has one picture; a training and a test split need at least 2")
        parts = {name: [every[k] for k in split_rows(len(every), name).tolist()] for name in SPLITS}
    kinds = [kind for part in parts.values() for _, kind in part]
    classes = _classes(kinds)
    labels = torch.tensor([classes[kind] for _, kind in parts[split]]) if classes else None
    values = _read([file for file, _ in parts[split]], channels, size)
    notes = (*_about_splits(base, splits), *_about_classes(base, kinds, classes), *unread(files_under(base)))
    return Images(path.resolve().name, values, labels, len(classes), notes=notes)


def _inner(path: Path) -> Path:
    """The folder itself, or the one that it holds alone, as unpacked archives do; splits and classes are not alone."""
    while True:
        entries = [entry for entry in path.iterdir() if not hidden(Path(entry.name))]
        folders = [entry for entry in entries if entry.is_dir()]
        if len(folders) != 1 or any(entry.suffix.lower() in PICTURES for entry in entries if entry.is_file()):
            return path
        path = folders[0]


def _splits(base: Path) -> dict[str, Path]:
    """The folders of both splits, or nothing."""
    inner = {entry.name.lower(): entry for entry in sorted(base.iterdir()) if entry.is_dir()}
    test = next((inner[name] for name in TESTS if name in inner), None)
    return {"train": inner["train"], "test": test} if "train" in inner and test is not None else {}


def _pictures(base: Path) -> list[tuple[Path, Kind]]:
    """Every picture under `base`, and the sub-folder of `base` that it lies in, if it is in one."""
    if not (files := pictures_under(base)):
        raise InputError(f"the folder {str(base)!r} has no pictures ({', '.join(PICTURES)})")
    inner = [file.relative_to(base).parts for file in files]
    return [(file, parts[0] if len(parts) > 1 else None) for file, parts in zip(files, inner, strict=True)]


def _classes(kinds: list[Kind]) -> dict[Kind, int]:
    """The number of each class, if every picture has one and they differ."""
    names = sorted({kind for kind in kinds if kind is not None})
    return {name: k for k, name in enumerate(names)} if None not in kinds and len(names) > 1 else {}


def _about_splits(base: Path, splits: dict[str, Path]) -> list[str]:
    """Which folder is for testing, where it is not called so, and which are left out."""
    if not splits:
        return []
    test = splits["test"].name
    left = sorted(
        e.name for e in base.iterdir() if e.is_dir() and e not in splits.values() and not hidden(Path(e.name))
    )
    lines = [f"pictures for testing: those in {test}"] if test != "test" else []
    return lines + ([f"left out, beside {splits['train'].name} and {test}: {', '.join(left)}"] if left else [])


def _about_classes(base: Path, kinds: list[Kind], classes: dict[Kind, int]) -> list[str]:
    """The classes, with the number of pictures in each; or why sub-folders are none."""
    count = Counter(kinds)
    if classes:
        named = [f"{kind} ({count[kind]})" for kind in list(classes)[:_SHOWN]]
        more = [f"and {len(classes) - _SHOWN} more"] if len(classes) > _SHOWN else []
        return [f"{len(classes)} classes, the sub-folders of {base.name}: {', '.join(named + more)}"]
    if None in count and len(count) > 1:
        return [f"no classes: {count[None]} of the pictures lie beside the sub-folders, not in them"]
    return []


def _read(files: list[Path], channels: int, size: int | None) -> Tensor:
    """The pictures (N, C, H, W), NaN where they are transparent."""
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
        values[k] = picture
    return values
