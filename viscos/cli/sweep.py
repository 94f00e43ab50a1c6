"""Sweeps that can be stopped and run again.

A job's folder is named after its settings, not after the time: the same settings find the same folder, see there
whether the job is finished, was interrupted or failed, and go on from that.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from omegaconf import DictConfig, OmegaConf

from viscos import runs
from viscos.core import atomic
from viscos.runs import own_files

FAILED = "failed.txt"
"""Why a job failed, in one line, in its folder; gone when it is run again."""
_LONGEST = 100


def job_name(overrides: str, *, _root_: DictConfig) -> str:
    """The name of a job's folder: what was set, and a digest of all its settings and of the data files that they name.

    So a job whose data have changed since it ran is another job. The name has no character that would have to be quoted
    in checkpoint=<folder>.
    """
    keys = [str(key) for key in _root_ if key != "hydra"]
    cfg: Any = OmegaConf.to_container(OmegaConf.masked_copy(_root_, keys), resolve=True)
    essence, files = runs.essence(cfg), own_files.digests(cfg)
    said = json.dumps({**essence, "files": files} if files else essence, sort_keys=True)
    digest = hashlib.sha256(said.encode()).hexdigest()[:8]
    words = re.sub(r"[^\w.+-]+", "_", overrides.replace(",", "-"), flags=re.ASCII)[:_LONGEST].strip("._")
    return f"{words}-{digest}" if words else digest


OmegaConf.register_new_resolver("viscos.job_name", job_name, replace=True)


@dataclass(frozen=True)
class Job:
    """A job of a sweep: what was set, its settings and its folder."""

    overrides: str
    config: DictConfig
    command: str
    folder: str

    @property
    def finished(self) -> bool:
        """Whether it need not run again."""
        return self._known and not self.config.get("overwrite") and Path(self.folder, runs.RECORD).is_file()

    @property
    def interrupted(self) -> bool:
        """Whether an earlier run left a checkpoint to go on from; finished batches a run finds itself."""
        return self.command == "train" and self._known and Path(self.folder, runs.CHECKPOINT).is_file()

    @property
    def _known(self) -> bool:
        """Whether the folder holds this job alone; under another hydra.sweep.subdir it may hold any."""
        return Path(self.folder).name == job_name(self.overrides, _root_=self.config)


def forget_failure(folder: str) -> None:
    """Before a job runs again."""
    Path(folder, FAILED).unlink(missing_ok=True)


def note_failure(folder: str, reason: str) -> None:
    """Leaves the reason in the job's folder, where whoever started the sweep finds it from any process."""
    with contextlib.suppress(atomic.WriteError):  # which may be the reason, and is printed all the same
        atomic.write(Path(folder, FAILED), lambda path: path.write_text(reason + "\n", encoding="utf-8"))


def failures(folder: str | Path, since: float) -> str:
    """The jobs in a sweep's folder that have failed since a time, in seconds, a line each with the reason."""
    notes = sorted(note for note in Path(folder).glob(f"*/{FAILED}") if note.stat().st_mtime >= since)
    lines = [f"  {note.parent.name}: {note.read_text(encoding='utf-8').strip()}" for note in notes]
    return "\n".join([f"failed in {folder}; the same command runs only what is not finished:", *lines])


class Prefixed:
    """A stream whose lines begin with the name of their job, so that jobs side by side can be told apart."""

    def __init__(self, stream: TextIO, prefix: str) -> None:
        self._stream, self._prefix, self._line = stream, prefix, ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        self._stream.write("".join(f"{self._prefix}{line}\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        """Never: a bar that is drawn again and again would draw over the others."""
        return False


@contextlib.contextmanager
def side_by_side(prefix: str) -> Iterator[None]:
    """What a job prints, line by line under its name."""
    out: Any = Prefixed(sys.stdout, prefix)
    err: Any = Prefixed(sys.stderr, prefix)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield
