"""What lies in folders of a user's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_NOT_OURS = ("__MACOSX", "Thumbs.db", "desktop.ini")
"""What systems leave in folders: one that an archive brings along from a Mac, and files of Windows."""


def files_under(folder: Path) -> Iterator[Path]:
    """What is in a folder and its sub-folders, without what is `hidden`."""
    return (file for file in folder.rglob("*") if not hidden(file.relative_to(folder)))


def hidden(path: Path) -> bool:
    """Whether a path below a folder is none that a user has put there."""
    return any(part.startswith(".") or part in _NOT_OURS for part in path.parts)
