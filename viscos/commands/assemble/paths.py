"""Paths as a run saves them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any


def whole(settings: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """The settings with whole paths under those `keys` that are set, which find the same files from any folder."""
    return settings | {key: str(Path(settings[key]).expanduser().absolute()) for key in keys if settings.get(key)}
