"""What a run that trains is, whatever it trains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from viscos.commands.assemble.measuring import Measuring
from viscos.commands.assemble.splits import Begun
from viscos.data.items import Data
from viscos.data.scaling import Scaling


@dataclass(frozen=True)
class Job(ABC):
    """A training that can go on: what it learns from, what it is measured on, and how."""

    settings: dict[str, Any]
    """As a run saves them: those given, with what was null as it suits what is trained."""
    begun: Begun
    test: Data
    """As the model takes them."""
    classes: int
    """Number of classes of the training items; 0 without labels."""
    scaling: Scaling | None
    measuring: Measuring
    idle: str | None
    """A line on settings that were given and have no effect, if there are any."""

    @property
    @abstractmethod
    def about(self) -> str:
        """What is trained, and from how much, in a line."""

    @property
    def run_dir(self) -> Path:
        """The folder of the run."""
        return self.begun.run_dir

    @property
    def observed(self) -> Tensor:
        """What is observed of the test items (N, …), bool."""
        return self.begun.masks["test"]

    @property
    def seed(self) -> int:
        """What keys all random numbers."""
        return int(self.settings["seed"])

    @property
    def log_every(self) -> int:
        """Steps from one line of curves to the next."""
        return int(self.settings["log_every"])

    @property
    def step(self) -> int:
        """Steps that were made, of what learns in steps that resume anywhere."""
        return 0
