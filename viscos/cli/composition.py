"""Hydra, as the command line uses it: what it does otherwise than we want is put right here, and nowhere else."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import hydra
import yaml
from hydra._internal.hydra import Hydra
from hydra.conf import HydraConf
from hydra.errors import CompactHydraException
from hydra.plugins.sweeper import Sweeper
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from viscos.cli.outline import choices, outline, settings
from viscos.cli.validate import RULES
from viscos.core import atomic
from viscos.core.choices import OWN
from viscos.core.errors import InputError
from viscos.core.typed import typed
from viscos.runs.folder import discard_if_empty

_PLACE = {
    "train": "resume",
    "impute": "checkpoint",
    "eval": "checkpoint",
    "bench": "checkpoint",
    "table": "runs",
    "figure": "run",
}
"""The setting of each command that is a run folder."""
REFUSALS = (CompactHydraException, OmegaConfBaseException, ValueError, OSError)
"""What Hydra raises when it cannot compose the settings, or cannot make the run folder."""


def apply(job: Any, command: str, arguments: list[str]) -> None:
    """Composes the settings of a command and calls `job` with them; of a sweep, with those of each job."""
    application = hydra.main(version_base="1.3", config_path="pkg://viscos.configs", config_name=command)(job)
    with _process(command, arguments) as run, _composing_once(arguments):
        try:
            application()
        except OSError:  # Hydra makes the run folder, and may then be unable to write into it
            for folder in Path("outputs", command).glob(f"*_{run}"):
                discard_if_empty(folder)
            raise


def plain(command: str, config: DictConfig) -> dict[str, Any]:
    """The settings as a dict; raises `InputError` for one that is needed and not set."""
    try:
        cfg = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise InputError(explained(command, error)) from error
    assert isinstance(cfg, dict)
    return {str(key): value for key, value in cfg.items()}


def is_sweep(settings: HydraConf) -> bool:
    """Whether the job is one of several."""
    return bool(settings.mode == RunMode.MULTIRUN)


def leaving_nothing(arguments: list[str], folder: str) -> list[str]:
    """The arguments of a sweep such that its jobs run here, one by one, and leave nothing but in `folder`."""
    kept = [each for each in arguments if not each.lstrip("+").startswith(("hydra/launcher", "hydra.launcher"))]
    return [*kept, f"hydra.sweep.dir={folder}"]


def given(settings: HydraConf) -> list[str]:
    """The names of the settings that were typed, without those of Hydra."""
    names = [str(override).partition("=")[0].lstrip("+~") for override in settings.overrides.task]
    return list(dict.fromkeys(names))


def one_by_one(settings: HydraConf) -> bool:
    """Whether the jobs of a sweep run in this process, one after the other; so Hydra's own launcher, and no other."""
    return bool(settings.runtime.choices["hydra/launcher"] == "basic")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        unknown = message.startswith("unrecognized arguments")
        raise InputError(message + "; settings are written key=value, without dashes" * unknown)


def ordered(arguments: list[str]) -> list[str]:
    """The flags, then the settings: Hydra's parser does not take them mixed, and ends the process at an unknown flag.

    So they are parsed here first, by the flags of Hydra that mean something to a user.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    parser.add_argument("--package", "-p")
    parser.add_argument("--config-dir", "-cd")
    for flag in (("--resolve",), ("--multirun", "-m"), ("--hydra-help",)):
        parser.add_argument(*flag, action="store_true")
    overrides = parser.parse_intermixed_args(arguments).overrides
    return [argument for argument in arguments if argument not in overrides] + overrides


def with_own_parts(command: str, arguments: list[str]) -> list[str]:
    """`flow._target_=package.function flow.depth=3` stands for `flow=own` with these settings.

    Hydra refuses settings that no YAML file has, unless they begin with +; what code of one's own takes, none can have.
    """
    keys = {argument.partition("=")[0] for argument in arguments}
    parts = [part.name for part in outline(command).parts if OWN in choices(part.name)]
    named = {part for part in parts if f"{part}._target_" in keys}
    # Of a data set that the run knows, one setting may be given alone.
    of_run = any(part.name == "dataset" and part.default == "null" for part in outline(command).parts)
    known = {"dataset"} - keys if of_run or "checkpoint" in keys else set[str]()
    given = [f"++{each}" if each.partition(".")[0] in named | known else each for each in arguments]
    return given + [f"{part}={OWN}" for part in sorted(named - keys)]


def with_mask_file(arguments: list[str]) -> list[str]:
    """`observed=mask.png` stands for `mask=file mask.path=mask.png`."""
    found = [argument for argument in arguments if argument.startswith("observed=")]
    if not found:
        return arguments
    masks = {argument for argument in arguments if argument.startswith(("mask=", "mask.path="))} - {"mask=file"}
    if masks:
        raise InputError(f"observed= is short for mask=file mask.path=, and {min(masks)} is given too; leave one out")
    kept = [argument for argument in arguments if argument not in found and argument != "mask=file"]
    return [*kept, "mask=file", *(f"mask.path={argument.partition('=')[2]}" for argument in found)]


class _Stderr:
    """Standard error without the line with which Hydra announces an error that is printed already."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return len(text) if text.startswith("Error executing job with overrides") else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _process(command: str, arguments: list[str]) -> Iterator[str]:
    """The arguments and the environment that Hydra reads, since it takes them from nowhere else; put back afterwards.

    With HYDRA_FULL_ERROR, Hydra raises its errors; without, it prints them and ends the process. Gives the word by
    which the folder of a run ends.
    """
    changed = {"HYDRA_FULL_ERROR": "1", "VISCOS_RUN_ID": secrets.token_hex(3)}
    argv, environment = sys.argv, {key: os.environ.get(key) for key in changed}
    sys.argv = [f"viscos {command}", *arguments]
    os.environ.update(changed)
    try:
        with contextlib.redirect_stderr(_Stderr(sys.stderr)):
            yield changed["VISCOS_RUN_ID"]
    finally:
        sys.argv = argv
        for key, value in environment.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value


@contextlib.contextmanager
def _composing_once(arguments: list[str]) -> Iterator[None]:
    """Keeps Hydra from composing all settings a time more, which takes as long as all else before a command begins.

    It does so to see whether the settings have `hydra.mode`, which here the flag or the command line decides, and no
    file of settings; and again for each job of a sweep, to see whether that can be composed, which `viscos.cli.app` has
    seen by then.
    """
    if any(argument.lstrip("+").startswith("hydra.mode=") for argument in arguments):
        yield
        return
    repeated = [(Hydra, "get_mode"), (Sweeper, "validate_batch_is_legal")]
    kept = [getattr(owner, name) for owner, name in repeated]
    for owner, name in repeated:
        setattr(owner, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for (owner, name), method in zip(repeated, kept, strict=True):
            setattr(owner, name, method)


def _of_ones_own(part: str, path: str) -> str:
    """How a file or folder of the user's own is named, where that stands in the place of a choice."""
    place = Path(path)
    of_arrays = "array" if place.suffix in (".npy", ".npz") else "table"
    kind = {"dataset": "folder" if place.is_dir() else of_arrays, "mask": "file"}.get(part)
    return f"; a path of your own: {part}={kind} {part}.path={path}" if kind and place.exists() else ""


def explained(command: str, error: Exception) -> str:
    """What Hydra says in several lines when it cannot compose the settings, in one that names the remedy.

    Its errors have no codes and few classes, so that most are told apart by how their texts begin.
    """
    if isinstance(error, OSError) and not isinstance(error, CompactHydraException):  # some of which are both
        return atomic.refusal(error.filename or Path("outputs", command), error)
    text = str(error)
    options = getattr(error, "options", None)
    if options:
        part, _, choice = str(getattr(error, "missing_cfg_file", "")).partition("/")
        return f"{part}={choice}: there is no such choice; choose from {', '.join(options)}{_of_ones_own(part, choice)}"
    if found := re.match(r"Could not (?:override|delete from config\.) '([^']+)'", text):
        return _unknown(command, found[1])
    if found := re.match(r"Ambiguous value for argument '(.+)'", text):
        return _several(found[1])
    if hasattr(error, "override"):
        return _unread(command, str(error.override))
    if text.startswith("Missing mandatory value"):
        return _needed(command, str(getattr(error, "full_key", "a value")))
    if "Config group override must be" in text:
        names = ", ".join(part.name for part in outline(command).parts)
        return f"each part ({names}) must be one of its choices; `viscos {command} --help` lists them"
    key = getattr(error, "full_key", None)
    return f"cannot use these settings: {_first_line(error)}" + (f" (in {key})" if key else "")


def _unknown(command: str, key: str) -> str:
    """What can be done about a setting that there is not, or that only other choices of its part have."""
    page = outline(command)
    known: dict[str, list[str]] = {item.name: [] for item in (*page.options, *page.parts)}
    for part in page.parts:
        for choice in choices(part.name):
            for name in settings(part.name, choice):
                known.setdefault(f"{part.name}.{name}", []).append(f"{part.name}={choice}")
    if known.get(key):
        return f"there is no option {key!r} here; it is one of {', '.join(known[key])}"
    prefix, dot, name = key.rpartition(".")
    prefix += dot
    beside = [each.removeprefix(prefix) for each in known if dot and each.startswith(prefix)]
    own = [option.name for option in page.options]  # may always be said; those of parts, where a choice has them
    groups = [beside] if beside else [own, list(known)]
    near = next(filter(None, (difflib.get_close_matches(name if beside else key, group, n=1) for group in groups)), [])
    meant = [prefix * bool(beside) + each for each in near]
    hint = f"did you mean {meant[0]!r}?" if meant and meant[0] != key else ""
    shown = "--cfg job" if beside else "--help"
    return " ".join(f"there is no option {key!r} here; {hint} `viscos {command} {shown}` lists them".split())


def _needed(command: str, key: str) -> str:
    meaning = next((option.meaning for option in outline(command).options if option.name == key), "")
    return f"{key}=… is needed" + (f": {meaning}" if meaning else "")


def _several(override: str) -> str:
    """What can be done about values between commas: a list only where the setting takes one."""
    key, _, value = override.partition("=")
    listed, rule = yaml.safe_load(f"[{value}]"), RULES.get(key)
    taken = rule is None or rule(listed) is None
    ways = "add --multirun to run each" + (f", or write {typed(key, listed)} for a list" if taken else "")
    return f"{override} gives several values: {ways}"


def _unread(command: str, override: str) -> str:
    """What can be done about a word that is no setting, or whose value Hydra's grammar does not take."""
    key, equals, value = override.partition("=")
    if not equals:
        meant = _meant(command, override)
        return f"cannot read {override!r}; settings are written key=value" + (f": {meant}" if meant else "")
    inside = re.fullmatch(r"\[(.*)\]", value)
    parts: Any = [part.strip().strip("'\"") for part in inside[1].split(",")] if inside else value
    return f"cannot read {override!r}; quote what has special characters: {typed(key, parts)}"


def _meant(command: str, word: str) -> str | None:
    """The setting that a path stands for which was given without its name."""
    path = Path(word).expanduser()
    if not path.exists():
        return None
    saved = path.is_dir() or path.suffix == ".pt"
    return typed("input" if command == "impute" and not saved else _PLACE[command], word)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
