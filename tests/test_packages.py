"""Names of modules: a package has no attribute that hides one of its modules."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import viscos

LIGHT = ("viscos.commands.table", "viscos.cli.validate", "viscos.cli.help", "viscos.report.formats")
PACKAGES = ["viscos", *(m.name for m in pkgutil.walk_packages(viscos.__path__, "viscos.") if m.ispkg)]


@pytest.mark.parametrize("name", PACKAGES)
def test_no_public_name_hides_a_module(name: str) -> None:
    package = importlib.import_module(name)
    modules = [m.name for m in pkgutil.iter_modules(package.__path__) if m.name != "__main__"]
    hidden = [m for m in modules if importlib.import_module(f"{name}.{m}") is not getattr(package, m)]
    assert not hidden, f"{name} has names that are not its modules: {', '.join(hidden)}"


def test_tables_and_help_do_without_torch() -> None:
    """Which takes seconds to import."""
    code = f"import sys, importlib; [importlib.import_module(name) for name in {LIGHT}]; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
