"""What a command runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from viscos.core.errors import InputError
from viscos.core.progress import set_verbosity


@dataclass(frozen=True)
class Machine:
    """Device, processes and threads, the seed of torch's own generator, and how much is said."""

    device: str
    """`auto`, `cpu`, `cuda` or `cuda:<number>`."""
    threads: int | None
    seed: int
    devices: int
    """Processes that share each batch of a training, or the batches of `viscos impute`."""
    precision: int | str
    verbosity: str
    """Of `viscos.core.progress.VERBOSITIES`."""

    @classmethod
    def of(cls, cfg: dict[str, Any]) -> Machine:
        """Reads the settings of a command; raises `InputError` where processes would share less than an item each."""
        devices, parts = cfg.get("devices", 1), cfg.get("accumulate")
        if parts is not None and cfg["batch_size"] < devices * parts:
            shared = f"devices={devices} times accumulate={parts}"
            raise InputError(f"batch_size={cfg['batch_size']} is less than {shared}; each part of a step needs an item")
        further = (devices, cfg.get("precision", 32), cfg.get("verbosity", "normal"))
        return cls(cfg["device"], cfg["threads"], cfg["seed"], *further)

    def use(self) -> torch.device:
        """Sets threads, seed and how much is said; returns the device. Raises `InputError` if it is not there."""
        set_verbosity(self.verbosity)
        if self.threads:
            torch.set_num_threads(self.threads)
        torch.manual_seed(self.seed)
        name = self.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        if name.startswith("cuda") and not torch.cuda.is_available():
            raise InputError(f"device is {name}, but torch sees no GPU here; use device=cpu")
        number = name.partition(":")[2]
        if number and int(number) >= torch.cuda.device_count():
            raise InputError(f"device is {name}, but torch sees {torch.cuda.device_count()} GPU here, numbered from 0")
        return torch.device(name)
