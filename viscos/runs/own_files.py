"""Files of a user's own that a run depends on, by their digests: a run of other contents is another run."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from viscos.core.errors import InputError
from viscos.core.folders import files_under
from viscos.runs.folder import find_checkpoint

PLACES = ("dataset.path", "mask.path", "input", "completions")
"""Where settings name such files, or folders of them; `input` may be a pattern too."""


def digests(cfg: dict[str, Any]) -> dict[str, str | None]:
    """The digest, by dotted key, of each file or folder that the settings name; None of one that is not there."""
    named = {place: _at(cfg, place) for place in PLACES}
    found = {key: _digest(Path(str(path)).expanduser()) for key, path in named.items() if path is not None}
    if (checkpoint := cfg.get("checkpoint")) is not None:
        found["checkpoint"] = _digest_of_checkpoint(str(checkpoint))
    return found


def _at(cfg: dict[str, Any], place: str) -> Any:
    part, _, key = place.partition(".")
    value = cfg.get(part)
    return value.get(key) if key and isinstance(value, dict) else None if key else value


def _digest_of_checkpoint(path: str) -> str | None:
    """The digest of the file alone: a run's folder may change without that."""
    try:
        return _digest(find_checkpoint(path))
    except InputError:
        return None


def _digest(path: Path) -> str | None:
    """The digest of a file's contents; of a folder or a pattern, that of the names in it and their contents."""
    if path.is_file():
        return _of_file(str(path.absolute()), path.stat().st_mtime_ns, path.stat().st_size)
    if path.is_dir():
        return _of_files(path, files_under(path))
    matches = [Path(found) for found in glob.glob(str(path), recursive=True)]
    return _of_files(Path(), matches) if matches else None


def _of_files(folder: Path, paths: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for each in sorted(entry for entry in paths if entry.is_file()):
        found.update(f"{os.path.relpath(each, folder)}\0{_digest(each)}\0".encode())
    return found.hexdigest()[:16]


@lru_cache(maxsize=4096)
def _of_file(path: str, changed: int, size: int) -> str:
    """Reads a file once for all jobs of a sweep, as long as its time and size stay the same."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
