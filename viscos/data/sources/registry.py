"""Data sets by name: `load("mnist", "train")`.

A new data set is one function of the split in this package, and one YAML file in configs/dataset, which names it; the
file's other settings are the function's arguments, or say how training goes about the data.
"""

from __future__ import annotations

import inspect
from typing import Any

from viscos.core.build import maker
from viscos.core.choices import description, names
from viscos.core.errors import InputError
from viscos.data.items import SPLITS, Data

OF_TRAINING = ("name", "noise", "levels", "augment", "epochs", "learning_rate")
"""Settings of a data set that are no business of the function that reads it."""


def load(name: str, split: str, **settings: Any) -> Data:
    """The `split` ("train" or "test") of the data set `name`, with the settings that its function takes.

    Public data sets take `root`, the folder of their files: by default the environment's VISCOS_DATA_DIR, else
    ~/.cache/viscos. What is missing there is downloaded unless `download` is false. Raises `InputError` if the name,
    the split or a setting is not known, or if files are missing, cannot be downloaded or cannot be read.
    """
    return load_described({"name": name, **settings}, split)


def load_described(dataset: dict[str, Any], split: str) -> Data:
    """The `split` of the data set that settings describe: by `_target_`, or by `name` alone.

    `OF_TRAINING` are left aside. Raises `InputError` as `load` and `viscos.core.build.build` do.
    """
    name = str(dataset.get("name", dataset.get("_target_", "")))
    if "_target_" not in dataset and name not in names("dataset"):
        raise InputError(f"there is no data set {name!r}; choose one of {', '.join(names('dataset'))}")
    if split not in SPLITS:
        raise InputError(f"there is no split {split!r} of {name}; choose train or test")
    read = maker(dataset.get("_target_") or description("dataset", name)["_target_"], Data)
    settings = {key: value for key, value in dataset.items() if key not in ("_target_", *OF_TRAINING)}
    try:
        inspect.signature(read).bind(split, **settings)
    except TypeError as error:
        taken = ", ".join(list(inspect.signature(read).parameters)[1:]) or "none"
        raise InputError(f"{name} cannot be loaded with these settings: {error}; it takes {taken}") from error
    data = read(split, **settings)
    if not isinstance(data, Data):
        raise InputError(f"{name} returned a {type(data).__name__}; return viscos.data.images.Images or Vectors")
    return data
