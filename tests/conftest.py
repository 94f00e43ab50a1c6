"""Settings that every test shares."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from pathlib import Path

import pytest

# Subprocesses read these; one thread each, since two that wait for a busy processor are far slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# `python -m pytest` puts the folder that it is run in first, whose `viscos` lacks the settings that a build adds;
# what is installed is tested, as by `pytest`.
ROOT = Path(__file__).resolve().parents[1]
if not (ROOT / "viscos" / "configs").is_dir():
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]


def pytest_configure() -> None:
    """Refuses to test what is not installed."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("viscos") is None:
        raise pytest.UsageError("viscos is not installed in this environment; run pip install '.[test]' first")
    import torch

    torch.set_num_threads(1)
    # Composed settings are many small objects in cycles: looking for garbage after each 700 takes a tenth of the time.
    gc.set_threshold(20_000, 20, 20)


def pytest_report_header() -> str:
    """Says which viscos is tested: the installed one, or a source tree."""
    import viscos

    return f"viscos: {viscos.__path__[0]}"
