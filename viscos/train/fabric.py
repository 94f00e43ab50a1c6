"""Several devices, and mixed precision, by Lightning Fabric; imported only where one of them is asked for."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import LightningEnvironment
from lightning_fabric.plugins.precision import MixedPrecision, Precision
from lightning_fabric.strategies import DDPStrategy

# Here, because a new process announces itself before it gets to anything of ours but the imports.
for _name in ("lightning_fabric", "lightning.fabric", "torch.multiprocessing.spawn"):
    logging.getLogger(_name).setLevel(logging.ERROR)
warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")  # torch 2.14; older ones need it

PRECISIONS: dict[int | str, torch.dtype | None] = {32: None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""The dtype of passes that do not need the full one, for each setting that there is."""


class FabricDevices(Fabric):
    """Fabric, as the trainer uses it: one process for each device, gradients averaged by DistributedDataParallel.

    `device` is the first device. `precision` is `32`, `bf16-mixed` or `16-mixed`.
    """

    def __init__(self, device: torch.device, devices: int, precision: int | str = 32) -> None:
        plugin = _BranchesOnly(str(precision), device.type) if PRECISIONS[precision] else Precision()
        accelerator = "cuda" if device.type == "cuda" else "cpu"
        if devices == 1:
            which = [device.index or 0] if accelerator == "cuda" else 1
            super().__init__(accelerator=accelerator, devices=which, plugins=[plugin])
            return
        strategy = DDPStrategy(
            # Spawned from the process that has read the settings: only that one composes them, and names the folder.
            start_method="spawn",
            timeout=timedelta(days=365),  # a batch of fits may take hours longer in one process than in another
            cluster_environment=LightningEnvironment(),  # else a batch system's would be taken, which starts no process
            precision=plugin,
            find_unused_parameters=True,  # the classifier where nothing was solved, biases of tangents
            broadcast_buffers=False,  # they move alike everywhere, but for the classifier's running moments
        )
        super().__init__(accelerator=accelerator, devices=devices, strategy=strategy)

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Calls `function(self, *args, **kwargs)` in every process; returns what the first one returns."""
        return super().launch(_to_its_end, function, *args, **kwargs)  # type: ignore[arg-type]

    @property
    def low_precision(self) -> torch.dtype | None:
        """The dtype of passes that do not need the full one, if there is one."""
        return PRECISIONS.get(str(self.strategy.precision.precision))

    @property
    def scaler(self) -> Any:
        """What scales the loss in float16, else None."""
        return getattr(self.strategy.precision, "scaler", None)

    def gather_rows(self, row: list[float]) -> list[list[float]]:
        """The `row` of each process."""
        rows = torch.zeros(self.world_size, len(row), dtype=torch.float64, device=self.device)
        rows[self.global_rank] = rows.new_tensor(row)
        return self.all_reduce(rows, reduce_op="sum").tolist()  # type: ignore[union-attr]

    def anywhere(self, flag: bool) -> bool:
        """Whether `flag` is set in any process."""
        return any(row[0] > 0 for row in self.gather_rows([float(flag)]))


def _to_its_end(devices: Fabric, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    result = function(devices, *args, **kwargs)
    if torch.distributed.is_initialized():  # left to the interpreter's end, its threads may abort the process there
        torch.distributed.destroy_process_group()
    return result


class _BranchesOnly(MixedPrecision):
    """Fabric's scaling of the loss without its autocast over everything: a flow's branches see to that themselves.

    A solve to a residual of 1e-3 cannot be had from products with three digits, nor can a certified norm.
    """

    def __init__(self, precision: str, device: str) -> None:
        # Losses are sums over pixels, in nats: from torch's usual scale of 2¹⁶ the first steps would all overflow.
        scaler = torch.amp.GradScaler(device, init_scale=2.0**8) if precision == "16-mixed" else None
        super().__init__(precision, device, scaler)  # type: ignore[arg-type]

    def forward_context(self) -> AbstractContextManager[None]:
        return nullcontext()

    def convert_input(self, data: Any) -> Any:
        return data

    def convert_output(self, data: Any) -> Any:
        return data
