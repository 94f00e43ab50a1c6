"""Run folders: where a run's settings and its checkpoint lie."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from viscos.core import atomic
from viscos.core.build import outside
from viscos.core.errors import InputError
from viscos.core.typed import typed

CONFIG = "config.yaml"
"""The settings that a run was made with."""
CHECKPOINT = "checkpoint.pt"
"""The latest state of a run."""
RECORD = "metrics.json"
"""The record of a run, which is written at its end."""
SHARDS = "shards"
"""The folder of the batches that a run of `viscos impute` has finished, in its own."""
COMPLETIONS = "completions.npz"
"""The completions that a run of `viscos impute` left, in its folder."""
COMPLETED = (COMPLETIONS, SHARDS)
"""What a run of `viscos impute` has left: all of its completions, or batches of them until they are there."""
LATEST = "latest"
"""Stands for the newest training, where a checkpoint is asked for; for the newest run of the kind that is to go on."""
OUTPUTS = Path("outputs")
"""Where runs go unless they are told otherwise."""
MACHINE = ("threads", "device", "devices", "precision", "accumulate", "verbosity")
"""Settings that say what a run is computed on, and what it says meanwhile; they do not change what it is."""
_PREPARED = {CONFIG, "tensorboard", "masks_train.npz", "masks_test.npz"}
_DATA_PLACE = ("root", "download", "_target_")  # the name says which data they are


def save_config(run_dir: str | Path, cfg: dict[str, Any]) -> Path:
    """Saves the settings of a run in its folder; the folder's own name is left out, so that it may be moved."""
    text = as_text(cfg)
    return atomic.write(Path(run_dir) / CONFIG, lambda path: path.write_text(text, encoding="utf-8"))


def as_text(cfg: dict[str, Any]) -> str:
    """The settings of a run in YAML, without the name of its folder."""
    kept = {key: value for key, value in cfg.items() if key not in ("run_dir", "given")}
    return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)


def load_config(run_dir: str | Path) -> dict[str, Any]:
    """The settings that were saved in a run folder; raises `InputError` if there are none that can be read."""
    path = Path(run_dir).expanduser() / CONFIG
    try:
        cfg = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{path} cannot be read ({_reason(error)}); give the folder of a run") from error
    if not isinstance(cfg, dict):
        raise InputError(f"{path} holds no settings; give the folder of a run")
    return cfg


def essence(cfg: dict[str, Any]) -> dict[str, Any]:
    """The settings that make a run what it is, wherever it is computed and wherever its data lie."""
    kept = {key: value for key, value in cfg.items() if key not in (*MACHINE, "resume", "run_dir", "allow")}
    if isinstance(cfg.get("dataset"), dict):
        kept["dataset"] = {key: value for key, value in cfg["dataset"].items() if key not in _DATA_PLACE}
        if outside(target := str(cfg["dataset"].get("_target_", ""))):  # data of a user's own, whatever they are called
            kept["dataset"]["_target_"] = target
    return kept


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint file that `path` stands for: a run folder, the file itself, or `latest`, the newest training.

    Raises `InputError` if there is none.
    """
    given = named(path)
    if given.is_file():
        return given
    if not given.is_dir():
        raise InputError(f"there is no run folder or checkpoint file {str(path)!r}")
    if (given / CHECKPOINT).is_file():
        return given / CHECKPOINT
    if CONFIG in (left := {entry.name for entry in given.iterdir()}) and left <= _PREPARED and _is_run(given):
        raise InputError(f"the run in {str(path)!r} was ended before it had learnt anything; give its command again")
    runs = sorted(given.glob(f"*/{CHECKPOINT}"), key=lambda found: found.stat().st_mtime)
    hint = f"; did you mean {str(runs[-1].parent)!r}?" if runs else ", so it is not the folder of a trained flow"
    raise InputError(f"the folder {str(path)!r} has no {CHECKPOINT}{hint}")


def absolute(path: Path) -> str:
    """The path of a file as it is found from any folder; what is no file keeps its name."""
    return str(path.absolute()) if path.exists() else str(path)


def refuse_taken(run_dir: str | Path, command: str) -> None:
    """Raises `InputError` for a folder that holds what a run of `command` that begins there would write over.

    That is a training, the result of another command, or files that no run left.
    """
    folder = Path(run_dir)
    advice = "leave the folder to viscos, or give another"
    if (folder / CHECKPOINT).exists():
        raise InputError(
            f"{run_dir} holds a training, which this run would write over; {advice} "
            f"(`viscos train {typed('resume', run_dir)}` goes on with it)"
        )
    maker = _maker(folder)
    if maker not in (None, command):
        raise InputError(f"{run_dir} holds a result of `viscos {maker}`, which this run would write over; {advice}")
    if maker or _is_run(folder) or not folder.is_dir():
        return
    if strange := min((path.name for path in folder.iterdir() if path.name != ".hydra"), default=None):
        raise InputError(f"{run_dir} holds {strange}, which is of no run and might be written over; {advice}")


@contextmanager
def alone(run_dir: str | Path) -> Iterator[None]:
    """Holds a run's folder, which is made if need be, for this process as long as it works there.

    Raises `InputError` where another process does. There are disks that cannot tell.
    """
    folder = Path(run_dir)
    with atomic.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"another process is at work in {run_dir}; wait for it, or give another folder: hydra.run.dir=…"
                ) from None
        yield
    finally:
        os.close(handle)


def _maker(folder: Path) -> str | None:
    """The command whose result a folder holds, if any."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(record["command"]) if isinstance(record, dict) and "command" in record else None


def _is_run(folder: Path) -> bool:
    """Whether a folder holds the settings of a run, which may not have come to its end."""
    try:
        return load_config(folder).keys() >= {"seed", "threads"}
    except InputError:
        return False


def has_shards(run_dir: str | Path) -> bool:
    """Whether a run has finished batches that it has not put together."""
    return any((Path(run_dir) / SHARDS).glob("*.pt"))


def named(path: str | Path, left: tuple[str, ...] = (CHECKPOINT,), what: str = "training") -> Path:
    """The folder of the newest training below `outputs` for `latest`, unless something is called so; else `path`.

    Another kind of run, `what` in words, is known by what it has `left` in its folder. Raises `InputError` if there is
    none.
    """
    given = Path(path).expanduser()
    if str(path) != LATEST or given.exists():
        return given
    found = [path for name in left for path in OUTPUTS.rglob(name)]
    if not found:
        raise InputError(f"latest: there is no {what} below {str(OUTPUTS.absolute())!r}; give its folder")
    return max(found, key=lambda path: path.stat().st_mtime).parent


def holds_nothing(run_dir: str | Path) -> bool:
    """Whether a folder is empty, or is not there."""
    return not Path(run_dir).is_dir() or not any(Path(run_dir).iterdir())


def discard_if_empty(run_dir: str | Path) -> None:
    """Removes a folder that holds nothing but what a run writes before it computes anything.

    For one that this process found empty: what was there before is nobody's to remove.
    """
    run_dir = Path(run_dir)
    if run_dir.is_dir() and {entry.name for entry in run_dir.iterdir()} <= _PREPARED:
        shutil.rmtree(run_dir, ignore_errors=True)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
