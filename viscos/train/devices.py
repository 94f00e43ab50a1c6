"""What the trainer asks of the devices that it runs on.

The names are those of Lightning Fabric, which `viscos.train.fabric` puts in the place of `OneDevice` where there is
more than one device, or a lower precision.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Devices(Protocol):
    """One process for each device; every process computes on its share of each batch."""

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        ...

    @property
    def world_size(self) -> int:
        """Processes."""
        ...

    @property
    def global_rank(self) -> int:
        """Number of this process; number 0 writes and prints."""
        ...

    @property
    def low_precision(self) -> torch.dtype | None:
        """The dtype of passes that do not need the full one, if there is one."""
        ...

    @property
    def scaler(self) -> Any:
        """What scales the loss so that its gradient fits the low precision: a `torch.amp.GradScaler`, or None."""
        ...

    def setup(self, module: nn.Module, optimizer: Optimizer) -> Any:
        """The module, whose gradients are to be averaged over the processes, and the optimiser."""
        ...

    def no_backward_sync(self, module: Any, enabled: bool = True) -> AbstractContextManager[Any]:
        """Keeps the gradients of this process to itself meanwhile."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Takes the gradient."""
        ...

    def clip_gradients(self, module: Any, optimizer: Any, *, max_norm: float, error_if_nonfinite: bool) -> Any:
        """Scales gradients above `max_norm` down to it; returns what their norm was."""
        ...

    def gather_rows(self, row: list[float]) -> list[list[float]]:
        """The `row` of each process."""
        ...

    def anywhere(self, flag: bool) -> bool:
        """Whether `flag` is set in any process; each must ask, and waits for all of them."""
        ...

    def rank_zero_first(self) -> AbstractContextManager[Any]:
        """Lets the other processes in once the first one is through."""
        ...


class OneDevice:
    """This process alone."""

    world_size, global_rank = 1, 0
    low_precision: torch.dtype | None = None
    scaler = None

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def setup(self, module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        return module, optimizer

    def no_backward_sync(self, module: nn.Module, enabled: bool = True) -> AbstractContextManager[None]:
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def clip_gradients(
        self, module: nn.Module, optimizer: Optimizer, *, max_norm: float, error_if_nonfinite: bool
    ) -> Tensor:
        return nn.utils.clip_grad_norm_(module.parameters(), max_norm, error_if_nonfinite=error_if_nonfinite)

    def gather_rows(self, row: list[float]) -> list[list[float]]:
        return [row]

    def anywhere(self, flag: bool) -> bool:
        return flag

    def rank_zero_first(self) -> AbstractContextManager[None]:
        return nullcontext()
