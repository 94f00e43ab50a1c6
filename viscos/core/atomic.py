"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from viscos.core.errors import InputError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_LOCKED = (errno.EROFS, errno.EACCES, errno.EPERM)
_SPACE = 2**20
"""Bytes; with less than that left, an error that does not say why is taken for a full disk's."""


class WriteError(InputError):
    """A file could not be written: the disk is full, or it may not be written there."""


def write(path: str | Path, writer: Callable[[Path], Any]) -> Path:
    """Calls `writer` with a temporary path of the same ending beside `path`, then renames it to `path`.

    The file is on the disk before it has its name, so that a crash leaves the old one or the new one. What an earlier
    write of `path` left when it was killed is removed. Raises `WriteError`, naming the folder, if it cannot be written.
    """
    path = Path(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path)
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
        temporary = Path(name)
        try:
            with contextlib.suppress(OSError):  # there are network disks without locks; there, nothing is cleared
                fcntl.flock(handle, fcntl.LOCK_EX)  # held for as long as the process lives: see `_remove_stale`
            writer(temporary)
            os.chmod(temporary, 0o666 & ~_umask())
            _sync(temporary)
            os.replace(temporary, path)
        finally:
            os.close(handle)
            temporary.unlink(missing_ok=True)
    return path


def _umask() -> int:
    """What the user keeps from others: a temporary file is its owner's alone, a written one is as any other."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def write_json(path: str | Path, record: Any) -> Path:
    """Writes `record` as indented JSON, whole or not at all; a number that is not finite as null, as JSON has none."""
    text = json.dumps(_finite(record), indent=2, sort_keys=False, allow_nan=False) + "\n"
    return write(path, lambda p: p.write_text(text))


def _finite(record: Any) -> Any:
    if isinstance(record, dict):
        return {key: _finite(value) for key, value in record.items()}
    if isinstance(record, (list, tuple)):
        return [_finite(value) for value in record]
    return None if isinstance(record, float) and not math.isfinite(record) else record


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Raises `WriteError`, which names the disk or the folder of `path`, for what the system says of a write to it."""
    try:
        yield
    except OSError as error:
        raise WriteError(refusal(path, error)) from error


def refusal(path: str | Path, error: OSError) -> str:
    """Why a file cannot be written, and what to do, in one line."""
    folder = next(each for each in Path(path).absolute().parents if each.is_dir())
    free = shutil.disk_usage(folder).free
    if error.errno in _FULL or (error.errno is None and free < _SPACE):
        return (
            f"{path} cannot be written: the disk of {folder} is full ({free / 2**20:.1f} MiB free); make room there, "
            "or write to another disk"
        )
    if error.errno in _LOCKED:
        return (
            f"{path} cannot be written: nothing may be written to {folder} ({error.strerror}); "
            "change its permissions, or write to another folder"
        )
    return f"{path} cannot be written: {' '.join((error.strerror or str(error)).split())}"


def _remove_stale(path: Path) -> None:
    """Removes temporary files of `path` whose writer was killed: a process that lives holds a lock on its own."""
    pattern = f".{glob.escape(path.stem)}-{'?' * 8}{glob.escape(path.suffix)}"
    for left in path.parent.glob(pattern):
        with contextlib.suppress(OSError), left.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
