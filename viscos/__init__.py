"""Variational Schur conditional sampling with normalizing flows.

`condition` gives the conditional distribution of a flow; `flows`, `posteriors`, `roots` and `logdet` hold the parts.
Nothing is imported before it is used, so that the command line answers at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors; at run time `__getattr__` imports these when they are asked for
    from viscos.core.errors import InputError
    from viscos.core.solution import Solution, Status
    from viscos.core.version import __version__ as __version__
    from viscos.inference.condition import condition
    from viscos.inference.conditional import Conditional
    from viscos.runs.trained import load

_HOMES = {
    "condition": "viscos.inference.condition",
    "Conditional": "viscos.inference.conditional",
    "InputError": "viscos.core.errors",
    "Solution": "viscos.core.solution",
    "Status": "viscos.core.solution",
    "load": "viscos.runs.trained",
    "__version__": "viscos.core.version",
}
_PARTS = (
    "flows",
    "posteriors",
    "roots",
    "logdet",
    "linear",
    "inference",
    "imputers",
    "data",
    "metrics",
    "report",
    "sklearn",
)

__all__ = ["Conditional", "InputError", "Solution", "Status", "condition", "load", *_PARTS]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if name in _PARTS:
        return importlib.import_module(f"viscos.{name}")
    raise AttributeError(f"module 'viscos' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_PARTS})
