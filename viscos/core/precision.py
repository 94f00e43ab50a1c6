"""The precision and the device of a model, and the precision in which solves are made."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn


def tensor_of(module: nn.Module) -> Tensor | None:
    """A tensor of the dtype and on the device of a module; None if it has no parameters or buffers that are numbers."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    return next((t for t in tensors if t.is_floating_point()), None)


def device_of(module: nn.Module) -> torch.device:
    """The device of a module; the CPU, if nothing that it holds is on one."""
    like = tensor_of(module)
    return torch.device("cpu") if like is None else like.device


@contextmanager
def full_precision() -> Iterator[None]:
    """Computes in the dtype of the tensors, whatever autocast the caller is in: a solve does not converge in less."""
    with ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
