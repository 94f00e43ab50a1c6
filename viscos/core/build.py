"""Objects from their plain description: a dict with `_target_` and the arguments of what it names."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from viscos.core.errors import InputError

PARTS = (
    "viscos.flows",
    "viscos.posteriors",
    "viscos.roots",
    "viscos.logdet",
    "viscos.data.masks",
    "viscos.imputers",
    "viscos.metrics",
)
"""Where described objects come from. Descriptions are read from checkpoints too, so nothing else may be called."""


def build(spec: dict[str, Any], *args: Any, **extra: Any) -> Any:
    """Calls `spec["_target_"]` with `args`, the other entries (built first where they are descriptions) and `extra`.

    Only what `PARTS` define is accepted. Raises `InputError` for a name that they do not have, or an argument that it
    does not take.
    """
    if "factory" in spec:  # a user's own code, which no description may name
        raise InputError(
            "flow=foreign is for `viscos impute`: a flow of another library is conditioned here, not trained"
        )
    target = str(spec.get("_target_", ""))
    function = _find(target)
    given = {key: _part(value) for key, value in spec.items() if key != "_target_"}
    given.update(extra)
    try:
        inspect.signature(function).bind(*args, **given)
    except TypeError as error:
        raise InputError(f"{target} cannot be made from these settings: {error}") from error
    return function(*args, **given)


def found(spec: dict[str, Any]) -> Any:
    """The class or function that a description names; raises `InputError` as `build` does."""
    return _find(str(spec.get("_target_", "")))


def _part(value: Any) -> Any:
    return build(value) if isinstance(value, dict) and "_target_" in value else value


def _inside(module: str) -> bool:
    return any(module == part or module.startswith(f"{part}.") for part in PARTS)


def _find(target: str) -> Any:
    module, _, name = target.rpartition(".")
    if not _inside(module):
        raise InputError(f"_target_ is {target!r}; it must name something in {', '.join(PARTS)}")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"_target_ is {target!r}, which viscos does not have") from error
    if not callable(found) or not _inside(str(getattr(found, "__module__", ""))):
        raise InputError(f"_target_ is {target!r}, which is not a part of viscos that can be made")
    return found
