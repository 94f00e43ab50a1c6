"""Errors as one line each."""

from __future__ import annotations

import difflib
import re
import sys
import traceback

from viscos.cli.outline import choices, outline, settings
from viscos.core.errors import InputError


def _bad_input(error: BaseException | None) -> InputError | None:
    """The `InputError` that `error` is or came from; builders wrap what a constructor raises."""
    while error is not None and not isinstance(error, InputError):
        error = error.__cause__
    return error


def report(label: str, error: Exception) -> int:
    """Prints what went wrong in a command, and returns the exit status: bad input is one line, the rest a traceback."""
    cause = _bad_input(error)
    if cause is None:
        traceback.print_exception(error)
        return 1
    print(f"{label}: {reason(error)}", file=sys.stderr)
    return 2


def reason(error: Exception) -> str:
    """What went wrong, in one line."""
    cause = _bad_input(error)
    return " ".join((str(cause) if cause else f"{type(error).__name__}: {error}").split())


def composition(command: str, error: Exception) -> str:
    """What Hydra says in several lines when it cannot compose the settings, in one that names the remedy."""
    text = str(error)
    options = getattr(error, "options", None)
    if options:
        part, _, choice = str(getattr(error, "missing_cfg_file", "")).rpartition("/")
        return f"{part}={choice}: there is no such choice; choose from {', '.join(options)}"
    if found := re.match(r"Could not (?:override|delete from config\.) '([^']+)'", text):
        return _unknown(command, found[1])
    if found := re.match(r"Ambiguous value for argument '(.+)'", text):
        return f"{found[1]} gives several values: add --multirun to run each, or write {_as_list(found[1])} for a list"
    if "missing EQUAL" in text:
        return f"cannot read {getattr(error, 'override', text)!r}; settings are written key=value"
    if hasattr(error, "override"):
        return f"cannot read {error.override!r}; quote a value with special characters: 'key=\"value\"'"
    if text.startswith("Missing mandatory value"):
        return _needed(command, str(getattr(error, "full_key", "a value")))
    if "Config group override must be" in text:
        names = ", ".join(part.name for part in outline(command).parts)
        return f"each part ({names}) must be one of its choices; `viscos {command} --help` lists them"
    key = getattr(error, "full_key", None)
    return f"cannot use these settings: {_first_line(error)}" + (f" (in {key})" if key else "")


def _unknown(command: str, key: str) -> str:
    page = outline(command)
    known = [item.name for item in (*page.options, *page.parts)]
    for part in page.parts:
        known += [f"{part.name}.{name}" for choice in choices(part.name) for name in settings(part.name, choice)]
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near and near[0] != key else ""
    return " ".join(f"there is no option {key!r} here; {hint} `viscos {command} --help` lists them".split())


def _needed(command: str, key: str) -> str:
    meaning = next((option.meaning for option in outline(command).options if option.name == key), "")
    return f"{key}=… is needed" + (f": {meaning}" if meaning else "")


def _as_list(override: str) -> str:
    key, _, value = override.partition("=")
    return f"{key}=[{value}]"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
