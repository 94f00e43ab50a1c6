"""`viscos train|impute resume=<run folder>`: the run's own settings, in its own folder, with nothing composed anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from viscos import runs
from viscos.cli import messages
from viscos.cli.app import execute
from viscos.cli.outline import outline
from viscos.core.errors import InputError
from viscos.core.typed import typed

CHANGEABLE = {
    "train": ("epochs", "max_steps", "temper", "allow", "dataset.path", "dataset.root", *runs.MACHINE),
    "impute": ("allow", "threads", "device", "devices", "verbosity"),
}
"""Settings that a resumed run may change: they do not change what was computed so far. `temper` adds the last phase to
a run that was trained without it.

With another length, the steps that remain have the learning rates that a run of that length has there. On other
devices, or in other micro-batches, they are the same but for rounding and the classifier's batch normalisation.
"""


def requested(command: str, arguments: list[str]) -> str | None:
    """The run folder, or a checkpoint in it, that is to be resumed, if any."""
    if command not in CHANGEABLE:
        return None
    values = [argument.removeprefix("resume=") for argument in arguments if argument.startswith("resume=")]
    return next((value.strip("'\"") for value in values if value not in ("", "null")), None)


def run(command: str, path: str, arguments: list[str]) -> int:
    """Continues the run of `command` at `path` and returns the exit status."""
    what = f"run of `viscos {command}`"
    folder = _folder(path) if command == "train" else runs.named(path, runs.COMPLETED, what).resolve()
    if command != "train" and (folder / runs.CHECKPOINT).is_file():
        raise InputError(
            f"{path} is a training: `viscos train {typed('resume', path)}` goes on with it, and "
            f"`viscos {command} {typed('checkpoint', path)}` takes it as it is"
        )
    # What the run's own file allows counts for nothing: it may be somebody else's.
    cfg = runs.load_config(folder) | {"allow": None, "resume": str(folder)}
    if lacking := {option.name for option in outline(command).options} - cfg.keys():
        raise InputError(f"{path} is no run of `viscos {command}` that can go on: it does not set {min(lacking)}")
    changes = _changes(command, arguments)
    given = tuple(changes)
    place = {key.partition(".")[2]: changes.pop(key) for key in tuple(changes) if key.startswith("dataset.")}
    cfg |= changes
    if place:
        cfg["dataset"] = cfg["dataset"] | place
    try:
        execute(command, cfg, str(folder), given=given)
    except Exception as error:
        return messages.report(f"viscos {command}", error)
    return 0


def _folder(path: str) -> Path:
    """The folder of a training; raises `InputError` for a file in it that it would not go on from."""
    found = runs.find_checkpoint(path)
    if found.name != runs.CHECKPOINT:
        raise InputError(
            f"{path}: a training goes on from the {runs.CHECKPOINT} of its folder; to go on from another state, give "
            "it that name in a copy of the folder"
        )
    return found.parent.resolve()


def _changes(command: str, arguments: list[str]) -> dict[str, Any]:
    changes = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key == "resume":
            continue
        if not equals or key not in CHANGEABLE[command]:
            may = ", ".join(CHANGEABLE[command])
            raise InputError(f"{argument!r} cannot be given with resume=…; only {may} may change")
        try:
            changes[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise InputError(f"cannot read {argument!r}") from error
    return changes
