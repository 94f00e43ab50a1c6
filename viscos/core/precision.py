"""The precision in which solves are made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def full_precision() -> Iterator[None]:
    """Computes in the dtype of the tensors, whatever autocast the caller is in: a solve does not converge in less."""
    with ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
