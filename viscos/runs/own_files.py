"""Files of a user's own that a run depends on, by their digests: a run of other contents is another run."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

PLACES = (("dataset", "path"), ("mask", "path"))
"""Where settings name such files, or folders of them."""


def digests(cfg: dict[str, Any]) -> dict[str, str | None]:
    """The digest, by dotted key, of each file or folder that the settings name; None of one that is not there."""
    named = {f"{part}.{key}": (cfg.get(part) or {}).get(key) for part, key in PLACES if isinstance(cfg.get(part), dict)}
    return {key: _digest(Path(str(path)).expanduser()) for key, path in named.items() if path is not None}


def _digest(path: Path) -> str | None:
    """The digest of a file's contents; of a folder, that of the names in it and their contents."""
    if path.is_file():
        return _of_file(str(path.absolute()), path.stat().st_mtime_ns, path.stat().st_size)
    if not path.is_dir():
        return None
    found = hashlib.sha256()
    for each in sorted(entry for entry in path.rglob("*") if entry.is_file()):
        found.update(f"{each.relative_to(path)}\0{_digest(each)}\0".encode())
    return found.hexdigest()[:16]


@lru_cache(maxsize=4096)
def _of_file(path: str, changed: int, size: int) -> str:
    """Reads a file once for all jobs of a sweep, as long as its time and size stay the same."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
