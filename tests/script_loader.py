"""The scripts of the project as modules, for their tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def loaded(path: Path) -> ModuleType:
    """The module in a file, run anew; its dataclasses look for it by its name."""
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent))  # as it is where a script is run
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))  # its names, as `tables`, are those of other packages
    return module
