"""Results of batches, kept in the run folder as they come, until all are there."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from viscos import runs
from viscos.commands.assemble.imputing import Imputing
from viscos.commands.completing.results import Results
from viscos.core.errors import InputError
from viscos.runs import checkpoint


class Shards:
    """The finished batches of a run, each under the number of its first item, and a word where a run has several kinds.

    A batch counts as finished if it is of the same settings, items and weights as the job: those of another job are
    removed, or refused with `InputError` where the job is to go on from them.
    """

    def __init__(self, job: Imputing, kind: str = "") -> None:
        self.folder, self._kind = job.run_dir / runs.SHARDS, f"{kind}_" if kind else ""
        self._about = {
            "settings": checkpoint.digest(runs.essence(job.settings)),
            "items": checkpoint.digest([job.data.values, job.items.observed]),
            "weights": checkpoint.digest(job.weights),
        }
        self._done: dict[int, Results] = {}
        for path in sorted(self.folder.glob(f"{self._kind}[0-9]*.pt")):
            state = checkpoint.load(path)
            about: dict[str, str] = state["about"]
            other = [what for what, digest in self._about.items() if about[what] != digest]
            if other and job.settings["resume"]:
                raise InputError(
                    f"{path} was begun with other {' and '.join(other)} than are there now, so the run cannot go on; "
                    "start it anew, in another folder"
                )
            if other:
                path.unlink(missing_ok=True)
            else:
                self._done[int(path.stem.removeprefix(self._kind))] = Results.from_state(state["completed"])

    def has(self, first: int) -> bool:
        """Whether the batch whose first item has this number is finished."""
        return first in self._done

    def save(self, first: int, part: Results) -> None:
        """Keeps a batch."""
        state: dict[str, Any] = {"about": self._about, "completed": part.state()}
        checkpoint.save(self._path(first), state)
        self._done[first] = part

    def all(self, starts: Iterable[int]) -> list[Results]:
        """The batches of which these are the first items, all of them finished, here or by another process."""
        return [self._done[first] if first in self._done else self._load(first) for first in starts]

    def _load(self, first: int) -> Results:
        return Results.from_state(checkpoint.load(self._path(first))["completed"])

    def remove(self) -> None:
        """Removes them all, when what they say stands elsewhere."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, first: int) -> Path:
        return self.folder / f"{self._kind}{first:08d}.pt"
