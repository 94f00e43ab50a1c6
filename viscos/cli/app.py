"""Commands as Hydra applications."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from viscos import runs
from viscos.cli import messages, sweep
from viscos.cli.validate import validate
from viscos.core.errors import InputError


class JobFailed(CompactHydraException):
    """A job failed, and its error has been printed; in a sweep, whose folder is named, the other jobs go on."""

    def __init__(self, message: str, status: int, sweep: str | None = None) -> None:
        super().__init__(message, status, sweep)
        self.status, self.sweep = status, sweep


def run(command: str, arguments: list[str]) -> int:
    """Composes the settings, runs the job or jobs, and returns the exit status."""
    ordered = _ordered(arguments)
    new = [path for path in (Path("outputs", command), Path("outputs")) if not path.exists()]
    application = hydra.main(version_base="1.3", config_path="pkg://viscos.configs", config_name=command)(job)
    try:
        with _hydra_process(command, ordered):
            application()
    except JobFailed as failure:
        if failure.sweep:  # Hydra raises the first job's error, after the last job
            print(f"viscos {command}: {sweep.failures(failure.sweep)}", file=sys.stderr)
        return failure.status
    except KeyboardInterrupt as interrupt:
        swept = not {"--multirun", "-m"}.isdisjoint(ordered)
        raise KeyboardInterrupt("interrupted; the same command goes on" if swept else str(interrupt)) from None
    except (CompactHydraException, OmegaConfBaseException, ValueError, OSError) as error:
        # Jobs raise JobFailed only, so these come from composing the settings or from making the run folder.
        raise InputError(messages.composition(command, error)) from error
    finally:
        for path in new:  # a refused run leaves nothing behind, not even the folders above its own
            with contextlib.suppress(OSError):
                path.rmdir()
    return 0


def job(config: DictConfig) -> Any:
    """One run; a function of this module, so that launchers can start it in another process."""
    settings = HydraConfig.get()
    command, folder = str(settings.job.config_name), str(settings.runtime.output_dir)
    if settings.mode != RunMode.MULTIRUN:
        return _attempt(f"viscos {command}", command, config, folder)
    job = sweep.Job(str(settings.job.override_dirname), config, command, folder)
    label = f"viscos {command}: job {settings.job.num} ({job.overrides})"
    alone = settings.launcher["_target_"].endswith(".BasicLauncher")
    with contextlib.nullcontext() if alone else sweep.side_by_side(f"[{settings.job.num}] "):
        if job.finished:
            print(f"{label} is finished, in {folder}", flush=True)
            return None
        print(f"{label} in {folder}", flush=True)
        sweep.forget_failure(folder)
        return _attempt(label, command, config, folder, job)


def _attempt(label: str, command: str, config: DictConfig, folder: str, swept: sweep.Job | None = None) -> Any:
    """Runs a command, printing what goes wrong; `swept` if it is a job of a sweep."""
    try:
        cfg = _plain(command, config)
        if swept and swept.interrupted:
            cfg["resume"] = folder
        return execute(command, cfg, folder)
    except Exception as error:
        status, reason = messages.report(label, error), messages.reason(error)
        if swept:
            sweep.note_failure(folder, reason)
        if swept and status == 1:
            print(f"{label}: failed with {type(error).__name__}, see above", file=sys.stderr)
        raise JobFailed(reason, status, str(Path(folder).parent) if swept else None) from None
    finally:
        runs.discard_if_empty(folder)


def execute(command: str, cfg: dict[str, Any], folder: str) -> Any:
    """Runs `viscos.commands.<command>.run` on checked settings, with the run folder as `run_dir` among them."""
    validate(command, cfg)
    # Imported here: it brings torch, which bad settings need not wait for.
    return importlib.import_module(f"viscos.commands.{command}").run({**cfg, "run_dir": folder})


def _plain(command: str, config: DictConfig) -> dict[str, Any]:
    try:
        cfg = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise InputError(messages.composition(command, error)) from error
    assert isinstance(cfg, dict)
    return {str(key): value for key, value in cfg.items()}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def _ordered(arguments: list[str]) -> list[str]:
    """The flags, then the settings: Hydra's parser does not take them mixed."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    parser.add_argument("--package", "-p")
    parser.add_argument("--config-dir", "-cd")
    for flag in (("--resolve",), ("--multirun", "-m"), ("--hydra-help",)):
        parser.add_argument(*flag, action="store_true")
    overrides = parser.parse_intermixed_args(arguments).overrides
    return [argument for argument in arguments if argument not in overrides] + overrides


class _Stderr:
    """Standard error without the line with which Hydra announces an error that is printed already."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return len(text) if text.startswith("Error executing job with overrides") else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _hydra_process(command: str, arguments: list[str]) -> Iterator[None]:
    """The arguments and the environment that Hydra reads, put back afterwards."""
    # With HYDRA_FULL_ERROR, Hydra raises its errors; without, it prints them and exits.
    changed = {"HYDRA_FULL_ERROR": "1", "VISCOS_RUN_ID": secrets.token_hex(3)}
    argv, environment = sys.argv, {key: os.environ.get(key) for key in changed}
    sys.argv = [f"viscos {command}", *arguments]
    os.environ.update(changed)
    try:
        with contextlib.redirect_stderr(_Stderr(sys.stderr)):
            yield
    finally:
        sys.argv = argv
        for key, value in environment.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value
