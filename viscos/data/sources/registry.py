"""Data sets by name: `load("mnist", "train")`.

A new data set is one function, one line in `DATASETS`, and a YAML file whose settings are the function's arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from viscos.core.errors import InputError
from viscos.data.images import Images
from viscos.data.items import SPLITS, Data
from viscos.data.sources.array import array
from viscos.data.sources.folder import folder
from viscos.data.sources.public import cifar10, fashion_mnist, mnist
from viscos.data.sources.table import table
from viscos.data.sources.toys import checkerboard, circles, eight_gaussians, moons, pinwheel

DIGITS_TEST = 360
"""Test images of `digits`; the other 1437 are for training."""


def digits(split: str) -> Images:
    """scikit-learn's bundled 8x8 digits, their 0-16 scale divided by 16; a fixed stratified split."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import StratifiedShuffleSplit

    pixels, labels = load_digits(return_X_y=True)
    train, test = next(StratifiedShuffleSplit(1, test_size=DIGITS_TEST, random_state=0).split(pixels, labels))
    index = torch.from_numpy(train if split == "train" else test).sort().values
    values = torch.from_numpy(pixels).float().div_(16).reshape(-1, 1, 8, 8)
    return Images("digits", values[index], torch.from_numpy(labels).long()[index], 10)


DATASETS: dict[str, Callable[..., Data]] = {
    "array": array,
    "checkerboard": checkerboard,
    "cifar10": cifar10,
    "circles": circles,
    "digits": digits,
    "eight_gaussians": eight_gaussians,
    "fashion_mnist": fashion_mnist,
    "folder": folder,
    "mnist": mnist,
    "moons": moons,
    "pinwheel": pinwheel,
    "table": table,
}
"""Name of each data set -> function of the split, and of the settings that say where and how to read it."""


def load(name: str, split: str, **settings: Any) -> Data:
    """The `split` ("train" or "test") of the data set `name`, one of `DATASETS`, which says what `settings` it takes.

    Public data sets take `root`, the folder of their files: by default the environment's VISCOS_DATA_DIR, else
    ~/.cache/viscos. What is missing there is downloaded unless `download` is false. Raises `InputError` if the name,
    the split or a setting is not known, or if files are missing, cannot be downloaded or cannot be read.
    """
    if name not in DATASETS:
        raise InputError(f"there is no data set {name!r}; choose one of {', '.join(sorted(DATASETS))}")
    if split not in SPLITS:
        raise InputError(f"there is no split {split!r} of {name}; choose train or test")
    try:
        inspect.signature(DATASETS[name]).bind(split, **settings)
    except TypeError as error:
        taken = ", ".join(settings_of(name)) or "none"
        raise InputError(f"{name} cannot be loaded with these settings: {error}; it takes {taken}") from error
    return DATASETS[name](split, **settings)


def settings_of(name: str) -> list[str]:
    """What settings the data set `name` takes."""
    return list(inspect.signature(DATASETS[name]).parameters)[1:] if name in DATASETS else []
