"""What a figure is drawn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from viscos.core.batch import incomplete
from viscos.flows import Flow
from viscos.imputers import GivenImputer
from viscos.report.density import Plane
from viscos.report.figures.completed import Completed


@dataclass(frozen=True)
class Source:
    """A run, and what another method left beside it. Each part is read when a figure asks for it."""

    run: Path
    """Folder of `viscos impute`, or of `viscos train`."""
    flow: Callable[[], Flow]
    """That the run was made with."""
    plane: Callable[[], Plane]
    """Its density; `InputError` unless it is over the plane."""
    other: Path | None = None
    """Run folder, .npz or .npy file of another method."""

    def completed(self) -> Completed:
        """The run's completions of images."""
        return Completed.read(self.run)

    def others(self, done: Completed) -> tuple[str, Tensor] | None:
        """The other method's name, by that of its file or folder, and its first draws (N, C, H, W), if there is one.

        Raises `InputError` if they are of other items than `done`, the run's.
        """
        if self.other is None:
            return None
        given = GivenImputer.read(self.other)  # as `viscos eval completions=` reads it
        if given.draws.shape[1:] == done.truth.shape:  # else the figure says which there are
            given.check(incomplete(done.truth, done.observed))
        return given.label, given.draws[0]
