"""Files that are written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write(path: str | Path, writer: Callable[[Path], Any]) -> Path:
    """Calls `writer` with a temporary path of the same ending beside `path`, then renames it to `path`."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        writer(temporary)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def write_json(path: str | Path, record: Any) -> Path:
    """Writes `record` as indented JSON, whole or not at all."""
    text = json.dumps(record, indent=2, sort_keys=False) + "\n"
    return write(path, lambda p: p.write_text(text))
