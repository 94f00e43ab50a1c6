"""Settings as one types them in a shell."""

from __future__ import annotations

import re
import shlex
from typing import Any

_PLAIN = re.compile(r"[A-Za-z0-9_./+:-]+")
"""Text that Hydra reads as it is."""


_OTHERWISE = re.compile(r"(?i)null|true|false|[+-]?(inf|nan|\d[\d_]*\.\d*|\d+(\.\d*)?e[+-]?\d+)")
"""Text that Hydra reads as something else."""
_BARE = re.compile(r"[A-Za-z0-9_./+:,=\[\]-]+")
"""Text that a shell reads as it is; brackets are a pattern that no file's name is."""


def typed(key: str, value: Any) -> str:
    """The word `key=value` for a shell and for Hydra, with the quotes that both need."""
    word = f"{key}={_value(value)}"
    return word if _BARE.fullmatch(word) else shlex.quote(word)


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_value, value)) + "]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = str(value)
    if _PLAIN.fullmatch(text) and not (isinstance(value, str) and _OTHERWISE.fullmatch(text)):
        return text
    return '"' + re.sub(r'(\\*)(")', r"\1\1\\\2", text) + re.search(r"\\*$", text)[0] + '"'  # type: ignore[index]
