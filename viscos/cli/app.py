"""Commands as Hydra applications."""

from __future__ import annotations

import contextlib
import importlib
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from omegaconf import DictConfig

from viscos import runs
from viscos.cli import composition, messages, sweep
from viscos.cli.validate import validate
from viscos.commands.interrupt import terminable
from viscos.core.build import allowing, outside
from viscos.core.errors import InputError

DOTTED = ("imputers", "metrics")
"""Settings that are lists of names, which may be dotted paths of code of one's own."""


class JobFailed(CompactHydraException):
    """A job failed, and its error has been printed; in a sweep, whose folder is named, the other jobs go on."""

    def __init__(self, message: str, status: int, sweep: str | None = None) -> None:
        super().__init__(message, status, sweep)
        self.status, self.sweep = status, sweep


def run(command: str, arguments: list[str]) -> int:
    """Composes the settings, runs the job or jobs, and returns the exit status."""
    ordered = composition.with_own_parts(command, composition.with_mask_file(composition.ordered(arguments)))
    began = time.time() - 2  # the clock of a disk may be coarse, or behind
    new = [path for path in (Path("outputs", command), Path("outputs")) if not path.exists()]
    try:
        if not {"--multirun", "-m"}.isdisjoint(ordered):
            _check_jobs(command, ordered)
        composition.apply(job, command, ordered)
    except JobFailed as failure:
        if failure.sweep:  # Hydra raises the first job's error, after the last job
            print(f"viscos {command}: {sweep.failures(failure.sweep, began)}", file=sys.stderr)
        return failure.status
    except KeyboardInterrupt as interrupt:
        swept = not {"--multirun", "-m"}.isdisjoint(ordered)
        raise KeyboardInterrupt("interrupted; the same command goes on" if swept else str(interrupt)) from None
    except InputError:
        raise
    except composition.REFUSALS as error:  # jobs raise JobFailed only
        raise InputError(composition.explained(command, error)) from error
    finally:
        for path in new:  # a refused run leaves nothing behind, not even the folders above its own
            with contextlib.suppress(OSError):
                path.rmdir()
    return 0


def _check_jobs(command: str, ordered: list[str]) -> None:
    """Composes every job of a sweep and looks at its values, before the first one runs.

    Raises `InputError` that names the wrong ones. Only Hydra's own sweeper says beforehand which jobs there will be.
    """
    if any(argument.startswith("hydra/sweeper") for argument in ordered):
        return
    wrong: list[str] = []

    def check(config: DictConfig) -> None:
        settings = HydraConfig.get()
        try:
            validate(command, composition.plain(command, config))
        except InputError as error:
            wrong.append(f"job {settings.job.num} ({settings.job.override_dirname}): {messages.reason(error)}")

    with tempfile.TemporaryDirectory() as folder:
        composition.apply(check, command, composition.leaving_nothing(ordered, folder))
    if wrong:
        raise InputError(f"{'; '.join(wrong)}; no job was started")


def job(config: DictConfig) -> Any:
    """One run; a function of this module, so that launchers can start it in another process."""
    settings = HydraConfig.get()
    command, folder = str(settings.job.config_name), str(settings.runtime.output_dir)
    if not composition.is_sweep(settings):
        return _attempt(f"viscos {command}", command, config, folder)
    job = sweep.Job(str(settings.job.override_dirname), config, command, folder)
    label = f"viscos {command}: job {settings.job.num} ({job.overrides})"
    alone = composition.one_by_one(settings)
    with contextlib.nullcontext() if alone else sweep.side_by_side(f"[{settings.job.num}] "):
        if job.finished:
            print(f"{label} is finished, in {folder}", flush=True)
            return None
        print(f"{label} in {folder}", flush=True)
        sweep.forget_failure(folder)
        return _attempt(label, command, config, folder, job)


def _attempt(label: str, command: str, config: DictConfig, folder: str, swept: sweep.Job | None = None) -> Any:
    """Runs a command, printing what goes wrong; `swept` if it is a job of a sweep."""
    found_empty = runs.holds_nothing(folder)
    try:
        cfg = composition.plain(command, config)
        if swept and swept.interrupted:
            cfg["resume"] = folder
        return execute(command, cfg, folder, _named(cfg), composition.given(HydraConfig.get()))
    except Exception as error:
        status, reason = messages.report(label, error), messages.reason(error)
        if swept:
            sweep.note_failure(folder, reason)
        if swept and status == 1:
            print(f"{label}: failed with {type(error).__name__}, see above", file=sys.stderr)
        raise JobFailed(reason, status, str(Path(folder).parent) if swept else None) from None
    finally:
        if found_empty:
            runs.discard_if_empty(folder)


def execute(command: str, cfg: dict[str, Any], folder: str, own: Sequence[str] = (), given: Sequence[str] = ()) -> Any:
    """Runs `viscos.commands.<command>.run` on checked settings, with the run folder as `run_dir` among them.

    `given` names the settings that were typed, so that the command can say which of them have no effect.
    Code outside viscos may be run if its name is in `own`, or below one there, or in the setting `allow`.
    """
    validate(command, cfg)
    if cfg.get("checkpoint") == runs.LATEST:
        cfg = {**cfg, "checkpoint": str(runs.named(runs.LATEST))}
    # torch itself says so on the first derivative that it takes forward, and no user can do anything about it.
    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=FutureWarning)
    allow = cfg.get("allow") or []
    with allowing([*own, *([allow] if isinstance(allow, str) else allow)]), terminable():
        # Imported here: it brings torch, which bad settings need not wait for.
        return importlib.import_module(f"viscos.commands.{command}").run(
            {**cfg, "run_dir": folder, "given": list(given)}
        )


def _named(cfg: dict[str, Any]) -> list[str]:
    """Code outside viscos that the settings name, as a part or in a list of dotted paths.

    They were composed from what the user typed and from the YAML files that the user chose, and from no checkpoint: so
    it is code that the user wants to be run.
    """
    listed = [name for setting in DOTTED for name in cfg.get(setting) or []]
    parts = [part["_target_"] for part in _parts(cfg) if "_target_" in part]
    return [name for name in map(str, listed + parts) if outside(name)]


def _parts(cfg: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for value in cfg.values():
        if isinstance(value, dict):
            yield value
            yield from _parts(value)
