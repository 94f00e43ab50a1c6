"""TensorBoard."""

from __future__ import annotations

import math
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from viscos.core import atomic
from viscos.core.labels import MEASURES
from viscos.report.kinds import OF_FLOW

_FURTHER = (
    ("accuracy_latents", "value"),
    ("bound", "mean"),
    ("bits_per_dim", "value"),
    ("log_likelihood", "value"),
    ("solver", "evaluations"),
    ("solver", "failed"),
)
"""Numbers of a record that are no metric of completions."""


class Log:
    """Numbers and pictures of a run, under `tensorboard/` in its folder.

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

    def scalars(self, group: str, scalars: dict[str, float], step: int) -> None:
        """Each finite number under `group/name`."""
        for name, value in scalars.items():
            if math.isfinite(value):
                with atomic.writing(self._folder / "events"):
                    self._writer.add_scalar(f"{group}/{name}", value, step)

    def record(self, group: str, record: dict[str, Any], step: int) -> None:
        """The main numbers of a record; `metrics.json` has them all."""
        self.scalars(group, main_numbers(record), step)

    def text(self, name: str, text: str) -> None:
        """A text, as it is, in lines."""
        with atomic.writing(self._folder / "events"):
            self._writer.add_text(name, "\n".join(f"    {line}" for line in text.splitlines()))

    def hparams(self, settings: dict[str, Any], group: str, record: dict[str, Any], step: int) -> None:
        """The main numbers of a record with the settings of its run, by which TensorBoard compares runs."""
        numbers = {f"{group}/{name}": value for name, value in main_numbers(record).items() if math.isfinite(value)}
        with atomic.writing(self._folder / "events"):
            self._writer.add_hparams(flat(settings), numbers, run_name=".", global_step=step)

    def image(self, name: str, image: Tensor, step: int) -> None:
        """A picture (3, H, W) in [0, 1]."""
        with atomic.writing(self._folder / "events"):
            self._writer.add_image(name, image, step)


def main_numbers(record: dict[str, Any]) -> dict[str, float]:
    """What a table would show of the flow itself, and the bound and the solver; by the path of the keys in a record."""
    found: dict[str, Any] = {}
    for measure in MEASURES:
        of_all = record.get(measure.key) or {}
        of_each = {measure.key: of_all, **{f"{measure.key}/{kind}": of_all.get(kind) for kind in OF_FLOW}}
        found |= {name: entry.get(measure.value) for name, entry in of_each.items() if isinstance(entry, dict)}
    for key, name in _FURTHER:
        found["/".join((key, name)) if name != "value" else key] = (record.get(key) or {}).get(name)
    return {name: float(value) for name, value in found.items() if isinstance(value, (int, float))}


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, bool | float | str]:
    """Settings under dotted keys, as TensorBoard takes them."""
    found: dict[str, bool | float | str] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return found
