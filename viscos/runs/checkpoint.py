"""Checkpoints: tensors and plain containers, written whole, read without running anything that they contain."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from viscos.core import atomic
from viscos.core.errors import InputError
from viscos.core.version import __version__

FORMAT = 1
"""Raised when the meaning of what is stored changes."""

_PLAIN = (str, bool, int, float, type(None))


def save(path: str | Path, state: dict[str, Any]) -> Path:
    """Writes `state` to `path`, whole or not at all.

    Raises `TypeError`, naming the place, for anything but tensors, numbers, strings, None, dicts, lists and tuples:
    only these can be read back safely.
    """
    _check(state, "state")
    record = {"format": FORMAT, "viscos": __version__, "state": state}
    return atomic.write(path, lambda temporary: torch.save(record, temporary))


def load(path: str | Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """What `save` wrote, with its tensors on `device`; raises `InputError` if `path` is not a whole checkpoint."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no checkpoint file {str(path)!r}")
    record = _read(path, torch.device(device))
    if not isinstance(record, dict) or "format" not in record or "state" not in record:
        raise InputError(f"{str(path)!r} is not a checkpoint of viscos")
    if record["format"] != FORMAT:
        raise InputError(
            f"{str(path)!r} has checkpoint format {record['format']}, of viscos {record.get('viscos')}; "
            f"this viscos, {__version__}, reads format {FORMAT}"
        )
    return record["state"]


def _read(path: Path, device: torch.device) -> Any:
    # torch.save writes a zip archive, whose directory stands at the end: a cut file has the first bytes only.
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            cut = file.read(2) == b"PK"
        raise InputError(f"{str(path)!r} is {'truncated' if cut else 'not a checkpoint of viscos'}")
    try:
        # Read on the CPU first, so that a device that cannot be used is not taken for a damaged file.
        record = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise InputError(f"{str(path)!r} is not a checkpoint of viscos, or it is damaged") from error
    return record if device.type == "cpu" else _moved(record, device)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _moved(entry, device) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(entry, device) for entry in value)
    return value


def _check(value: Any, place: str) -> None:
    if isinstance(value, dict):
        for key, entry in value.items():
            if type(key) not in (str, int):
                raise TypeError(f"{place} has the key {key!r}; a checkpoint's keys are strings and whole numbers")
            _check(entry, f"{place}[{key!r}]")
    elif type(value) in (list, tuple):
        for position, entry in enumerate(value):
            _check(entry, f"{place}[{position}]")
    elif not (isinstance(value, Tensor) or type(value) in _PLAIN):
        raise TypeError(f"{place} is a {type(value).__name__}; a checkpoint holds tensors and plain containers only")
