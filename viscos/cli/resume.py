"""`viscos train resume=<run folder>`: the run's own settings, in its own folder, without composing anything anew."""

from __future__ import annotations

from typing import Any

import yaml

from viscos import runs
from viscos.cli import messages
from viscos.cli.app import execute
from viscos.core.errors import InputError

CHANGEABLE = ("epochs", "max_steps", "allow", *runs.MACHINE)
"""Settings that a resumed run may change: they do not change what was computed so far.

With another length, the steps that remain have the learning rates that a run of that length has there. On other
devices, or in other micro-batches, they are the same but for rounding and the classifier's batch normalisation.
"""


def requested(arguments: list[str]) -> str | None:
    """The run folder, or a checkpoint in it, that is to be resumed, if any."""
    values = [argument.removeprefix("resume=") for argument in arguments if argument.startswith("resume=")]
    return next((value.strip("'\"") for value in values if value not in ("", "null")), None)


def run(path: str, arguments: list[str]) -> int:
    """Continues the run at `path` and returns the exit status."""
    folder = runs.find_checkpoint(path).resolve().parent
    # What the run's own file allows counts for nothing: it may be somebody else's.
    cfg = runs.load_config(folder) | {"allow": None} | _changes(arguments) | {"resume": str(folder)}
    try:
        execute("train", cfg, str(folder))
    except Exception as error:
        return messages.report("viscos train", error)
    return 0


def _changes(arguments: list[str]) -> dict[str, Any]:
    changes = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key == "resume":
            continue
        if not equals or key not in CHANGEABLE:
            raise InputError(f"{argument!r} cannot be given with resume=…; only {', '.join(CHANGEABLE)} may change")
        try:
            changes[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise InputError(f"cannot read {argument!r}") from error
    return changes
