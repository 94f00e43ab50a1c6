"""Settings that every test shares."""

import os

# Subprocesses read these; one thread each, since two that wait for a busy processor are far slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import viscos

torch.set_num_threads(1)


def pytest_report_header() -> str:
    """Says which viscos is tested: the installed one, or a source tree."""
    return f"viscos: {viscos.__path__[0]}"
