"""Checkpoints: tensors and plain containers, written whole, read without running anything that they contain."""

from __future__ import annotations

import hashlib
import io
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from viscos.core import atomic
from viscos.core.errors import InputError
from viscos.core.version import __version__

FORMAT = 3
"""Raised when the meaning of what is stored changes; files of another format are refused."""

_DAMAGED = (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError, KeyError)
"""What readers of archives raise."""
_PLAIN = (str, bool, int, float, type(None))


def save(path: str | Path, state: dict[str, Any]) -> Path:
    """Writes `state` to `path`, whole or not at all.

    Raises `TypeError`, naming the place, for anything but tensors, numbers, strings, None, dicts, lists and tuples:
    only these can be read back safely.
    """
    _check(state, "state")
    record = {"format": FORMAT, "viscos": __version__, "digest": digest(state), "state": state}
    buffer = io.BytesIO()
    torch.save(record, buffer)  # not to the file: torch's own writer does not say what is wrong with a disk
    return atomic.write(path, lambda temporary: temporary.write_bytes(buffer.getbuffer()))


def load(path: str | Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """What `save` wrote, with its tensors on `device`.

    Raises `InputError` if `path` is not a checkpoint, or if anything in it is not as it was written.
    """
    path, device = Path(path), torch.device(device)
    if not path.is_file():
        raise InputError(f"there is no checkpoint file {str(path)!r}")
    record = _read(path)
    if not isinstance(record, dict) or "format" not in record or "state" not in record:
        raise InputError(f"{str(path)!r} is not a checkpoint of viscos")
    if record["format"] != FORMAT:
        raise InputError(
            f"{str(path)!r} has checkpoint format {record['format']}, of viscos {record.get('viscos')}; this viscos, "
            f"{__version__}, reads format {FORMAT} alone; make it anew, or take the viscos that wrote it"
        )
    state = record["state"]
    if record.get("digest") != digest(state):
        raise InputError(f"{str(path)!r} is damaged, or was changed after it was written; take another copy of it")
    # Moved only now, so that a device that cannot be used is not taken for a damaged file.
    return state if device.type == "cpu" else _moved(state, device)


def digest(value: Any) -> str:
    """SHA-256 of tensors and plain containers, with their types, shapes and order."""
    sums = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            sums.update(f"{value.dtype}{tuple(value.shape)}".encode())
            sums.update(value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
        elif isinstance(value, (dict, list, tuple)):
            sums.update(f"{type(value).__name__}{len(value)}".encode())
            for entry in value.items() if isinstance(value, dict) else value:
                add(entry)
        else:
            text = repr(value)
            sums.update(f"{type(value).__name__}{len(text)}:{text}".encode())

    add(value)
    return sums.hexdigest()


def check_sums(path: Path) -> None:
    """Raises `InputError` for a file of torch whose contents do not fit the check sums of its archive.

    torch writes the sums, and does not read them.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (*_DAMAGED, OSError, NotImplementedError) as error:
        raise InputError(
            f"{str(path)!r} is damaged ({' '.join(str(error).split())}); take another copy of it"
        ) from error
    if damaged is not None:
        raise InputError(f"{str(path)!r} is damaged: {damaged!r} is not as it was written; take another copy of it")


def _read(path: Path) -> Any:
    # torch.save writes a zip archive, whose directory stands at the end: a cut file has the first bytes only.
    with path.open("rb") as file:
        archive = file.read(2) == b"PK"
    if not archive:
        raise InputError(f"{str(path)!r} is not a checkpoint of viscos")
    if not _has_directory(path):
        raise InputError(f"{str(path)!r} is truncated")
    check_sums(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, *_DAMAGED) as error:
        raise InputError(f"{str(path)!r} is not a checkpoint of viscos, or it is damaged") from error


def _has_directory(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # there is one, of an archive that it is not
        return True


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
