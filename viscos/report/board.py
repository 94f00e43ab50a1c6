"""TensorBoard."""

from __future__ import annotations

import math
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from viscos.core import atomic


class Log:
    """Figures and pictures of a run, under `tensorboard/` in its folder.

    With `first`, what an earlier part of the run wrote from that step on is void.
    """

    def __init__(self, run_dir: Path, first: int = 0) -> None:
        self._folder = run_dir / "tensorboard"
        with atomic.writing(self._folder / "events"):
            self._writer = SummaryWriter(str(self._folder), purge_step=first or None)

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with atomic.writing(self._folder / "events"):
            self._writer.close()

    def scalars(self, group: str, figures: dict[str, float], step: int) -> None:
        """Each finite figure under `group/name`."""
        for name, value in figures.items():
            if math.isfinite(value):
                with atomic.writing(self._folder / "events"):
                    self._writer.add_scalar(f"{group}/{name}", value, step)

    def record(self, group: str, record: dict[str, Any], step: int) -> None:
        """Every number of a nested record, under the path of its keys."""
        for name, value in record.items():
            if isinstance(value, dict):
                self.record(f"{group}/{name}", value, step)
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                self.scalars(group, {name: float(value)}, step)

    def image(self, name: str, image: Tensor, step: int) -> None:
        """A picture (3, H, W) in [0, 1]."""
        with atomic.writing(self._folder / "events"):
            self._writer.add_image(name, image, step)
