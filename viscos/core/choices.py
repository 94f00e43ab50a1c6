"""The choices of each part, which are the YAML files in its folder: configs/<part>/<choice>.yaml.

A part that is added stands in a file of its own there and nowhere else; the command line and Python find it by name.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import yaml

from viscos.core.build import build, maker
from viscos.core.errors import InputError

T = TypeVar("T")

OWN = "own"
"""The choice of every part that stands for code of one's own; what it is, only its user says."""


@cache
def names(part: str) -> tuple[str, ...]:
    """The choices of a part, but for `own`."""
    folder = files("viscos.configs").joinpath(part)
    found = sorted(path.name.removesuffix(".yaml") for path in folder.iterdir() if path.name.endswith(".yaml"))
    return tuple(name for name in found if name != OWN)


def text(part: str, name: str) -> str:
    """What the file of a choice says."""
    return files("viscos.configs").joinpath(part, f"{name}.yaml").read_text(encoding="utf-8")


def description(part: str, name: str) -> dict[str, Any]:
    """What the file of a choice describes."""
    return yaml.safe_load(text(part, name)) or {}


def choice(part: str, name: str, kind: type[T], *args: Any, objects: bool = True) -> T:
    """The choice called `name`, of a kind, made as its file says.

    Raises `InputError` if there is none of that name, or it is of another kind; `objects` says whether something that
    is made already would have served as well.
    """
    if name not in names(part) or not _makes(part, name, kind):
        known = ", ".join(each for each in names(part) if _makes(part, each, kind))
        seen = repr(name) if isinstance(name, str) else f"of type {type(name).__name__}"
        own = ", or give an object" if objects else ""
        raise InputError(f"{part} is {seen}; choose one of {known}{own}")
    return build(description(part, name), kind, *args)


def _makes(part: str, name: str, kind: type) -> bool:
    try:
        return bool(maker(str(description(part, name).get("_target_", "")), kind))
    except InputError:
        return False
