"""Images from a user's array file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.data.images import Images
from viscos.data.items import split_rows

IMAGES = ("images", "x", "data", "values")
"""Names under which an `.npz` may hold its images; one that holds a single array may call it anything."""
LABELS = ("labels", "y")


def array(split: str, *, path: str | Path) -> Images:
    """Images of an `.npy` or `.npz` file.

    uint8 or floats in [0, 1], of shape (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels. An `.npz` has the
    splits `x_train` and `x_test`, with labels `y_train` and `y_test` if there are any, or all images under one of the
    names in `IMAGES`, with labels under one in `LABELS`; those, and an `.npy`, are split by `split_rows`. Labels are
    whole numbers from 0. Raises `InputError` for a file that cannot be read or holds something else.
    """
    path = Path(path).expanduser()
    arrays = read_arrays(path)
    if "x_train" in arrays and "x_test" in arrays:
        values, labels = as_images(arrays[f"x_{split}"], path), arrays.get(f"y_{split}")
        known = [arrays[key] for key in ("y_train", "y_test") if key in arrays]
        return _labelled(path, values, labels, known)
    values = as_images(arrays[find(arrays, IMAGES, path)], path)
    labels = next((arrays[key] for key in LABELS if key in arrays), None)
    if len(values) < 2:
        raise InputError(f"{path} holds {len(values)} images; a training and a test split need at least 2")
    every = _labelled(path, values, labels, [] if labels is None else [labels])
    return every.at(split_rows(len(every), split))


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` by name, or that of an `.npy` under the name of the file."""
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}")
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            return dict(loaded) if isinstance(loaded, np.lib.npyio.NpzFile) else {path.stem: loaded}
    except Exception as error:  # a damaged file fails in many ways
        # What is no array file at all, numpy takes for a pickle.
        why = "it is neither .npy nor .npz, or holds objects; write numbers by numpy.save or numpy.savez"
        why = why if "pickle" in str(error) else " ".join(str(error).split())
        raise InputError(f"{path} cannot be read as an array file: {why}") from error


def find(arrays: dict[str, np.ndarray], names: tuple[str, ...], path: Path, what: str = "images") -> str:
    """The first of `names` among the arrays, or the only one; raises `InputError`, naming `what`, if none is."""
    for name in names:
        if name in arrays:
            return name
    if not arrays:
        raise InputError(f"{path} holds no {what}")
    if len(arrays) != 1:
        wanted = " or ".join(f"`{name}`" for name in names)
        raise InputError(f"{path} holds the arrays {', '.join(arrays)}; name the {what} {wanted}")
    return next(iter(arrays))


def as_unit(values: np.ndarray, path: Path) -> Tensor:
    """uint8 divided by 255, or floats as they are, as float32; raises `InputError` for another dtype."""
    if values.dtype == np.uint8:
        return torch.from_numpy(values.astype(np.float32) / 255)
    if not np.issubdtype(values.dtype, np.floating):
        raise InputError(f"{path} holds {values.dtype}; give floats in [0, 1] or uint8")
    return torch.from_numpy(values.astype(np.float32))


def as_images(values: np.ndarray, path: Path) -> Tensor:
    """(N, C, H, W) of an array in one of the three layouts; raises `InputError` for another shape or dtype."""
    images = as_unit(values, path)
    if images.dim() == 3:
        return images[:, None]
    first, last = (images.dim() == 4 and images.shape[axis] in (1, 3) for axis in (1, 3))
    if first == last:
        what = "channels may be the second or the last axis" if first else "no axis of 1 or 3 channels"
        raise InputError(
            f"{path} holds an array of shape {tuple(images.shape)}, {what}; give (N, H, W), (N, H, W, C) or "
            "(N, C, H, W) with 1 or 3 channels"
        )
    return images if first else images.permute(0, 3, 1, 2).contiguous()


def _labelled(path: Path, values: Tensor, labels: np.ndarray | None, every: list[np.ndarray]) -> Images:
    """Images with their labels; the number of classes is that of `every` split."""
    for found in every:
        if not np.issubdtype(found.dtype, np.integer) or found.size == 0 or found.min() < 0:
            raise InputError(f"{path} has labels of {found.dtype}; give whole numbers from 0, one for each image")
    if labels is None:
        return Images(path.stem, values, None, 0)
    classes = 1 + max(int(found.max()) for found in every)
    return Images(path.stem, values, torch.from_numpy(labels.astype(np.int64).reshape(-1)), classes)
